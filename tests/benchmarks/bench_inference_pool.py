"""Picks while an InferencePool of 1,000 pods changes ten times a second: how long one of them waits at most.

Source, keeper and picker are in this process, the API server in another. A request comes every millisecond
and waits for its pick: for all that holds up the loop. Each change is a pod of 12 kB. CPU between requests is
ours, wall time a busy machine's. docs/how-to/inference-pools.md has the figures and the command. Reference:
the same without changes.
"""

import asyncio
import contextlib
import gc
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from random import Random
from time import perf_counter, process_time

import uvloop

from extproc.router.cluster.inference_pool_source import InferencePoolSource
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.listwatch import KubeAccess
from extproc.router.routing.picker import Picker, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.service.keeper import PoolKeeper
from extproc.router.service.process import prepare_for_long_bodies
from extproc.router.telemetry import Metrics
from tests.benchmarks.bench_pick import short_asks
from tests.benchmarks.report import Row, report
from tests.router.cluster.api_server import PODS, ApiServer, serving, write_kubeconfig
from tests.router.cluster.objects import Object
from tests.router.cluster.pool_objects import pool_object, running_pod

COUNT, CHANGES_PER_S, RUN_S = 1_000, 10, 30
PADDING = "x" * 10_000


def a_pod(number: int, *, ready: bool = True) -> Object:
    pod = running_pod(f"vllm-{number}", f"10.{number // 250}.{number % 250}.1", ready=str(ready))
    pod["spec"]["containers"][0]["env"].append({"name": "PADDING", "value": PADDING})
    return pod


async def serve(changes_per_s: int) -> None:
    """The API server: says its address, and changes pods once somebody watches."""
    async with serving(ApiServer()) as server:
        server.put(pool_object())
        for number in range(COUNT):
            server.put(a_pod(number))
        print(server.url, flush=True)  # to the process that started us
        while not server.of(PODS).watchers:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
        for turn in cycle(range(COUNT)):
            await asyncio.sleep(1 / changes_per_s if changes_per_s else 3_600)
            change(server, turn)


def change(server: ApiServer, turn: int) -> None:
    number = turn // 2
    if turn % 4 < 2:
        server.put(a_pod(number, ready=turn % 2 == 1))
    elif turn % 2:
        server.put(a_pod(number))
    else:
        server.delete(f"vllm-{number}", PODS)


@dataclass
class Waits:
    """One sample per request, milliseconds."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    installed: int = 0


@asynccontextmanager
async def followed(folder: Path, url: str, strategy: str, waits: Waits) -> AsyncGenerator[Picker]:
    """A pool that follows the API server at `url`, once it has its endpoints."""
    (folder / "token").write_text("token-1")
    write_kubeconfig(folder / "kubeconfig", url, folder / "token")
    outside = Outside(Random(1), perf_counter)
    pool = Pool("vllm", STRATEGIES.build(strategy, {}, outside))

    def note(_: str, __: Sequence[object]) -> None:
        waits.installed += 1

    keeper = PoolKeeper(pool, Metrics(), clock=perf_counter, on_change=note)
    access = KubeAccess(KubeClients(str(folder / "kubeconfig")).open, Random(1))
    task = asyncio.create_task(keeper.run(InferencePoolSource(access, "default", "vllm")))
    await keeper.synced.wait()
    assert len(pool.snapshot.names) >= COUNT - 1
    yield Picker([Route(pool)])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def ask(picker: Picker, waits: Waits) -> None:
    asks = cycle(short_asks())
    loop, now_s, used_s = asyncio.get_running_loop(), perf_counter(), process_time()
    end_s, due_s = now_s + RUN_S, now_s
    while due_s < end_s:
        due_s = max(due_s + 0.001, perf_counter())
        woken = asyncio.Event()
        loop.call_later(due_s - perf_counter(), woken.set)
        await woken.wait()
        picker.pick(next(asks)).pick.release()
        waits.wall_ms.append(1_000 * (perf_counter() - due_s))
        before_s, used_s = used_s, process_time()
        waits.cpu_ms.append(1_000 * (used_s - before_s))


async def measure(strategy: str, changes_per_s: int) -> Waits:
    waits = Waits()
    # As the service does it: what start-up made is not looked at again.
    gc.collect()
    gc.freeze()
    prepare_for_long_bodies()
    command = [sys.executable, "-m", "tests.benchmarks.bench_inference_pool", "serve", str(changes_per_s)]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    url = (await child.stdout.readline()).decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        async with followed(Path(folder), url, strategy, waits) as picker:
            await ask(picker, waits)
    child.terminate()
    await child.wait()
    return waits


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(int(sys.argv[2])))
        return
    rows: list[Row] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for strategy, changes_per_s in product(("prefix_hash", "prefix_cache"), (0, CHANGES_PER_S)):
            waits = runner.run(measure(strategy, changes_per_s))
            late = sum(wait_ms > 10 for wait_ms in waits.wall_ms)
            told = f"{waits.installed - 1} told, {len(waits.wall_ms):,} picks"
            name = f"{strategy}, {changes_per_s} changes/s, {told}"
            rows.append(Row(f"{name}: wait, {late} over 10 ms", waits.wall_ms, "ms"))
            rows.append(Row(f"{name}: CPU between two", waits.cpu_ms, "ms"))
    report(f"an InferencePool of {COUNT} pods", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
