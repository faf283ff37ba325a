"""What the service costs at the sizes that other routers published: docs/why/performance.md has the table.

A hundred endpoints. Through Envoy with the shipped file, its access logs included, and nothing but
defaults, beside the same Envoy that asks nobody and writes no log; before that, nobody asks at all.
Every prompt is new from its first byte. Endpoints answer at once, as their answers never pass the
service. Clients, two Envoys, endpoints and the service share this machine. CPU is a process's, from
/proc. Four minutes: `make bench-cost`.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from tests.benchmarks.bench_gateway import Arm, beside, build_gateway, under
from tests.stack.client import chat_body
from tests.stack.ports import free_ports
from tests.stack.process import cpu_s, memory_bytes
from tests.stack.service import Service

PAGE: Final = (Path(__file__).parents[1] / "simulator/data/metrics-0.32.0.txt").read_bytes()
ANSWER: Final = b"data: [DONE]\n\n"
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
PATH: Final = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: "
NUMBERS: Final = count(10**7)
IDLE_S: Final = 45.0


@dataclass(frozen=True, slots=True)
class RouterLoad:
    """Bodies of `size` bytes in `messages` messages, `rate` a second or by `clients` that wait."""

    name: str
    size: int
    messages: int
    rate: float
    clients: int
    seconds: float


LOADS: Final = (
    RouterLoad("500 a second, 200 tokens", 800, 1, 500, 400, 12),
    RouterLoad("98 a second, 100,000 tokens", 400_000, 40, 98, 400, 15),
    *(
        RouterLoad(f"220 kB, {clients} clients", 220_000, 20, 0, clients, 6)
        for clients in (20, 60, 100, 150, 200)
    ),
)


class Endpoint(asyncio.Protocol):
    """A vLLM's metrics, and an answer as soon as a body has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._left = transport, 0

    def data_received(self, data: bytes) -> None:
        answer = ANSWER
        if not self._left:
            head, _, data = data.partition(b"\r\n\r\n")
            answer = PAGE if head.startswith(b"GET") else ANSWER
            self._left = int(
                head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0
            )
        self._left -= len(data)
        if not self._left:
            self.write(HEAD % len(answer) + answer)

    def write(self, answer: bytes) -> None:
        self._transport.write(answer)  # type: ignore[attr-defined]  # uvloop's own


def serve_answers(ports: Sequence[int], endpoint: type[Endpoint] = Endpoint) -> None:
    async def forever() -> None:
        for port in ports:
            await asyncio.get_running_loop().create_server(endpoint, "127.0.0.1", port)
        await asyncio.Event().wait()

    uvloop.run(forever())


async def ask_router(port: int, request: Sequence[bytes], starts: Iterator[float]) -> list[float]:
    """One client: takes up each start, and returns how long it was until its answer, in ms."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took_ms = []
    for due_s in starts:
        await asyncio.sleep(due_s - time.perf_counter())
        writer.writelines((request[0], b"%d" % next(NUMBERS), request[1]))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(len(ANSWER))
        took_ms.append((time.perf_counter() - due_s) * 1e3)
    writer.close()
    return took_ms


async def drive(port: int, load: RouterLoad, seconds: float) -> list[float]:
    text = "lorem ipsum " * (load.size // load.messages // 12)
    roles = [("user", "assistant")[i % 2] for i in range(load.messages)]
    messages = [{"role": role, "content": text} for role in roles]
    body = chat_body([{"role": "system", "content": "I am 10000000"}, *messages], max_tokens=1000)
    request = (PATH + b"%d\r\n\r\n" % len(body) + body).split(b"10000000", 1)
    end_s = time.perf_counter() + seconds

    def list_starts() -> Iterator[float]:
        for i in range(round(load.rate * seconds)):
            yield end_s - seconds + i / load.rate
        while not load.rate and (now_s := time.perf_counter()) < end_s:
            yield now_s

    starts = list_starts()
    took = await asyncio.gather(*(ask_router(port, request, starts) for _ in range(load.clients)))
    return [ms for each in took for ms in each]


def measure_cost(arm: Arm, load: RouterLoad) -> dict[str, float]:
    """Requests a second; CPU in ms a request, of the service and of Envoy; memory in MiB; latencies in ms."""
    port, pids = int(arm.gateway.url.rpartition(":")[2]), [arm.gateway.pid]
    pids += [arm.server.pid] if arm.server else []
    uvloop.run(drive(port, load, 2.0))
    missed = arm.gateway.ext_proc()["failure_mode_allowed"]
    before, began_s = [cpu_s(pid) for pid in pids], time.perf_counter()
    took_ms = uvloop.run(drive(port, load, load.seconds))
    rate = len(took_ms) / (time.perf_counter() - began_s)
    envoy, *service = [
        (cpu_s(pid) - was) * 1e3 / len(took_ms) for pid, was in zip(pids, before, strict=True)
    ]
    p50, p99 = np.percentile(took_ms, [50, 99]).tolist()
    memory = memory_bytes(pids[-1]) / 2**20
    missed = arm.gateway.ext_proc()["failure_mode_allowed"] - missed
    if missed:
        print(f"{load.name}: {missed} of {len(took_ms)} requests went past the service")
    return {
        "rate": rate,
        "service": sum(service),
        "envoy": envoy,
        "memory": memory,
        "p50": p50,
        "p99": p99,
    }


def tell(alone: dict[str, float], ours: dict[str, float]) -> Iterator[str]:
    yield from (f"{one['rate']:.1f}" for one in (alone, ours))
    cpu_ms = ours["service"]
    yield from (f"{cpu_ms:.2f}", f"{cpu_ms * ours['rate'] / 1e3:.2f}", f"{ours['memory']:.0f}")
    yield from (f"{alone[name]:.2f}, {ours[name]:.2f}" for name in ("envoy", "p50", "p99"))


def main() -> None:
    ports, arms = free_ports(104), []
    endpoints = ports[4:]
    headings = ("", "Envoy alone: req/s", "with us", "service: CPU, ms/request", "cores", "MiB")
    table = Table(
        *headings, "Envoy: CPU, ms/request, alone, with us", "p50, ms", "p99, ms", title="cost"
    )
    with TemporaryDirectory() as name, ExitStack() as running:
        running.enter_context(beside(serve_answers, endpoints))
        service = Service(under(Path(name), "service"))
        static = [f"127.0.0.1:{port}" for port in endpoints]
        service.configure([{"name": "vllm", "endpoints": {"static": static}}])
        running.enter_context(service).wait_ready()
        time.sleep(20)  # a round of metrics, and what follows a start
        used_s, began_s = cpu_s(service.pid), time.monotonic()
        time.sleep(IDLE_S)
        cores = (cpu_s(service.pid) - used_s) / (time.monotonic() - began_s)
        table.add_row(
            "nobody asks", "", "", "", f"{cores:.3f}", f"{memory_bytes(service.pid) / 2**20:.0f}"
        )
        for i, asked in enumerate((None, service)):
            listen = ports[2 * i], ports[2 * i + 1], asked.port if asked else 0
            gateway = build_gateway(
                under(Path(name), f"envoy-{i}"), *listen, endpoints, is_shipped=True
            )
            running.enter_context(gateway).wait_ready()
            gateway.wait_until(gateway.sees_service if asked else gateway.is_ready)
            arms.append(Arm(f"envoy-{i}", gateway, asked))
        for load in LOADS:
            table.add_row(load.name, *tell(*(measure_cost(arm, load) for arm in arms)))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
