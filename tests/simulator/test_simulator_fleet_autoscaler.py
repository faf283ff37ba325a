"""The autoscaler: what it decides, by the HPA's documented rule, and what a fleet with it does."""

from dataclasses import replace
from itertools import accumulate, pairwise
from math import ceil, isnan
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import SettingsError
from extproc.pages.elasticity import Response, Rise, add_up_over, respond
from extproc.simulator.commands import simulate as command
from extproc.simulator.fleet.autoscaler import (
    TOLERANCE,
    Autoscaler,
    Metric,
    Scaling,
    parse_scaling,
    recommend,
)
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.fleet import FleetRun
from extproc.simulator.fleet.traffic import LoadSpike, Traffic, parse_spike
from tests.tables import table


@table(
    ("values", "current", "target", "expected"),
    [
        ([200], 1, 100, 2),  # the documentation's first examples
        ([50, 50], 2, 100, 1),
        ([109, 109], 2, 100, 2),  # within a tenth
        ([91, 91], 2, 100, 2),
        ([111, 111], 2, 100, 3),
        ([0, 0, 0], 3, 4, 0),
        ([], 3, 4, 3),  # nobody says anything
        ([10], 2, 4, 3),  # the silent one counts as 0: 10 / 2 over 4 is 1.25, times 2
        ([6], 2, 4, 2),  # … which turns more into fewer: nothing
        ([0], 2, 4, 1),  # the silent one counts as 4
        ([0.9, 0.3], 2, 0.6, 2),
        ([0.9, 0.6], 2, 0.6, 3),
    ],
)
def test_rule_asks_for_what_it_takes(
    values: list[float], current: int, target: float, expected: int
) -> None:
    assert recommend(values, current, target) == expected


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.integers(0, 10), st.floats(0.1, 1e3)
)
def test_silent_endpoints_never_make_it_bolder(
    values: list[float], silent: int, target: float
) -> None:
    """The careful number lies between the present one and what the rule says of those that spoke."""
    current = len(values) + silent
    ratio = sum(values) / len(values) / target
    bold = ceil(ratio * current)
    low, high = sorted((current, bold))

    assert low <= recommend(values, current, target) <= high


def scaling_decisions(
    scaling: Scaling, current: int, loads: list[float], every_s: float = 15.0
) -> list[int]:
    """Feeds what the whole fleet has to do, shared evenly; everybody is there at once."""
    scaler, found = Autoscaler(scaling, current, 0.0), []
    for place, load in enumerate(loads, 1):
        current = scaler.decide([load / current] * current, current, place * every_s)
        found.append(current)
    return found


@table(
    ("scaling", "current", "loads", "every_s", "expected"),
    [
        # Fewer wait until nothing in the window was for more; one high value holds all for a
        # window.
        (
            {"target": 10, "window_s": 60},
            4,
            [40, 40, 10, 10, 10, 10, 10],
            15.0,
            [4, 4, 4, 4, 4, 1, 1],
        ),
        ({"target": 10, "window_s": 45}, 2, [10, 60, 10, 10, 10, 10], 15.0, [2, 6, 6, 6, 1, 1]),
        # More come at once, but at most twice or four more in 15 s.
        ({"target": 1, "max": 100}, 1, [100] * 6, 15.0, [5, 10, 20, 40, 80, 100]),
        ({"target": 1, "max": 100}, 1, [100] * 6, 5.0, [5, 5, 5, 10, 10, 10]),
        # What was wanted beyond the bounds is no reason for more later.
        ({"target": 1, "max": 4, "window_s": 300}, 4, [50, 2, 2], 15.0, [4, 4, 4]),
        ({"target": 1, "max": 8}, 1, [50, 3, 3], 15.0, [5, 5, 5]),
    ],
)
def test_more_come_at_once_and_fewer_after_a_window(
    scaling: dict[str, Any], current: int, loads: list[float], every_s: float, expected: list[int]
) -> None:
    assert scaling_decisions(Scaling(Metric.QUEUE, **scaling), current, loads, every_s) == expected


LOADS = st.lists(st.floats(0, 1000), max_size=40)
SCALINGS = st.builds(
    lambda low, more, window_s, target: Scaling(
        Metric.IN_FLIGHT, target, min=low, max=low + more, window_s=window_s
    ),
    st.integers(1, 9),
    st.integers(0, 30),
    st.sampled_from([0.0, 15.0, 60.0, 300.0]),
    st.floats(0.5, 100),
)


@given(SCALINGS, LOADS)
def test_count_stays_within_its_bounds_and_grows_no_faster_than_the_pace(
    scaling: Scaling, loads: list[float]
) -> None:
    counts = [scaling.min, *scaling_decisions(scaling, scaling.min, loads)]

    assert all(scaling.min <= count <= scaling.max for count in counts)
    assert all(after <= max(2 * before, before + 4) for before, after in pairwise(counts))


