"""The figures by which runs are compared, by name, in the order and units of KubeAI's published table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from extproc.bench.measure.metrics import RunMetrics
from extproc.bench.report.report import Report


@dataclass(frozen=True, slots=True)
class Figure:
    """How a figure is read from a report, how it is headed, and which way is better."""

    heading: str
    read: Callable[[Report], float | None]
    is_better_high: bool


def _latency(measure: str, point: str) -> Callable[[Report], float | None]:
    def read(report: Report) -> float | None:
        summary = report.measured.latency_ms.get(measure)
        return getattr(summary, point) if summary else None

    return read


def _measured(read: Callable[[RunMetrics], float | None]) -> Callable[[Report], float | None]:
    return lambda report: read(report.measured)


def _spent(heading: str, name: str, *, is_better_high: bool) -> Figure:
    return Figure(heading, lambda report: getattr(report.spending, name), is_better_high=is_better_high)


def _latencies() -> dict[str, Figure]:
    wanted = (
        ("ttft", "TTFT"),
        ("ttft_sent", "TTFT sent"),
        ("tpot", "TPOT"),
        ("itl", "ITL"),
        ("e2e", "E2E"),
        ("time_per_token", "time per token sent"),
    )
    points = (("mean", "mean"), ("median", "p50"), ("p99", "p99"))
    return {
        f"{measure}_{label}_ms": Figure(f"{name} {label}", _latency(measure, point), is_better_high=False)
        for measure, name in wanted
        for label, point in points
    }


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "req_per_s": Figure(
            "req/s", _measured(lambda part: part.throughput.requests_rps), is_better_high=True
        ),
        "output_tok_per_s": Figure(
            "out tok/s", _measured(lambda part: part.throughput.output_tps), is_better_high=True
        ),
        "total_tok_per_s": Figure(
            "tok/s", _measured(lambda part: part.throughput.total_tps), is_better_high=True
        ),
        **_latencies(),
        "hit_rate": Figure("hit rate", lambda report: report.hit_rate, is_better_high=True),
        "goodput": Figure(
            "goodput",
            _measured(lambda part: part.goodput.share if part.goodput else None),
            is_better_high=True,
        ),
        "total_tok_per_dollar": _spent("tok/$", "total_tok_per_dollar", is_better_high=True),
        "output_tok_per_dollar": _spent("out tok/$", "output_tok_per_dollar", is_better_high=True),
        "failed": Figure("failed", lambda report: report.whole.counts.failed_share, is_better_high=False),
    }
)


def read_figures(report: Report) -> dict[str, float | None]:
    """All figures of a report, throughput and latencies of its measured part."""
    return {name: figure.read(report) for name, figure in FIGURES.items()}
