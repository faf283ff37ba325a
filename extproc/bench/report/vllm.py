"""vLLM's two formats: its text report, byte for byte as KubeAI published it, and its result file.

Latencies are vLLM's: from the sending of a request, completed requests of the whole run. The result file
has an entry per request, in order, and null where vLLM writes 0 for a figure that a request lacks.
"""

import math
from collections.abc import Iterator
from typing import Any

import orjson

from extproc.bench.measure import measures
from extproc.bench.measure.metrics import RunMetrics
from extproc.bench.measure.stats import Stats
from extproc.bench.record import RunResult

_WIDTH = 50
_SECTIONS = (
    ("TTFT", "ttft_sent", "Time to First Token"),
    ("TPOT", "tpot", "Time per Output Token (excl. 1st token)"),
    ("ITL", "itl", "Inter-token Latency"),
)
_NAMES = {"ttft": "ttft_sent", "tpot": "tpot", "itl": "itl", "e2el": "e2e_sent"}


def vllm_text(whole: RunMetrics) -> str:
    """Lays out the figures of a whole run; a latency that no request has reads `nan`."""
    return "".join(f"{line}\n" for line in _lines(whole))


def _lines(whole: RunMetrics) -> Iterator[str]:
    yield heading(" Serving Benchmark Result ", "=")
    yield count_line("Successful requests:", whole.counts.completed)
    yield value_line("Benchmark duration (s):", whole.window.end_s)
    yield count_line("Total input tokens:", whole.tokens.input)
    yield count_line("Total generated tokens:", whole.tokens.output)
    yield value_line("Request throughput (req/s):", whole.throughput.requests_rps)
    if whole.goodput:
        yield value_line("Request goodput (req/s):", whole.goodput.good_rps)
    yield value_line("Output token throughput (tok/s):", whole.throughput.output_tps)
    yield value_line("Total Token throughput (tok/s):", whole.throughput.total_tps)
    for short, measure, long in _SECTIONS:
        summary = whole.latency_ms.get(measure)
        yield heading(long, "-")
        yield value_line(f"Mean {short} (ms):", summary.mean if summary else float("nan"))
        yield value_line(f"Median {short} (ms):", summary.p50 if summary else float("nan"))
        yield value_line(f"P99 {short} (ms):", summary.p99 if summary else float("nan"))
    yield heading("", "=")


def heading(title: str, fill: str) -> str:
    return f"{title:{fill}^{_WIDTH}}"


def count_line(label: str, value: int) -> str:
    return f"{label:<40} {value:<10}"


def value_line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}"


def vllm_json(result: RunResult, whole: RunMetrics) -> str:
    """Writes a run's requests and `whole`, the figures of the whole run."""
    fields = {**_run(result), **_totals(whole), **_requests(result), **_summaries(whole)}
    return orjson.dumps(fields, option=orjson.OPT_INDENT_2).decode() + "\n"


def _run(result: RunResult) -> dict[str, Any]:
    info, traffic = result.info, result.info.spec.traffic
    rate = traffic.req_rate
    tokenizer = info.spec.target.tokenizer
    return {
        "date": info.started_at.strftime("%Y%m%d-%H%M%S"),
        "backend": info.spec.target.api.name,
        "model_id": info.model,
        "tokenizer_id": info.model if tokenizer is None else str(tokenizer),
        "num_prompts": len(result.records),
        "request_rate": "inf" if rate is None or math.isinf(rate) else rate,
        "burstiness": traffic.burstiness,
        "max_concurrency": traffic.concurrency,
        "duration": info.duration_s,
    }


def _totals(whole: RunMetrics) -> dict[str, Any]:
    return {
        "completed": whole.counts.completed,
        "failed": whole.counts.failed,
        "total_input_tokens": whole.tokens.input,
        "total_output_tokens": whole.tokens.output,
        "request_throughput": whole.throughput.requests_rps,
        "request_goodput": whole.goodput.good_rps if whole.goodput else None,
        "output_throughput": whole.throughput.output_tps,
        "total_token_throughput": whole.throughput.total_tps,
    }


def _requests(result: RunResult) -> dict[str, Any]:
    records = result.records
    return {
        "input_lens": [record.input_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [measures.ttft_sent(record) for record in records],
        "itls": [
            [later - earlier for earlier, later in zip(record.chunk_s, record.chunk_s[1:], strict=False)]
            for record in records
        ],
        "start_times": [record.sent_s for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.failure or "" for record in records],
    }


def _summaries(whole: RunMetrics) -> dict[str, float | None]:
    fields: dict[str, float | None] = {}
    for name, measure in _NAMES.items():
        summary = whole.latency_ms.get(measure)
        fields |= {f"{label}_{name}_ms": value for label, value in _points(summary).items()}
    return fields


def _points(summary: Stats | None) -> dict[str, float | None]:
    labels = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}
    return {label: getattr(summary, field) if summary else None for label, field in labels.items()}
