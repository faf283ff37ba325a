"""A comparison of strategies as a table and as HTML."""

from collections.abc import Iterator

from extproc.bench.experiments.ab import AbReport, Arm
from extproc.bench.experiments.compare import show_change
from extproc.bench.measure.stats import Interval
from extproc.bench.measure.words import DASH, fixed, markdown_table, percent
from extproc.bench.report.figures import FIGURES
from extproc.bench.report.headline import SHARES, name_part
from extproc.pages import page
from extproc.pages.plots import Bar, bars

_PLOTTED = (
    "total_tok_per_s",
    "hit_rate",
    "ttft_median_ms",
    "ttft_p99_ms",
    "itl_mean_ms",
    "e2e_median_ms",
    "time_per_token_mean_ms",
)


def ab_markdown(report: AbReport) -> str:
    """Every figure by arm, then its change against the baseline."""
    figures = f"{_part(report)}\n\n{markdown_table(*_figures(report))}"
    return f"{figures}\n{markdown_table(*_changes(report))}" if len(report.arms) > 1 else figures


def _part(report: AbReport) -> str:
    return name_part(report.trials[0].report)


def _figures(report: AbReport) -> tuple[list[str], list[list[str]]]:
    header = [f"mean, {report.confidence:.0%} interval", *(arm.label for arm in report.arms)]
    return header, [
        [FIGURES[name].heading, *(_show(name, arm.figures.get(name)) for arm in report.arms)]
        for name in _present(report)
    ]


def _changes(report: AbReport) -> tuple[list[str], list[list[str]]]:
    others = [arm for arm in report.arms if arm.label != report.baseline]
    return [f"against {report.baseline}", *(arm.label for arm in others)], [
        [FIGURES[name].heading, *(show_change(arm.changes.get(name)) for arm in others)]
        for name in _present(report)
    ]


def _present(report: AbReport) -> list[str]:
    return [name for name in FIGURES if any(name in arm.figures for arm in report.arms)]


def _show(name: str, interval: Interval | None) -> str:
    if interval is None:
        return DASH
    show = percent if name in SHARES else fixed
    margin = "" if interval.high is None else f" ± {show(interval.high - interval.mean)}"
    return f"{show(interval.mean)}{margin}"


def ab_html(report: AbReport) -> str:
    subtitle = f"{report.model} · baseline {report.baseline} · {len(report.trials)} runs"
    return page.html_page(f"{report.name}: strategies compared", subtitle, _parts(report))


def _parts(report: AbReport) -> Iterator[str]:
    title = "comparable" if report.is_valid else "not comparable"
    yield page.notice(title, report.faults, is_good=report.is_valid)
    yield page.remarks((_part(report), *report.remarks))
    yield page.cards(
        {
            FIGURES[name].heading: bars(_bars(report, name), y_label=_unit(name))
            for name in _PLOTTED
            if _has(report, name)
        }
    )
    yield page.table("Figures", *_figures(report))
    if len(report.arms) > 1:
        yield page.table("Changes, paired by repeat; a star excludes no change", *_changes(report))
    yield page.definitions(report.trials[0].report.definitions)


def _has(report: AbReport, name: str) -> bool:
    return any(name in arm.figures for arm in report.arms)


def _unit(name: str) -> str:
    return "%" if name in SHARES else "ms" if name.endswith("_ms") else "tokens/s"


def _bars(report: AbReport, name: str) -> list[Bar]:
    return [
        _bar(arm, arm.figures[name], name, place)
        for place, arm in enumerate(report.arms)
        if name in arm.figures
    ]


def _bar(arm: Arm, interval: Interval, name: str, colour: int) -> Bar:
    scale = 100.0 if name in SHARES else 1.0
    low, high = (None if end is None else end * scale for end in (interval.low, interval.high))
    return Bar(arm.label, interval.mean * scale, colour, low, high)
