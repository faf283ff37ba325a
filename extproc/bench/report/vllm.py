"""vLLM's two formats: its text report, byte for byte as KubeAI published it, and its result file.

Latencies are vLLM's: from the sending of a request, completed requests of the whole run. The result
file has an entry per request, in order, and null where vLLM writes 0 for a figure that a request
lacks.
"""

import math
from itertools import pairwise

import msgspec

from extproc.bench.measure import metrics
from extproc.bench.measure.metrics import RunMetrics
from extproc.bench.record import RunResult

_WIDTH = 50
_SECTIONS = (
    ("TTFT", "ttft_sent", "Time to First Token"),
    ("TPOT", "tpot", "Time per Output Token (excl. 1st token)"),
    ("ITL", "itl", "Inter-token Latency"),
)
_POINTS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}
# The one key that vLLM's tool does not write. Its readers take keys by name.
_ITL = (
    "gaps between chunks with something that the model wrote; vLLM's own tool counts a chat's chunk with the role as "
    "one, so its ITL has a short first gap more"
)
_NAMES = {"ttft": "ttft_sent", "tpot": "tpot", "itl": "itl", "e2el": "e2e_sent"}


def vllm_text(whole: RunMetrics) -> str:
    """Lays out the figures of a whole run; a latency that no request has reads `nan`."""
    flow = whole.throughput
    rows: list[tuple[str, float]] = [
        ("Successful requests:", whole.counts.completed),
        ("Benchmark duration (s):", whole.window.end_s),
        ("Total input tokens:", whole.tokens.input),
        ("Total generated tokens:", whole.tokens.output),
        ("Request throughput (req/s):", flow.requests_rps),
        *([("Request goodput (req/s):", whole.goodput.good_rps)] if whole.goodput else []),
        ("Output token throughput (tok/s):", flow.output_tps),
        ("Total Token throughput (tok/s):", flow.total_tps),
    ]
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}", *(_row(*row) for row in rows)]
    for short, measure, long in _SECTIONS:
        lines.append(f"{long:-^{_WIDTH}}")
        for label, point in (("Mean", "mean"), ("Median", "p50"), ("P99", "p99")):
            value = whole.latency(measure, point)
            lines.append(_row(f"{label} {short} (ms):", math.nan if value is None else value))
    return "".join(f"{line}\n" for line in (*lines, "=" * _WIDTH))


def _row(label: str, value: float) -> str:
    return f"{label:<40} {value:<10}" if isinstance(value, int) else f"{label:<40} {value:<10.2f}"


def vllm_json(result: RunResult, whole: RunMetrics) -> str:
    """Writes a run's requests and `whole`, the figures of the whole run."""
    info, traffic, records = result.info, result.info.spec.traffic, result.records
    rate, tokenizer = traffic.req_rate, info.spec.target.tokenizer
    fields = {
        "date": info.started_at.strftime("%Y%m%d-%H%M%S"),
        "backend": info.spec.target.api.name,
        "model_id": info.model,
        "tokenizer_id": info.model if tokenizer is None else str(tokenizer),
        "num_prompts": len(records),
        "request_rate": "inf" if rate is None or math.isinf(rate) else rate,
        "burstiness": traffic.burstiness,
        "max_concurrency": traffic.concurrency,
        "duration": info.duration_s,
        "completed": whole.counts.completed,
        "failed": whole.counts.failed,
        "total_input_tokens": whole.tokens.input,
        "total_output_tokens": whole.tokens.output,
        "request_throughput": whole.throughput.requests_rps,
        "request_goodput": whole.goodput.good_rps if whole.goodput else None,
        "output_throughput": whole.throughput.output_tps,
        "total_token_throughput": whole.throughput.total_tps,
        "input_lens": [record.input_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [metrics.ttft_sent(record) for record in records],
        "itls": [[late - early for early, late in pairwise(record.chunk_s)] for record in records],
        "start_times": [record.sent_s for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.failure or "" for record in records],
    }
    for name, measure in _NAMES.items():
        for label, point in _POINTS.items():
            fields[f"{label}_{name}_ms"] = whole.latency(measure, point)
    fields["itl_definition"] = _ITL
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"
