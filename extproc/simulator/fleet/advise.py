"""How many endpoints a trace needs: replays with one endpoint more or less, by strategy. One table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from extproc.router.routing.strategies.prefix_cache.engine import ENGINES
from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.fleet import simulate_fleet
from extproc.simulator.fleet.report import lay_out
from extproc.simulator.fleet.summary import Summary, summarize

STRATEGIES: Final = ("prefix_cache", "least_load", "round_robin")
# How much faster the same requests come, to find where the waiting begins.
_LOADS: Final = (1.1, 1.25, 1.5, 2.0, 3.0)
_MOST: Final = 64
_HEADINGS: Final = (
    *("strategy", "cache", "endpoints", "p95 TTFT, ms", "hit rate"),
    *("one fewer: p95, ms", "holds up to load"),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A trace, an engine's name, and how long 95 % of the requests may wait for their first token at most.

    No fleet of more than `most` endpoints is tried. `requests` takes the first ones of the trace.
    """

    trace: str
    engine: str
    p95_ms: float
    most: int = _MOST
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What one strategy needs, with caches `times` as large: `endpoints`, 0 if `most` are too few.

    `fewer` is the run with one endpoint less, if there can be one. `load` is the most times the
    trace's load at which it held.
    """

    strategy: str
    times: int
    endpoints: int
    at: Summary
    fewer: Summary | None
    load: float


def find_needs(
    question: Question, watch: Callable[[float, str], None] = lambda *_: None
) -> list[Need]:
    """Replays the trace some ten times for each row. Raises `SettingsError` for what cannot be read."""
    rows = [*((name, 1) for name in STRATEGIES), (STRATEGIES[0], 2)]
    return [
        _find_need(question, strategy, times, partial(watch, place / len(rows)))
        for place, (strategy, times) in enumerate(rows)
    ]


def _find_need(question: Question, strategy: str, times: int, watch: Callable[[str], None]) -> Need:
    @cache
    def run(endpoints: int, load: float = 1.0) -> Summary:
        watch(f"{strategy}, {endpoints} endpoints, load {load:g}")
        return _replay(question, strategy, times, endpoints, load)

    def holds(endpoints: int, load: float = 1.0) -> bool:
        told = run(endpoints, load)
        return not told.failed and told.ttft.p95_ms <= question.p95_ms

    low, high = 0, 1
    while not holds(high):
        if high == question.most:
            return Need(strategy, times, 0, run(high), None, 0.0)
        low, high = high, min(2 * high, question.most)
    while high - low > 1:  # more endpoints are hardly ever worse
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    load = 1.0
    for load_tried in _LOADS:
        if not holds(high, load_tried):
            break
        load = load_tried
    return Need(strategy, times, high, run(high), run(high - 1) if high > 1 else None, load)


def _replay(question: Question, strategy: str, times: int, endpoints: int, load: float) -> Summary:
    profile = find_profile(question.engine)
    profile = replace(profile, kv_tokens=times * profile.kv_tokens)
    is_known = strategy == STRATEGIES[0] and question.engine in ENGINES
    cell = MatrixCell(
        arm=f"{strategy}:engine={question.engine}" if is_known else strategy,
        trace=question.trace,
        trace_speed=load,
        endpoints=endpoints,
        profiles=(question.engine,),
        requests=question.requests,
    )
    setup = replace(cell.plan(), profiles=[profile])
    return summarize(simulate_fleet(setup, cell.draw()), strategy, is_whole=True)


def write_needs(question: Question, needs: Sequence[Need]) -> str:
    """The table, and the command that repeats it."""
    limit = f" --requests {question.requests}" if question.requests else ""
    most = f" --most {question.most}" if question.most != _MOST else ""
    return (
        f"{needs[0].at.requests} requests of {question.trace}; 95 % have their first token "
        f"within {question.p95_ms:g} ms on {question.engine}:\n"
        + lay_out([_HEADINGS, *(_row(question, need) for need in needs)])
        + "\nThe caches are empty at the start. Load: the same requests so many times as fast; "
        "beyond it the limit is missed.\n"
        f"extproc simulate advise {question.trace} --engine {question.engine} "
        f"--p95-ms {question.p95_ms:g}{limit}{most}\n"
    )


def _row(question: Question, need: Need) -> list[str]:
    load = f"x {need.load:g}{' or more' if need.load == _LOADS[-1] else ''}"
    return [
        need.strategy,
        f"x {need.times}",
        str(need.endpoints) if need.endpoints else f"more than {question.most}",
        f"{need.at.ttft.p95_ms:.0f}",
        f"{need.at.hit_rate:.1%}",
        f"{need.fewer.ttft.p95_ms:.0f}" if need.fewer else "",
        load if need.endpoints else "",
    ]
