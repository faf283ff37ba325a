"""Finds the inflection point: the rate beyond which more requests bring latency and no throughput.

Knows no network.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from extproc.bench.experiments.ab import with_traffic
from extproc.bench.experiments.run import Interrupted, Run
from extproc.bench.judge.verdict import FAILED, find_short_warm_up
from extproc.bench.measure.words import fixed, markdown_table, milliseconds, percent
from extproc.bench.report import report
from extproc.bench.report.headline import name_failed, name_part
from extproc.bench.report.report import Report
from extproc.bench.spec.tree import Ladder, Spec
from extproc.pages import page
from extproc.pages.plots import Series, lines

SATURATION_SCHEMA = "extproc-bench-saturation/2"

# A sparse window loses some answers at its end; a server that gives less than this at a rate serves
# it badly, whatever it did at a lower one.
_SERVES_AT_ALL = 0.5


@dataclass(frozen=True, slots=True)
class Rung:
    """One rate and what came of it."""

    rate: float
    report: Report

    @property
    def served_rps(self) -> float:
        return self.report.measured.throughput.served_rps

    @property
    def total_tps(self) -> float:
        return self.report.measured.throughput.total_tps

    @property
    def is_measured(self) -> bool:
        """Whether the rung says something about the server: its figures hold, or the server refused."""
        is_sound = set(self.report.verdict.kinds) <= {FAILED}
        return is_sound and self.report.measured.counts.completed > 0 and not self.short_warm_up

    @property
    def short_warm_up(self) -> tuple[str, ...]:
        """What is wrong with the warm-up: of answers that are not streamed the shortest must fit in it."""
        measured = self.report.measured
        whole_ms, first_ms = measured.latency("e2e", "p50"), measured.latency("ttft", "p50")
        answer_ms = measured.latency("e2e", "min")
        if whole_ms is not None and first_ms is not None:
            answer_ms = whole_ms - first_ms
        window = measured.window
        width_s = window.end_s - window.start_s
        return tuple(find_short_warm_up((answer_ms or 0.0) / 1000, window.start_s, width_s))

    @property
    def has_failed(self) -> bool:
        return FAILED in self.report.verdict.kinds

    @property
    def efficiency(self) -> float:
        """Requests served per scheduled request."""
        return self.served_rps / self.rate

    @property
    def why(self) -> str:
        said = self.report.verdict
        title = "" if said.is_valid else f"{said.text}: "
        return f"at {self.rate:.2f} req/s: {title}{'; '.join((*said.reasons, *self.short_warm_up))}"


@dataclass(frozen=True, slots=True)
class Saturation:
    """The rungs by rate. `inflection_rps` is the highest rate still served, `None` if the lowest was not.

    `is_bracketed`: a higher rate was saturated, so that the inflection point lies between the two.
    `best_rps` and `best_tps` are the most requests and tokens per second of any rung that failed
    less than it may, `None` if there is none; `best_tps_rate` is the scheduled rate there. With
    `faults` the search has no answer.
    """

    schema: str
    name: str
    model: str
    inflection_rps: float | None
    is_bracketed: bool
    best_rps: float | None
    best_tps: float | None
    best_tps_rate: float | None
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    rungs: tuple[Rung, ...]
    saturated: tuple[bool, ...]


# The search for the highest rate that a server keeps up with.
#
# A rate is *served* if nearly as many answers begin within the window as requests are due in it. The
# ends of answers would say less: where an answer lasts longer than the warm-up, the window opens
# before the first one ends, and a server that is idle has served too little. Such a warm-up says
# nothing about the server at all, as its load is not there yet: it is a fault, with its remedy.
# Rates are multiplied by `factor` until one is saturated, and then the gap between the best served
# one and the first saturated one is halved until it is within `precision`.
#
# Two corrections were needed, and both are in `is_saturated`. A window of a few latencies loses the
# answers that come after its end, at every rate alike: efficiency is held against the best one at a
# lower rate and not against 1; and where the lowest rate itself is not served, there is no answer.
# But a server that answers half of a rate serves it badly, whatever it did below: hence the floor.
# And a run that the *client* limited, or that measured nothing, says
# nothing about the server: it ends the climb, since every higher rate would say as little. Failures
# are the server's limit only above a rate that it did serve; a server that fails at the first rung
# is broken and not saturated.
#
# Each rung has a seed of its own: the prompts of the last one are still in the caches, and a rung
# that repeated them would find a server that is faster than it is.
def is_saturated(rung: Rung, rungs: Sequence[Rung], ladder: Ladder) -> bool:
    """Whether `rung` served too little of its load, or refused too much.

    Efficiency is held against the best one at a lower rate: conversations that end after the window
    lower it at every rate alike, and say nothing about the server.
    """
    lower = [other.efficiency for other in rungs if other.rate < rung.rate]
    usual = max(_SERVES_AT_ALL, min(1.0, max(lower, default=1.0)))
    return rung.has_failed or rung.efficiency < ladder.served * usual


def next_rate(rungs: Sequence[Rung], ladder: Ladder) -> float | None:
    """The rate to try next: up until one is saturated, then between; `None` when it is known or no use.

    A rung that the client's limits or nothing explains ends the climb, and so does a server that
    fails at every rate so far: only above a rate that it served is a failure its limit.
    """
    if not rungs:
        return ladder.start
    if len(rungs) >= ladder.steps or any(not rung.is_measured for rung in rungs):
        return None
    good = [rung.rate for rung in rungs if not is_saturated(rung, rungs, ladder)]
    bad = [rung.rate for rung in rungs if is_saturated(rung, rungs, ladder)]
    if not good and any(rung.has_failed for rung in rungs):
        return None
    if not bad:
        return max(good) * ladder.factor
    low, high = max((rate for rate in good if rate < min(bad)), default=0.0), min(bad)
    if high - low <= ladder.precision * high:
        return None
    return (low + high) / 2


async def climb(spec: Spec, run: Run) -> list[Rung]:
    """Climbs the ladder of a spec, one run per rung; raises `Interrupted` if there is none."""
    rungs: list[Rung] = []
    while (rate := next_rate(rungs, spec.saturate)) is not None:
        # Another seed each time: the prompts of the last rung are still in the caches.
        seeded = with_traffic(spec, {"req_rate": rate, "vus": None})
        seeded = seeded.model_copy(update={"seed": spec.seed + len(rungs)})
        try:
            result = await run(seeded, f"{rate:.2f} req/s")
        except Interrupted:
            if not rungs:
                raise
            break
        rungs.append(Rung(rate, report.build(result)))
    return rungs


def summarise_rungs(rungs: Sequence[Rung], ladder: Ladder) -> Saturation:
    ordered = sorted(rungs, key=lambda rung: rung.rate)
    saturated = tuple(is_saturated(rung, ordered, ladder) for rung in ordered)
    first_bad = saturated.index(True) if True in saturated else len(ordered)
    sound = [rung for rung in ordered if rung.report.verdict.is_valid]
    fullest = max(sound, key=lambda rung: rung.total_tps, default=None)
    return Saturation(
        schema=SATURATION_SCHEMA,
        name=ordered[0].report.name,
        model=ordered[0].report.model,
        inflection_rps=ordered[first_bad - 1].rate if first_bad else None,
        is_bracketed=0 < first_bad < len(ordered),
        best_rps=max((rung.served_rps for rung in sound), default=None),
        best_tps=fullest.total_tps if fullest else None,
        best_tps_rate=fullest.rate if fullest else None,
        faults=tuple(_find_faults(ordered, first_bad, next_rate(rungs, ladder))),
        remarks=tuple(_find_remarks(ordered, first_bad)),
        rungs=tuple(ordered),
        saturated=saturated,
    )


def _find_faults(rungs: Sequence[Rung], first_bad: int, missing: float | None) -> Iterator[str]:
    """Rungs that say nothing; and failures below the inflection point, or without one, which are no limit."""
    if missing is not None:
        yield f"partial: interrupted before the rung of {missing:.2f} req/s"
    for place, rung in enumerate(rungs):
        if not rung.is_measured or (rung.has_failed and (place < first_bad or not first_bad)):
            yield rung.why
    if not first_bad and rungs[0].is_measured and not rungs[0].has_failed:
        yield _name_lowest(rungs)


def _name_lowest(rungs: Sequence[Rung]) -> str:
    return f"The lowest rate was not served: begin below {rungs[0].rate:.2f} req/s."


def _find_remarks(rungs: Sequence[Rung], first_bad: int) -> Iterator[str]:
    """What failed beyond the inflection point; and what the rungs' verdicts say, each thing once."""
    said: dict[str, list[str]] = {}
    for place, rung in enumerate(rungs):
        if rung.is_measured and rung.has_failed and first_bad and place >= first_bad:
            yield rung.why
        for remark in rung.report.verdict.remarks:
            kind = remark.partition(":")[0]
            if remark.startswith(
                ("short window", "few requests", "the dataset's", "guessed tokens")
            ):
                said.setdefault(kind, []).append(f"at {rung.rate:.2f} req/s: {remark}")
    for first, *others in said.values():
        yield f"{first}{f' (and at {len(others)} more rates)' if others else ''}"


