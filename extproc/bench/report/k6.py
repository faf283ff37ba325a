"""The summary that k6 prints at a run's end, of the metrics that KubeAI's script adds to k6's own.

Figures are of the whole run. `http_req_duration` and `time_per_token` count from the sending; requests that
the run's end broke off are in none of them, as in k6's.
"""

from collections.abc import Iterator, Sequence

from extproc.bench.measure import measures
from extproc.bench.measure.conversations import Conversations, count_conversations
from extproc.bench.measure.metrics import sample
from extproc.bench.measure.stats import Floats, Stats
from extproc.bench.record import RunResult
from extproc.bench.report.report import Report

_NAME = 31
_POINTS = (
    ("avg", "mean"),
    ("min", "min"),
    ("med", "p50"),
    ("max", "max"),
    ("p(90)", "p90"),
    ("p(95)", "p95"),
)


def k6_text(result: RunResult, said: Report) -> str:
    conversations = count_conversations(result.records)
    lines = [*_metrics(result, said, conversations), "", "", *_end(result, conversations)]
    return "".join(f"{line}\n" for line in lines)


def _metrics(result: RunResult, said: Report, conversations: Conversations) -> Iterator[str]:
    whole, span_s = said.whole, max(result.info.duration_s, 1e-9)
    ended = whole.counts.completed + whole.counts.failed
    trends = _trends(
        {
            "http_req_duration": sample(result.records, measures.e2e_sent),
            "iteration_duration": conversations.durations_s,
            "time_per_token": sample(result.records, measures.time_per_token),
        }
    )
    tokens = whole.tokens
    mark = "✓" if not whole.counts.failed else "✗"
    done = whole.counts.completed / ended if ended else 1.0
    yield _line("checks", f"{done:.2%} {whole.counts.completed} out of {ended}")
    yield from trends.get("http_req_duration", ())
    failed = f"{1 - done:.2%}   {whole.counts.failed} out of {ended}"
    yield f"   {mark} {_line('http_req_failed', failed).lstrip()}"
    yield _line("http_reqs", _rate(ended, span_s))
    yield _line("input_tokens", _rate(tokens.input, span_s))
    yield from trends.get("iteration_duration", ())
    yield _line("iterations", _rate(conversations.completed, span_s))
    yield _line("new_tokens", _rate(tokens.output, span_s))
    yield from trends.get("time_per_token", ())
    yield _line("tokens", _rate(tokens.input + tokens.output, span_s))
    if users := result.info.spec.traffic.concurrency:
        yield _line("vus_max", str(users))


def _line(name: str, value: str) -> str:
    return f"     {name:.<{_NAME}}: {value}"


def _rate(count: int, span_s: float) -> str:
    return f"{count:<7} {count / span_s:.6f}/s"


def _trends(samples: dict[str, Sequence[float] | Floats]) -> dict[str, list[str]]:
    """A line per sample that has values, every column as wide as its widest value."""
    summaries = {name: found for name, values in samples.items() if (found := Stats.of(values))}
    cells = {
        name: [f"{label}={duration(getattr(summary, field))}" for label, field in _POINTS]
        for name, summary in summaries.items()
    }
    widths = [max(map(len, column)) for column in zip(*cells.values(), strict=True)]
    return {
        name: [
            _line(name, " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        ]
        for name, row in cells.items()
    }


def duration(seconds: float) -> str:
    """As k6 writes it: `79.02µs`, `384.49ms`, `32.48s`, `3m49s`, `1h2m3s`."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{f'{hours}h' if hours else ''}{minutes}m{rest}s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{f'{seconds / size:.2f}'.rstrip('0').rstrip('.')}{unit}"
    return "0s"


def _end(result: RunResult, conversations: Conversations) -> Iterator[str]:
    minutes, seconds = divmod(result.info.duration_s, 60)
    users = result.info.spec.traffic.concurrency
    of = "" if users is None else f" {0:0{len(str(users))}}/{users} VUs,"
    yield (
        f"running ({minutes:02.0f}m{seconds:04.1f}s),{of} {conversations.completed} complete and "
        f"{conversations.interrupted} interrupted iterations"
    )
