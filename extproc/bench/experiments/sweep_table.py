"""Strategies over loads: the rows of a sweep gathered into ratios, as text and as a page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extproc.bench.experiments.sweep_rows import SweepRow
from extproc.bench.measure.stats import Interval, mean_interval, ratio_interval
from extproc.bench.measure.words import DASH, Table, markdown_table, significant
from extproc.bench.report.headline import FIGURES, show
from extproc.bench.spec.tree import Load
from extproc.errors import SettingsError
from extproc.pages import page
from extproc.pages.plots import Bar, Dot, bars, dotted

CONFIDENCE: Final = 0.95
_MOST_TABLES: Final = 5  # that a page unfolds
_THROUGHPUTS: Final = ("req_per_s", "output_tok_per_s", "total_tok_per_s")


@dataclass(frozen=True, slots=True)
class Spot:
    """A strategy under one load, over its repeats.

    `figures` are means by column, of all repeats. `ratios` are to the baseline's figures, of
    repeats in which both are valid. Where there is none, those of throughput are taken though the
    client was this strategy's limit: it can do at least as much, so that `is_bound`; latencies of a
    smaller load say nothing. `doubts` are the verdicts that are not valid, one per run.
    """

    dataset: str
    load: Load
    strategy: str
    figures: Mapping[str, Interval]
    ratios: Mapping[str, Interval]
    is_bound: bool
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DatasetPart:
    """What was measured with one dataset: spots by load, and in the strategies' order."""

    dataset: str
    spots: tuple[Spot, ...]

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(spot.strategy for spot in self.spots))

    @property
    def loads(self) -> list[Load]:
        return list(dict.fromkeys(spot.load for spot in self.spots))

    def of(self, strategy: str) -> list[Spot]:
        return [spot for spot in self.spots if spot.strategy == strategy]


@dataclass(frozen=True, slots=True)
class SweepTable:
    """A whole sweep; `faults` say what is missing or does not hold, `remarks` how it must be read.

    `is_client_limited_only`: no fault is of another kind than that a client was the limit.
    """

    name: str
    baseline: str
    confidence: float
    repeats: int
    parts: tuple[DatasetPart, ...]
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    is_client_limited_only: bool = False


def gather(
    name: str,
    rows: Sequence[SweepRow],
    *,
    baseline: str | None = None,
    confidence: float = CONFIDENCE,
    faults: Sequence[str] = (),
    tolerance: float = 0.03,
) -> SweepTable:
    """Builds a sweep of its rows; the baseline is the first strategy if none is named.

    `faults` are the caller's own, before those of the rows. Raises `SettingsError` without rows,
    or for a baseline that is none of their strategies.
    """
    if not rows:
        raise SettingsError("there is no run: nothing was measured")
    strategies = list(dict.fromkeys(row.strategy for row in rows))
    chosen = strategies[0] if baseline is None else baseline
    if chosen not in strategies:
        raise SettingsError(
            f"baseline {chosen!r} is none of the strategies {', '.join(strategies)}"
        )
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    groups: dict[tuple[str, Load, str], list[SweepRow]] = {}
    for row in sorted(rows, key=lambda row: (row.load.concurrency, row.load.req_rate or 0.0)):
        groups.setdefault((row.dataset, row.load, row.strategy), []).append(row)
    spots = [
        _gather_spot(own, groups.get((dataset, load, chosen), ()), confidence)
        for (dataset, load, _), own in groups.items()
    ]
    parts = [
        DatasetPart(name, tuple(spot for spot in spots if spot.dataset == name))
        for name in datasets
    ]
    invalid = [row.verdict for row in rows if not row.verdict.is_valid]
    return SweepTable(
        name=name,
        baseline=chosen,
        confidence=confidence,
        repeats=len({row.repeat for row in rows}),
        parts=tuple(parts),
        faults=(*faults, *_find_faults(spots)),
        remarks=tuple(_find_remarks(parts, tolerance)),
        is_client_limited_only=not faults and all(each.is_client_limited_only for each in invalid),
    )