_HEADER = (
    *("asked req/s", "served req/s", "tok/s", "TTFT p50", "TTFT p99", "E2E p50"),
    *("time per token", "failed", "Little's residual", "the rate is"),
)


def saturation_markdown(found: Saturation) -> str:
    part = name_part(found.rungs[0].report)
    return f"{part}\n\n{markdown_table(_HEADER, _rows(found))}\n{headline(found)}\n"


def headline(found: Saturation) -> str:
    """The answer in a sentence."""
    if found.faults == (lowest := _name_lowest(found.rungs),):
        return lowest
    if found.faults:
        return "No answer: at some rate the run does not hold, so the server's limit is not known."
    if not found.is_bracketed:
        return f"No saturation up to {found.rungs[-1].rate:.2f} req/s: the inflection point lies above."
    return (
        f"Inflection point at {found.inflection_rps:.2f} req/s; at most {fixed(found.best_rps)} req/s were "
        f"served, and {fixed(found.best_tps, 0)} tokens/s (at {fixed(found.best_tps_rate)} req/s asked)."
    )


def _rows(found: Saturation) -> Iterator[Sequence[str]]:
    for rung, is_saturated in zip(found.rungs, found.saturated, strict=True):
        measured = rung.report.measured
        state = "saturated" if is_saturated else "served"
        if not rung.is_measured:
            is_early = rung.short_warm_up and rung.report.verdict.is_valid
            state = "short warm-up" if is_early else rung.report.verdict.text
        elif rung.has_failed:
            state = "saturated: requests failed"
        yield (
            fixed(rung.rate),
            fixed(rung.served_rps),
            fixed(measured.throughput.total_tps, 0),
            milliseconds(measured.latency("ttft", "p50")),
            milliseconds(measured.latency("ttft", "p99")),
            milliseconds(measured.latency("e2e", "p50")),
            milliseconds(measured.latency("time_per_token", "mean")),
            name_failed(rung.report),
            percent(rung.report.verdict.figures.littles_residual),
            state,
        )


def saturation_html(found: Saturation) -> str:
    return page.html_page(f"{found.name}: saturation", found.model, _parts(found))


def _parts(found: Saturation) -> Iterator[str]:
    yield page.notice(
        headline(found), found.faults, is_good=found.is_bracketed and not found.faults
    )
    yield page.remarks((name_part(found.rungs[0].report), *found.remarks))
    rates = [rung.rate for rung in found.rungs]

    def draw(label: str, values: Iterable[float | None]) -> Series:
        return Series(label, rates, [math.nan if value is None else value for value in values])

    measured = [rung.report.measured for rung in found.rungs]
    waits = [
        draw(f"TTFT {point}", [part.latency("ttft", point) for part in measured])
        for point in ("p50", "p99")
    ]
    yield page.cards(
        {
            "Served by rate": lines(
                [
                    draw("asked for", rates),
                    draw("served", [rung.served_rps for rung in found.rungs]),
                ],
                x_label="asked req/s",
                y_label="req/s",
            ),
            "Time to first token by rate": lines(
                waits,
                x_label="asked req/s",
                y_label="ms",
                is_log_y=True,
            ),
        }
    )
    yield page.table("Rungs", _HEADER, _rows(found))
    yield page.definitions(found.rungs[0].report.definitions)
