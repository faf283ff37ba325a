"""llm-d's ladder, rate by rate: `python -m tests.benchmarks.ladder ARM…`. Tokens/s up to the last answer."""

import sys
from itertools import groupby

from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.summary import Latency

for arm in sys.argv[1:]:
    flights = MatrixCell(arm=arm, workload="ladder", seed=1).simulate().flights
    groups = groupby(flights, key=lambda one: int(one.due_at // 1_000))
    steps = {step: [*found] for step, found in groups if step}
    spans = {
        step: max(one.ended_at for one in found) - 1_000 * step for step, found in steps.items()
    }
    whole = [one for found in steps.values() for one in found]
    print(arm, "requests, tokens out/s, TTFT mean and p90 in ms; 0 is all of it")
    for step, found in {0: whole, **steps}.items():
        ttft, tokens = (
            Latency.of(one.ttft_s for one in found),
            sum(one.plan.output_tokens for one in found),
        )
        figures = (
            step,
            len(found),
            tokens / spans.get(step, sum(spans.values())),
            ttft.mean_ms,
            ttft.p90_ms,
        )
        print(*(f"{figure:.0f}" for figure in figures))
