"""A sweep as text and as HTML: two charts, headline ratios, every strategy beside every other."""

from collections.abc import Callable, Iterator, Sequence

from extproc.bench.measure.stats import Interval
from extproc.bench.measure.words import DASH, markdown_table, significant
from extproc.bench.published.sweep_table import DatasetPart, Spot, SweepTable
from extproc.bench.report.headline import show
from extproc.pages import page
from extproc.pages.plots import Bar, Dot, bars, dotted

_COLUMNS = (
    ("req_per_s", "req/s"),
    ("total_tok_per_s", "tok/s"),
    ("output_tok_per_s", "out tok/s"),
    ("ttft_mean_ms", "TTFT mean"),
    ("ttft_median_ms", "TTFT median"),
    ("ttft_p99_ms", "TTFT p99"),
    ("tpot_mean_ms", "TPOT mean"),
    ("itl_mean_ms", "ITL mean"),
    ("e2e_mean_ms", "E2E mean"),
    ("time_per_token_mean_ms", "time per token"),
    ("hit_rate", "hit rate"),
    ("in_flight", "in flight"),
)
_RATIOS = ("total_tok_per_s", "ttft_mean_ms", "itl_mean_ms", "e2e_mean_ms", "time_per_token_mean_ms")
_HEADINGS = dict(_COLUMNS)
_FROM = "latencies count from the sending of a request, as in published tables; in flight is a mean"


def sweep_markdown(sweep: SweepTable) -> str:
    """Headlines, then each dataset's figures and ratios."""
    texts = [*sweep_headlines(sweep), "", how(sweep), ""]
    for part in sweep.parts:
        header, rows = _ratios(sweep, part)
        texts += [f"{part.dataset}:"] * bool(part.dataset)
        texts += [markdown_table(*_figures(part)), *([markdown_table(header, rows)] if rows else [])]
    return "\n".join(texts) + "\n"


def how(sweep: SweepTable) -> str:
    """The method, in a sentence."""
    if sweep.repeats < 3:
        runs = "One run" if sweep.repeats == 1 else "Two runs"
        return f"{runs} of each: too few for an interval of the ratios to {sweep.baseline}; {_FROM}."
    return (
        f"Ratios to {sweep.baseline}, paired by repeat (one seed, one schedule): geometric means over valid "
        f"pairs, with Student's t interval on logarithms ({sweep.confidence:.0%}); a star excludes no "
        f"difference; {_FROM}."
    )


def sweep_headlines(sweep: SweepTable) -> list[str]:
    """Of each dataset and strategy, the highest load at which it compares with the baseline."""
    return [
        _headline(sweep, part, strategy)
        for part in sweep.parts
        for strategy in part.strategies
        if strategy != sweep.baseline
    ]


def _headline(sweep: SweepTable, part: DatasetPart, strategy: str) -> str:
    """Of the highest load under which there is a ratio to the baseline."""
    name = f"{part.dataset}: {strategy}" if part.dataset else strategy
    best = next((spot for spot in reversed(part.of(strategy)) if spot.ratios), None)
    if best is None:
        return f"{name}: no load at which it and {sweep.baseline} are both valid: no ratio."
    told = [
        f"{_HEADINGS[column]} {'at least ' * best.is_bound}{_say(column, best.ratios[column])}"
        for column in _RATIOS
        if column in best.ratios
    ]
    if best.is_bound:
        told.append("its client was the limit, so that its latencies are of a smaller load")
    return f"{name} against {sweep.baseline}, {best.level}: {'; '.join(told)}."


def _say(column: str, ratio: Interval) -> str:
    """A throughput's gain in percent, or how many times a latency is lower or higher; with its interval."""
    if not column.endswith("_ms"):
        gain = f"{ratio.mean - 1:+.0%}"
        gain = "the same" if gain in {"+0%", "-0%"} else gain
        return gain + _span(ratio, lambda value: f"{value - 1:+.0%}")
    way = "higher"
    if ratio.mean < 1:
        way = "lower"
        low, high = (None if end is None else 1 / end for end in (ratio.high, ratio.low))
        ratio = Interval(1 / ratio.mean, low, high, ratio.count)
    size = "the same" if f"{ratio.mean:.2f}" == "1.00" else f"{significant(ratio.mean)}x {way}"
    return size + _span(ratio, significant)


def _span(interval: Interval, show: Callable[[float], str]) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f" [{show(interval.low)}, {show(interval.high)}]"


def _figures(part: DatasetPart) -> tuple[list[str], list[list[str]]]:
    shown = [name for name, _ in _COLUMNS if any(name in spot.figures for spot in part.spots)]
    rows = []
    for spot in part.spots:
        figures = (_show(name, spot.figures.get(name)) for name in shown)
        rows.append([_name_load(spot), spot.strategy, *figures, _state(spot)])
    return ["in flight at most", "strategy", *(_HEADINGS[name] for name in shown), "verdict"], rows


