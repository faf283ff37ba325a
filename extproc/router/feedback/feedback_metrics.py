"""What the pools' feedback has counted, as metrics: read when somebody scrapes."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extproc.router.feedback.pool_feedback import FIRST_BYTE_BOUNDS_S, FirstByteTimes, PoolFeedback
from extproc.router.histogram import Histogram
from extproc.router.telemetry import buckets, counters, gauges, histograms, summaries

# Shown as 0 from the start, so that `increase()` sees the first one.
EXPECTED_CLASSES: Final = ("2xx", "4xx", "5xx", "none", "broken", "aborted")


class FeedbackCollector(Collector):
    """Answers, coolings and cache hits by endpoint, time to the first byte and predicted hits by pool."""

    def __init__(self, feedbacks: Callable[[], Iterable[PoolFeedback]]) -> None:
        self._feedbacks = feedbacks

    def collect(self) -> Iterator[Metric]:
        answers = counters(
            "extproc_answers", "What became of requests.", "pool", "endpoint", "class"
        )
        coolings = counters(
            "extproc_endpoint_coolings", "How often it was cooled down.", "pool", "endpoint"
        )
        first_byte = histograms(
            "extproc_first_byte_seconds",
            "From a request's first byte at the proxy to its answer's; of a stream the head's.",
            "pool",
            "zone",
            "class",
        )
        predicted = counters(
            "extproc_predicted_tokens",
            "Prompts' tokens, believed cached or not.",
            "pool",
            "reason",
            "cached",
        )
        saved = counters(
            "extproc_saved_prefill_seconds",
            "Prefill that tokens believed cached saved.",
            "pool",
            "reason",
        )
        measured = counters(
            "extproc_measured_tokens",
            "Prompts' tokens, found cached or not.",
            "pool",
            "endpoint",
            "cached",
        )
        for feedback in self._feedbacks():
            strategy = feedback.pool.strategy.signals
            for reason, counts in strategy.predicted().items() if strategy is not None else ():
                predicted.add_metric([feedback.pool.name, reason, "yes"], counts.cached)
                predicted.add_metric(
                    [feedback.pool.name, reason, "no"], counts.prompt - counts.cached
                )
                saved.add_metric([feedback.pool.name, reason], counts.saved_ms / 1000)
            for name, signals in feedback.signals.items():
                measured.add_metric([feedback.pool.name, name, "yes"], signals.hit_tokens)
                measured.add_metric(
                    [feedback.pool.name, name, "no"], signals.queried_tokens - signals.hit_tokens
                )
            pool, counted = feedback.pool.name, feedback.counters
            names = feedback.pool.snapshot.names
            answered = dict.fromkeys(product(names, EXPECTED_CLASSES), 0) | counted.answers
            for (name, class_), count in answered.items():
                answers.add_metric([pool, name, class_], count)
            for name, count in (dict.fromkeys(names, 0) | counted.coolings).items():
                coolings.add_metric([pool, name], count)
            zones = {endpoint.zone or "" for endpoint in feedback.pool.snapshot.ready.values()}
            expected = {(zone, "2xx"): Histogram(FIRST_BYTE_BOUNDS_S) for zone in zones}
            for labels, times in (expected | counted.first_bytes).items():
                first_byte.add_metric([pool, *labels], buckets(times), times.sum_s)
        yield from (answers, coolings, first_byte, predicted, saved, measured)
        yield from self._collect_speeds()

    def _collect_speeds(self) -> Iterable[Metric]:
        by_endpoint = summaries(
            "extproc_endpoint_first_byte_seconds",
            "The same of its answers without a fault.",
            "pool",
            "endpoint",
        )
        silent = gauges(
            "extproc_endpoint_silent_seconds",
            "Since when requests go there and it answers none; 0: it does.",
            "pool",
            "endpoint",
        )
        for feedback in self._feedbacks():
            for name in feedback.pool.snapshot.names:
                labels = [feedback.pool.name, name]
                times = feedback.counters.endpoint_times.get(name, FirstByteTimes())
                by_endpoint.add_metric(labels, times.count, times.sum_s)
                silent.add_metric(labels, feedback.silent_for_s(name))
        return by_endpoint, silent
