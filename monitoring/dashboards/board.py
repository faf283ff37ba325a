"""What a dashboard is made of, and how its queries are written."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["lines", "stack", "figure", "heat", "table"]

# Where there is no namespace, the variable is `.*`, and that matches.
IN: Final = 'namespace=~"$namespace"'
POOLS: Final = f'{IN},pool=~"$pool"'
# A refusal is quick, and would make the others look so.
GOOD: Final = f'{IN},class="2xx"'
CLIENTS: Final = f'{IN},envoy_http_conn_manager_prefix="clients"'
EXT_PROC: Final = "envoy_http_ext_proc_extproc"


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and the name of its lines; a legend names labels as `{{pool}}`."""

    expr: str
    legend: str = ""
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One question. `unit` is one of Grafana's names, `width` in 24ths of the page.

    From `doubtful` on it is amber, from `bad` on red; below `least` it is red. `None`: nobody can
    say.
    """

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 8
    doubtful: float | None = None
    bad: float | None = None
    least: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the head of the page: the values of `label` in a metric."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    text: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def rate(metric: str, labels: str = IN, by: str = "") -> str:
    """The sum of a counter's rates, by some labels."""
    head = f"sum by ({by}) " if by else "sum"
    return f"{head}(rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(share: float, histogram: str, labels: str = IN, by: str = "le") -> str:
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', labels, by)})"


def quantiles(
    histogram: str, labels: str = IN, by: str = "", legend: str = ""
) -> tuple[Query, ...]:
    """The median and the 95th percentile, by some labels."""
    labelled = f"{by}, le" if by else "le"
    return tuple(
        Query(quantile(share, histogram, labels, labelled), f"{legend} {name}".strip())
        for share, name in ((0.5, "p50"), (0.95, "p95"))
    )


NAMESPACE: Final = Variable("namespace", "extproc_info", "namespace")
POOL: Final = Variable("pool", "extproc_pool_endpoints", "pool")
