"""The figures of a run by name, and the headline ones: the same on the terminal, the page and in tables."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from extproc.bench.measure.metrics import RunMetrics
from extproc.bench.measure.phases import Elasticity, LoadPhase
from extproc.bench.measure.words import fixed, markdown_table, milliseconds, percent
from extproc.bench.record import PartStats, TokenSource
from extproc.bench.report.report import Report


@dataclass(frozen=True, slots=True)
class Figure:
    """How a figure is read from a report, how it is headed, and which way is better."""

    heading: str
    read: Callable[[Report], float | None]
    is_better_high: bool


def _measured(
    heading: str, read: Callable[[RunMetrics], float | None], *, is_better_high: bool = True
) -> Figure:
    return Figure(heading, lambda report: read(report.measured), is_better_high=is_better_high)


# What each latency is called; TTFT and E2E count from the intended start unless they say otherwise.
LATENCIES = {
    "ttft": "TTFT",
    "ttft_sent": "TTFT from sent",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "e2e_sent": "E2E from sent",
    "time_per_token": "time per token",
}
_POINTS = {"mean": "mean", "median": "p50", "p99": "p99"}


def _list_latencies() -> Iterator[tuple[str, Figure]]:
    for measure, name in LATENCIES.items():
        if measure == "e2e_sent":
            continue  # Comparisons go by the intended start; a run's own report has both.
        for label, point in _POINTS.items():
            read = partial(RunMetrics.latency, name=measure, point=point)
            yield f"{measure}_{label}_ms", _measured(f"{name} {label}", read, is_better_high=False)


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "req_per_s": _measured("req/s", lambda part: part.throughput.requests_rps),
        "output_tok_per_s": _measured("out tok/s", lambda part: part.throughput.output_tps),
        "total_tok_per_s": _measured("tok/s", lambda part: part.throughput.total_tps),
        **dict(_list_latencies()),
        "hit_rate": Figure("hit rate", lambda report: report.hit_rate, is_better_high=True),
        "goodput": _measured("goodput", lambda part: part.good_share),
        "total_tok_per_dollar": Figure(
            "tok/$", lambda report: report.spending.total_tok_per_dollar, is_better_high=True
        ),
        "output_tok_per_dollar": Figure(
            "out tok/$", lambda report: report.spending.output_tok_per_dollar, is_better_high=True
        ),
        "failed": Figure(
            "failed", lambda report: report.whole.counts.failed_share, is_better_high=False
        ),
    }
)


def read_figures(report: Report) -> dict[str, float | None]:
    """All figures of a report, throughput and latencies of its measured part."""
    return {name: figure.read(report) for name, figure in FIGURES.items()}


PHASE_HEADER = (
    *(
        "",
        "from",
        "asked/s",
        "begun/s",
        "tok/s",
        "TTFT p50",
        "TTFT p99",
        "time per token",
        "failed",
    ),
    *("goodput", "SLO s missed", "ready"),
)


def list_phase(phase: LoadPhase) -> tuple[str, ...]:
    figures = phase.figures
    span_s = figures.window.end_s - figures.window.start_s
    return (
        phase.name,
        f"{figures.window.start_s:.0f} s",
        fixed(figures.counts.offered / span_s),
        fixed(figures.throughput.served_rps),
        fixed(figures.throughput.total_tps, 0),
        milliseconds(figures.latency("ttft", "p50")),
        milliseconds(figures.latency("ttft", "p99")),
        milliseconds(figures.latency("time_per_token", "mean")),
        f"{figures.counts.failed:,}",
        percent(figures.good_share),
        fixed(phase.slo_seconds_missed, 0),
        fixed(phase.ready, 1),
    )


def elasticity_figures(found: Elasticity) -> dict[str, str]:
    """What a changing load cost, and how each rise was taken."""
    shown = {"SLO seconds missed": fixed(found.slo_seconds_missed, 0)}
    if found.endpoint_seconds is not None:
        shown["endpoint-seconds"] = fixed(found.endpoint_seconds, 0)
    for response in found.responses:
        if found.endpoint_seconds is not None:
            shown[f"reaction, {response.name}"] = (
                "no more endpoints"
                if response.reaction_s is None
                else f"{response.reaction_s:.1f} s"
            )
        if found.slo_seconds_missed is not None:
            shown[f"recovery, {response.name}"] = (
                "never" if response.recovery_s is None else f"{response.recovery_s:.1f} s"
            )
    return shown


_SHOWN = (
    *("req_per_s", "total_tok_per_s", "output_tok_per_s"),
    *("ttft_mean_ms", "ttft_median_ms", "ttft_p99_ms"),
    *("itl_mean_ms", "e2e_median_ms", "time_per_token_mean_ms", "hit_rate", "goodput"),
    *("total_tok_per_dollar", "output_tok_per_dollar"),
)
# A comparison has a row of several values for each: what says nearly the same as another row stays
# out.
_OF_ONE_RUN = frozenset({"output_tok_per_s", "time_per_token_mean_ms", "output_tok_per_dollar"})
SHARES = frozenset({"hit_rate", "goodput", "failed"})
_SUMMARY = (
    {"avg": "mean", "min": "min", "med": "p50"}
    | {f"p({i})": f"p{i}" for i in (90, 95, 99)}
    | {"max": "max"}
)
_WIDTH = 30


def name_part(said: Report) -> str:
    """Which part of the run the figures are of, and from when latencies count."""
    window = said.measured.window
    span = f"{window.start_s:.1f} to {window.end_s:.1f} s"
    why = " (with a cap the schedule is a queue)" if said.is_queued else ""
    return (
        f"figures of the {'whole run' if said.is_queued else 'steady window'}{why}, {span}; "
        "latencies from the intended start"
    )


def headlines(said: Report) -> dict[str, str]:
    """Headings and figures of the measured part; failures are those of the whole run."""
    figures = read_figures(said)
    figures_shown = [(name, value) for name in _SHOWN if (value := figures[name]) is not None]
    is_guess = bool(said.measured.tokens.sources.get(TokenSource.ESTIMATE))

    def show_origin(name: str, value: float) -> str:
        return f"{show(name, value)}{' (tokens guessed)' if is_guess and 'tok' in name else ''}"

    return {
        **{FIGURES[name].heading: show_origin(name, value) for name, value in figures_shown},
        "failed, of the whole run": name_failed(said),
    }


def pick_headlines(*sides: Mapping[str, float | None]) -> list[str]:
    """The figures that a comparison shows first, of those that a side has; failures if there are some."""
    names = [name for name in _SHOWN if name not in _OF_ONE_RUN]
    known = [name for name in names if any(side.get(name) is not None for side in sides)]
    return [*known, "failed"] if any(side.get("failed") for side in sides) else known


def show(name: str, value: float | None) -> str:
    if name in SHARES:
        return percent(value)
    return milliseconds(value) if name.endswith("_ms") else fixed(value, 0 if "tok" in name else 2)


def name_failed(said: Report) -> str:
    counts = said.whole.counts
    share = f" ({counts.failed_share:.1%})" if counts.failed else ""
    return f"{counts.failed:,} of {counts.offered:,}{share}"


def summary_text(said: Report) -> str:
    """The end of a run for a terminal, in the manner of k6's: headlines, then latencies."""
    return "".join(f"{line}\n" for line in _lines(said))