def _gather_spot(own: Sequence[SweepRow], base: Sequence[SweepRow], confidence: float) -> Spot:
    """Pairs have the same prompts at the same times, and both are valid: else a ratio compares two loads."""
    names = list(dict.fromkeys(name for row in own for name in row.figures))
    sound = [other for other in base if other.verdict.is_valid]
    paired = [(one, other) for one in own for other in sound if one.repeat == other.repeat]
    pairs = [pair for pair in paired if pair[0].verdict.is_valid]
    bound = [pair for pair in paired if pair[0].verdict.is_client_limited_only]
    is_bound = not pairs and bool(bound)
    levels = {
        name: mean_interval([row.figures[name] for row in own if name in row.figures], confidence)
        for name in names
    }
    ratios = {
        name: ratio_interval(
            [
                (one.figures[name], other.figures[name])
                for one, other in pairs or bound
                if name in one.figures and name in other.figures
            ],
            confidence,
        )
        for name in (_THROUGHPUTS if is_bound else names)
    }
    return Spot(
        own[0].dataset,
        own[0].load,
        own[0].strategy,
        {name: found for name, found in levels.items() if found},
        {name: found for name, found in ratios.items() if found},
        is_bound,
        tuple(row.verdict.text for row in own if not row.verdict.is_valid),
    )


def _name_load(load: Load) -> str:
    rate = "" if load.req_rate is None else f", {load.req_rate:g} req/s asked"
    return f"{load.concurrency:,} in flight at most{rate}"


def _find_faults(spots: Iterable[Spot]) -> Iterator[str]:
    for spot in spots:
        for doubt in dict.fromkeys(spot.doubts):
            names = filter(None, (spot.dataset, spot.strategy, _name_load(spot.load)))
            runs = f" ({spot.doubts.count(doubt)} runs)" if len(spot.doubts) > 1 else ""
            yield f"{', '.join(names)}: {doubt}{runs}"


def _find_remarks(parts: Sequence[DatasetPart], tolerance: float) -> Iterator[str]:
    """A number in flight is no rate: a faster strategy gets more requests, and its latencies are of more."""
    for part in parts:
        gaps = {load: _find_gap(part, load) for load in part.loads}
        uneven = [load for load, gap in gaps.items() if gap > 1 + tolerance]
        if uneven:
            widest = max(uneven, key=lambda load: gaps[load])
            name = f"{part.dataset}: " if part.dataset else ""
            yield (
                f"{name}the strategies answered different numbers of requests/s at {len(uneven)} of "
                f"{len(gaps)} loads ({gaps[widest]:.2f} times at {_name_load(widest)}): "
                "their loads differ there"
            )


def _find_gap(part: DatasetPart, load: Load) -> float:
    """The most requests per second of any strategy under a load over the least."""
    spots = [spot for spot in part.spots if spot.load == load]
    rates = [spot.figures["req_per_s"].mean for spot in spots if "req_per_s" in spot.figures]
    return max(rates) / min(rates) if rates and min(rates) > 0 else 1.0


_COLUMNS = (
    *("req_per_s", "total_tok_per_s", "output_tok_per_s"),
    *("ttft_mean_ms", "ttft_median_ms", "ttft_p99_ms"),
    *("tpot_mean_ms", "itl_mean_ms", "e2e_mean_ms", "time_per_token_mean_ms"),
    *("hit_rate", "in_flight"),
)
_RATIOS = (
    "total_tok_per_s",
    "ttft_mean_ms",
    "itl_mean_ms",
    "e2e_mean_ms",
    "time_per_token_mean_ms",
)
_FROM = "latencies count from the sending of a request, as in published tables; in flight is a mean"


def _head(column: str) -> str:
    return FIGURES[column].heading if column in FIGURES else "in flight"


