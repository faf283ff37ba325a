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
from tests.slow.soak.deployment import GATEWAYS, Deployment
from tests.slow.soak.load import SoakLoad
from tests.slow.soak.logs import read_lines, read_picked, read_served, unexpected
from tests.slow.soak.plan import PlannedFault, plan_faults
from tests.slow.soak.report import Findings
from tests.slow.soak.watch import Watch

LOOK_S: Final = 2.0
REPORT_S: Final = 10.0
# Envoy closes idle connections to endpoints after 4 s; what is open after this is a leak.
REST_S: Final = 6.0
IDLE_S: Final = 60.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    seed: int
    users: int
    carrier: str
    directory: Path


def run_soak(options: Options, report: Report) -> Findings:
    deployment = Deployment(options.directory, options.carrier)
    runner = _Run(deployment, options, report)
    with deployment.running():
        report(f"everything runs; logs are in {options.directory}")
        in_flight = asyncio.run(runner.go())
    return runner.judge(in_flight)


class _Run:
    def __init__(self, deployment: Deployment, options: Options, report: Report) -> None:
        self._deployment = deployment
        self._options = options
        self._report = report
        self._watch = Watch()
        urls = [proxy.gateway.url for proxy in deployment.proxies]
        self._load = SoakLoad(urls, options.users, options.seed)
        self._steps: Counter[str] = Counter()
        self._now = ""
        self._began_s = time.time()

    async def go(self) -> dict[str, float]:
        """Runs; returns what is in flight when nobody asks any more."""
        self._began_s = time.time()
        seconds = self._options.seconds
        watching = asyncio.create_task(self._look())
        reporting = asyncio.create_task(self._report_on())
        async with self._load.running():
            has_broker = self._deployment.broker is not None
            await self._hurt(plan_faults(seconds, self._options.seed, has_broker=has_broker))
            await asyncio.sleep(self._began_s + seconds - time.time())
        in_flight = await self._come_to_rest()
        watching.cancel()
        reporting.cancel()
        await asyncio.gather(watching, reporting, return_exceptions=True)
        await asyncio.to_thread(self._deployment.count_all)
        self._deployment.faults.extend(await asyncio.to_thread(self._deployment.unwell))
        return in_flight

    async def _hurt(self, steps: list[PlannedFault]) -> None:
        for step in steps:
            await asyncio.sleep(max(0.0, self._began_s + step.at_s - time.time()))
            if time.time() > self._began_s + self._options.seconds:
                return  # a slow machine: what is late is left out
            self._now = str(step)
            try:
                await asyncio.to_thread(self._deployment.do, step)
            except (AssertionError, OSError) as error:
                self._deployment.faults.append(f"{step}: {error!r:.300}")
            self._steps[step.kind] += 1
            self._now = ""

    async def _come_to_rest(self) -> dict[str, float]:
        """Waits until nothing is in flight, and connections had time to close; returns what is left."""
        self._now = "the end"
        deadline = time.monotonic() + IDLE_S
        left = await asyncio.to_thread(self._deployment.in_flight)
        while any(left.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            left = await asyncio.to_thread(self._deployment.in_flight)
        await asyncio.sleep(REST_S)
        self._watch.look(self._deployment.processes())
        return left

    async def _look(self) -> None:
        while True:
            await asyncio.to_thread(self._watch.look, self._deployment.processes())
            await asyncio.sleep(LOOK_S)

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._report(self._describe())

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
        deployment, load, options = self._deployment, self._load, self._options
        lives = self._watch.lives()
        starved = [
            one for life in lives if life.name.startswith("service") for one in life.starved()
        ]
        books = read_books(deployment, load.asked, [*deployment.outages, *starved])
        return Findings(
            f"{GATEWAYS} gateways over {options.carrier}, seed {options.seed}",
            options.seconds,
            self._began_s + options.seconds / 2,
            reconcile(books),
            [*count_faults(deployment)],
            len(deployment.tallies),
            in_flight,
            self._steps,
            deployment.outages,
            starved,
            lives,
            [*_unexpected(deployment)],
            [*deployment.faults, *load.faults],
        )


def read_books(
    deployment: Deployment, asked: Sequence[ClientEntry], outages: Sequence[Outage]
) -> Books:
    proxies = [*enumerate(deployment.proxies)]
    return Books(
        asked,
        [line for place, proxy in proxies for line in read_lines(proxy.gateway.log, place)],
        [one for place, proxy in proxies for one in read_picked(proxy.services[0].log, place)],
        [
            one
            for endpoint in deployment.endpoints
            for one in read_served(endpoint.served, endpoint.address)
        ],
        outages,
    )


def count_faults(deployment: Deployment) -> Iterator[str]:
    """Yields which counts of metrics are not borne out by their logs, life by life."""
    by_part: dict[str, list[Tally]] = {}
    for tally in deployment.tallies:
        by_part.setdefault(tally.part, []).append(tally)
    for part, tallies in by_part.items():
        logged = [count_logged(deployment, part, tally.start) for tally in tallies]
        for tally, (ours, later) in zip(tallies, pairwise([*logged, 0]), strict=True):
            if fault := compare_counts(tally, ours - later):
                yield fault


def count_logged(deployment: Deployment, part: str, start: int) -> int:
    """How many requests a part's log has, from a byte on."""
    for place, proxy in enumerate(deployment.proxies):
        if part == envoy(place):
            return len(read_lines(proxy.gateway.log, place, start))
        if part == service_name(place):
            return len(read_picked(proxy.services[0].log, place, start))
    raise KeyError(part)


def _unexpected(deployment: Deployment) -> Iterator[str]:
    for proxy in deployment.proxies:
        yield from unexpected("envoy", proxy.gateway.log)
        yield from unexpected("service", proxy.services[0].log)
    for endpoint in deployment.endpoints:
        yield from unexpected("vllm", endpoint.log)
    if deployment.broker is not None:
        yield from unexpected("nats", deployment.broker.log)
