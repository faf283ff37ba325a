"""Cells at the edge of what a fleet can do, where the default strategy once tipped over.

The bounds are of virtual time, the same on every machine. Beside each: what this rule, GIE's weights, and
this rule without the term of its cost that the cell needs took when it was written.
"""

from typing import Any

import pytest

from extproc.simulator.fleet.cell import MatrixCell


@pytest.mark.parametrize(
    ("cell", "ttft_mean_ms"),
    [
        # 123; 117; without the floor of a request in flight 187
        ({"workload": "swe", "endpoints": 3, "load": 1.0, "warmup_s": 250.0, "measured_s": 250.0}, 150),
        # 332; 378; without what a prefill evicts 824
        ({"workload": "zipf", "endpoints": 8, "load": 1.1, "seed": 13}, 450),
        # 540; 552, without the busy factor 543
        ({"workload": "tot", "endpoints": 4, "load": 1.3, "warmup_s": 200.0, "measured_s": 300.0}, 600),
    ],
    ids=lambda value: value["workload"] if isinstance(value, dict) else "",
)
def test_default_strategy_stays_upright_at_the_edge(cell: dict[str, Any], ttft_mean_ms: float) -> None:
    assert MatrixCell(arm="prefix_cache", **{"seed": 1, **cell}).run().ttft.mean_ms < ttft_mean_ms