def sweep_markdown(sweep: SweepTable) -> str:
    """Headlines, then each dataset's figures and ratios."""
    texts = [*sweep_headlines(sweep), "", how(sweep), ""]
    for part in sweep.parts:
        texts += [f"{part.dataset}:"] * bool(part.dataset)
        texts.append(markdown_table(*_list_figures(part)))
        if ratios := _list_ratios(sweep, part):
            texts.append(markdown_table(*ratios))
    return "\n".join(texts) + "\n"


def how(sweep: SweepTable) -> str:
    """The method, in a sentence."""
    if sweep.repeats < 3:
        runs = "One run" if sweep.repeats == 1 else "Two runs"
        return (
            f"{runs} of each: too few for an interval of the ratios to {sweep.baseline}; {_FROM}."
        )
    return (
        f"Ratios to {sweep.baseline}, paired by repeat (one seed, one schedule): geometric means over valid "
        f"pairs, with Student's t interval on logarithms ({sweep.confidence:.0%}); a star excludes no "
        f"difference; {_FROM}."
    )


def sweep_headlines(sweep: SweepTable) -> list[str]:
    """For each dataset and strategy, the highest load at which it compares with the baseline."""
    return [
        _headline(sweep, part, strategy)
        for part in sweep.parts
        for strategy in part.strategies
        if strategy != sweep.baseline
    ]


def _headline(sweep: SweepTable, part: DatasetPart, strategy: str) -> str:
    """Describes the highest load with a ratio to the baseline."""
    name = f"{part.dataset}: {strategy}" if part.dataset else strategy
    best = next((spot for spot in reversed(part.of(strategy)) if spot.ratios), None)
    if best is None:
        return f"{name}: no load at which it and {sweep.baseline} are both valid: no ratio."
    changes = [
        f"{_head(column)} {'at least ' * best.is_bound}{_describe_ratio(column, best.ratios[column])}"
        for column in _RATIOS
        if column in best.ratios
    ]
    if best.is_bound:
        changes.append("its client was the limit, so that its latencies are of a smaller load")
    return f"{name} against {sweep.baseline}, {_name_load(best.load)}: {'; '.join(changes)}."


def _describe_ratio(column: str, ratio: Interval) -> str:
    """A throughput's gain in percent, or how many times a latency is lower or higher; with its interval."""
    if not column.endswith("_ms"):
        gain = f"{ratio.mean - 1:+.0%}"
        gain = "the same" if gain in {"+0%", "-0%"} else gain
        return gain + ratio.span(lambda value: f"{value - 1:+.0%}")
    way = "higher"
    if ratio.mean < 1:
        way, inverse = "lower", ratio.map(lambda value: 1 / value)
        ratio = Interval(inverse.mean, inverse.high, inverse.low, ratio.count)
    size = "the same" if f"{ratio.mean:.2f}" == "1.00" else f"{significant(ratio.mean)}x {way}"
    return size + ratio.span(significant)


def _list_figures(part: DatasetPart) -> Table:
    shown = [name for name in _COLUMNS if any(name in spot.figures for spot in part.spots)]
    return ["in flight at most", "strategy", *map(_head, shown), "verdict"], [
        [
            *(_show_load(spot.load), spot.strategy),
            *(_show(name, spot.figures.get(name)) for name in shown),
            _name_state(spot),
        ]
        for spot in part.spots
    ]


def _list_ratios(sweep: SweepTable, part: DatasetPart) -> Table | None:
    """What there is of ratios to the baseline; `None` if there are none."""
    shown = [name for name in _RATIOS if any(name in spot.ratios for spot in part.spots)]
    others = [spot for spot in part.spots if spot.strategy != sweep.baseline]
    if not shown or not others:
        return None
    return [f"over {sweep.baseline}", "strategy", *map(_head, shown)], [
        [_show_load(spot.load), spot.strategy, *(_show_ratio(spot, name) for name in shown)]
        for spot in others
    ]


def _show_load(load: Load) -> str:
    rate = "" if load.req_rate is None else f" at {load.req_rate:g}/s"
    return f"{load.concurrency:,}{rate}"


def _show(name: str, level: Interval | None) -> str:
    if level is None:
        return DASH
    margin = "" if level.high is None else f" ± {show(name, level.high - level.mean)}"
    return f"{show(name, level.mean)}{margin}"


