"""llm-d's ladder, rate by rate: `python -m tests.benchmarks.ladder ARM…`. Tokens/s up to the last answer."""

import sys
from collections import defaultdict

from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.flight import Flight
from extproc.simulator.fleet.summary import Latency


def main() -> None:
    for arm in sys.argv[1:]:
        steps = defaultdict[int, list[Flight]](list)
        for flight in MatrixCell(arm=arm, workload="ladder", seed=1).simulate().flights:
            steps[int(flight.due_at // 1_000)].append(flight)
        del steps[0]
        spans = {step: max(one.ended_at for one in flights) - step * 1_000 for step, flights in steps.items()}
        print(arm, *tell([one for flights in steps.values() for one in flights], sum(spans.values())))
        for step, flights in sorted(steps.items()):
            print(f"{step:4}", *tell(flights, spans[step]))


def tell(flights: list[Flight], span_s: float) -> list[str]:
    """Requests, tokens out per second, TTFT mean and p90 in milliseconds."""
    ttft, tokens = Latency.of(one.ttft_s for one in flights), sum(one.plan.output_tokens for one in flights)
    return [f"{figure:.0f}" for figure in (len(flights), tokens / span_s, ttft.mean_ms, ttft.p90_ms)]


main()
