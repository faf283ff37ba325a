import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from extproc.bench.experiments import saturate
from extproc.bench.experiments.compare import find_remarks
from extproc.bench.record import Record, Window
from extproc.bench.report import report
from extproc.bench.spec.tree import Ladder
from tests.bench.synthetic import failed, record, result, spec
from tests.tables import table

LADDER = Ladder(start=1, factor=2, steps=12, precision=0.1)
SPAN_S = 40.0


def build_rung(rate: float, records: Sequence[Record], duration_s: float) -> saturate.Rung:
    run = result(records, duration_s=duration_s, window=Window(5.0, SPAN_S))
    return saturate.Rung(rate, report.build(run))


def rung(rate: float, capacity: float, *, lag_s: float = 0.0) -> saturate.Rung:
    """A server of `capacity` requests/s that needs 50 ms, loaded on time for `SPAN_S`; a queue beyond."""
    records, free_s = [], 0.0
    for index in range(round(rate * SPAN_S)):
        at = index / rate
        free_s = max(free_s, at) + 1 / capacity
        end = free_s + 0.05
        times = {"started_s": at + lag_s, "first_token_s": end - 0.01, "end_s": end}
        records.append(record(index, at, **times, chunk_s=[end - 0.01, end]))
    return build_rung(rate, records, max(made.end_s or 0 for made in records))


def climb(
    measure: Callable[[float], saturate.Rung], ladder: Ladder = LADDER
) -> tuple[list[float], saturate.Saturation]:
    rungs: list[saturate.Rung] = []
    while (rate := saturate.next_rate(rungs, ladder)) is not None:
        rungs.append(measure(rate))
    return [made.rate for made in rungs], saturate.summarise_rungs(rungs, ladder)


@table("capacity", [5.0, 13.0, 47.0])
def test_inflection_point_of_a_known_server_is_found_within_the_precision(capacity: float) -> None:
    _, found = climb(lambda rate: rung(rate, capacity))

    assert found.is_bracketed
    assert found.inflection_rps is not None
    # A rung counts as served up to 5 % short of the scheduled rate.
    assert 0.85 * capacity <= found.inflection_rps <= 1.06 * capacity
    assert found.best_rps == pytest.approx(capacity, rel=0.06)


def test_ladder_doubles_until_saturation_and_then_halves_the_gap() -> None:
    rates, found = climb(lambda rate: rung(rate, 13.0))

    text = saturate.saturation_markdown(found)
    assert rates == [1, 2, 4, 8, 16, 12, 14, 13]
    assert "Inflection point at 13.00 req/s" in text
    assert text.count("saturated") == 2
    assert "Inflection point" in saturate.saturation_html(found)
    assert json.loads(report.encode_report(found))["schema"] == "extproc-bench-saturation/2"


def test_ladder_ends_where_the_client_is_the_limit() -> None:
    rates, found = climb(lambda rate: rung(rate, 1000, lag_s=0.0 if rate < 8 else 0.5))

    assert rates == [1, 2, 4, 8]
    assert not found.is_bracketed
    assert "at 8.00 req/s: invalid: client-limited: requests began up to" in found.faults[0]


def dead(rate: float) -> saturate.Rung:
    """A server that is not there."""
    return build_rung(
        rate, [failed(i, i / rate, "connect") for i in range(round(rate * SPAN_S))], SPAN_S
    )


def refusing(rate: float, capacity: float) -> saturate.Rung:
    """A server that serves what it can and answers the rest with 503 at once."""
    kept = []
    for index in range(round(rate * SPAN_S)):
        at = index / rate
        is_served = (
            int(index * capacity / rate) != int((index - 1) * capacity / rate) or rate <= capacity
        )
        times = {"first_token_s": at + 0.04, "end_s": at + 0.05, "chunk_s": [at + 0.04, at + 0.05]}
        kept.append(record(index, at, **times) if is_served else failed(index, at, "http 503"))
    return build_rung(rate, kept, SPAN_S + 0.05)