def _lines(said: Report) -> Iterator[str]:
    yield f"{said.name}: {said.model}, seed {said.seed}: {said.title}"
    yield from (f"  {fault}" for fault in said.faults)
    yield name_part(said)
    yield ""
    counts = said.whole.counts
    yield _line(
        "requests, whole run",
        f"{counts.offered:,} asked, {counts.completed:,} completed, {counts.failed:,} failed, "
        f"{counts.unfinished:,} cut off",
    )
    for cause, count in counts.failures.items():
        yield _line("  failed", f"{cause} {count:,}")
    if said.conversations:
        yield _line("conversations, whole run", str(said.conversations))
    tokens = said.whole.tokens
    yield _line("tokens, whole run", f"{tokens.input:,} in, {tokens.output:,} out")
    for heading, value in headlines(said).items():
        yield _line(heading, value)
    yield ""
    for measure, heading in LATENCIES.items():
        if summary := said.measured.latency_ms.get(measure):
            shown = (
                f"{label}={milliseconds(getattr(summary, field))}"
                for label, field in _SUMMARY.items()
            )
            yield _line(heading, " ".join(f"{each:<17}" for each in shown).rstrip())
    if said.phases:
        yield ""
        yield from markdown_table(
            PHASE_HEADER, [list_phase(phase) for phase in said.phases]
        ).splitlines()
    yield from (
        _line(f"part {part.number} of {part.count}", describe_part(part)) for part in said.parts
    )
    if said.elasticity:
        yield from (
            _line(heading, value) for heading, value in elasticity_figures(said.elasticity).items()
        )
    for outcome in said.thresholds:
        yield f"{'✓' if outcome.is_met else '✗'} {outcome.text}  ({outcome.shown})"


def describe_part(part: PartStats) -> str:
    """One part of a run on several machines: its share, and what its clock showed."""
    if part.lost is not None:
        return f"missing: {part.lost}"
    offset = part.clock_offset_s
    return part.share + ("" if offset is None else f", clock {offset:+.0f} s by the server's Date")


def _line(heading: str, value: str) -> str:
    return f"{heading:.<{_WIDTH}}: {value}"
