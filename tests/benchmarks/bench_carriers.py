"""Carriers of letters: what eight gateways with 1,000 requests per second pay, and how late news are.

A process for each gateway, as in service, real sockets, a real NATS server beside them. CPU time of each
process over what the same requests cost it with nobody to tell, divided by the requests of all gateways. The
limit of every carrier is `bench_share`: there letters are written, sealed, opened and heard, not carried.
"""

import asyncio
import gc
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import mean, quantiles
from tempfile import TemporaryDirectory
from time import monotonic, process_time
from typing import Final

import uvloop

from extproc.router.share.nats import Nats, NatsAccess
from tests.benchmarks.bench_gateway import cpu_s
from tests.benchmarks.report import Row, report
from tests.router.share.gateways import Build, Gateway, meshed
from tests.slow.share.broker import Broker
from tests.stack.ports import free_ports
from tests.waiting import until

GATEWAYS: Final = 8
PER_S: Final = 1_000
SECONDS: Final = 5
ROUNDS: Final = 3
WARM_S: Final = 1
HELD_S: Final = 0.1
CHATS: Final = 64
# 832 tokens, as in C.
TEXT: Final = "words " * 550


@dataclass(frozen=True, slots=True)
class Carriage:
    """What carries letters: a mesh on these ports, a NATS server at the one port, or nothing."""

    name: str
    ports: Sequence[int] = ()

    def build(self, place: int) -> Build:
        if self.name == "NATS":
            access = NatsAccess([f"nats://127.0.0.1:{self.ports[0]}"], user="gateway", password="password")
            return lambda tally: Nats(access, "llm", tally)
        return meshed(self.ports[place], self.ports) if self.ports else meshed(1, [])


@dataclass(frozen=True, slots=True)
class Spent:
    """One gateway's: CPU seconds, its estimates of the others' delays, and how many letters it sent."""

    cpu_s: float
    late_s: Sequence[float]
    letters: int


_barriers: list[Barrier] = []


def _keep(barrier: Barrier) -> None:
    """All processes of a measurement wait for each other at this."""
    _barriers.append(barrier)


async def _wait_for_all() -> None:
    await asyncio.to_thread(_barriers[0].wait, 60)


async def request(gateway: Gateway, seconds: float) -> None:
    """One gateway's part of the asked requests, each held for a moment.

    They come at random: gateways in step would have all letters come at once, as they do not in service.
    """
    loop = asyncio.get_running_loop()
    at_s, rng = monotonic(), random.Random(os.getpid())
    for _ in range(int(seconds * PER_S / GATEWAYS)):
        at_s += rng.expovariate(PER_S / GATEWAYS)
        await asyncio.sleep(max(0.0, at_s - monotonic()))
        pick = gateway.pick(f"{rng.randrange(CHATS)} {TEXT}")
        loop.call_later(HELD_S, pick.release)
    await asyncio.sleep(2 * HELD_S)


async def _serve(carriage: Carriage, place: int) -> Spent:
    gateway = Gateway(1 + place, carriage.build(place), endpoints=8)
    async with AsyncExitStack() as stack:
        if carriage.ports:
            await stack.enter_async_context(gateway.running())
            await until(lambda: gateway.neighbours.active == GATEWAYS - 1, 60)
        else:
            gateway.courier.forget("llama")
        await request(gateway, WARM_S)
        await _wait_for_all()
        gc.collect()
        gc.freeze()  # as the service does
        await _wait_for_all()
        began_s, before = process_time(), gateway.counts["sent"]
        await request(gateway, SECONDS)
        spent_s = process_time() - began_s
        delays = gateway.courier.shares()["llama"].peers.delays().values() if carriage.ports else ()
        late_s = [late_s for late_s in delays if late_s is not None]
        spent = Spent(spent_s, late_s, gateway.counts["sent"] - before)
        await _wait_for_all()
        return spent


def serve(carriage: Carriage, place: int) -> Spent:
    gc.unfreeze()
    return uvloop.run(_serve(carriage, place))


def each_us(spent_s: float) -> float:
    """Of so many seconds all that one request takes, at one gateway or one server."""
    return spent_s / (SECONDS * PER_S) * 1e6


def measure(processes: ProcessPoolExecutor) -> list[Row]:
    rows: dict[tuple[str, str], list[float]] = {}

    def note(name: str, unit: str, sample: float) -> None:
        rows.setdefault((name, unit), []).append(sample)

    def run(carriage: Carriage, base_s: float) -> None:
        each = [*processes.map(partial(serve, carriage), range(GATEWAYS))]
        late_ms = [1000 * late_s for one in each for late_s in one.late_s]
        letters = mean(one.letters for one in each) / (SECONDS * PER_S)
        cpu_us = each_us(mean(one.cpu_s for one in each) - base_s)
        note(f"{carriage.name}: letters each gateway sends for each request of all", "", letters)
        note(f"{carriage.name}: CPU at each gateway, for each request of all", "µs", cpu_us)
        note(f"{carriage.name}: late, mean", "ms", mean(late_ms))
        note(f"{carriage.name}: late, p90 of pairs", "ms", quantiles(late_ms, n=10)[-1])

    for _ in range(ROUNDS):
        base_s = mean(one.cpu_s for one in processes.map(partial(serve, Carriage("")), range(GATEWAYS)))
        note("requests, told to nobody", "µs", each_us(base_s) * GATEWAYS)
        run(Carriage("mesh", free_ports(GATEWAYS)), base_s)
        with TemporaryDirectory() as directory, Broker(Path(directory), free_ports(1)[0]) as broker:
            broker.wait_ready()
            run(Carriage("NATS", [broker.port]), base_s)
            server_us = each_us(cpu_s(broker.pid)) * SECONDS / (SECONDS + WARM_S)
            note("NATS: the server, for each request", "µs", server_us)
    return [Row(name, samples, unit) for (name, unit), samples in rows.items()]


def main() -> None:
    context = get_context("spawn")
    barrier = context.Barrier(GATEWAYS)
    with ProcessPoolExecutor(GATEWAYS, context, initializer=_keep, initargs=(barrier,)) as processes:
        rows = measure(processes)
    report("carriers", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
