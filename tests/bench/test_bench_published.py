from pathlib import Path

import pytest

from extproc.bench.published.tables import Cell, PublishedError, judge_cell, on_time_in_flight, read_published
from tests.tables import table

TABLE = Path(__file__).parents[2] / "extproc" / "simulator" / "fleet" / "kubeai-8xl4.csv"

# KubeAI's published 8 x L4 benchmark: cap, rate, duration, TTFT mean, ITL mean of each strategy.
FIGURES = {
    "prefix_hash": [
        (800, 800, 104.67, 280.2, 85.78),
        (1600, 200, 110.0, 196.13, 79.2),
        (3200, 200, 111.37, 213.92, 78.49),
        (8000, 800, 107.89, 237.06, 79.9),
    ],
    "round_robin": [
        (800, 800, 159.98, 1319.77, 173.06),
        (1600, 200, 157.07, 10365.29, 197.37),
        (3200, 200, 156.36, 27183.41, 195.3),
        (8000, 800, 156.2, 48587.55, 196.77),
    ],
}


def published(strategy: str) -> list[Cell]:
    return [
        Cell(
            strategy,
            {
                "max_concurrency": cap,
                "request_rate": rate,
                "requests": 8000,
                "duration_s": duration,
                "output_tokens": 608447,
                "ttft_mean_ms": ttft,
                "itl_mean_ms": itl,
            },
        )
        for cap, rate, duration, ttft, itl in FIGURES[strategy]
    ]


def test_published_prefix_hash_cells_are_client_limited() -> None:
    verdicts = [judge_cell(cell) for cell in published("prefix_hash")]

    assert [round(verdict.figures.in_flight or 0) for verdict in verdicts] == [513, 447, 439, 462]
    assert {str(verdict) for verdict in verdicts} == {"invalid: client-limited"}


def test_published_round_robin_cells_are_valid() -> None:
    verdicts = [judge_cell(cell) for cell in published("round_robin")]

    assert [round(verdict.figures.in_flight or 0) for verdict in verdicts] == [716, 1282, 2141, 3245]
    assert all(verdict.is_valid for verdict in verdicts)


def test_on_time_client_below_capacity_leaves_nothing_in_flight() -> None:
    assert on_time_in_flight(rate=10, cap=100, count=1000, throughput=20) == 0.0


def test_on_time_client_that_sends_all_at_once_drains_evenly() -> None:
    assert on_time_in_flight(rate=1e9, cap=1e9, count=1000, throughput=10) == pytest.approx(500, rel=0.01)


def test_every_prefix_hash_cell_of_the_table_is_client_limited() -> None:
    """KubeAI's table: in flight by Little's law is far from what a client on time would have had."""
    rows = read_published(TABLE.read_text().splitlines())
    limited = [row for row in rows if row.strategy == "prefix_hash"]

    assert [row.cap for row in limited] == [800, 1600, 3200, 8000]
    for row in limited:
        verdict = judge_cell(row)
        assert str(verdict) == "invalid: client-limited"
        assert verdict.figures.in_flight is not None
        assert verdict.figures.in_flight < 0.7 * (verdict.figures.on_time_in_flight or 0)


def test_no_round_robin_cell_of_the_table_is_client_limited() -> None:
    rows = read_published(TABLE.read_text().splitlines())

    assert {str(judge_cell(row)) for row in rows if row.strategy == "round_robin"} == {"valid"}


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
