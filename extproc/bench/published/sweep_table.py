"""Strategies over loads, wherever measured: cells gathered into lines and ratios, as text and HTML."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extproc.bench.measure.stats import Interval, mean_interval, ratio_interval
from extproc.bench.measure.words import DASH, markdown_table, significant
from extproc.bench.published.tables import Cell
from extproc.bench.report.headline import show
from extproc.errors import SettingsError
from extproc.pages import page
from extproc.pages.plots import Bar, Dot, bars, dotted

CONFIDENCE: Final = 0.95
_MOST_TABLES: Final = 5  # that a page unfolds
_THROUGHPUTS: Final = ("req_per_s", "output_tok_per_s", "total_tok_per_s")


@dataclass(frozen=True, slots=True)
class Level:
    """A load: requests in flight at most, and the scheduled rate; no rate in a loop of users."""

    concurrency: int
    rate: float | None

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", {self.rate:g} req/s asked"
        return f"{self.concurrency:,} in flight at most{rate}"


@dataclass(frozen=True, slots=True)
class Spot:
    """A strategy under one load, over its repeats.

    `figures` are means by column, of all repeats. `ratios` are to the baseline's figures, of
    repeats in which both are valid. Where there is none, those of throughput are taken though the
    client was this strategy's limit: it can do at least as much, so that `is_bound`; latencies of a
    smaller load say nothing. `doubts` are the verdicts that are not valid, one per run.
    """

    level: Level
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
    def levels(self) -> list[Level]:
        return list(dict.fromkeys(spot.level for spot in self.spots))

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
    cells: Sequence[Cell],
    *,
    baseline: str | None = None,
    confidence: float = CONFIDENCE,
    faults: Sequence[str] = (),
    tolerance: float = 0.03,
) -> SweepTable:
    """Builds a sweep of its cells; the baseline is the first strategy if none is named.

    `faults` are the caller's own, before those of the cells. Raises `SettingsError` without cells,
    or for a baseline that is none of their strategies.
    """
    if not cells:
        raise SettingsError("there is no cell: nothing was measured")
    strategies = list(dict.fromkeys(cell.strategy for cell in cells))
    chosen = strategies[0] if baseline is None else baseline
    if chosen not in strategies:
        raise SettingsError(
            f"baseline {chosen!r} is none of the strategies {', '.join(strategies)}"
        )
    parts = tuple(
        _gather_part(own, chosen, confidence) for own in _split(cells, lambda cell: cell.dataset)
    )
    invalid = [cell.verdict for cell in cells if not cell.verdict.is_valid]
    return SweepTable(
        name=name,
        baseline=chosen,
        confidence=confidence,
        repeats=len({cell.repeat for cell in cells}),
        parts=parts,
        faults=(*faults, *_find_faults(parts)),
        remarks=tuple(_find_remarks(parts, tolerance)),
        is_client_limited_only=not faults and all(each.is_client_limited_only for each in invalid),
    )


def _split(cells: Iterable[Cell], key: Callable[[Cell], object]) -> list[list[Cell]]:
    """The cells by what they have in common, in the order it first comes."""
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.values())


def _gather_part(cells: Sequence[Cell], baseline: str, confidence: float) -> DatasetPart:
    def load_of(cell: Cell) -> tuple[int, float]:
        return cell.cap, cell.rate or 0.0

    loads = _split(sorted(cells, key=load_of), load_of)
    return DatasetPart(
        cells[0].dataset,
        tuple(
            _gather_spot(own, [cell for cell in load if cell.strategy == baseline], confidence)
            for load in loads
            for own in _split(load, lambda cell: cell.strategy)
        ),
    )


def _gather_spot(own: Sequence[Cell], base: Sequence[Cell], confidence: float) -> Spot:
    """Pairs have the same prompts at the same times, and both are valid: else a ratio compares two loads."""
    figures = [{**cell.figures, "in_flight": cell.in_flight} for cell in own]
    names = dict.fromkeys(name for each in figures for name in each)
    sound = [other for other in base if other.verdict.is_valid]
    paired = [(one, other) for one in own for other in sound if one.repeat == other.repeat]
    pairs = [(one.figures, other.figures) for one, other in paired if one.verdict.is_valid]
    bound = [
        (one.figures, other.figures) for one, other in paired if one.verdict.is_client_limited_only
    ]
    is_bound = not pairs and bool(bound)
    pairs = pairs or bound
    levels = {
        name: mean_interval([each[name] for each in figures if name in each], confidence)
        for name in names
    }
    ratios = {
        name: ratio_interval(
            [(x[name], y[name]) for x, y in pairs if name in x and name in y], confidence
        )
        for name in (_THROUGHPUTS if is_bound else names)
    }
    return Spot(
        Level(own[0].cap, own[0].rate),
        own[0].strategy,
        {name: found for name, found in levels.items() if found},
        {name: found for name, found in ratios.items() if found},
        is_bound,
        tuple(cell.verdict.text for cell in own if not cell.verdict.is_valid),
    )


def _find_faults(parts: Sequence[DatasetPart]) -> Iterator[str]:
    for part in parts:
        for spot in part.spots:
            for doubt in dict.fromkeys(spot.doubts):
                name = f"{f'{part.dataset}, ' if part.dataset else ''}{spot.strategy}, {spot.level}"
                runs = f" ({spot.doubts.count(doubt)} runs)" if len(spot.doubts) > 1 else ""
                yield f"{name}: {doubt}{runs}"


def _find_remarks(parts: Sequence[DatasetPart], tolerance: float) -> Iterator[str]:
    """A number in flight is no rate: a faster strategy gets more requests, and its latencies are of more."""
    for part in parts:
        gaps = {level: _find_gap(part, level) for level in part.levels}
        uneven = [level for level, gap in gaps.items() if gap > 1 + tolerance]
        if uneven:
            widest = max(uneven, key=lambda level: gaps[level])
            name = f"{part.dataset}: " if part.dataset else ""
            yield (
                f"{name}the strategies answered different numbers of requests/s at {len(uneven)} of "
                f"{len(gaps)} loads ({gaps[widest]:.2f} times at {widest}): their loads differ there"
            )


def _find_gap(part: DatasetPart, level: Level) -> float:
    """The most requests per second of any strategy under a load over the least."""
    rates = [
        spot.figures["req_per_s"].mean
        for spot in part.spots
        if spot.level == level and "req_per_s" in spot.figures
    ]
    return max(rates) / min(rates) if rates and min(rates) > 0 else 1.0


_COLUMNS = (
    *(("req_per_s", "req/s"), ("total_tok_per_s", "tok/s"), ("output_tok_per_s", "out tok/s")),
    *(
        ("ttft_mean_ms", "TTFT mean"),
        ("ttft_median_ms", "TTFT median"),
        ("ttft_p99_ms", "TTFT p99"),
    ),
    *(("tpot_mean_ms", "TPOT mean"), ("itl_mean_ms", "ITL mean"), ("e2e_mean_ms", "E2E mean")),
    *(
        ("time_per_token_mean_ms", "time per token"),
        ("hit_rate", "hit rate"),
        ("in_flight", "in flight"),
    ),
)
_RATIOS = (
    "total_tok_per_s",
    "ttft_mean_ms",
    "itl_mean_ms",
    "e2e_mean_ms",
    "time_per_token_mean_ms",
)
_HEADINGS = dict(_COLUMNS)
_FROM = "latencies count from the sending of a request, as in published tables; in flight is a mean"


def sweep_markdown(sweep: SweepTable) -> str:
    """Headlines, then each dataset's figures and ratios."""
    texts = [*sweep_headlines(sweep), "", how(sweep), ""]
    for part in sweep.parts:
        header, rows = _ratios(sweep, part)
        texts += [f"{part.dataset}:"] * bool(part.dataset)
        texts += [
            markdown_table(*_figures(part)),
            *([markdown_table(header, rows)] if rows else []),
        ]
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
    parts = [
        f"{_HEADINGS[column]} {'at least ' * best.is_bound}{_say(column, best.ratios[column])}"
        for column in _RATIOS
        if column in best.ratios
    ]
    if best.is_bound:
        parts.append("its client was the limit, so that its latencies are of a smaller load")
    return f"{name} against {sweep.baseline}, {best.level}: {'; '.join(parts)}."


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
    ratios = [_ratios(sweep, part) for part in sweep.parts]
    is_long = len(sweep.parts) + sum(bool(rows) for _, rows in ratios) > _MOST_TABLES
    for part, (header, rows) in zip(sweep.parts, ratios, strict=True):
        yield page.cards(_charts(part))
        of = f", {part.dataset}" if part.dataset else ""
        figures = page.table("" if is_long else f"Figures{of}", *_figures(part))
        summary = f"<summary>Figures{page.escape(of)}</summary>"
        yield f'<details class="card">{summary}{figures}</details>' if is_long else figures
        if rows:
            yield page.table(f"Ratios{of}; a star is more than chance", header, rows)


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
        if any(column in spot.figures for spot in part.spots) and (by or len(part.strategies) > 1)
    }


def _chart(part: DatasetPart, column: str, unit: str) -> str:
    lines = {strategy: _dots(part.of(strategy), column) for strategy in part.strategies}
    return dotted(
        lines,
        x_label="requests in flight at most",
        y_label=unit,
        is_log_x=_spans([level.concurrency for level in part.levels], 4),
        is_log_y=column.endswith("_ms")
        and _spans([dot.y for dots in lines.values() for dot in dots], 10),
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
