from pathlib import Path

import pytest

from extproc.bench.published.tables import PublishedError, judge_cell, on_time_in_flight, read_published
from tests.tables import table

TABLE = Path(__file__).parents[2] / "extproc" / "simulator" / "fleet" / "kubeai-8xl4.csv"


def test_on_time_client_leaves_nothing_in_flight_below_capacity_and_drains_evenly_above() -> None:
    assert on_time_in_flight(rate=10, cap=100, count=1000, throughput=20) == 0.0
    assert on_time_in_flight(rate=1e9, cap=1e9, count=1000, throughput=10) == pytest.approx(500, rel=0.01)


@table(
    ("strategy", "in_flight", "verdict"),
    [
        ("prefix_hash", [513, 447, 439, 462], "invalid: client-limited"),
        ("round_robin", [716, 1282, 2141, 3245], "valid"),
    ],
)
def test_published_cells_are_judged_by_littles_law(strategy: str, in_flight: list[int], verdict: str) -> None:
    """KubeAI's 8 x L4: its prefix-hash client had far fewer in flight than one on time would have had."""
    rows = [row for row in read_published(TABLE.read_text().splitlines()) if row.strategy == strategy]
    verdicts = [judge_cell(row) for row in rows]

    assert [row.cap for row in rows] == [800, 1600, 3200, 8000]
    assert [round(each.figures.in_flight or 0) for each in verdicts] == in_flight
    assert {str(each) for each in verdicts} == {verdict}


@table(
    ("text", "fault"),
    [
        ("strategy,requests\nround_robin,1\n", "lacks columns"),
        ("", "lacks columns"),
        (TABLE.read_text().replace("8000.0", "many"), "no number"),
        (TABLE.read_text().splitlines()[0] + "\n800,800,round_robin\n", "lacks duration_s, requests"),
    ],
)
def test_table_without_its_columns_or_numbers_is_refused(text: str, fault: str) -> None:
    with pytest.raises(PublishedError, match=fault):
        read_published(text.splitlines())