def _name_load(spot: Spot) -> str:
    rate = "" if spot.level.rate is None else f" at {spot.level.rate:g}/s"
    return f"{spot.level.concurrency:,}{rate}"


def _show(name: str, interval: Interval | None) -> str:
    if interval is None:
        return DASH
    margin = "" if interval.high is None else f" ± {show(name, interval.high - interval.mean)}"
    return f"{show(name, interval.mean)}{margin}"


def _state(spot: Spot) -> str:
    return "; ".join(dict.fromkeys(spot.doubts)) or "valid"


def _ratios(sweep: SweepTable, part: DatasetPart) -> tuple[list[str], list[list[str]]]:
    shown = [name for name in _RATIOS if any(name in spot.ratios for spot in part.spots)]
    header = [f"over {sweep.baseline}", "strategy", *(_HEADINGS[name] for name in shown)]
    rows = []
    for spot in part.spots:
        if shown and spot.strategy != sweep.baseline:
            ratios = (_show_ratio(spot.ratios.get(name), is_bound=spot.is_bound) for name in shown)
            rows.append([_name_load(spot), spot.strategy, *ratios])
    return header, rows


def _show_ratio(ratio: Interval | None, *, is_bound: bool) -> str:
    if ratio is None:
        return DASH
    star = "*" if ratio.excludes(1.0) else ""
    return f"{'≥ ' * is_bound}{significant(ratio.mean)}{_span(ratio, significant)}{star}"


def sweep_html(sweep: SweepTable) -> str:
    strategies = ", ".join(dict.fromkeys(name for part in sweep.parts for name in part.strategies))
    repeats = f"{sweep.repeats} repeat{'s' if sweep.repeats > 1 else ''}"
    return page.html_page(f"{sweep.name}: strategies by load", f"{strategies} · {repeats}", _parts(sweep))


def _parts(sweep: SweepTable) -> Iterator[str]:
    title = "every run is valid" if not sweep.faults else "some runs are not valid: their marks are hollow"
    yield page.notice(title, sweep.faults, is_good=not sweep.faults)
    yield page.remarks((*sweep_headlines(sweep), how(sweep), *sweep.remarks))
    for part in sweep.parts:
        yield page.cards(_charts(part))
        of = f", {part.dataset}" if part.dataset else ""
        yield page.table(f"Figures{of}", *_figures(part))
        header, rows = _ratios(sweep, part)
        if rows:
            yield page.table(f"Ratios{of}; a star excludes no difference", header, rows)


def _charts(part: DatasetPart) -> dict[str, str]:
    of = f", {part.dataset}" if part.dataset else ""
    wanted = (
        ("ttft_mean_ms", "Mean time to first token", "ms"),
        ("total_tok_per_s", "Throughput", "tokens/s"),
        ("time_per_token_mean_ms", "Mean time per token", "ms"),
    )
    by = " by concurrency" if len(part.levels) > 1 else ""
    return {
        f"{title}{by}{of}": _chart(part, column, unit) if by else _bars(part, column, unit)
        for column, title, unit in wanted
        if any(column in spot.figures for spot in part.spots)
    }


def _chart(part: DatasetPart, column: str, unit: str) -> str:
    lines = {strategy: _dots(part.of(strategy), column) for strategy in part.strategies}
    return dotted(
        lines,
        x_label="requests in flight at most",
        y_label=unit,
        is_log_x=_spans([level.concurrency for level in part.levels], 4),
        is_log_y=column.endswith("_ms") and _spans([dot.y for dots in lines.values() for dot in dots], 10),
    )


def _spans(values: Sequence[float], times: float) -> bool:
    return 0 < times * min(values) < max(values)


def _bars(part: DatasetPart, column: str, unit: str) -> str:
    """One load is no line."""
    found = [(spot, spot.figures[column]) for spot in part.spots if column in spot.figures]
    places = [part.strategies.index(spot.strategy) for spot, _ in found]
    items = [
        Bar(spot.strategy, figure.mean, place, figure.low, figure.high, is_hollow=bool(spot.doubts))
        for place, (spot, figure) in zip(places, found, strict=True)
    ]
    return bars(items, y_label=unit)


def _dots(spots: Sequence[Spot], column: str) -> list[Dot]:
    return [
        Dot(
            spot.level.concurrency,
            found.mean,
            found.low,
            found.high,
            is_hollow=bool(spot.doubts),
            title=f"{spot.strategy}, {spot.level}: {_show(column, found)} ({_state(spot)})",
        )
        for spot in spots
        if (found := spot.figures.get(column)) is not None
    ]
