"""vLLM's `benchmark_serving` text report, byte for byte in the layout of KubeAI's published results.

Latencies are vLLM's: from the sending of a request, completed requests of the whole run.
"""

from collections.abc import Iterator

from extproc.bench.measure import metrics
from extproc.bench.measure.metrics import Metrics
from extproc.bench.record import RunResult

_WIDTH = 50
_SECTIONS = (
    ("TTFT", "ttft_sent", "Time to First Token"),
    ("TPOT", "tpot", "Time per Output Token (excl. 1st token)"),
    ("ITL", "itl", "Inter-token Latency"),
)


def vllm_text(result: RunResult) -> str:
    return render(
        metrics.measure(result.records, metrics.whole_run(result), result.info.spec.performance.slo)
    )


def render(whole: Metrics) -> str:
    """Lays out the figures of a whole run; a latency that no request has reads `nan`."""
    return "".join(f"{line}\n" for line in _lines(whole))


def _lines(whole: Metrics) -> Iterator[str]:
    yield " Serving Benchmark Result ".center(_WIDTH, "=")
    yield _count("Successful requests:", whole.counts.completed)
    yield _value("Benchmark duration (s):", whole.window.end_s)
    yield _count("Total input tokens:", whole.tokens.input)
    yield _count("Total generated tokens:", whole.tokens.output)
    yield _value("Request throughput (req/s):", whole.throughput.requests_rps)
    if whole.goodput:
        yield _value("Request goodput (req/s):", whole.goodput.good_rps)
    yield _value("Output token throughput (tok/s):", whole.throughput.output_tps)
    yield _value("Total Token throughput (tok/s):", whole.throughput.total_tps)
    for short, measure, long in _SECTIONS:
        summary = whole.latency_ms.get(measure)
        yield f"{long:-^{_WIDTH}}"
        yield _value(f"Mean {short} (ms):", summary.mean if summary else float("nan"))
        yield _value(f"Median {short} (ms):", summary.p50 if summary else float("nan"))
        yield _value(f"P99 {short} (ms):", summary.p99 if summary else float("nan"))
    yield "=" * _WIDTH


def _count(label: str, value: int) -> str:
    return f"{label:<40} {value:<10}"


def _value(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}"
