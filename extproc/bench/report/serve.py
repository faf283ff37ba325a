"""The text and the result file of `vllm bench serve` 0.32, labels and order, for a run of ours.

Latencies are vLLM's: from when the client takes a request up, so that encoding it and finding a connection
are in them, to its chunks; of completed requests of the whole run. What differs: a chunk without text is no
token here, and where vLLM writes 0 for a figure that no request has, there is `nan` or null.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import orjson

from extproc.bench.measure import measures
from extproc.bench.measure.metrics import Metrics, chunk_gaps, sample
from extproc.bench.measure.stats import Floats
from extproc.bench.record import Record, RunResult
from extproc.bench.report.vllm import count_line, heading, value_line
from extproc.bench.spec.serve import Telling


def _e2e(record: Record) -> float | None:
    """VLLM's end is the last token, not the last byte."""
    if record.started_s is None or record.end_s is None:
        return None
    return (record.chunk_s[-1] if record.chunk_s else record.end_s) - record.started_s


def _with_queue(record: Record) -> float | None:
    whole_s, held_s = _e2e(record), measures.held(record)
    return None if whole_s is None or held_s is None else whole_s + held_s


@dataclass(frozen=True, slots=True)
class _Latency:
    """How vLLM calls a latency in its table, and what it heads it with."""

    short: str
    title: str
    read: Callable[[RunResult], Floats]


def _each(measure: measures.Measure) -> Callable[[RunResult], Floats]:
    return lambda result: sample(result.records, measure)


_LATENCIES: Mapping[str, _Latency] = MappingProxyType(
    {
        "ttft": _Latency("TTFT", "Time to First Token", _each(measures.ttft_started)),
        "tpot": _Latency("TPOT", "Time per Output Token (excl. 1st token)", _each(measures.tpot)),
        "itl": _Latency("ITL", "Inter-token Latency", lambda result: chunk_gaps(result.records)),
        "e2el": _Latency("E2EL", "End-to-end Latency", _each(_e2e)),
        "client_queue_time": _Latency("Client Queue Time", "Client-side Queueing", _each(measures.held)),
        "e2el_including_client_queue": _Latency(
            "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency", _each(_with_queue)
        ),
    }
)


def serve_text(result: RunResult, whole: Metrics, telling: Telling) -> str:
    """VLLM's final table; `whole` are the figures of the whole run."""
    return "".join(f"{line}\n" for line in _lines(result, whole, telling))


def _lines(result: RunResult, whole: Metrics, telling: Telling) -> Iterator[str]:
    yield heading(" Serving Benchmark Result ", "=")
    yield count_line("Successful requests:", whole.counts.completed)
    yield count_line("Failed requests:", whole.counts.failed)
    if telling.max_concurrency is not None:
        yield count_line("Maximum request concurrency:", telling.max_concurrency)
    if not math.isinf(telling.request_rate):
        yield value_line("Request rate configured (RPS):", telling.request_rate)
    yield value_line("Benchmark duration (s):", whole.window.end_s)
    yield count_line("Total input tokens:", whole.tokens.input)
    yield count_line("Total generated tokens:", whole.tokens.output)
    yield value_line("Request throughput (req/s):", whole.throughput.requests_rps)
    if telling.limits_ms:
        yield value_line("Request goodput (req/s):", _goodput(result, whole, telling))
    tokens, requests = _find_peaks(result)
    yield value_line("Output token throughput (tok/s):", whole.throughput.output_tps)
    yield value_line("Peak output token throughput (tok/s):", tokens)
    yield value_line("Peak concurrent requests:", requests)
    yield value_line("Total token throughput (tok/s):", whole.throughput.total_tps)
    for _, latency in _list_latencies(telling):
        values = latency.read(result) * 1000
        yield heading(latency.title, "-")
        yield from (
            value_line(f"{label} {latency.short} (ms):", value)
            for label, value in _points(values, telling).items()
            if not label.startswith("Std")
        )
    yield heading("", "=")


def _list_latencies(telling: Telling) -> Iterator[tuple[str, _Latency]]:
    """In vLLM's order. Queueing exists with a cap only; it delays only requests that had a time."""
    is_capped, is_timed = telling.max_concurrency is not None, not math.isinf(telling.request_rate)
    absent = set()
    if not is_capped:
        absent = {"client_queue_time", "e2el_including_client_queue"}
    elif not is_timed:
        absent = {"e2el_including_client_queue"}
    for name, latency in _LATENCIES.items():
        if name in telling.metrics and name not in absent:
            yield name, latency


