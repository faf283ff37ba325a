"""Dashboards as Grafana's JSON, by its typed SDK. What they show is `monitoring/dashboards`'s."""

from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.dashboard import Panel as Built
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from monitoring.dashboards import Board, Panel, Variable

_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT: Final = 8
TAG: Final = "extproc"

_Any = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel


def render(board: Board) -> str:
    """Returns the dashboard's JSON, the same for the same board."""
    return JSONEncoder(sort_keys=True, indent=1).encode(_build(board).build()) + "\n"


def _build(board: Board) -> builders.Dashboard:
    built = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.text)
        .tags([TAG])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .with_variable(
            builders.DatasourceVariable("datasource").type("prometheus").label("Prometheus")
        )
        .link(_others())
    )
    for variable in board.variables:
        built.with_variable(_choice(variable))
    number = count(1)
    for row in board.rows:
        built.with_row(builders.Row(row.title).id(next(number)))
        for panel in row.panels:
            built.with_panel(_panel(panel, next(number)))
    return built


def _others() -> builders.DashboardLink:
    link = builders.DashboardLink("other dashboards").tags([TAG])
    return (
        link.as_dropdown(as_dropdown=True).include_vars(include_vars=True).keep_time(keep_time=True)
    )


def _choice(variable: Variable) -> builders.QueryVariable:
    return (
        builders.QueryVariable(variable.name)
        .datasource(_SOURCE)
        .query(f"label_values({variable.metric}, {variable.label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(include_all=True)
        .all_value(".*")
    )


def _panel(panel: Panel, number: int) -> Builder[Built]:
    built = _kind(panel)
    built.id(number).title(panel.title).description(panel.text).datasource(_SOURCE)
    built.span(panel.width).height(_HEIGHT).unit(panel.unit)
    for name, query in zip("ABCDEFGHIJ", panel.queries, strict=False):
        target = (
            prometheus.Dataquery()
            .expr(query.expr)
            .ref_id(name)
            .legend_format(query.legend or "__auto")
        )
        if panel.kind in {"figure", "table"}:
            target.instant()
        if panel.kind == "table":
            target.format(PromQueryFormat.TABLE)
        if panel.kind == "heat":
            target.format(PromQueryFormat.HEATMAP)
        built.with_target(target)
    return built


def _thresholds(panel: Panel) -> builders.ThresholdsConfig:
    steps = [(panel.least, "green"), (panel.doubtful, "orange"), (panel.bad, "red")]
    known = [Threshold(value, colour) for value, colour in steps if value is not None]
    first = "text" if panel.least is None else "red"
    return (
        builders.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(None, first), *known])
    )


def _kind(panel: Panel) -> _Any:
    if panel.kind == "figure":
        return (
            stat.Panel().thresholds(_thresholds(panel)).color_mode(options.BigValueColorMode.VALUE)
        )
    if panel.kind == "table":
        return table.Panel()
    if panel.kind == "heat":
        return heatmap.Panel().calculate(calculate=False)
    lines = timeseries.Panel().min(0).show_points(options.VisibilityMode.NEVER)
    if {panel.doubtful, panel.bad, panel.least} != {None}:
        style = common.GraphThresholdsStyleConfig().mode(options.GraphThresholdsStyleMode.DASHED)
        lines.thresholds(_thresholds(panel)).thresholds_style(style)
    if panel.unit == "percentunit":
        lines.max(1)
    if panel.kind == "stack":
        lines.fill_opacity(40).stacking(common.StackingConfig().mode(options.StackingMode.NORMAL))
    return lines
