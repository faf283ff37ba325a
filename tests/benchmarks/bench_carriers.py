"""Carriers of letters: what eight gateways with 1,000 requests per second pay, and how late news are.

All gateways in one process, real sockets, a real NATS server beside them. CPU time of the process over what
the same requests cost with nobody to tell, divided by gateways and requests: for each request of all, at each
gateway. The limit of every carrier is one that does nothing: letters are written, sealed, handed over, opened
and heard. `python -m tests.benchmarks.bench_carriers`.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import mean, quantiles
from tempfile import TemporaryDirectory
from time import monotonic, process_time
from typing import Final

import uvloop

from extproc.routing.share.share import Share
from extproc.share.courier import Receiver, Tally
from extproc.share.nats import Nats, NatsAccess
from tests.benchmarks.report import Row, report
from tests.integration.mesh import until
from tests.integration.ports import free_ports
from tests.share.broker import Broker
from tests.share.gateways import Build, Gateway, meshed

GATEWAYS: Final = 8
PER_S: Final = 1_000
SECONDS: Final = 5
ROUNDS: Final = 3
HELD_S: Final = 0.1
# 832 tokens, as in C.
TEXT: Final = "words " * 550


class Straight:
    """A carrier that hands letters over in the process. `everybody` are all of them."""

    def __init__(self, everybody: "list[Straight]", tally: Tally) -> None:
        self._everybody = everybody
        self._tally = tally
        self._receiver: Receiver | None = None
        everybody.append(self)

    async def open(self) -> None:
        """Nothing is needed."""

    async def run(self, receiver: Receiver) -> None:
        self._receiver = receiver
        await asyncio.Future()

    def send(self, data: bytes) -> None:
        for other in self._everybody:
            if other is not self and other._receiver is not None:
                self._tally.count("sent")
                other._receiver.take(data)

    async def close(self) -> None:
        self._receiver = None


def town(builds: Sequence[Build]) -> list[Gateway]:
    return [Gateway(me, build, endpoints=8) for me, build in enumerate(builds, 1)]


async def request(gateways: Sequence[Gateway], seconds: float) -> None:
    """The asked requests, each held for a moment."""
    loop = asyncio.get_running_loop()
    began_s = monotonic()
    for number in range(int(seconds * PER_S)):
        await asyncio.sleep(max(0.0, began_s + number / PER_S - monotonic()))
        pick = gateways[number % len(gateways)].pick(f"{number % 64} {TEXT}")
        loop.call_later(HELD_S, pick.release)
    await asyncio.sleep(2 * HELD_S)


async def alone() -> float:
    """CPU seconds of requests that nobody is told of."""
    gateways = town([meshed(1, [])] * GATEWAYS)
    for gateway in gateways:
        gateway.courier.forget("llama")
    began_s = process_time()
    await request(gateways, SECONDS)
    return process_time() - began_s


async def shared(builds: Sequence[Build]) -> tuple[float, list[float], int]:
    """CPU seconds, each one's estimate of each other's delay, and how many letters were sent."""
    async with AsyncExitStack() as stack:
        gateways = town(builds)
        for gateway in gateways:
            await stack.enter_async_context(gateway.running())
        await until(lambda: all(gateway.neighbours.heard == GATEWAYS - 1 for gateway in gateways), 60)
        await request(gateways, 1)
        began_s, before = process_time(), sent(gateways)
        await request(gateways, SECONDS)
        spent_s = process_time() - began_s
        late_s = [late_s for one in gateways for late_s in delays(one.courier.shares()["llama"])]
        return spent_s, late_s, sent(gateways) - before


def sent(gateways: Sequence[Gateway]) -> int:
    return sum(gateway.counts["sent"] for gateway in gateways)


def delays(share: Share) -> list[float]:
    return [late_s for late_s in share.peers.delays().values() if late_s is not None]


def cpu_s(pid: int) -> float:
    """CPU seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def each_us(spent_s: float) -> float:
    return spent_s / (SECONDS * PER_S) / GATEWAYS * 1e6


async def measure() -> list[Row]:
    rows: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        base_s = await alone()
        rows.setdefault("requests, told to nobody", []).append(each_us(base_s) * GATEWAYS)
        everybody: list[Straight] = []
        await one(rows, "no carrier", [partial(Straight, everybody)] * GATEWAYS, base_s)
        ports = free_ports(GATEWAYS)
        await one(rows, "mesh", [meshed(port, ports) for port in ports], base_s)
        with TemporaryDirectory() as directory, Broker(Path(directory), free_ports(1)[0]) as broker:
            broker.wait_ready()
            access = NatsAccess([f"nats://127.0.0.1:{broker.port}"], user="gateway", password="password")

            def build(tally: Tally, access: NatsAccess = access) -> Nats:
                return Nats(access, "llm", tally)

            await one(rows, "NATS", [build] * GATEWAYS, base_s)
            rows.setdefault("NATS: the server, for each request", []).append(
                each_us(cpu_s(broker.pid)) * GATEWAYS * SECONDS / (SECONDS + 1)
            )
    units = {"late": "ms", "letters": ""}
    return [
        Row(name, samples, next((unit for word, unit in units.items() if word in name), "µs"))
        for name, samples in rows.items()
    ]


async def one(rows: dict[str, list[float]], name: str, builds: Sequence[Build], base_s: float) -> None:
    spent_s, late_s, letters = await shared(builds)
    rows.setdefault(f"{name}: letters each gateway sends for each request of all", []).append(
        letters / (SECONDS * PER_S) / GATEWAYS
    )
    rows.setdefault(f"{name}: CPU at each gateway, for each request of all", []).append(
        each_us(spent_s - base_s)
    )
    rows.setdefault(f"{name}: late, mean", []).append(1000 * mean(late_s))
    rows.setdefault(f"{name}: late, p90 of pairs", []).append(1000 * quantiles(late_s, n=10)[-1])


def main() -> None:
    rows = uvloop.run(measure())
    report("carriers", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
