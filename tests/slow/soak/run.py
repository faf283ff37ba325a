"""One run: load and faults side by side, watched; then the books."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.slow.soak.books import (
    Books,
    ClientEntry,
    Outage,
    Tally,
    compare_counts,
    envoy,
    reconcile,
    service_name,
)
from tests.slow.soak.load import SoakLoad
from tests.slow.soak.logs import read_lines, read_picked, read_served, unexpected
from tests.slow.soak.plan import PlannedFault, plan_faults
from tests.slow.soak.report import Findings
from tests.slow.soak.town import GATEWAYS, Deployment
from tests.slow.soak.watch import Watch

LOOK_S: Final = 2.0
TELL_S: Final = 10.0
# Envoy closes idle connections to endpoints after 4 s; what is open after this is a leak.
REST_S: Final = 6.0
IDLE_S: Final = 60.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    seed: int
    users: int
    carrier: str
    directory: Path


def run_soak(options: Options, tell: Tell) -> Findings:
    town = Deployment(options.directory, options.carrier)
    runner = _Run(town, options, tell)
    with town.running():
        tell(f"everything runs; logs are in {options.directory}")
        in_flight = asyncio.run(runner.go())
    return runner.judge(in_flight)


class _Run:
    def __init__(self, town: Deployment, options: Options, tell: Tell) -> None:
        self._town = town
        self._options = options
        self._tell = tell
        self._watch = Watch()
        urls = [front.gateway.url for front in town.fronts]
        self._load = SoakLoad(urls, options.users, options.seed)
        self._steps: Counter[str] = Counter()
        self._now = ""
        self._began_s = time.time()

    async def go(self) -> dict[str, float]:
        """Runs; returns what is in flight when nobody asks any more."""
        self._began_s = time.time()
        seconds = self._options.seconds
        watching = asyncio.create_task(self._look())
        telling = asyncio.create_task(self._tell_on())
        async with self._load.running():
            has_broker = self._town.broker is not None
            await self._hurt(plan_faults(seconds, self._options.seed, has_broker=has_broker))
            await asyncio.sleep(self._began_s + seconds - time.time())
        in_flight = await self._come_to_rest()
        watching.cancel()
        telling.cancel()
        await asyncio.gather(watching, telling, return_exceptions=True)
        await asyncio.to_thread(self._town.count_all)
        self._town.faults.extend(await asyncio.to_thread(self._town.unwell))
        return in_flight

    async def _hurt(self, steps: list[PlannedFault]) -> None:
        for step in steps:
            await asyncio.sleep(max(0.0, self._began_s + step.at_s - time.time()))
            if time.time() > self._began_s + self._options.seconds:
                return  # a slow machine: what is late is left out
            self._now = str(step)
            try:
                await asyncio.to_thread(self._town.do, step)
            except (AssertionError, OSError) as error:
                self._town.faults.append(f"{step}: {error!r:.300}")
            self._steps[step.kind] += 1
            self._now = ""

    async def _come_to_rest(self) -> dict[str, float]:
        """Waits until nothing is in flight, and connections had time to close; returns what is left."""
        self._now = "the end"
        deadline = time.monotonic() + IDLE_S
        left = await asyncio.to_thread(self._town.in_flight)
        while any(left.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            left = await asyncio.to_thread(self._town.in_flight)
        await asyncio.sleep(REST_S)
        self._watch.look(self._town.processes())
        return left

    async def _look(self) -> None:
        while True:
            await asyncio.to_thread(self._watch.look, self._town.processes())
            await asyncio.sleep(LOOK_S)

    async def _tell_on(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            self._tell(self._describe())

    def _describe(self) -> str:
        load, passed_s = self._load, round(time.time() - self._began_s)
        ends = ", ".join(f"{end} {count}" for end, count in sorted(load.ends.items()))
        latest = self._watch.latest().items()
        sizes = "+".join(
            f"{one.memory_mb:.0f}" for name, one in latest if name.startswith("service")
        )
        clock = f"{passed_s // 60}:{passed_s % 60:02} of {self._options.seconds / 60:.1f} min"
        return f"{clock}  {len(load.asked)} ({ends}), open {load.open}; services {sizes} MB; {self._now}"

    def judge(self, in_flight: dict[str, float]) -> Findings:
        """Reads the books when all parts have ended."""
        town, load, options = self._town, self._load, self._options
        lives = self._watch.lives()
        starved = [
            one for life in lives if life.name.startswith("service") for one in life.starved()
        ]
        books = read_books(town, load.asked, [*town.outages, *starved])
        return Findings(
            f"{GATEWAYS} gateways over {options.carrier}, seed {options.seed}",
            options.seconds,
            self._began_s + options.seconds / 2,
            reconcile(books),
            [*count_faults(town)],
            len(town.tallies),
            in_flight,
            self._steps,
            town.outages,
            starved,
            lives,
            [*_unexpected(town)],
            [*town.faults, *load.faults],
        )


def read_books(town: Deployment, asked: Sequence[ClientEntry], outages: Sequence[Outage]) -> Books:
    fronts = [*enumerate(town.fronts)]
    return Books(
        asked,
        [line for place, front in fronts for line in read_lines(front.gateway.log, place)],
        [one for place, front in fronts for one in read_picked(front.services[0].log, place)],
        [
            one
            for endpoint in town.endpoints
            for one in read_served(endpoint.served, endpoint.address)
        ],
        outages,
    )


def count_faults(town: Deployment) -> Iterator[str]:
    """Yields which counts of metrics are not borne out by their logs, life by life."""
    by_part: dict[str, list[Tally]] = {}
    for tally in town.tallies:
        by_part.setdefault(tally.part, []).append(tally)
    for part, tallies in by_part.items():
        told = [count_told(town, part, tally.start) for tally in tallies]
        for tally, (ours, later) in zip(tallies, pairwise([*told, 0]), strict=True):
            if fault := compare_counts(tally, ours - later):
                yield fault


def count_told(town: Deployment, part: str, start: int) -> int:
    """How many requests a part's log has, from a byte on."""
    for place, front in enumerate(town.fronts):
        if part == envoy(place):
            return len(read_lines(front.gateway.log, place, start))
        if part == service_name(place):
            return len(read_picked(front.services[0].log, place, start))
    raise KeyError(part)


def _unexpected(town: Deployment) -> Iterator[str]:
    for front in town.fronts:
        yield from unexpected("envoy", front.gateway.log)
        yield from unexpected("service", front.services[0].log)
    for endpoint in town.endpoints:
        yield from unexpected("vllm", endpoint.log)
    if town.broker is not None:
        yield from unexpected("nats", town.broker.log)