@given(SCALINGS, st.floats(0, 1000), st.integers(1, 9))
def test_under_a_constant_load_it_comes_to_rest(scaling: Scaling, load: float, more: int) -> None:
    """After the growth and two windows nothing moves, and what is there is as many as the tolerance lets be.

    Two, since rounding may leave one too many: the ceiling of 10 * (2.1 / 21) is 2.
    """
    start = min(scaling.max, scaling.min + more)
    *_, before, last = (counts := scaling_decisions(scaling, start, [load] * 90))

    assert len(set(counts[60:])) == 1
    assert before == last
    if scaling.min < last < scaling.max:
        assert load / last <= scaling.target * (1 + TOLERANCE) * (1 + 1e-9)


@table(
    ("text", "fault"),
    [
        ("cpu:target=1", "no metric: choose from queue, running, kv_usage, in_flight"),
        ("queue", "missing required field `target`"),
        ("queue:target", r"got `null` - at `\$.target`"),
        ("queue:target=true", "got `bool`"),
        ("queue:target=.nan", "> 0"),
        ("queue:target=0", "> 0"),
        ("queue:target=1,min=0", ">= 1"),
        ("queue:target=1,min=1.5", "Expected `int`"),
        ("queue:target=1,min=5,max=4", "max 4 is less than min 5"),
        ("queue:target=1,start_s=-1", r">= 0.0 - at `\$.start_s`"),
        ("queue:target=1,goal=2", "unknown field `goal`"),
        ("kv_usage:target=60", "at most 1"),
        ("queue:[", "no autoscaler"),
    ],
)
def test_autoscaler_is_written_as_arms_are_or_refused(text: str, fault: str) -> None:
    written = "kv_usage:target=0.6,min=2,max=12,start_s=90,window_s=60,every_s=10,lag_s=0"
    assert parse_scaling(written) == Scaling(Metric.KV_USAGE, 0.6, 2, 12, 10, 0, 90, 60)
    assert parse_scaling("queue:target=4") == Scaling(Metric.QUEUE, 4)
    with pytest.raises(SettingsError, match=fault):
        parse_scaling(text)


def test_spike_starts_so_many_times_the_sessions() -> None:
    """One a second; from 10 s to 14 s three."""
    times = [*accumulate(LoadSpike(10, 4, 3).squeeze([1.0] * 24))]
    traffic = Traffic(rate=10, spike=LoadSpike(10, 10, 3))

    assert times[:10] == pytest.approx(range(1, 11))
    assert times[10:22] == pytest.approx([10 + step / 3 for step in range(1, 13)])
    assert times[22:] == pytest.approx([15, 16])
    assert (traffic.asked_rps(0, 40), traffic.asked_rps(10, 20)) == (15, 30)
    assert isnan(Traffic(users=3).asked_rps(0, 40))
    for text in ("", "1:2", "1:0:3", "1:2:1", "1:2:0.5", "-1:2:3", "1:2:nan"):
        with pytest.raises(SettingsError, match=r"spike"):
            parse_spike(text)


SPIKES = st.builds(LoadSpike, st.floats(0, 100), st.floats(0.1, 100), st.floats(1.01, 20))


@given(SPIKES, st.floats(0, 1000))
def test_time_of_a_load_is_when_it_is_there(spike: LoadSpike, at_s: float) -> None:
    assert spike.time_of(spike.load_until(at_s)) == pytest.approx(at_s)


def test_endpoints_are_counted_over_time_and_those_that_went_are_no_reaction() -> None:
    steps, ready = [(0, 2), (10, 5), (20, 3)], [(0, 4), (12, 3), (20, 4), (30, 5)]
    sums = [add_up_over(steps, *span) for span in ((0, 30), (5, 15), (25, 30))]

    assert sums == [20 + 50 + 30, 10 + 25, 15]
    assert respond(Rise("spike", 10, 100), ready, [12, 13]) == Response("spike", 20, 4)
    assert respond(Rise("spike", 10, 14), ready, [12, 13]) == Response("spike", None, None)


SPIKED = MatrixCell(
    arm="least_load",
    workload="unique",
    load=0.5,
    endpoints=2,
    warmup_s=60,
    measured_s=360,
    spike="120:90:4",
    autoscale="in_flight:target=16,min=2,max=6,start_s=40,window_s=60",
)


@pytest.fixture(scope="module")
def spiked_fleet() -> FleetRun:
    return SPIKED.simulate()