def _name_state(spot: Spot) -> str:
    return "; ".join(dict.fromkeys(spot.doubts)) or "valid"


def _show_ratio(spot: Spot, name: str) -> str:
    ratio = spot.ratios.get(name)
    if ratio is None:
        return DASH
    star = "*" if ratio.excludes(1.0) else ""
    return f"{'≥ ' * spot.is_bound}{significant(ratio.mean)}{ratio.span(significant)}{star}"


def sweep_html(sweep: SweepTable) -> str:
    strategies = ", ".join(dict.fromkeys(name for part in sweep.parts for name in part.strategies))
    repeats = f"{sweep.repeats} repeat{'s' if sweep.repeats > 1 else ''}"
    return page.html_page(
        f"{sweep.name}: strategies by load", f"{strategies} · {repeats}", _parts(sweep)
    )


def _parts(sweep: SweepTable) -> Iterator[str]:
    title = (
        "every run is valid"
        if not sweep.faults
        else "some runs are not valid: their marks are hollow"
    )
    yield page.notice(title, sweep.faults, is_good=not sweep.faults)
    yield page.remarks((*sweep_headlines(sweep), how(sweep), *sweep.remarks))
    ratios = [_list_ratios(sweep, part) for part in sweep.parts]
    is_long = len(sweep.parts) + sum(table is not None for table in ratios) > _MOST_TABLES
    for part, compared in zip(sweep.parts, ratios, strict=True):
        yield page.cards(_charts(part))
        of = f", {part.dataset}" if part.dataset else ""
        figures = page.table("" if is_long else f"Figures{of}", *_list_figures(part))
        summary = f"<summary>Figures{page.escape(of)}</summary>"
        yield f'<details class="card">{summary}{figures}</details>' if is_long else figures
        if compared:
            yield page.table(f"Ratios{of}; a star is more than chance", *compared)


def _charts(part: DatasetPart) -> dict[str, str]:
    of = f", {part.dataset}" if part.dataset else ""
    wanted = (
        ("ttft_mean_ms", "Mean time to first token", "ms"),
        ("total_tok_per_s", "Throughput", "tokens/s"),
        ("time_per_token_mean_ms", "Mean time per token", "ms"),
    )
    by = " by concurrency" if len(part.loads) > 1 else ""
    return {
        f"{title}{by}{of}": _chart(part, column, unit) if by else _bars(part, column, unit)
        for column, title, unit in wanted
        if any(column in spot.figures for spot in part.spots) and (by or len(part.strategies) > 1)
    }


def _chart(part: DatasetPart, column: str, unit: str) -> str:
    lines = {strategy: _list_dots(part.of(strategy), column) for strategy in part.strategies}
    return dotted(
        lines,
        x_label="requests in flight at most",
        y_label=unit,
        is_log_x=_spans([load.concurrency for load in part.loads], 4),
        is_log_y=column.endswith("_ms")
        and _spans([dot.y for dots in lines.values() for dot in dots], 10),
    )


def _spans(values: Sequence[float], times: float) -> bool:
    return 0 < times * min(values) < max(values)


def _bars(part: DatasetPart, column: str, unit: str) -> str:
    """One load is no line."""
    items = []
    for spot in part.spots:
        if found := spot.figures.get(column):
            place, is_hollow = part.strategies.index(spot.strategy), bool(spot.doubts)
            items.append(Bar(spot.strategy, found.mean, place, found.low, found.high, is_hollow))
    return bars(items, y_label=unit)


def _list_dots(spots: Sequence[Spot], column: str) -> list[Dot]:
    dots = []
    for spot in spots:
        if found := spot.figures.get(column):
            title = f"{spot.strategy}, {_name_load(spot.load)}: {_show(column, found)} ({_name_state(spot)})"
            x, is_hollow = spot.load.concurrency, bool(spot.doubts)
            dots.append(Dot(x, found.mean, found.low, found.high, is_hollow, title))
    return dots
