"""Fleet runs as text: KubeAI's columns, then what explains them."""

from collections.abc import Sequence

from extproc.vllm.fleet.summary import Latency, Summary

_TOLERANCE = 1.03
_RESULT = ("strategy", "requests", "failed", "duration s", "req/s", "output tok/s", "total tok/s")
_LATENCIES = tuple(f"{name} {kind}" for name in ("TTFT", "TPOT", "ITL") for kind in ("mean", "median", "p99"))
_CACHE = ("strategy", "hit rate", "ideal", "ideal at this size", "preempted", "TTFT from due mean")
_LOAD = ("strategy", "requests max/mean", "cv", "uncached tokens max/mean", "cv", "reasons")
_STEADY = ("strategy", "window s", "offered req/s", "served req/s", "total tok/s", "hit rate")


def render(summaries: Sequence[Summary]) -> str:
    """Lays out runs, one line of each table per run. Latencies are milliseconds."""
    tables = (
        [_RESULT, *map(_result, summaries)],
        [("latency, ms", *_LATENCIES), *map(_latencies, summaries)],
        [_CACHE, *map(_cache, summaries)],
        [_LOAD, *map(_load, summaries)],
        [_STEADY, *map(_steady, summaries)],
    )
    return "\n".join(map(lay_out, tables)) + _warn(summaries)


def _warn(summaries: Sequence[Summary]) -> str:
    """Where turns follow answers, a slow strategy is offered less: its latencies flatter it."""
    offered = [summary.steady.offered_rps for summary in summaries]
    if max(offered) <= _TOLERANCE * min(offered):
        return ""
    return "\nThe offered loads differ by more than 3 %: these latencies do not compare.\n"


def lay_out(rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns: the first to the left, the others to the right; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "".join(f"{line.rstrip()}\n" for line in (lines[0], "-" * len(lines[0]), *lines[1:]))


def _result(run: Summary) -> Sequence[str]:
    counts = (str(run.requests), str(run.failed), f"{run.duration_s:.2f}", f"{run.req_per_s:.2f}")
    return (run.strategy, *counts, f"{run.output_tok_per_s:.2f}", f"{run.total_tok_per_s:.2f}")


def _latencies(run: Summary) -> Sequence[str]:
    return (run.strategy, *(cell for latency in (run.ttft, run.tpot, run.itl) for cell in _cells(latency)))


def _cells(latency: Latency) -> Sequence[str]:
    return (f"{latency.mean_ms:.2f}", f"{latency.median_ms:.2f}", f"{latency.p99_ms:.2f}")


def _cache(run: Summary) -> Sequence[str]:
    rates = (f"{rate:.3f}" for rate in (run.hit_rate, run.ideal_hit_rate, run.shared_hit_rate))
    return (run.strategy, *rates, str(run.preemptions), f"{run.ttft_due.mean_ms:.2f}")


def _load(run: Summary) -> Sequence[str]:
    skews = (run.requests_skew, run.uncached_skew)
    cells = (f"{value:.3f}" for skew in skews for value in (skew.max_over_mean, skew.cv))
    return (run.strategy, *cells, ", ".join(f"{reason} {count}" for reason, count in run.reasons.items()))


def _steady(run: Summary) -> Sequence[str]:
    steady = run.steady
    rates = (f"{rate:.2f}" for rate in (steady.offered_rps, steady.served_rps, steady.total_tok_per_s))
    return (run.strategy, f"{steady.start_s:.0f}-{steady.end_s:.0f}", *rates, f"{steady.hit_rate:.3f}")
