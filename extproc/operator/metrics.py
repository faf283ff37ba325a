"""Benchmarks as metrics, as kube-state-metrics has Pods: what their statuses say now. Pure."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from extproc.operator.page import Body, read_status
from extproc.operator.resource import read_time
from extproc.operator.watches import WatchHealth

PHASES: Final = ("Refused", "Waiting", "Starting", "Running", "Valid", "Invalid", "Failed", "Suspended")
_ENDS: Final = ("Valid", "Invalid", "Failed")
# The operator writes a few; whoever else may write a status shall not fill a Prometheus.
_MOST_FIGURES: Final = 50
_TIMES: Final = {
    "last_run_started": ("startedAt", "Begin of the run shown"),
    "last_run_finished": ("finishedAt", "End of the last run"),
    "next_run": ("nextRunAt", "When the schedule is due next"),
}
_WATCH: Final = (
    "1 while the list and watch of a resource works, 0 before its first list and after 30 s of failures"
)


def fill_registry(bodies: Sequence[Body], healths: Sequence[WatchHealth]) -> CollectorRegistry:
    """A series for each Benchmark and what its status holds; what a status does not have has no line."""
    registry = CollectorRegistry()
    watches = Gauge("extproc_operator_watch_up", _WATCH, ["resource"], registry=registry)
    for health in healths:
        watches.labels(health.resource).set(health.is_up)

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        of = ("namespace", "benchmark", *labels)
        return Gauge(f"extproc_benchmark_{name}", text, of, registry=registry)

    info = gauge("info", "What is asked; always 1", "mode", "model")
    phase = gauge("phase", "1 for the phase that it is in, 0 for the others", "phase")
    progress = gauge("progress_ratio", "How much of it is over")
    figure = gauge("figure", "A headline figure of the last run, by its name in the status", "figure")
    runs = gauge("runs", "Runs that the status remembers, by how they ended", "phase")
    regressions = gauge("regressions", "Figures that are worse than in the valid runs before")
    times = {name: gauge(f"{name}_timestamp_seconds", text) for name, (_, text) in _TIMES.items()}
    for body in bodies:
        status, spec = read_status(body), body.get("spec") or {}
        own = body["metadata"]["namespace"], body["metadata"]["name"]
        info.labels(*own, spec.get("mode", "run"), (spec.get("target") or {}).get("model") or "").set(1)
        for name in PHASES:
            phase.labels(*own, name).set(name == status["phase"])
        # Of a search nobody knows how much there will be: it says which run is at work.
        if status["progress"].endswith("%"):
            with suppress(ValueError):
                progress.labels(*own).set(float(status["progress"].removesuffix("%")) / 100)
        for name, value in islice(status["figures"].items(), _MOST_FIGURES):
            figure.labels(*own, name).set(value)
        ended = Counter(run["phase"] for run in status["history"])
        for name in _ENDS:
            runs.labels(*own, name).set(ended[name])
        regressions.labels(*own).set(len(status["regressions"]))
        for name, (field, _) in _TIMES.items():
            with suppress(ValueError, OverflowError):  # it says no time
                at_s = read_time(status[field]).timestamp()
                times[name].labels(*own).set(at_s)
    return registry
