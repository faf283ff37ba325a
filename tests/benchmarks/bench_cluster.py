"""Live Kubernetes at 2,000 endpoints in 20 slices: the first list, one change, and what idling costs.

Reference in the same run: the standard library's parse of the same list. The API server runs in this
process, so a figure of a whole exchange has its side in it. `python -m tests.benchmarks.bench_cluster`.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter, thread_time

import msgspec

from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.kubernetes import KubernetesSource
from extproc.router.cluster.listwatch import KubeAccess
from extproc.router.cluster.slicebook import SliceBook
from extproc.router.cluster.slices import EndpointSlice
from extproc.router.routing.endpoint import Endpoint
from tests.benchmarks.report import Row, report, time_us
from tests.router.cluster.api_server import ApiServer, serving, streams, write_kubeconfig
from tests.router.cluster.objects import Object, parsed, pod, slice_object

SLICES, PODS, ROUNDS, IDLE_S = 20, 100, 16, 1.0


class _Slices(msgspec.Struct):
    items: list[EndpointSlice]


@dataclass
class Stopwatch:
    """A sink that notes when it was told."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def replace(self, _: Sequence[Endpoint]) -> None:
        self.changed.set()

    def confirm(self, age_s: float = 0.0) -> None:
        """A bookmark: nothing has changed."""

    def restarted(self, why: str, reason: str | None = None) -> None:
        raise RuntimeError(why)

    def lacks(self, why: str, reason: str) -> None:
        raise RuntimeError(why)

    async def ms_until_told(self, start_s: float) -> float:
        await self.changed.wait()
        self.changed.clear()
        return 1_000 * (perf_counter() - start_s)


def a_slice(number: int, *, first_is_ready: bool = True) -> Object:
    pods = (
        pod(f"vllm-{number}-{index}", f"10.{number}.0.{index + 1}", ready=index > 0 or first_is_ready)
        for index in range(PODS)
    )
    return slice_object(f"vllm-{number:02}", *pods)


@asynccontextmanager
async def following(
    server: ApiServer, kubeconfig: Path, settle_s: float
) -> AsyncGenerator[tuple[Stopwatch, float]]:
    """Runs a source; yields its sink, and the milliseconds from its start to its first list."""
    sink = Stopwatch()
    access = KubeAccess(KubeClients(str(kubeconfig)).open, Random(1))
    source = KubernetesSource(access, "default", "vllm", ("http",), settle_s=settle_s)
    start_s = perf_counter()
    task = asyncio.create_task(source.run(sink))
    synced_ms = await sink.ms_until_told(start_s)
    while not server.watchers:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.001)
    yield sink, synced_ms
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    while server.watchers:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def sync_ms(server: ApiServer, kubeconfig: Path, body: bytes) -> list[float]:
    samples = []
    for _ in range(ROUNDS):
        server.answer_next("list", streams(body))
        async with following(server, kubeconfig, settle_s=0) as (_, synced_ms):
            samples.append(synced_ms)
    return samples


async def change_ms(server: ApiServer, kubeconfig: Path, settle_s: float) -> list[float]:
    samples = []
    async with following(server, kubeconfig, settle_s) as (sink, _):
        for number in range(ROUNDS):
            changed = a_slice(SLICES // 2, first_is_ready=number % 2 == 1)
            start_s = perf_counter()
            server.put(changed)
            samples.append(await sink.ms_until_told(start_s))
            await asyncio.sleep(0.01)
    return samples


async def idle_cpu_ms(server: ApiServer, kubeconfig: Path) -> list[float]:
    """CPU of this thread per second with a bookmark in it; a real API server sends one a minute."""
    samples = []
    async with following(server, kubeconfig, settle_s=0):
        for _ in range(5):
            start_s = thread_time()
            server.bookmark()
            await asyncio.sleep(IDLE_S)
            samples.append(1_000 * (thread_time() - start_s) / IDLE_S)
    return samples


async def measure(folder: Path) -> list[Row]:
    kubeconfig, token = folder / "kubeconfig", folder / "token"
    token.write_text("token-1")
    rows = []
    async with serving(ApiServer()) as server:
        write_kubeconfig(kubeconfig, server.url, token)
        server.put(a_slice(0))
        rows.append(Row("idle at 100 endpoints, CPU per second", await idle_cpu_ms(server, kubeconfig), "ms"))
        for number in range(1, SLICES):
            server.put(a_slice(number))
        body = list_body(server)
        rows.append(
            Row("first list over HTTP, 2,000 endpoints", await sync_ms(server, kubeconfig, body), "ms")
        )
        for settle_s in (0, 0.1):
            name = f"one change over HTTP, told after {1_000 * settle_s:.0f} ms to settle"
            rows.append(Row(name, await change_ms(server, kubeconfig, settle_s), "ms"))
    return [*parse_rows(body), *rows]


def list_body(server: ApiServer) -> bytes:
    tree = {"metadata": {"resourceVersion": str(server.version)}, "items": list(server.slices.values())}
    return json.dumps(tree).encode()


def parse_rows(body: bytes) -> list[Row]:
    decode = partial(msgspec.json.decode, body, type=_Slices)
    slices, change = decode().items, parsed(a_slice(3, first_is_ready=False))
    book = SliceBook(("http",))

    def read_list() -> None:
        book.replace(slices)
        book.endpoints()

    def read_change() -> None:
        book.put(change)
        book.endpoints()

    return [
        Row(name, [sample_us / 1_000 for sample_us in time_us(once, calls=5)], "ms")
        for name, once in (
            (f"json.loads of the list, {len(body) // 1_000} kB", partial(json.loads, body)),
            ("decode of the list", decode),
            ("read of the list into endpoints", read_list),
            ("read of one change into endpoints", read_change),
        )
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(Path(folder)))
    report("cluster: 2,000 endpoints in 20 slices", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
