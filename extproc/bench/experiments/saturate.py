"""Finds the inflection point: the rate beyond which more requests bring latency and no throughput.

Knows no network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.bench.experiments.ab import Run, with_traffic
from extproc.bench.report import report
from extproc.bench.report.report import Report
from extproc.bench.spec.experiments import Ladder
from extproc.bench.spec.tree import Spec

SATURATION_SCHEMA = "extproc-bench-saturation/1"


@dataclass(frozen=True, slots=True)
class Rung:
    """One rate and what came of it."""

    rate: float
    report: Report

    @property
    def served_rps(self) -> float:
        return self.report.measured.throughput.requests_rps

    @property
    def efficiency(self) -> float:
        """Requests served per request asked for."""
        return self.served_rps / self.rate

    @property
    def e2e_p50_ms(self) -> float | None:
        summary = self.report.measured.latency_ms.get("e2e")
        return summary.p50 if summary else None

    @property
    def littles_residual(self) -> float | None:
        """How far the mean in flight is from arrivals times latency, as a share: 0 when steady.

        Arrivals, not completions: in a queue that grows evenly, completions times latency is right, too.
        """
        flow, summary = self.report.measured.throughput, self.report.measured.latency_ms.get("e2e_sent")
        if summary is None or not flow.in_flight:
            return None
        return abs(flow.in_flight - flow.started_rps * summary.mean / 1000) / flow.in_flight


@dataclass(frozen=True, slots=True)
class Saturation:
    """The rungs by rate. `inflection_rps` is the highest rate still served, `None` if the lowest was not.

    `is_bracketed`: a higher rate was saturated, so that the inflection point lies between the two.
    """

    schema: str
    name: str
    model: str
    inflection_rps: float | None
    is_bracketed: bool
    best_rps: float
    best_tps: float
    faults: tuple[str, ...]
    rungs: tuple[Rung, ...]
    saturated: tuple[bool, ...]


def is_saturated(rung: Rung, rungs: Sequence[Rung], ladder: Ladder) -> bool:
    """Whether `rung` served too little of what it was asked.

    Efficiency is held against the best one at a lower rate: conversations that end after the window lower
    it at every rate alike, and say nothing about the server.
    """
    lower = [other.efficiency for other in rungs if other.rate < rung.rate]
    return rung.efficiency < ladder.served * min(1.0, max(lower, default=1.0))


def next_rate(rungs: Sequence[Rung], ladder: Ladder) -> float | None:
    """The rate to try next: up until one is saturated, then between; `None` when it is known or no use.

    A rung that only the client's limits explain ends the climb: above it nothing can be offered.
    """
    if not rungs:
        return ladder.start
    if len(rungs) >= ladder.steps or any(not rung.report.verdict.is_valid for rung in rungs):
        return None
    good = [rung.rate for rung in rungs if not is_saturated(rung, rungs, ladder)]
    bad = [rung.rate for rung in rungs if is_saturated(rung, rungs, ladder)]
    if not bad:
        return max(good) * ladder.factor
    low, high = max((rate for rate in good if rate < min(bad)), default=0.0), min(bad)
    if high - low <= ladder.precision * high:
        return None
    return (low + high) / 2


async def climb(spec: Spec, run: Run) -> list[Rung]:
    """Climbs the ladder of a spec, one run per rung."""
    rungs: list[Rung] = []
    while (rate := next_rate(rungs, spec.saturate)) is not None:
        # Another seed each time: the prompts of the last rung are still in the caches.
        seeded = with_traffic(spec, {"req_rate": rate, "vus": None})
        seeded = seeded.model_copy(update={"seed": spec.seed + len(rungs)})
        result = await run(seeded, f"{rate:.2f} req/s")
        rungs.append(Rung(rate, report.build(result)))
    return rungs


def summarise_rungs(rungs: Sequence[Rung], ladder: Ladder) -> Saturation:
    ordered = sorted(rungs, key=lambda rung: rung.rate)
    saturated = tuple(is_saturated(rung, ordered, ladder) for rung in ordered)
    first_bad = saturated.index(True) if True in saturated else len(ordered)
    best = max(ordered, key=lambda rung: rung.served_rps)
    return Saturation(
        schema=SATURATION_SCHEMA,
        name=best.report.name,
        model=best.report.model,
        inflection_rps=ordered[first_bad - 1].rate if first_bad else None,
        is_bracketed=first_bad < len(ordered),
        best_rps=best.served_rps,
        best_tps=best.report.measured.throughput.total_tps,
        faults=tuple(
            f"at {rung.rate:.2f} req/s: {rung.report.verdict.text}: {'; '.join(rung.report.verdict.reasons)}"
            for rung in ordered
            if not rung.report.verdict.is_valid
        ),
        rungs=tuple(ordered),
        saturated=saturated,
    )
