"""Benchmarks as metrics, as kube-state-metrics has Pods: what their statuses say now, and nothing of our own.

A series for each Benchmark and what a status can hold; runs are counted as far as they are remembered.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from extproc.operator.resource import read_time
from extproc.operator.shown import Body, read_status
from extproc.operator.watches import WatchHealth

PHASES: Final = ("Refused", "Waiting", "Starting", "Running", "Valid", "Invalid", "Failed", "Suspended")
_ENDS: Final = ("Valid", "Invalid", "Failed")
# The operator writes a few; whoever else may write a status shall not fill a Prometheus.
_MOST_FIGURES: Final = 50

_Samples = Iterable[tuple[tuple[str, ...], float]]


def describe_watches(healths: Sequence[WatchHealth]) -> Metric:
    text = (
        "1 while the list and watch of a resource works, 0 before its first list and after 30 s of failures"
    )
    family = GaugeMetricFamily("extproc_operator_watch_up", text, labels=["resource"])
    for health in healths:
        family.add_metric([health.resource], float(health.is_up))
    return family


def describe_benchmarks(bodies: Sequence[Body]) -> Iterator[Metric]:
    """Yields a family for each fact; what a status does not have has no line."""
    for name, text, labels, read in (
        ("info", "What is asked; always 1", ("mode", "model"), _read_info),
        ("phase", "1 for the phase that it is in, 0 for the others", ("phase",), _read_phases),
        ("progress_ratio", "How much of it is over", (), _read_progress),
        (
            "figure",
            "A headline figure of the last run, by its name in the status",
            ("figure",),
            _read_figures,
        ),
        ("runs", "Runs that the status remembers, by how they ended", ("phase",), _read_runs),
        ("regressions", "Figures that are worse than in the valid runs before", (), _read_regressions),
        ("last_run_started_timestamp_seconds", "Begin of the run shown", (), _read_moment("startedAt")),
        ("last_run_finished_timestamp_seconds", "End of the last run", (), _read_moment("finishedAt")),
        ("next_run_timestamp_seconds", "When the schedule is due next", (), _read_moment("nextRunAt")),
    ):
        of = ["namespace", "benchmark", *labels]
        family = GaugeMetricFamily(f"extproc_benchmark_{name}", text, labels=of)
        for body in bodies:
            metadata = body["metadata"]
            for values, value in read(body):
                family.add_metric([metadata["namespace"], metadata["name"], *values], value)
        yield family


def _read_info(body: Body) -> _Samples:
    spec = body.get("spec") or {}
    yield (spec.get("mode", "run"), (spec.get("target") or {}).get("model") or ""), 1.0


def _read_phases(body: Body) -> _Samples:
    current = read_status(body)["phase"]
    return (((phase,), float(phase == current)) for phase in PHASES)


def _read_progress(body: Body) -> _Samples:
    progress = read_status(body)["progress"]
    # Of a search nobody knows how much there will be: it says which run is at work.
    if progress.endswith("%"):
        with suppress(ValueError):
            yield (), float(progress.removesuffix("%")) / 100


def _read_figures(body: Body) -> _Samples:
    figures = read_status(body)["figures"]
    return (((name,), value) for name, value in islice(figures.items(), _MOST_FIGURES))


def _read_runs(body: Body) -> _Samples:
    ended = Counter(run["phase"] for run in read_status(body)["history"])
    return (((phase,), float(ended[phase])) for phase in _ENDS)


def _read_regressions(body: Body) -> _Samples:
    yield (), float(len(read_status(body)["regressions"]))


def _read_moment(field: str) -> Callable[[Body], _Samples]:
    def read(body: Body) -> _Samples:
        with suppress(ValueError, OverflowError):  # it says no time
            yield (), read_time(read_status(body)[field]).timestamp()

    return read
