import json
from collections.abc import Callable

import pytest

from extproc.bench.experiments.saturate import Rung, Saturation, next_rate, summarise_rungs
from extproc.bench.experiments.saturation_formats import saturation_html, saturation_markdown
from extproc.bench.record import Window
from extproc.bench.report import report
from extproc.bench.spec.experiments import Ladder
from tests.bench.synthetic import record, result

LADDER = Ladder(start=1, factor=2, steps=12, precision=0.1)
SPAN_S = 40.0


def rung(rate: float, capacity: float, *, lag_s: float = 0.0) -> Rung:
    """A server of `capacity` requests/s that needs 50 ms, asked on time for `SPAN_S`; a queue beyond."""
    records = []
    free_s = 0.0
    for index in range(round(rate * SPAN_S)):
        at = index / rate
        free_s = max(free_s, at) + 1 / capacity
        end = free_s + 0.05
        records.append(
            record(
                index,
                at,
                started_s=at + lag_s,
                first_token_s=end - 0.01,
                end_s=end,
                chunk_s=[end - 0.01, end],
            )
        )
    run = result(records, duration_s=max(made.end_s or 0 for made in records), window=Window(5.0, SPAN_S))
    return Rung(rate, report.build(run))


def climb(measure: Callable[[float], Rung], ladder: Ladder = LADDER) -> tuple[list[float], Saturation]:
    rungs: list[Rung] = []
    while (rate := next_rate(rungs, ladder)) is not None:
        rungs.append(measure(rate))
    return [made.rate for made in rungs], summarise_rungs(rungs, ladder)


@pytest.mark.parametrize("capacity", [5.0, 13.0, 47.0])
def test_inflection_point_of_a_known_server_is_found_within_the_precision(capacity: float) -> None:
    _, found = climb(lambda rate: rung(rate, capacity))

    assert found.is_bracketed
    assert found.inflection_rps is not None
    # A rung counts as served up to 5 % short of what was asked.
    assert 0.85 * capacity <= found.inflection_rps <= 1.06 * capacity
    assert found.best_rps == pytest.approx(capacity, rel=0.06)


def test_ladder_doubles_until_saturation_and_then_halves_the_gap() -> None:
    rates, _ = climb(lambda rate: rung(rate, 13.0))

    assert rates == [1, 2, 4, 8, 16, 12, 14, 13]


def test_little_law_tells_steady_rungs_from_growing_queues() -> None:
    steady, growing = rung(5, 10.0), rung(20, 10.0)

    assert steady.littles_residual is not None
    assert growing.littles_residual is not None
    assert steady.littles_residual < 0.02
    assert growing.littles_residual > 0.1


def test_ladder_ends_where_the_client_is_the_limit() -> None:
    rates, found = climb(lambda rate: rung(rate, 1000, lag_s=0.0 if rate < 8 else 0.5))

    assert rates == [1, 2, 4, 8]
    assert not found.is_bracketed
    assert "at 8.00 req/s: invalid: client-limited: lag p99" in found.faults[0]


def test_ladder_ends_after_its_steps() -> None:
    rates, found = climb(lambda rate: rung(rate, 1000), Ladder(start=1, factor=2, steps=3))

    assert rates == [1, 2, 4]
    assert "No saturation up to 4.00 req/s" in saturation_markdown(found)


def test_server_too_slow_for_the_first_rung_is_told_so() -> None:
    _, found = climb(lambda rate: rung(rate, 1.5), Ladder(start=4, factor=2, steps=1))

    assert found.inflection_rps is None or found.inflection_rps < 4
    assert "begin below 4.00 req/s" in saturation_markdown(found)


def test_reports_name_the_inflection_point() -> None:
    _, found = climb(lambda rate: rung(rate, 13.0))

    text = saturation_markdown(found)
    assert "Inflection point at 13.00 req/s" in text
    assert text.count("saturated") == 2
    assert "Inflection point" in saturation_html(found)
    assert json.loads(report.encode(found))["schema"] == "extproc-bench-saturation/1"
