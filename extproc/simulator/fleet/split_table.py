"""The table of docs/how-to/prefill-decode.md: eight engines together, or split in two by several rules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet.chats import Demand, Draw, Talk, draw_talks, lognormal, take_turns
from extproc.simulator.fleet.fleet import FleetRun, Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.held_out import TALKS
from extproc.simulator.fleet.report import lay_out
from extproc.simulator.fleet.session import PlannedSession, PlannedTurn, Transcript
from extproc.simulator.fleet.split import DECIDERS, FleetSplit
from extproc.simulator.fleet.summary import summarize
from extproc.simulator.fleet.traffic import Traffic

PROFILE: Final = "h100-llama8b-bf16"
ENGINES_IN_ALL: Final = 8
SLO_TTFT_S, SLO_TPOT_S = 1.0, 0.05
_DEFINITIONS: Final = """P:D: engines that only prefill, and all others. TTFT: from the sending of a request to its
first token, ms. ITL: between two tokens, ms. answer: to its last token, mean ms. tok/s: of answers. good: requests
with a TTFT up to 1 s and a mean ITL up to 50 ms. remote: prompts that a prefill engine computed.
"""
_LONG, _SHORT = lognormal(8_000, 0.4, 1_000, 30_000), lognormal(300, 0.6, 16, 2_000)
_FEW, _MANY = lognormal(100, 0.6, 8, 400), lognormal(800, 0.5, 50, 3_000)
_HUGE_SHARE: Final = 1 / 20


def _once(question: Draw, reply: Draw) -> Talk:
    """A question and its answer, with nothing in common with others."""

    def talk(blank: Transcript, name: str, think_s: float, rng: Random) -> Iterator[PlannedTurn]:
        return take_turns(blank, name, think_s, rng, [(question(rng), reply(rng))])

    return talk


def _huge(rng: Random) -> float:
    return 32_000 if rng.random() < _HUGE_SHARE else _SHORT(rng)


@dataclass(frozen=True, slots=True)
class SplitLoad:
    """What eight engines are asked: requests a second, about two thirds of what they can."""

    talk: Talk
    rps: float
    about: str


LOADS: Final[Mapping[str, SplitLoad]] = MappingProxyType(
    {
        "long-short": SplitLoad(_once(_LONG, _FEW), 18, "8,000 tokens in, 100 out"),
        "short-long": SplitLoad(_once(_SHORT, _MANY), 48, "300 in, 800 out"),
        "agents": SplitLoad(TALKS["mtool"], 24, "tool agents, 60 system prompts of 5,500"),
        "huge": SplitLoad(_once(_huge, _MANY), 30, "300 in, 800 out; one in 20 has 32,000 in"),
        "mixed": SplitLoad(TALKS["mconv"], 9, "conversations, 12,000 in, 343 out"),
    }
)


@dataclass(frozen=True, slots=True)
class SplitRow:
    """One run. Milliseconds; `good` is the share of requests within `SLO_TTFT_S` and `SLO_TPOT_S`."""

    load: str
    prefill: int
    decider: str
    ttft_ms: float
    ttft_p99_ms: float
    itl_p99_ms: float
    answer_ms: float
    tok_per_s: float
    good: float
    remote: float


def run_split(
    load: str, prefill: int, decider: str, window_s: tuple[float, float], seed: int = 0
) -> SplitRow:
    """Simulates one cell; with `prefill` 0 the engines are together, and `decider` is only a name.

    Measured is from the first second of `window_s` to the second.
    """
    asked = LOADS[load]
    split = FleetSplit(prefill, decider) if prefill else None
    warmup_s, end_s = window_s
    setup = Setup(
        [find_profile(PROFILE)],
        ENGINES_IN_ALL,
        Routing("prefix_cache", {"engine": PROFILE}, split=split),
        Traffic(asked.rps, until_s=end_s),
        seed=seed,
        warmup_s=warmup_s,
    )
    run = simulate_fleet(setup, _draw(asked, end_s, seed))
    summary = summarize(run)
    return SplitRow(
        load,
        prefill,
        decider,
        summary.ttft.mean_ms,
        summary.ttft.p99_ms,
        summary.itl.p99_ms,
        summary.e2e.mean_ms,
        summary.output_tok_per_s,
        _good(run, summary.start_s, summary.end_s),
        summary.reasons.get("remote_prefill", 0) / max(1, summary.requests),
    )


def arms(prefills: Sequence[int]) -> list[tuple[int, str]]:
    """All runs of one load: together, then each rule at each number of prefill engines."""
    return [(0, "together"), *((prefill, name) for prefill in prefills for name in DECIDERS)]


def render_split(rows: Sequence[SplitRow]) -> str:
    """Lays the runs out, those of a load below each other; says first where a split does not pay."""
    head = (
        "load",
        "P:D",
        "rule",
        "TTFT mean",
        "p99",
        "ITL p99",
        "answer",
        "tok/s",
        "good",
        "remote",
    )
    verdicts = [_verdict(load, rows) for load in dict.fromkeys(row.load for row in rows)]
    return f"{''.join(verdicts)}\n{lay_out([head, *map(_line, rows)])}\n{_DEFINITIONS}"


def _line(row: SplitRow) -> tuple[str, ...]:
    ratio = f"{row.prefill}:{ENGINES_IN_ALL - row.prefill}" if row.prefill else "-"
    figures = (row.ttft_ms, row.ttft_p99_ms, row.itl_p99_ms, row.answer_ms, row.tok_per_s)
    times = (f"{figure:,.0f}" for figure in figures)
    return (row.load, ratio, row.decider, *times, f"{row.good:.1%}", f"{row.remote:.0%}")


def _verdict(load: str, rows: Sequence[SplitRow]) -> str:
    of_load = [row for row in rows if row.load == load]
    together = next(row for row in of_load if not row.prefill)
    best = max(of_load, key=lambda row: row.good)
    if best.good <= together.good:
        return f"{load}: a split does not pay ({LOADS[load].about})\n"
    return (
        f"{load}: with {best.prefill} prefill engines ({best.decider}) {best.good:.1%} are good, "
        f"together {together.good:.1%} ({LOADS[load].about})\n"
    )


def _draw(asked: SplitLoad, end_s: float, seed: int) -> list[PlannedSession]:
    demand, rng = Demand(0, 2.0, ENGINES_IN_ALL, asked.rps), Random(seed)  # noqa: S311  # no secret
    found, turns = [], 0
    for session in draw_talks(asked.talk, demand, rng):
        found.append(session)
        turns += len(session.turns)
        if turns > 1.5 * asked.rps * end_s + 100:
            break
    return found


def _good(run: FleetRun, start_s: float, end_s: float) -> float:
    due = [flight for flight in run.flights if start_s <= flight.due_at <= end_s]
    good = [
        flight
        for flight in due
        if flight.is_answered
        and flight.due_ttft_s <= SLO_TTFT_S
        and (flight.plan.output_tokens == 1 or flight.tpot_s <= SLO_TPOT_S)
    ]
    return len(good) / max(1, len(due))
