"""A finished run in Prometheus' text format, for a Pushgateway or a node exporter's folder."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from extproc.bench.measure.stats import Stats
from extproc.bench.report.report import Report

_QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p999"}


def textfile(said: Report) -> str:
    """Figures of the measured part in seconds, tokens and shares; absent ones have no line."""
    return generate_latest(fill_registry(said)).decode()


def fill_registry(said: Report) -> CollectorRegistry:
    registry = CollectorRegistry()
    for name, value in _singles(said).items():
        if value is not None:
            _gauge(registry, said, name).set(value)
    counts = said.measured.counts
    _fill(
        _gauge_by(registry, "requests", "outcome"), said, {"completed": counts.completed, **counts.failures}
    )
    for measure, summary in said.measured.latency_ms.items():
        _fill(_gauge_by(registry, f"{measure}_seconds", "quantile"), said, _quantiles(summary))
        _gauge(registry, said, f"{measure}_mean_seconds").set(summary.mean / 1000)
    return registry


def _singles(said: Report) -> dict[str, float | None]:
    flow, goodput = said.measured.throughput, said.measured.goodput
    elasticity = said.elasticity
    return {
        "valid": float(said.verdict.is_valid),
        "thresholds_met": float(all(outcome.is_met for outcome in said.thresholds)),
        "failed_ratio": said.whole.counts.failed_share,
        "offered_requests_per_second": said.offered_rps,
        "started_requests_per_second": flow.started_rps,
        "completed_requests_per_second": flow.requests_rps,
        "output_tokens_per_second": flow.output_tps,
        "tokens_per_second": flow.total_tps,
        "mean_in_flight": flow.in_flight,
        "prefix_hit_ratio": said.hit_rate,
        "goodput_ratio": goodput.share if goodput else None,
        "slo_seconds_missed": elasticity.slo_seconds_missed if elasticity else None,
        "endpoint_seconds": elasticity.endpoint_seconds if elasticity else None,
        "tokens_per_dollar": said.spending.total_tok_per_dollar,
    }


def _quantiles(summary: Stats) -> dict[str, float]:
    return {quantile: getattr(summary, field) / 1000 for quantile, field in _QUANTILES.items()}


def _gauge(registry: CollectorRegistry, said: Report, name: str) -> Gauge:
    words = name.replace("_", " ")
    gauge = Gauge(
        f"extproc_bench_{name}", f"Of the measured part: {words}", ["benchmark", "model"], registry=registry
    )
    return gauge.labels(said.name, said.model)


def _gauge_by(registry: CollectorRegistry, name: str, label: str) -> Gauge:
    words = name.replace("_", " ")
    labels = ["benchmark", "model", label]
    return Gauge(
        f"extproc_bench_{name}", f"Of the measured part: {words} by {label}", labels, registry=registry
    )


def _fill(gauge: Gauge, said: Report, values: Mapping[str, float]) -> None:
    for label, value in values.items():
        gauge.labels(said.name, said.model, label).set(value)
