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

PHASES: Final = ("Refused", "Waiting", "Running", "Valid", "Invalid", "Failed", "Suspended")
_ENDS: Final = ("Valid", "Invalid", "Failed")
# The operator writes a few; whoever else may write a status shall not fill a Prometheus.
_MOST_FIGURES: Final = 50

_Told = Iterable[tuple[tuple[str, ...], float]]


def describe_operator(*, is_leading: bool) -> Metric:
    text = "1 for the replica that acts, and that tells of Benchmarks"
    return GaugeMetricFamily("extproc_operator_leading", text, value=float(is_leading))


def describe_benchmarks(bodies: Sequence[Body]) -> Iterator[Metric]:
    """Yields a family for each fact; what a status does not have has no line."""
    for name, text, labels, tell in (
        ("info", "What is asked; always 1", ("mode", "model"), _tell_info),
        ("phase", "1 for the phase that it is in, 0 for the others", ("phase",), _tell_phases),
        ("progress_ratio", "How much of it is over", (), _tell_progress),
        (
            "figure",
            "A headline figure of the last run, by its name in the status",
            ("figure",),
            _tell_figures,
        ),
        ("runs", "Runs that the status remembers, by how they ended", ("phase",), _tell_runs),
        ("regressions", "Figures that are worse than in the valid runs before", (), _tell_regressions),
        ("last_run_started_timestamp_seconds", "Begin of the run shown", (), _tell_time("startedAt")),
        ("last_run_finished_timestamp_seconds", "End of the last run", (), _tell_time("finishedAt")),
        ("next_run_timestamp_seconds", "When the schedule is due next", (), _tell_time("nextRunAt")),
    ):
        of = ["namespace", "benchmark", *labels]
        family = GaugeMetricFamily(f"extproc_benchmark_{name}", text, labels=of)
        for body in bodies:
            metadata = body["metadata"]
            for values, value in tell(body):
                family.add_metric([metadata["namespace"], metadata["name"], *values], value)
        yield family


def _tell_info(body: Body) -> _Told:
    spec = body.get("spec") or {}
    yield (spec.get("mode", "run"), (spec.get("target") or {}).get("model") or ""), 1.0


def _tell_phases(body: Body) -> _Told:
    current = read_status(body)["phase"]
    return (((phase,), float(phase == current)) for phase in PHASES)


def _tell_progress(body: Body) -> _Told:
    progress = read_status(body)["progress"]
    # Of a search nobody knows how much there will be: it says which run is at work.
    if progress.endswith("%"):
        with suppress(ValueError):
            yield (), float(progress.removesuffix("%")) / 100


def _tell_figures(body: Body) -> _Told:
    figures = read_status(body)["figures"]
    return (((name,), value) for name, value in islice(figures.items(), _MOST_FIGURES))


def _tell_runs(body: Body) -> _Told:
    ended = Counter(run["phase"] for run in read_status(body)["history"])
    return (((phase,), float(ended[phase])) for phase in _ENDS)


def _tell_regressions(body: Body) -> _Told:
    yield (), float(len(read_status(body)["regressions"]))


def _tell_time(field: str) -> Callable[[Body], _Told]:
    def tell(body: Body) -> _Told:
        with suppress(ValueError, OverflowError):  # it says no time
            yield (), read_time(read_status(body)[field]).timestamp()

    return tell
