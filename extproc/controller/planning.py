"""The plan of a Benchmark, before anything is made for it: what `extproc bench plan` says, for its Pods."""

import math

from extproc.bench.datasets.shelf import zip_dataset
from extproc.bench.experiments.plan import Host, plan
from extproc.bench.experiments.run import spread
from extproc.bench.experiments.sweep import list_tasks
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import Workload, build_workload, name_dataset
from extproc.bench.spec.tree import Spec
from extproc.controller.objects import MOST_BYTES, Dataset
from extproc.controller.resource import Benchmark
from extproc.controller.state import Planned
from extproc.errors import ExtprocError, SettingsError

# What `bench plan` assumes, too; and what a Pod has: Linux's default range of ports, containerd's limit of
# files.
_LATENCY_S = 5.0
_PORTS = 28_232
_FILES = 1_048_576
# A plan holds the whole dataset; nobody shall fill the operator's memory with one.
_MOST_PROMPTS = 200_000


def plan_benchmark(benchmark: Benchmark) -> Planned:
    """Works out a run as far as that is possible here: nothing of a spec is read or run in the operator.

    Never raises: whatever is wrong with a spec is a fault of the plan. Builds the dataset, so takes seconds
    for a large one.
    """
    operation = benchmark.operation
    if operation.mode == "sweep":
        return _plan_sweep(benchmark.spec)
    if operation.mode not in {"run", "ab"} or needs_its_pod(benchmark.spec):
        return Planned()
    try:
        spec = spread(benchmark.spec, operation.workers)
        workload = build_workload(spec, build_registry())
    except (ExtprocError, MemoryError) as error:
        return Planned(faults=(str(error) or type(error).__name__,))
    cores = max(1, math.floor(read_cpu(operation.pods.cpu))) * operation.workers
    host = Host(cores=cores, ports=_PORTS * operation.workers, files=_FILES)
    made = plan(spec, workload, host, latency_s=_LATENCY_S)
    return Planned(made.faults, made.remarks, _keep(spec, workload) if operation.mode == "run" else None)


def _plan_sweep(spec: Spec) -> Planned:
    """Whether every load and dataset makes a traffic shape; what each costs its runs find out."""
    try:
        list_tasks(spec)
    except SettingsError as error:
        return Planned(faults=(str(error),))
    return Planned()


def _keep(spec: Spec, workload: Workload) -> Dataset | None:
    """The dataset as an object, if it is one of those; of a comparison's several each has its seed."""
    data = zip_dataset(workload.conversations)
    return Dataset(name_dataset(spec), data) if len(data) <= MOST_BYTES else None


def needs_its_pod(spec: Spec) -> bool:
    """Whether only a Pod of the run has what the plan would read: files, code, or a great many prompts."""
    traffic = spec.traffic
    wanted = traffic.total_prompts or (traffic.req_rate or 0.0) * (traffic.duration or 0.0)
    return bool(traffic.dataset.path or spec.plugins or spec.target.tokenizer or wanted > _MOST_PROMPTS)


def read_cpu(text: str) -> float:
    """Cores of a Kubernetes quantity: `2`, `500m`."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
