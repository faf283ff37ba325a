"""The golden table sees the whole rule: without any one of its terms, some figure is another."""

import pytest

from extproc.router.routing.strategies.prefix_cache.rule import Rule
from tests.golden.rule_table import read_rows, render_row

# A change of each constant, and a cell that it moves. `0` takes a term out, where it is a weight.
CHANGES = {
    "shared": ("shared=0", "fewshot"),
    "hold_up": ("hold_up=0", "zipf"),
    "evicted": ("evicted=0", "zipf"),
    "evicted_s": ("evicted_s=5", "zipf"),
    "backlog": ("backlog=0", "tenants"),
    "drain": ("drain=1", "tenants"),
    "step": ("step=0", "seed-004"),
    "prefill": ("prefill=0", "tenants"),
    "memory": ("memory=0", "zipf"),
}


def test_every_constant_of_the_rule_has_a_cell() -> None:
    assert [*CHANGES] == [*Rule.__struct_fields__]


@pytest.mark.parametrize("constant", CHANGES)
def test_without_a_term_a_figure_of_the_golden_table_moves(constant: str) -> None:
    change, cell = CHANGES[constant]

    assert render_row(cell, 0, f"prefix_cache:{change}") != read_rows(cell)[0]