def _points(values: Floats, telling: Telling) -> dict[str, float]:
    """Mean, median, deviation and percentiles by label; `nan` where there is nothing to summarise."""
    points: dict[str, Callable[[Floats], np.floating]]
    points = {"Mean": np.mean, "Median": np.median, "Std": np.std}
    if not values.size:
        return dict.fromkeys([*points, *map(_name_percentile, telling.percentiles)], math.nan)
    summary = {label: float(read(values)) for label, read in points.items()}
    return summary | {
        _name_percentile(point): float(np.percentile(values, point)) for point in telling.percentiles
    }


def _name_percentile(point: float) -> str:
    return f"P{point:g}"


def _goodput(result: RunResult, whole: Metrics, telling: Telling) -> float:
    """Requests per second within all limits, from sending; one token has no TPOT and breaks none."""
    reads = {"ttft": measures.ttft_started, "tpot": measures.tpot, "e2el": _e2e}
    good = sum(
        all((reads[name](record) or 0.0) * 1000 <= limit for name, limit in telling.limits_ms.items())
        for record in result.records
        if record.is_ok
    )
    return good / whole.window.end_s if whole.window.end_s else 0.0


def _find_peaks(result: RunResult) -> tuple[float, float]:
    """The most chunks and the most requests that fell into one second, counted from the first start."""
    done = [record for record in result.records if record.is_ok and record.started_s is not None]
    if not done:
        return 0.0, 0.0
    first_s = min(record.started_s or 0.0 for record in done)
    chunks = np.concatenate([np.asarray(record.chunk_s) for record in done]) - first_s
    started_s = np.array([record.started_s for record in done], dtype=np.float64) - first_s
    lasted_s = np.array([_e2e(record) for record in done], dtype=np.float64)
    begun, ended = started_s.astype(int), (started_s + lasted_s).astype(int)
    steps = np.zeros(ended.max() + 2)
    np.add.at(steps, begun, 1)
    np.add.at(steps, ended + 1, -1)
    tokens = np.bincount(chunks.astype(int)).max() if chunks.size else 0
    return float(tokens), float(np.cumsum(steps).max())


def serve_json(result: RunResult, whole: Metrics, telling: Telling) -> str:
    """VLLM's result file; `errors` hold our words."""
    fields = {**_setup(result, telling), **_totals(result, whole, telling)}
    if telling.is_detailed:
        fields |= _requests(result)
    for name, latency in _list_latencies(telling):
        points = _points(latency.read(result) * 1000, telling)
        fields |= {f"{label.lower()}_{name}_ms": value for label, value in points.items()}
    # orjson writes what is not a number as null.
    return orjson.dumps(fields).decode() + "\n"


def _setup(result: RunResult, telling: Telling) -> dict[str, object]:
    return {
        "date": result.info.started_at.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": telling.backend,
        "backend": telling.backend,
        "label": telling.label,
        "model_id": telling.model_id or result.info.model,
        "tokenizer_id": telling.tokenizer_id or result.info.model,
        "num_prompts": telling.num_prompts,
        **telling.metadata,
        "request_rate": "inf" if math.isinf(telling.request_rate) else telling.request_rate,
        "burstiness": telling.burstiness,
        "max_concurrency": telling.max_concurrency,
    }


def _totals(result: RunResult, whole: Metrics, telling: Telling) -> dict[str, object]:
    tokens, requests = _find_peaks(result)
    return {
        "duration": whole.window.end_s,
        "completed": whole.counts.completed,
        "failed": whole.counts.failed,
        "total_input_tokens": whole.tokens.input,
        "total_output_tokens": whole.tokens.output,
        "request_throughput": whole.throughput.requests_rps,
        "request_goodput": _goodput(result, whole, telling) if telling.limits_ms else None,
        "output_throughput": whole.throughput.output_tps,
        "total_token_throughput": whole.throughput.total_tps,
        "max_output_tokens_per_s": tokens,
        "max_concurrent_requests": int(requests),
    }


def _requests(result: RunResult) -> dict[str, object]:
    records = result.records
    return {
        "input_lens": [record.input_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [measures.ttft_started(record) for record in records],
        "itls": [np.diff(record.chunk_s).tolist() for record in records],
        "latencies": [_e2e(record) for record in records],
        "start_times": [record.started_s for record in records],
        "queue_times": [measures.held(record) for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [": ".join(filter(None, (record.failure, record.failure_detail))) for record in records],
    }


def name_result_file(telling: Telling, model: str, at: str) -> str:
    """VLLM's name for a result file."""
    cap = "" if telling.max_concurrency is None else f"-concurrency{telling.max_concurrency}"
    base = (telling.model_id or model).rpartition("/")[2]
    return f"{telling.label or telling.backend}-{telling.request_rate}qps{cap}-{base}-{at}.json"
