"""Strategies over loads: cells gathered into lines and ratios, wherever they were measured. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extproc.bench.measure.stats import Interval, mean_interval, ratio_interval
from extproc.bench.published.tables import Cell
from extproc.errors import SettingsError

CONFIDENCE: Final = 0.95
_THROUGHPUTS: Final = ("req_per_s", "output_tok_per_s", "total_tok_per_s")


@dataclass(frozen=True, slots=True)
class Level:
    """A load: requests in flight at most, and the rate that was asked; no rate in a loop of users."""

    concurrency: int
    rate: float | None

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", {self.rate:g} req/s asked"
        return f"{self.concurrency:,} in flight at most{rate}"


@dataclass(frozen=True, slots=True)
class Spot:
    """A strategy under one load, over its repeats.

    `figures` are means by column, of all repeats. `ratios` are to the baseline's figures, of repeats in
    which both are valid. Where there is none, those of throughput are taken though the client was this
    strategy's limit: it can do at least as much, so that `is_bound`; latencies of a smaller load say nothing.
    `doubts` are the verdicts that are not valid, one per run.
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
    """A whole sweep; `faults` say what is missing or does not hold, `remarks` how it must be read."""

    name: str
    baseline: str
    confidence: float
    repeats: int
    parts: tuple[DatasetPart, ...]
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


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

    `faults` are the caller's own, before those of the cells. Raises `SettingsError` without cells, or for a
    baseline that is none of their strategies.
    """
    if not cells:
        raise SettingsError("there is no cell: nothing was measured")
    strategies = list(dict.fromkeys(cell.strategy for cell in cells))
    chosen = strategies[0] if baseline is None else baseline
    if chosen not in strategies:
        raise SettingsError(f"baseline {chosen!r} is none of the strategies {', '.join(strategies)}")
    parts = tuple(_gather_part(own, chosen, confidence) for own in _split(cells, lambda cell: cell.dataset))
    return SweepTable(
        name=name,
        baseline=chosen,
        confidence=confidence,
        repeats=len({cell.repeat for cell in cells}),
        parts=parts,
        faults=(*faults, *_find_faults(parts)),
        remarks=tuple(_find_remarks(parts, tolerance)),
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
    paired = [(one, other) for one in own for other in base if one.repeat == other.repeat and other.is_valid]
    pairs = [(one.figures, other.figures) for one, other in paired if one.is_valid]
    is_bound = not pairs and any(one.is_client_limited for one, _ in paired)
    if is_bound:
        pairs = [(one.figures, other.figures) for one, other in paired if one.is_client_limited]
    levels = {
        name: mean_interval([each[name] for each in figures if name in each], confidence) for name in names
    }
    ratios = {
        name: ratio_interval([(x[name], y[name]) for x, y in pairs if name in x and name in y], confidence)
        for name in (_THROUGHPUTS if is_bound else names)
    }
    return Spot(
        Level(own[0].cap, own[0].rate),
        own[0].strategy,
        {name: found for name, found in levels.items() if found},
        {name: found for name, found in ratios.items() if found},
        is_bound,
        tuple(cell.verdict for cell in own if not cell.is_valid),
    )


def _find_faults(parts: Sequence[DatasetPart]) -> Iterator[str]:
    for part in parts:
        for spot in part.spots:
            for doubt in dict.fromkeys(spot.doubts):
                name = f"{f'{part.dataset}, ' if part.dataset else ''}{spot.strategy}, {spot.level}"
                runs = f" ({spot.doubts.count(doubt)} runs)" if len(spot.doubts) > 1 else ""
                yield f"{name}: {doubt}{runs}"


def _find_remarks(parts: Sequence[DatasetPart], tolerance: float) -> Iterator[str]:
    """A number in flight is no rate: a faster strategy is asked more often, and its latencies are of more."""
    for part in parts:
        gaps = {level: _find_gap(part, level) for level in part.levels}
        uneven = [level for level, gap in gaps.items() if gap > 1 + tolerance]
        if uneven:
            widest = max(uneven, key=lambda level: gaps[level])
            name = f"{part.dataset}: " if part.dataset else ""
            yield (
                f"{name}at {len(uneven)} of {len(gaps)} loads the strategies answered different numbers of "
                f"requests/s ({gaps[widest]:.2f} times at {widest}): latencies are of different loads there"
            )


def _find_gap(part: DatasetPart, level: Level) -> float:
    """The most requests per second of any strategy under a load over the least."""
    rates = [
        spot.figures["req_per_s"].mean
        for spot in part.spots
        if spot.level == level and "req_per_s" in spot.figures
    ]
    return max(rates) / min(rates) if rates and min(rates) > 0 else 1.0
