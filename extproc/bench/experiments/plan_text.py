"""A plan for the terminal."""

from collections.abc import Iterator, Sequence

from extproc.bench.experiments.plan import Plan

_BLOCKS = "▁▂▃▄▅▆▇█"


def plan_text(plan: Plan) -> str:
    """Lines of name and figure; the schedule as a row of bars, one per slice."""
    return "".join(f"{name:<17}{value}\n" for name, value in _lines(plan)) + f"{plan.honesty}\n"


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.starts:
        yield "schedule", f"{_sparkline(plan.starts)}  {sum(plan.starts)} starts, {plan.slice_s:.1f} s a bar"
        yield "span", f"{plan.span_s:.1f} s"
    else:
        yield "schedule", "none: users ask again when they are answered, or all start at once"
    if plan.offered_rps is not None and plan.peak_rps is not None:
        yield "requests/s", f"{plan.offered_rps:.2f} on average, {plan.peak_rps:.2f} in the busiest bar"
    yield "in flight, ports", f"{plan.in_flight} at {plan.latency_s:g} s a request"
    yield "client CPU", f"{plan.cpu_cores:.2f} cores"


def _sparkline(counts: Sequence[int]) -> str:
    top = max(counts) or 1
    return "".join(_BLOCKS[round(count / top * (len(_BLOCKS) - 1))] for count in counts)
