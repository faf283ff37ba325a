"""The plan of a Benchmark, before anything is made for it: what `extproc bench plan` says, for its Pods."""

import math
import multiprocessing
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from extproc.bench.datasets.dataset_cache import zip_dataset
from extproc.bench.experiments.plan import ClientHost, plan
from extproc.bench.experiments.run import spread
from extproc.bench.experiments.sweep import list_tasks
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import Workload, build_workload, name_dataset
from extproc.bench.spec.tree import Spec
from extproc.errors import ExtprocError, SettingsError
from extproc.operator.objects import MOST_BYTES, PreparedDataset
from extproc.operator.resource import Benchmark
from extproc.operator.state import Planned

# What `bench plan` assumes, too; and what a Pod has: Linux's default range of ports, containerd's limit of
# files.
_LATENCY_S = 5.0
_PORTS = 28_232
_FILES = 1_048_576
# A plan holds the whole dataset: a few lines of a spec can ask for more than any operator has.
_MOST_MEMORY: Final = 512 << 20
_LONGEST_S: Final = 60.0


def plan_apart(
    benchmark: Benchmark, most_bytes: int = _MOST_MEMORY, longest_s: float = _LONGEST_S
) -> Planned:
    """Plans in a process of its own, which may take so much and so long; beyond that its Pod finds out."""
    if not _holds_dataset(benchmark):
        return plan_benchmark(benchmark)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_plan_into, args=(theirs, benchmark, most_bytes), daemon=True)
    process.start()
    theirs.close()
    try:
        planned: Planned = ours.recv() if ours.poll(longest_s) else Planned()
    except EOFError:
        planned = Planned()
    finally:
        process.kill()
        process.join()
        ours.close()
    return planned


def _plan_into(told: Connection, benchmark: Benchmark, most_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        planned = plan_benchmark(benchmark)
    except MemoryError:
        planned = Planned()
    told.send(planned)


def plan_benchmark(benchmark: Benchmark) -> Planned:
    """Works out a run as far as that is possible here: nothing of a spec is read or run in the operator.

    Whatever is wrong with a spec is a fault of the plan. Builds the dataset: takes seconds for a large one,
    and raises `MemoryError` for one that is too large.
    """
    operation = benchmark.operation
    if operation.mode == "sweep":
        return _plan_sweep(benchmark.spec)
    if not _holds_dataset(benchmark):
        return Planned()
    try:
        spec = spread(benchmark.spec, operation.workers)
        workload = build_workload(spec, build_registry())
    except ExtprocError as error:
        return Planned(faults=(str(error),))
    cores = max(1, math.floor(read_cpu(operation.pods.cpu))) * operation.workers
    host = ClientHost(cores=cores, ports=_PORTS * operation.workers, files=_FILES)
    made = plan(spec, workload, host, latency_s=_LATENCY_S)
    return Planned(made.faults, made.remarks, _keep(spec, workload) if operation.mode == "run" else None)


def _holds_dataset(benchmark: Benchmark) -> bool:
    return benchmark.operation.mode in {"run", "ab"} and not needs_its_pod(benchmark.spec)


def _plan_sweep(spec: Spec) -> Planned:
    """Whether every load and dataset makes a traffic shape; what each costs its runs find out."""
    try:
        list_tasks(spec)
    except SettingsError as error:
        return Planned(faults=(str(error),))
    return Planned()


def _keep(spec: Spec, workload: Workload) -> PreparedDataset | None:
    """The dataset as an object, if it is one of those; of a comparison's several each has its seed."""
    data = zip_dataset(workload.conversations)
    return PreparedDataset(name_dataset(spec), data) if len(data) <= MOST_BYTES else None


def needs_its_pod(spec: Spec) -> bool:
    """Whether only a Pod of the run has what the plan would read: files, or code."""
    return bool(spec.traffic.dataset.path or spec.plugins or spec.target.tokenizer)


def read_cpu(text: str) -> float:
    """Cores of a Kubernetes quantity: `2`, `500m`."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
