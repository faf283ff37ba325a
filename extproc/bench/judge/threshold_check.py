"""Whether a run's figures meet what the spec asks of them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from extproc.bench.measure.metrics import RunMetrics
from extproc.bench.spec.thresholds import SHARES, Claim, parse_claim


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """A threshold and the value that it was held against; without a value it is not met."""

    text: str
    value: float | None
    is_met: bool

    @property
    def fault(self) -> str:
        return f"threshold not met: {self.text}: it is {self.shown}"

    @property
    def shown(self) -> str:
        if self.value is None:
            return "unknown"
        is_share = parse_claim(self.text).figure in SHARES
        return f"{self.value:.2%}" if is_share else f"{self.value:,.4g}"


def check_thresholds(
    texts: Iterable[str], measured: RunMetrics, failed: float, hit_rate: float | None
) -> tuple[ThresholdResult, ...]:
    """Holds each threshold against the measured part; `failed` is a share of the whole run's requests."""
    return tuple(_check(text, measured, failed, hit_rate) for text in texts)


def _check(text: str, measured: RunMetrics, failed: float, hit_rate: float | None) -> ThresholdResult:
    claim = parse_claim(text)
    value = _read(claim, measured, failed, hit_rate)
    return ThresholdResult(text, value, value is not None and claim.holds(value))


def _read(claim: Claim, measured: RunMetrics, failed: float, hit_rate: float | None) -> float | None:
    if claim.point is not None:
        summary = measured.latency_ms.get(claim.figure)
        return None if summary is None else float(getattr(summary, claim.point))
    flow, goodput = measured.throughput, measured.goodput
    values = {
        "failed": failed,
        "hit_rate": hit_rate,
        "goodput": goodput.share if goodput else None,
        "req_per_s": flow.requests_rps,
        "output_tok_per_s": flow.output_tps,
        "total_tok_per_s": flow.total_tps,
    }
    return values[claim.figure]
