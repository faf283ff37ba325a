"""The parts of a load that changes, for tables: the same on the terminal and the page."""

from extproc.bench.measure.phases import Elasticity, LoadPhase
from extproc.bench.measure.words import DASH, fixed, milliseconds, percent

PHASE_HEADER = (
    "",
    "from",
    "asked/s",
    "done/s",
    "tok/s",
    "TTFT p50",
    "TTFT p99",
    "time per token",
    "failed",
    "goodput",
    "SLO s missed",
    "ready",
)


def list_phase(phase: LoadPhase) -> tuple[str, ...]:
    figures = phase.figures
    ttft, per_token = (figures.latency_ms.get(name) for name in ("ttft", "time_per_token"))
    span_s = figures.window.end_s - figures.window.start_s
    missed = phase.slo_seconds_missed
    return (
        phase.name,
        f"{figures.window.start_s:.0f} s",
        fixed(figures.counts.offered / span_s),
        fixed(figures.throughput.requests_rps),
        fixed(figures.throughput.total_tps, 0),
        milliseconds(ttft.p50 if ttft else None),
        milliseconds(ttft.p99 if ttft else None),
        milliseconds(per_token.mean if per_token else None),
        f"{figures.counts.failed:,}",
        percent(figures.goodput.share if figures.goodput else None),
        DASH if missed is None else str(missed),
        fixed(phase.ready, 1),
    )


def elasticity_figures(found: Elasticity) -> dict[str, str]:
    """What a changing load cost, and how each rise was taken."""
    shown = {"SLO seconds missed": fixed(found.slo_seconds_missed, 0)}
    if found.endpoint_seconds is not None:
        shown["endpoint-seconds"] = fixed(found.endpoint_seconds, 0)
    for response in found.responses:
        if found.endpoint_seconds is not None:
            shown[f"reaction, {response.name}"] = _seconds(response.reaction_s, "no more endpoints")
        if found.slo_seconds_missed is not None:
            shown[f"recovery, {response.name}"] = _seconds(response.recovery_s, "never")
    return shown


def _seconds(value: float | None, missing: str) -> str:
    return missing if value is None else f"{value:.1f} s"
