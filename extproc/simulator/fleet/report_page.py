"""Runs as a page: latency and hit rate against load, a line per arm; then arm against arm."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from statistics import median
from typing import Final

from extproc.pages import page
from extproc.pages.plots import Bar, Series, bars, lines
from extproc.simulator.fleet.duels import DUEL_HEAD, LOSS_HEAD, Duel, case_name, duel_cells, loss_cells
from extproc.simulator.fleet.rows import PANEL, Row, by_arm, load_name, number_of, split, values

_PLOTS: Final = (
    ("Time to first token, mean", "ttft_mean_ms", "ms", True),
    ("Time to first token, p99", "ttft_p99_ms", "ms", True),
    ("Prompt tokens found cached", "hit_rate", "share", False),
)
_LOAD_LABELS: Final = {
    "load": "load, share of the workload's capacity",
    "rate": "requests/s",
    "users": "users",
    "trace_speed": "times the trace's own speed",
}
_HEAD: Final = ("arm", "at", "seeds", "TTFT mean", "range", "p99", "hit rate", "of shared", "tok/s", "warned")
_ELASTIC_HEAD: Final = (
    "arm",
    "at",
    "endpoints ready",
    "reaction, s",
    "recovery, s",
    "SLO seconds missed",
    "endpoint-seconds ready",
    "held",
    "TTFT from due, mean",
    "p95",
)
_ELASTIC_FIGURES: Final = (
    "elastic_reaction_s",
    "elastic_recovery_s",
    "elastic_slo_seconds_missed",
    "elastic_ready_seconds",
    "elastic_held_seconds",
)
_ELASTIC_PLOTS: Final = (
    ("SLO seconds missed", "elastic_slo_seconds_missed", "seconds"),
    ("Endpoint-seconds held", "elastic_held_seconds", "endpoint-seconds"),
)
# Where the slowest is so many times slower than the fastest, a linear axis shows one line.
_LOG_FROM: Final = 8.0
_ELASTIC_DEFINITIONS: Final = {
    "SLO seconds missed": "seconds in which more than 5 % of the requests due waited too long",
    "reaction": "from the spike's start until more endpoints were ready than before",
    "recovery": "from the spike's start until the end of the last missed second",
    "endpoint-seconds": "endpoints by the second; held ones start or drain, too: what is paid for",
    "from due": "a latency from when a request was due, not from its sending",
}
_DEFINITIONS: Final = {
    "TTFT": "time to first token in milliseconds, from the sending of a request to its first token",
    "hit rate": "prompt tokens that the endpoint's prefix cache had, as a share of all prompt tokens",
    "of shared": "the hit rate that one cache of the size of all together would have had",
    "ratio": "an arm's figure over the other's in the same seed: the median of these, and their range",
    "lost": "seeds in which the arm was worse by more than 3 %",
    "warned": "runs that were not offered, or did not serve, what was asked for",
    "lines": "medians over the seeds",
}


def fleet_page(rows: Sequence[Row], found: Sequence[Duel]) -> str:
    """A whole document of runs and their duels."""
    counts = {"run": len(rows), "arm": len(by_arm(rows)), "seed": len({row["seed"] for row in rows})}
    counted = " · ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
    version = ", ".join(sorted({str(row["version"]) for row in rows}))
    return page.page("Strategies in a simulated fleet", f"{counted} · extproc {version}", _parts(rows, found))


def _parts(rows: Sequence[Row], found: Sequence[Duel]) -> Iterator[str]:
    warned = [f"{_where(row)}: {fault}" for row in rows for fault in _faults(row)]
    title = f"{len(warned)} warnings: these figures may not compare" if warned else "All loads were served"
    yield page.notice(title, (), is_good=not warned)
    for case, group in split(rows, PANEL).items():
        yield f"<h2>{escape(case_name(case))}</h2>"
        yield page.cards({name: _plot(group, *how) for name, *how in _PLOTS})  # type: ignore[arg-type]  # as above
        yield page.table("", _HEAD, _lines(group, figure_cells))
        if _is_elastic(group):
            yield "<h3>As the load changed</h3>"
            yield page.cards({name: _plot(group, figure, unit) for name, figure, unit in _ELASTIC_PLOTS})
            yield page.table("", _ELASTIC_HEAD, _lines(group, _elastic_cells))
    if found:
        yield from _duel_tables(found)
    if warned:
        yield page.folded("Warnings", "\n".join(warned))
    yield page.definitions({**_DEFINITIONS, **(_ELASTIC_DEFINITIONS if _is_elastic(rows) else {})})


def _is_elastic(rows: Sequence[Row]) -> bool:
    return bool(values(rows, "elastic_held_seconds"))


def _duel_tables(found: Sequence[Duel]) -> Iterator[str]:
    lost = [duel for duel in found if duel.lost]
    if lost:
        yield page.table("Losses of more than 3 %, by seed", LOSS_HEAD, map(loss_cells, lost))
    else:
        yield page.remarks(("No loss of more than 3 %.",))
    title = "Arm against arm, paired by seed"
    if len({duel.case for duel in found}) == 1:
        yield page.table(title, DUEL_HEAD, map(duel_cells, found))
    else:
        cells = ((case_name(duel.case), *duel_cells(duel)) for duel in found)
        yield page.table(title, ("case", *DUEL_HEAD), cells)


def _plot(rows: Sequence[Row], figure: str, unit: str, may_be_log: bool = False) -> str:
    series = [_series(arm, runs, figure) for arm, runs in by_arm(rows).items()]
    if len({load for line in series for load in line.xs}) == 1:
        # One load is no line.
        items = [Bar(line.label, value, place) for place, line in enumerate(series) for value in line.ys]
        return bars(items, y_label=unit)
    found = [value for line in series for value in line.ys]
    is_log = may_be_log and bool(found) and max(found) > _LOG_FROM * min(found) > 0
    return lines(series, x_label=_LOAD_LABELS[load_name(rows[0])], y_label=unit, is_log_y=is_log)


def _series(arm: str, rows: Iterable[Row], figure: str) -> Series:
    by_load: dict[float, list[float]] = {}
    for row in rows:
        value = number_of(row, figure)
        if value is not None:
            by_load.setdefault(_load(row), []).append(value)
    return Series(arm, sorted(by_load), [median(by_load[load]) for load in sorted(by_load)])


def _load(row: Row) -> float:
    return number_of(row, load_name(row)) or 0.0


def _lines(
    rows: Sequence[Row], cells: Callable[[Sequence[Row]], tuple[str, ...]]
) -> Iterator[tuple[str, ...]]:
    for load in sorted({_load(row) for row in rows}):
        for arm, runs in by_arm(row for row in rows if _load(row) == load).items():
            yield (arm, f"{load:g}", *cells(runs))


def _elastic_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    """Of the endpoints the least and the most in any seed; medians of the rest."""
    least, most = values(rows, "elastic_least"), values(rows, "elastic_most")
    ready = f"{min(least):.0f}-{max(most):.0f}" if least and most else "-"
    seconds = (_median(rows, name, 0) for name in _ELASTIC_FIGURES)
    return (ready, *seconds, _median(rows, "ttft_due_mean_ms", 1), _median(rows, "ttft_due_p95_ms", 1))


def figure_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    """Seeds, medians over them, of the TTFT also the range, and how many of them warn."""
    ttfts = values(rows, "ttft_mean_ms")
    return (
        str(len(rows)),
        f"{median(ttfts):.1f}" if ttfts else "-",
        f"{min(ttfts):.1f}-{max(ttfts):.1f}" if ttfts else "-",
        _median(rows, "ttft_p99_ms", 1),
        _median(rows, "hit_rate", 3),
        _median(rows, "shared_hit_rate", 3),
        _median(rows, "total_tok_per_s", 0),
        str(sum(bool(_faults(row)) for row in rows)),
    )


def _median(rows: Sequence[Row], name: str, digits: int) -> str:
    found = values(rows, name)
    return f"{median(found):.{digits}f}" if found else "-"


def _faults(row: Row) -> Sequence[str]:
    faults = row["faults"]
    return faults if isinstance(faults, list) else ()


def _where(row: Row) -> str:
    return f"{row['workload']} at {_load(row):g}, seed {row['seed']}, {row['arm']}"
