"""Cells at the edge of what a fleet can do, where the default strategy once tipped over.

The bounds are of virtual time, the same on every machine. Beside each: what this rule, GIE's weights, and
this rule without the term of its cost that the cell needs took when it was written.
"""

import pytest

from extproc.simulator.fleet.cell import MatrixCell


@pytest.mark.parametrize(
    ("workload", "endpoints", "load", "window_s", "ttft_mean_ms"),
    [
        ("swe", 3, 1.0, (250.0, 250.0), 150),  # 123; 117; without the floor of a request in flight 187
        ("zipf", 8, 1.1, (None, None), 450),  # 332; 378; without what a prefill evicts 824
        ("tot", 4, 1.3, (200.0, 300.0), 600),  # 540; 552, without the busy factor 543
    ],
)
def test_default_strategy_stays_upright_at_the_edge(
    workload: str,
    endpoints: int,
    load: float,
    window_s: tuple[float | None, float | None],
    ttft_mean_ms: float,
) -> None:
    warmup_s, measured_s = window_s
    seed = 13 if workload == "zipf" else 1
    cell = MatrixCell(
        arm="prefix_cache",
        workload=workload,
        endpoints=endpoints,
        load=load,
        seed=seed,
        warmup_s=warmup_s,
        measured_s=measured_s,
    )

    assert cell.run().ttft.mean_ms < ttft_mean_ms
