"""Sharing with each fault, from then on, beside sharing nothing: `… bench_faults_simulated SEEDS K C`."""

import gc
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import inf
from statistics import fmean, median
from typing import Any, Final

from extproc.simulator.fleet.bus import BusFault
from extproc.simulator.fleet.cell import MatrixCell

# What K lacks of a time to be measured, its users have: 0.3 s between an answer and the next
# question.
WORKLOADS: Final[Mapping[str, Mapping[str, Any]]] = {
    "K": {"load": 0.75, "think_s": 0.3, "warmup_s": 60.0, "measured_s": 120.0},
    "C": {"load": 0.75, "warmup_s": 100.0, "measured_s": 120.0},
}
ARMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "nothing shared": {},
    "well": {"share_delay_ms": 10.0},
    "1 s late": {"share_delay_ms": 1000.0},
    "a tenth lost": {"share_delay_ms": 10.0, "share_loss": 0.1},
    **{
        str(fault): {"share_delay_ms": 10.0, "share_fault": fault}
        for fault in (BusFault.SLOWS, BusFault.DIES, BusFault.AWAY, BusFault.HALVES)
    },
}
STRETCHES_S: Final = (4.0, inf)

Figures = Sequence[tuple[float, float]]
"""For each stretch, the hit rate and the mean TTFT."""


def measure_simulated(workload: str, arm: str, seed: int) -> Figures:
    gc.disable()
    asked = {"endpoints": 4, "gateways": 4, **WORKLOADS[workload], **ARMS[arm]}
    cell = MatrixCell(arm="prefix_cache", workload=workload, seed=seed, **asked)
    begins_s = cell.warmup_s + cell.measured_s / 2  # type: ignore[operator]  # they are given above
    ends_s = cell.warmup_s + cell.measured_s  # type: ignore[operator]  # likewise
    flights = [one for one in cell.simulate().flights if begins_s <= one.due_at < ends_s]
    stretches = [
        [one for one in flights if one.due_at < begins_s + long_s] for long_s in STRETCHES_S
    ]
    return [
        (
            sum(one.cached_tokens for one in stretch)
            / sum(one.plan.prompt_tokens for one in stretch),
            fmean(one.due_ttft_s for one in stretch),
        )
        for stretch in stretches
    ]


def spread(values: Sequence[float]) -> str:
    return f"{median(values):5.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    seeds, workloads = range(1, 1 + int(sys.argv[1])), sys.argv[2:] or [*WORKLOADS]
    runs = [*product(workloads, ARMS, seeds)]
    with ProcessPoolExecutor() as pool:
        figures = dict(
            zip(runs, pool.map(measure_simulated, *zip(*runs, strict=True)), strict=True)
        )
    for workload, arm in product(workloads, ARMS):
        for place, long_s in enumerate(STRETCHES_S):
            pairs = [
                (
                    figures[workload, arm, seed][place],
                    figures[workload, "nothing shared", seed][place],
                )
                for seed in seeds
            ]
            hits = spread([one[0] / other[0] if other[0] else 1.0 for one, other in pairs])
            ttft = spread([one[1] / other[1] for one, other in pairs])
            print(f"{workload:2} {arm:14} {long_s:4g} s: hits {hits}, TTFT {ttft}")


if __name__ == "__main__":
    main()
