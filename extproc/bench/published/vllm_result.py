"""Result files of `vllm bench serve`, read back: a whole run if saved with details, else its figures."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from extproc.bench.record import Record, RunInfo, RunResult, TokenSource, Window
from extproc.bench.report.report import ReportError
from extproc.bench.spec.tree import Spec

_DETAILS = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")
# Our figures by vLLM's names. Its latencies are from sending; none of those that we compare is its E2EL.
_FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "req_per_s": "request_throughput",
        "output_tok_per_s": "output_throughput",
        "total_tok_per_s": "total_token_throughput",
        **{
            f"{ours}_{point}_ms": f"{point}_{theirs}_ms"
            for ours, theirs in (("ttft_sent", "ttft"), ("tpot", "tpot"), ("itl", "itl"))
            for point in ("mean", "median", "p99")
        },
    }
)


class VllmResult(msgspec.Struct):
    """The fields of a result file that are read; lists are there with `--save-detailed` only."""

    date: str
    backend: str
    model_id: str
    num_prompts: int
    request_rate: float | str
    duration: float
    completed: int
    label: str | None = None
    failed: int | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    start_times: list[float | None] | None = None
    ttfts: list[float | None] | None = None
    itls: list[list[float]] | None = None
    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    errors: list[str] | None = None
    generated_texts: list[str] | None = None
    queue_times: list[float | None] | None = None
    latencies: list[float | None] | None = None

    @property
    def at(self) -> datetime:
        return datetime.strptime(self.date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)

    @property
    def has_details(self) -> bool:
        return all(getattr(self, name) is not None for name in _DETAILS)


def read_vllm_result(path: Path) -> VllmResult:
    """Reads a result file; raises `ReportError` for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=VllmResult)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: not a result of `vllm bench serve`: {error}") from None


def read_summary(path: Path) -> dict[str, float | None]:
    """The figures that we compare, as the file tells them; `None` for one that it lacks."""
    fields: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    told = {name: _number(fields.get(theirs)) for name, theirs in _FIGURES.items()}
    failed, completed = fields.get("failed"), fields.get("completed", 0)
    asked = completed + (failed or 0)
    return {**told, "failed": failed / asked if failed is not None and asked else None}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def rebuild_run(said: VllmResult, name: str) -> RunResult:
    """Rebuilds the requests of a detailed result. Who was to blame for lateness is not in it.

    Raises `ReportError` for a result without details.
    """
    if not said.has_details:
        raise ReportError("the result has no requests in it: save it with --save-detailed")
    records = _build_records(said)
    end_s = max((record.end_s or 0.0 for record in records), default=0.0)
    info = RunInfo(
        spec=_build_spec(said, name),
        model=said.model_id,
        started_at=said.at,
        duration_s=said.duration,
        window=Window(0.0, math.nextafter(max(end_s, said.duration), math.inf)),
        schedule_s=(),
        offered_rps=None,
        clients=(),
        scrapes=(),
    )
    return RunResult(info, tuple(records))


def _build_spec(said: VllmResult, name: str) -> Spec:
    traffic: dict[str, object] = {"req-rate": said.request_rate, "total-prompts": said.num_prompts}
    if said.max_concurrency is not None:
        traffic["max-concurrency"] = said.max_concurrency
    return Spec.model_validate(
        {"name": said.label or name, "endpoint": "imported", "performance": {"traffic-shape": traffic}}
    )


def _build_records(said: VllmResult) -> list[Record]:
    sent = said.start_times or []
    queued = said.queue_times or [0.0] * len(sent)
    due = [None if at_s is None else at_s - (held or 0.0) for at_s, held in zip(sent, queued, strict=True)]
    first_s = min((at_s for at_s in due if at_s is not None), default=0.0)
    return [
        _build_record(said, i, _shift(due[i], first_s), _shift(sent[i], first_s)) for i in range(len(sent))
    ]


def _shift(at_s: float | None, by_s: float) -> float | None:
    return None if at_s is None else at_s - by_s


def _build_record(said: VllmResult, i: int, due_s: float | None, sent_s: float | None) -> Record:
    error, ttft_s = _at(said.errors, i) or "", _at(said.ttfts, i)
    record = Record(i, i, 0, due_s or 0.0, admitted_s=sent_s, started_s=sent_s, sent_s=sent_s)
    record.input_tokens, record.output_tokens = _at(said.input_lens, i) or 0, _at(said.output_lens, i) or 0
    record.token_source = TokenSource.SERVER
    record.text = _at(said.generated_texts, i) or ""
    # vLLM keeps a traceback, or nothing but zeros: neither has an answer.
    if error or sent_s is None or not ttft_s:
        record.failure, record.failure_detail = "failed", error.strip().rpartition("\n")[2][:300]
        return record
    record.first_token_s = record.first_byte_s = sent_s + ttft_s
    record.chunk_s = [record.first_token_s]
    for gap_s in _at(said.itls, i) or []:
        record.chunk_s.append(record.chunk_s[-1] + gap_s)
    lasted_s = _at(said.latencies, i)
    record.end_s = record.chunk_s[-1] if lasted_s is None else sent_s + lasted_s
    return record


def _at(values: Sequence[Any] | None, i: int) -> Any:
    return None if values is None or i >= len(values) else values[i]
