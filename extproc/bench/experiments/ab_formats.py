"""A comparison of strategies as a table and as HTML."""

from collections.abc import Iterator

from extproc.bench.experiments.ab import AbReport
from extproc.bench.experiments.compare import show_change
from extproc.bench.measure.stats import Interval
from extproc.bench.measure.words import DASH, markdown_table
from extproc.bench.report.figures import FIGURES
from extproc.bench.report.headline import SHARES, name_part, show
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
    """What each arm brings, every figure by arm, then its change against the baseline."""
    texts = [*report.sentences, name_part(report.trials[0].report), markdown_table(*_figures(report))]
    text = "\n\n".join(texts)
    return f"{text}\n{markdown_table(*_changes(report))}" if len(report.arms) > 1 else text


def _figures(report: AbReport) -> tuple[list[str], list[list[str]]]:
    header = [f"mean, {report.confidence:.0%} interval", *(arm.label for arm in report.arms)]
    return header, [
        [FIGURES[name].heading, *(_show(name, arm.figures.get(name)) for arm in report.arms)]
        for name in _present(report)
    ]


def _changes(report: AbReport) -> tuple[list[str], list[list[str]]]:
    others = [arm for arm in report.arms if arm.label != report.baseline]
    return [f"against {report.baseline}", *(arm.label for arm in others)], [
        [FIGURES[name].heading, *(show_change(name, arm.changes.get(name)) for arm in others)]
        for name in _present(report)
    ]


def _present(report: AbReport) -> list[str]:
    return [name for name in FIGURES if any(name in arm.figures for arm in report.arms)]


def _show(name: str, interval: Interval | None) -> str:
    if interval is None:
        return DASH
    if interval.low is None or interval.high is None:
        return show(name, interval.mean)
    return f"{show(name, interval.mean)} [{show(name, interval.low)}, {show(name, interval.high)}]"


def ab_html(report: AbReport) -> str:
    subtitle = f"{report.model} · baseline {report.baseline} · {len(report.trials)} runs"
    return page.html_page(f"{report.name}: strategies compared", subtitle, _parts(report))


def _parts(report: AbReport) -> Iterator[str]:
    title = "comparable" if report.is_valid else "not comparable"
    yield page.notice(title, report.faults, is_good=report.is_valid)
    yield page.remarks((*report.sentences, name_part(report.trials[0].report), *report.remarks))
    yield page.cards(
        {
            FIGURES[name].heading: bars(
                list(_bars(report, name)),
                y_label="%" if name in SHARES else "ms" if name.endswith("_ms") else "tokens/s",
            )
            for name in _PLOTTED
            if name in _present(report)
        }
    )
    yield page.table("Figures", *_figures(report))
    if len(report.arms) > 1:
        yield page.table("Changes, paired by repeat; a star excludes no change", *_changes(report))
    yield page.definitions(report.trials[0].report.definitions)


def _bars(report: AbReport, name: str) -> Iterator[Bar]:
    scale = 100.0 if name in SHARES else 1.0
    for place, arm in enumerate(report.arms):
        if level := arm.figures.get(name):
            low, high = (None if end is None else end * scale for end in (level.low, level.high))
            yield Bar(arm.label, level.mean * scale, place, low, high)