def test_dead_server_ends_the_search_at_its_first_rung_with_a_fault() -> None:
    rates, found = climb(dead)
    text = saturate.saturation_markdown(found)

    assert rates == [1]
    assert found.inflection_rps is None
    assert (found.best_rps, found.best_tps) == (None, None)
    assert "at 1.00 req/s: invalid: requests failed, nothing measured: 40 of 40" in found.faults[0]
    assert "No answer" in text
    assert "served |" not in text.replace("served req/s", "")
    assert 'class="banner bad"' in saturate.saturation_html(found)


def test_search_that_was_broken_off_is_partial_and_one_without_a_sound_rung_ends() -> None:
    found = saturate.summarise_rungs([rung(1, 13.0), rung(2, 13.0)], LADDER)
    rates, failing = climb(lambda rate: refusing(rate, rate / 2))

    assert found.faults == ("partial: interrupted before the rung of 4.00 req/s",)
    assert rates == [1]
    assert "21 of 40 requests failed" in failing.faults[0]


@table("capacity", [5.0, 13.0])
def test_refusals_above_a_served_rate_are_the_servers_limit(capacity: float) -> None:
    _, found = climb(lambda rate: refusing(rate, capacity))

    assert not found.faults
    assert found.is_bracketed
    assert found.inflection_rps is not None
    assert 0.85 * capacity <= found.inflection_rps <= 1.06 * capacity
    assert any("requests failed" in remark and "http 503" in remark for remark in found.remarks)
    assert "saturated: requests failed" in saturate.saturation_markdown(found)


def test_best_figures_are_the_best_of_any_sound_rung_and_say_of_which() -> None:
    """Beyond its capacity of 10 req/s this server's answers get shorter: most requests, fewer tokens."""

    def shorter(rate: float) -> saturate.Rung:
        made = rung(rate, 13.0)
        measured = made.report.steady
        flow = replace(measured.throughput, output_tps=500.0 if rate < 10 else 100.0, input_tps=0.0)
        return saturate.Rung(rate, replace(made.report, steady=replace(measured, throughput=flow)))

    _, found = climb(shorter)

    assert (found.best_tps, found.best_tps_rate) == (500.0, 1)
    assert found.best_rps == max(made.served_rps for made in found.rungs)


def test_ladder_ends_after_its_steps_or_below_its_first_rung() -> None:
    rates, fast = climb(lambda rate: rung(rate, 1000), Ladder(start=1, factor=2, steps=3))
    _, slow = climb(lambda rate: rung(rate, 1.5), Ladder(start=4, factor=2, steps=1))

    assert rates == [1, 2, 4]
    assert "No saturation up to 4.00 req/s" in saturate.saturation_markdown(fast)
    assert slow.inflection_rps is None or slow.inflection_rps < 4
    assert "begin below 4.00 req/s" in saturate.saturation_markdown(slow)
    assert slow.faults == ("The lowest rate was not served: begin below 4.00 req/s.",)


@table(
    ("warm_up_s", "is_streamed", "fault"),
    [(30.0, True, "warm up for 54 s"), (30.0, False, "warm up for 54 s"), (60.0, True, "")],
)
def test_idle_server_of_long_answers_is_not_called_saturated(
    warm_up_s: float, is_streamed: bool, fault: str
) -> None:
    """An answer takes 45 s; with a warm-up of 30 s the window opens before the first one ends."""
    kept = []
    for index in range(120):
        at = float(index)
        chunk_s = [at + 0.3, at + 45.0] if is_streamed else []
        times = {"first_token_s": at + 0.3 if is_streamed else None, "chunk_s": chunk_s}
        kept.append(record(index, at, end_s=at + 45.0, **times))
    of = spec()
    target = of.target.model_copy(update={"is_streaming": is_streamed})
    of = of.model_copy(update={"target": target})
    run = result(kept, duration_s=165.0, window=Window(warm_up_s, 120.0), of=of)
    made = saturate.Rung(1.0, report.build(run))
    found = saturate.summarise_rungs([made], Ladder(steps=1))

    assert fault in "".join(found.faults)
    assert ("| short warm-up |" in saturate.saturation_markdown(found)) == bool(fault)
    assert (not found.faults, "saturated" in saturate.saturation_markdown(found)) == (
        not fault,
        False,
    )
    assert is_streamed is False or not list(find_remarks([("A", made.report)], 0.03))