def test_no_endpoint_is_ready_before_its_start_took_its_time(spiked_fleet: FleetRun) -> None:
    """Each that joined was started 40 s before; `held` counts those that start, too."""
    counts = spiked_fleet.headcounts
    joined = [later.at_s for earlier, later in pairwise(counts) if later.ready > earlier.ready]
    ordered = [
        later.at_s
        for earlier, later in pairwise(counts)
        if later.held > earlier.held and later.ready == earlier.ready
    ]

    assert len(joined) > 2
    assert joined == pytest.approx([at_s + 40 for at_s in ordered[: len(joined)]])


def test_endpoints_come_with_the_spike_and_go_after_it_when_they_have_finished(
    spiked_fleet: FleetRun,
) -> None:
    counts = [count.ready for count in spiked_fleet.headcounts]

    assert counts[0] == counts[-1] == 2
    assert max(counts) > 3
    assert all(2 <= count <= 6 for count in counts)
    assert all(count.held >= count.ready for count in spiked_fleet.headcounts)
    assert not any(flight.is_failed for flight in spiked_fleet.flights)
    assert len({flight.endpoint for flight in spiked_fleet.flights}) == len(spiked_fleet.nodes) > 3


def test_autoscaled_fleet_takes_a_spike_better_than_the_one_it_was_and_costs_less_than_its_most() -> (
    None
):
    scaled, fixed = SPIKED.run(), replace(SPIKED, autoscale="").run()

    assert scaled.elastic
    assert fixed.elastic
    assert scaled.elastic.slo_seconds_missed < fixed.elastic.slo_seconds_missed
    assert scaled.ttft_due.mean_ms < fixed.ttft_due.mean_ms
    assert fixed.elastic.reaction_s is None
    assert 40 <= (scaled.elastic.reaction_s or 0) < 120
    assert fixed.elastic.ready_seconds == fixed.elastic.held_seconds == 2 * 360
    assert 2 * 360 < scaled.elastic.ready_seconds < scaled.elastic.held_seconds < 6 * 360


@table("metric", ["queue:target=2", "running:target=8", "kv_usage:target=0.2"])
def test_every_metric_brings_endpoints_when_the_load_rises(metric: str) -> None:
    cell = replace(SPIKED, autoscale=f"{metric},min=2,max=6,start_s=40,window_s=60")
    found = cell.run().elastic

    assert found
    assert found.most > 2
    assert found.reaction_s is not None


def test_constant_load_near_its_target_moves_nothing() -> None:
    """Chance moves what an endpoint has to do; a wide target takes that."""
    cell = replace(SPIKED, spike="", autoscale="in_flight:target=60,min=2,max=6")

    assert [count.ready for count in cell.simulate().headcounts] == [2]


@table(
    ("changed", "fault"),
    [
        ({"spike": "30:90:4"}, "measured is from 60 to 420 s"),
        ({"spike": "400:90:4"}, "measured is from 60 to 420 s"),
        ({"users": 3}, "set their own pace"),
        ({"endpoints": 7}, "not within 2 to 6"),
        ({"requests": 100, "spike": ""}, "needs a measured time"),
        ({"scenario": "restart"}, "where an autoscaler decides"),
    ],
)
def test_what_does_not_go_together_is_refused(changed: dict[str, Any], fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        replace(SPIKED, **changed).simulate()


def test_metrics_and_thresholds_are_compared_in_one_table() -> None:
    asked = (
        "--workload unique --load 0.4 --endpoints 2 --warmup-s 30 --measured-s 120 --spike 60:30:4"
    )
    scalings = ["none", "queue:target=2,start_s=20", "in_flight:target=6,start_s=20"]
    options = [word for scaling in scalings for word in ("--autoscale", scaling)]
    done = CliRunner().invoke(command, ["fleet", *asked.split(), "--arm", "least_load", *options])
    table = done.output[done.output.index("endpoint-s ready") :]

    assert done.exit_code == 0, done.output
    assert [line.split()[:2] for line in table.splitlines()[2:5]] == [
        ["least_load", scaling] for scaling in ("0", *scalings[1:])
    ]


def test_sessions_of_a_spike_are_drawn_like_those_without() -> None:
    """The spike moves starts; the requests stay the same, for every autoscaler."""
    due = [
        [
            flight.due_at
            for flight in replace(SPIKED, autoscale=scaling).simulate().flights
            if not flight.turn
        ]
        for scaling in ("", "queue:target=2,min=2,max=6")
    ]
    shortest = min(map(len, due))

    assert due[0][:shortest] == due[1][:shortest]
    assert sum(120 <= at_s < 210 for at_s in due[0]) == pytest.approx(4 * 90 * SPIKED.rps, rel=0.1)
