"""The HTML report of one run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape

import msgspec
import numpy as np

from extproc.bench.measure import metrics
from extproc.bench.measure.groups import Row, cut_timeline
from extproc.bench.measure.metrics import Measure, chunk_gaps, sample
from extproc.bench.measure.stats import Floats
from extproc.bench.measure.words import fixed, milliseconds, percent
from extproc.bench.record import Record, RunResult
from extproc.bench.report.headline import (
    LATENCIES,
    PHASE_HEADER,
    elasticity_figures,
    headlines,
    list_phase,
    name_part,
)
from extproc.bench.report.report import Report
from extproc.pages import page
from extproc.pages.plots import Bar, Series, bars, lines

_STATS = ("mean", "std", "p50", "p90", "p95", "p99", "max")
_CURVE_POINTS = 200
_OWN = {
    "ntpot": "E2E per output token",
    "lag": "delay of the client itself",
    "held": "wait at the cap",
}
_NAMES = LATENCIES | _OWN
# What a run is judged by, in words.
_JUDGED = {
    "lag_p99_s": "requests began late by, p99",
    "loop_lag_p99_s": "delay of the event loop, p99",
    "cpu": "busiest load process, of a core",
    "cap_full": "longest time at the cap, of the run",
    "asked_rps": "asked for",
    "offered_rps": "due in the window",
    "achieved_rps": "completed",
    "in_flight": "in flight, mean",
    "on_time_in_flight": "in flight, had all been sent on time",
    "littles_residual": "in flight, off from rate times latency",
}


def html_report(result: RunResult, said: Report) -> str:
    started = said.started_at[:19].replace("T", " ")
    subtitle = f"{said.model} · {started} UTC · seed {said.seed} · schedule {said.schedule}"
    return page.html_page(said.name, subtitle, _parts(result, said))


def _parts(result: RunResult, said: Report) -> Iterator[str]:
    doubtful = said.verdict.has_doubts
    yield page.notice(said.title, said.faults, is_good=said.is_good, is_doubtful=doubtful)
    yield page.remarks(said.verdict.remarks)
    if said.thresholds:
        met = [(one.text, one.shown, "met" if one.is_met else "not met") for one in said.thresholds]
        yield page.table("Thresholds", ("threshold", "value", "verdict"), met)
    yield f'<p class="soft">{escape(name_part(said).capitalize())}.</p>'
    yield page.tiles(headlines(said))
    if said.phases or said.elasticity:
        yield from _changing_load(said)
    yield "<h2>The run</h2>"
    yield page.cards(_plots(result, said))
    yield _latency_table(said)
    yield _totals_table(said)
    yield '<details class="card"><summary>By turn and by endpoint, what serves, the client</summary>'
    for title, rows in (("By turn", said.groups.turns), ("By endpoint", said.groups.endpoints)):
        yield page.table(title, _GROUPS, [_group_row(row) for row in rows])
    if said.caches:
        caches = [(cache.endpoint, percent(cache.hit_rate)) for cache in said.caches]
        yield page.table("Prefix caches by the endpoints' own counters", ("", "hit rate"), caches)
    if said.stack or said.labels:
        facts = {**said.stack, **said.labels}
        yield page.table(
            "What serves", ("", ""), [(name, str(value)) for name, value in facts.items()]
        )
    yield f"{_account_table(said)}</details>"
    yield page.definitions(said.definitions)
    yield page.folded(
        "Spec", msgspec.json.format(msgspec.json.encode(said.spec), indent=2).decode()
    )


def _changing_load(said: Report) -> Iterator[str]:
    """Before, during and after a spike; how fast endpoints came, and what that cost."""
    if said.elasticity:
        yield "<h2>As the load changed</h2>"
        yield page.tiles(elasticity_figures(said.elasticity))
    if said.phases:
        yield page.table("Phases", PHASE_HEADER, [list_phase(phase) for phase in said.phases])
    if said.fleet:
        yield "<h2>The endpoints</h2>"
        yield page.cards(_fleet_plots(said))


def _fleet_plots(said: Report) -> dict[str, str]:
    at_s = [sample.at_s for sample in said.fleet]

    def series(label: str, name: str, scale: float = 1.0) -> Series:
        values = [getattr(sample, name) for sample in said.fleet]
        return Series(
            label, at_s, [math.nan if value is None else scale * value for value in values]
        )

    return {
        "Endpoints ready": lines(
            [series("ready", "ready")], x_label="seconds", y_label="endpoints"
        ),
        "Requests in the endpoints": lines(
            [series("running", "running"), series("waiting", "waiting")],
            x_label="seconds",
            y_label="requests",
        ),
        "KV caches in use, mean": lines(
            [series("KV use", "kv_use", 100.0)], x_label="seconds", y_label="%"
        ),
    }


def _plots(result: RunResult, said: Report) -> dict[str, str]:
    records, at = (
        result.records,
        cut_timeline(result.records, result.info.duration_s, result.info.offered_until_s),
    )
    return {
        "Asked for and served": lines(
            [
                Series("asked for", at.at_s, at.asked_rps),
                Series("completed", at.at_s, at.completed_rps),
            ],
            x_label="seconds",
            y_label="requests/s",
        ),
        "In flight": lines(
            [Series("sent, not ended", at.at_s, at.in_flight)],
            x_label="seconds",
            y_label="requests",
        ),
        "Time to first token, over time": lines(
            [Series("p50", at.at_s, at.ttft_p50_ms), Series("p99", at.at_s, at.ttft_p99_ms)],
            x_label="seconds",
            y_label="ms",
        ),
        "Time to first token, distribution": _curves(
            records,
            {"from the intended start": metrics.ttft, "from the sending": metrics.ttft_sent},
        ),
        "End to end, distribution": _curves(
            records, {"from the intended start": metrics.e2e, "from the sending": metrics.e2e_sent}
        ),
        "Gaps between chunks, distribution": lines(
            [_curve("gaps", chunk_gaps(records))],
            x_label="ms",
            y_label="share of gaps",
            is_log_x=True,
        ),
        **{
            title: bars(found, y_label=unit)
            for title, unit, found in _list_bars(said)
            if len(found) != 1
        },
    }


def _list_bars(said: Report) -> Iterator[tuple[str, str, list[Bar]]]:
    """Title, unit and bars of each chart; one bar alone compares nothing."""
    turns = [row for row in said.groups.turns[:24] if row.hit_rate is not None]
    rates = [Bar(row.label.removeprefix("turn "), 100 * (row.hit_rate or 0.0)) for row in turns]
    yield "Hit rate by turn", "% of prompt tokens", rates
    yield (
        "Requests by endpoint",
        "requests",
        [Bar(row.label, row.requests) for row in said.groups.endpoints],
    )


def _curves(records: Sequence[Record], wanted: dict[str, Measure]) -> str:
    series = [_curve(label, sample(records, measure)) for label, measure in wanted.items()]
    return lines(series, x_label="ms", y_label="share of requests", is_log_x=True)


def _curve(label: str, values: Floats) -> Series:
    """The cumulative distribution, at evenly spaced shares, in milliseconds."""
    if not values.size:
        return Series(label, (), ())
    shares = np.linspace(0.0, 1.0, _CURVE_POINTS)
    return Series(label, np.quantile(values, shares) * 1000, shares)


def _latency_table(said: Report) -> str:
    rows = [
        (
            _NAMES.get(name, name),
            f"{summary.count:,}",
            *(fixed(getattr(summary, point)) for point in _STATS),
        )
        for name, summary in said.measured.latency_ms.items()
    ]
    return page.table(
        f"Latency in the {'whole run' if said.is_queued else 'steady window'}, ms",
        ("", "count", *_STATS),
        rows,
    )


_SUM = (
    "",
    "span",
    "due",
    "done",
    "failed",
    "sent/s",
    "done/s",
    "out tok/s",
    "tok/s",
    "in flight",
    "goodput",
)


def _totals_table(said: Report) -> str:
    whole, steady = said.whole, said.steady
    rows = [
        (
            title,
            f"{part.window.start_s:.1f}–{part.window.end_s:.1f} s",  # noqa: RUF001  (a range takes an en dash)
            f"{part.counts.offered:,}",
            f"{part.counts.completed:,}",
            f"{part.counts.failed:,}",
            fixed(part.throughput.started_rps),
            fixed(part.throughput.requests_rps),
            fixed(part.throughput.output_tps, 1),
            fixed(part.throughput.total_tps, 1),
            fixed(part.throughput.in_flight, 1),
            percent(part.good_share),
        )
        for title, part in (("Whole run", whole), ("Steady window", steady))
    ]
    return page.table("Load and throughput", _SUM, rows)


def _account_table(said: Report) -> str:
    """What the verdict was judged by, and who counted the tokens."""
    figures = asdict(said.verdict.figures)
    tokens = said.measured.tokens
    sources = ", ".join(f"{source} {count:,}" for source, count in tokens.sources.items())
    rows = [
        (_JUDGED[name], _judged(name, value))
        for name, value in figures.items()
        if value is not None
    ]
    rows += [
        ("input tokens", f"{tokens.input:,}"),
        ("output tokens", f"{tokens.output:,}"),
        ("tokens counted by, requests", sources),
        ("estimate of tokens off by", percent(tokens.estimate_error)),
    ]
    return page.table("The client", ("", "figure"), rows)


def _judged(name: str, value: float) -> str:
    if name.endswith("_s"):
        return milliseconds(1000 * value)
    if name in {"cpu", "cap_full", "littles_residual"}:
        return percent(value)
    return f"{fixed(value)} {'requests/s' if name.endswith('_rps') else 'requests'}"


_GROUPS = (
    "",
    "requests",
    "failed",
    "tok in",
    "tok out",
    "hit rate",
    "TTFT p50",
    "TTFT p99",
    "E2E p50",
)


def _group_row(row: Row) -> tuple[str, ...]:
    counts = (row.requests, row.failed, row.input_tokens, row.output_tokens)
    return (
        row.label,
        *(f"{count:,}" for count in counts),
        percent(row.hit_rate),
        milliseconds(row.ttft_ms.p50 if row.ttft_ms else None),
        milliseconds(row.ttft_ms.p99 if row.ttft_ms else None),
        milliseconds(row.e2e_ms.p50 if row.e2e_ms else None),
    )
