"""A history as Markdown and as a page."""

from collections.abc import Iterator, Sequence

from extproc.bench.experiments.history import METHOD, WATCHED, Drift, Entry, Line
from extproc.bench.measure.words import DASH, percent
from extproc.bench.report.figures import FIGURES
from extproc.bench.report.headline import show
from extproc.bench.report.markdown import markdown_table
from extproc.pages import page
from extproc.pages.plots import Bar, bars

_HEADER = ("figure", "last", "median before", "change", "may differ by", "")


def list_regressions(history: Sequence[Line]) -> list[str]:
    """A sentence for each figure that got worse."""
    return [
        f"{line.entries[0].name}, {line.entries[0].model}: {FIGURES[drift.figure].heading} "
        f"{show(drift.figure, drift.value)}, before {show(drift.figure, drift.median)} "
        f"({_show_change(drift)})"
        for line in history
        for drift in line.regressions
    ]


def list_remarks(history: Sequence[Line]) -> list[str]:
    """What was not judged, and why."""
    remarks = []
    for line in history:
        invalid = sum(not entry.is_valid for entry in line.entries)
        if invalid:
            remarks.append(
                f"{line.entries[0].name}: {invalid} of {len(line.entries)} runs are not valid, left out"
            )
        if line.last is not None and not line.drifts:
            remarks.append(f"{line.entries[0].name}: one valid run, nothing to hold it against")
    return remarks


def history_markdown(history: Sequence[Line], *, tolerance: float, runs: int) -> str:
    """A table for each kind of run."""
    parts = []
    for line in history:
        parts.append(f"{_title(line)}\n\n")
        parts.append(markdown_table(_RUNS, [_run_row(entry) for entry in line.entries]) + "\n")
        if line.drifts:
            parts.append(markdown_table(_HEADER, [_drift_row(drift) for drift in line.drifts]) + "\n")
    return "".join(parts) + METHOD.format(runs=runs, tolerance=tolerance).capitalize() + ".\n"


def _title(line: Line) -> str:
    first = line.entries[0]
    facts = [first.stack.get("count", ""), first.stack.get("accelerator", ""), first.stack.get("engine", "")]
    labels = [f"{name}={value}" for name, value in first.labels.items()]
    return ", ".join([first.name, first.model, *filter(None, (" ".join(filter(None, facts)), *labels))])


_RUN_FIGURES = ("req_per_s", "total_tok_per_s", "ttft_median_ms", "ttft_sent_median_ms", "itl_mean_ms")
_RUNS = ("when", "version", *(FIGURES[name].heading for name in _RUN_FIGURES), "verdict")


def _run_row(entry: Entry) -> tuple[str, ...]:
    shown = (show(name, entry.figures.get(name)) for name in _RUN_FIGURES)
    return entry.at[:19].replace("T", " "), entry.version or DASH, *shown, entry.verdict


def _drift_row(drift: Drift) -> tuple[str, ...]:
    return (
        FIGURES[drift.figure].heading,
        show(drift.figure, drift.value),
        show(drift.figure, drift.median),
        _show_change(drift),
        show(drift.figure, drift.allowed),
        "WORSE" if drift.is_regression else "",
    )


def _show_change(drift: Drift) -> str:
    return DASH if drift.change is None else f"{'+' if drift.change >= 0 else ''}{percent(drift.change)}"


def history_html(history: Sequence[Line], *, tolerance: float, runs: int) -> str:
    """One page: a verdict, then for each kind of run its figures over time."""
    return page.html_page("History", METHOD.format(runs=runs, tolerance=tolerance), _parts(history))


def _parts(history: Sequence[Line]) -> Iterator[str]:
    worse = list_regressions(history)
    yield page.notice("got worse" if worse else "no regression", worse, is_good=not worse)
    yield page.remarks(list_remarks(history))
    for line in history:
        yield page.table(_title(line), _RUNS, [_run_row(entry) for entry in line.entries])
        yield from draw_line(line)


def draw_line(line: Line) -> Iterator[str]:
    """How the last valid run of a kind stands to earlier ones, and each figure over time."""
    if line.drifts:
        yield page.table("The last valid run", _HEADER, [_drift_row(drift) for drift in line.drifts])
    yield page.cards(dict(_plot(line)))


def _plot(line: Line) -> Iterator[tuple[str, str]]:
    """Bars for each figure that two valid runs have: from zero, so that a small change looks small."""
    valid = [(number, entry) for number, entry in enumerate(line.entries, start=1) if entry.is_valid]
    for name in WATCHED:
        points = [(n, value) for n, entry in valid if (value := entry.figures.get(name)) is not None]
        if len(points) > 1:
            drawn = [Bar(str(number), value) for number, value in points]
            yield f"{FIGURES[name].heading} by run", bars(drawn, y_label=_unit(name))


def _unit(name: str) -> str:
    return "ms" if name.endswith("_ms") else FIGURES[name].heading
