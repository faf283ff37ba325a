"""The golden table holds: no digit of any edge cell has moved."""

import pytest

from tests.golden.rule_table import CELLS, read_rows, render_row, ties


@pytest.mark.parametrize("cell", CELLS)
def test_no_digit_of_the_golden_table_has_moved(cell: str) -> None:
    rows = [render_row(cell, draw) for draw in ties(cell)]

    assert rows == read_rows(cell), "if the change is meant, run `make golden` and show the diff"
