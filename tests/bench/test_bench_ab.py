import json
import math
from dataclasses import replace

import numpy as np
import pytest

from extproc.bench.experiments import ab
from extproc.bench.experiments.arms import Switch, build_switch
from extproc.bench.experiments.compare import Trial, describe_difference, show_change
from extproc.bench.experiments.replicas import LabError
from extproc.bench.measure.stats import Interval, mean_interval, student_quantile
from extproc.bench.report import report
from extproc.bench.spec.tree import Spec
from extproc.errors import SettingsError
from tests.bench.synthetic import ScriptedRuns, record, result, spec
from tests.tables import table

ARMS = [{"name": "round_robin"}, {"name": "prefix_hash", "load_factor": 2}]


def comparing(**fields: object) -> Spec:
    return Spec.model_validate(
        {**spec().model_dump(), "ab": {"arms": ARMS, "repeats": 3, **fields}}
    )


async def compared(world: ScriptedRuns, seeded: Spec) -> ab.AbReport:
    return ab.summarise_trials(await ab.run_trials(seeded, world.run, world), seeded.ab)


async def test_arms_run_in_turn_over_one_schedule_per_repeat() -> None:
    world = ScriptedRuns()
    trials = await ab.run_trials(comparing(), world.run, world)

    assert [line for line in world.log if line.startswith("prepare")] == [
        f"prepare {name}"
        for name in (
            "round_robin",
            "prefix_hash",
            "prefix_hash",
            "round_robin",
            "round_robin",
            "prefix_hash",
        )
    ]
    assert [seeded.seed for seeded in world.specs] == [0, 0, 1, 1, 2, 2]
    assert len({trial.report.schedule for trial in trials if trial.repeat == 1}) == 1


async def test_priming_uses_other_prompts_and_is_not_measured() -> None:
    world = ScriptedRuns()
    trials = await ab.run_trials(comparing(prime="30s", repeats=1), world.run, world)

    priming, measured = world.specs[:2]
    assert world.log[:3] == [
        "prepare round_robin",
        "round_robin, repeat 1 of 1: priming",
        "round_robin, repeat 1 of 1",
    ]
    assert priming.seed != measured.seed
    assert (priming.traffic.duration, priming.traffic.total_prompts) == (30.0, None)
    assert len(trials) == 2


async def test_arm_is_confirmed_after_its_run_and_measured_again_once_if_its_router_changed() -> (
    None
):
    """As where a replica reads a minute late what was written since the run before."""
    world = ScriptedRuns(late_changes=1)
    trials = await ab.run_trials(comparing(repeats=1, prime="30s"), world.run, world)

    again = [
        "prepare round_robin",
        "round_robin, repeat 1 of 1: priming",
        "round_robin, repeat 1 of 1",
    ]
    assert world.log[:8] == [*again, "confirm round_robin"] * 2
    assert world.log[-1] == "confirm prefix_hash"
    assert [trial.arm for trial in trials] == ["round_robin", "prefix_hash(load_factor=2)"]
    with pytest.raises(LabError, match="were changed"):
        await ab.run_trials(
            comparing(repeats=1), (twice := ScriptedRuns(late_changes=2)).run, twice
        )


async def test_summary_pairs_the_arms_by_repeat() -> None:
    summary = await compared(ScriptedRuns(), comparing())
    _, arm = summary.arms
    change = arm.changes["ttft_mean_ms"]

    assert summary.is_valid
    assert summary.baseline == "round_robin"
    assert arm.label == "prefix_hash(load_factor=2)"
    assert arm.figures["ttft_mean_ms"].mean == pytest.approx(101, abs=0.01)
    # Seeds differ, the pairs do not: every repeat has the same change, so that its interval is a
    # point.
    assert (change.mean, change.low, change.high) == pytest.approx((-0.75, -0.75, -0.75))
    assert change.excludes_zero


async def test_sentence_says_what_an_arm_brings_and_how_certain_that_is() -> None:
    sure, unsure, single = [
        await compared(ScriptedRuns(), comparing(repeats=count)) for count in (3, 2, 1)
    ]
    broken = await compared(ScriptedRuns(failure="timeout"), comparing())
    change = single.arms[1].changes["ttft_mean_ms"]

    (sentence,) = sure.sentences
    assert sentence == (
        "prefix_hash(load_factor=2) sends the first token 75 % sooner than round_robin (95 %: 75 to 75 %), "
        "on the same 2 endpoints, 3 repeats."
    )
    assert sentence in ab.ab_markdown(sure)
    assert (
        "75 % sooner than round_robin (not certain yet: too few repeats for an interval)"
        in unsure.sentences[0]
    )
    assert (change.low, change.high, change.count, change.excludes_zero) == (None, None, 1, False)
    assert "-75.0%" in ab.ab_markdown(single)
    assert broken.sentences == ()
    assert (
        "(90 %: 75 to 75 %)"
        in (await compared(ScriptedRuns(), comparing(confidence=0.9))).sentences[0]
    )


@table(
    ("ttft", "tokens", "expected"),
    [
        (
            (-0.41, -0.48, -0.33),
            0.3,
            "41 % sooner than b (95 %: 33 to 48 %), with 1.30 times the tokens",
        ),
        (
            (0.5, 0.2, 0.8),
            0.0,
            "sends the first token 50 % later than b (95 %: 20 to 80 %), 3 repeats.",
        ),
        (
            (-0.1, -0.3, 0.2),
            0.0,
            "10 % sooner than b (not certain: 95 % lies between -30 and +20 %), 3",
        ),
        ((0.01, -0.01, 0.03), 0.0, "sends the first token as soon as b"),
    ],
)
def test_difference_is_told_in_a_line(
    ttft: tuple[float, float, float], tokens: float, expected: str
) -> None:
    changes = {
        "ttft_mean_ms": Interval(*ttft, 3),
        "total_tok_per_s": Interval(tokens, tokens, tokens, 3),
    }
    example = replace(report.build(result([record(0, 0.0, endpoint=None)])), caches=())

    assert expected in str(describe_difference("a", "b", changes, 0.95, example))


def test_two_repeats_say_that_they_are_too_few() -> None:
    assert (
        show_change("ttft_mean_ms", Interval(-0.25, None, None, 2)) == "-25.0% (2 repeats: too few)"
    )


async def test_servers_are_compared_where_urls_are_given() -> None:
    world, urls = ScriptedRuns(), ["http://a:1", "http://b:2"]
    asked = comparing(urls=urls, repeats=1, arms=[])
    trials = await ab.run_trials(asked, world.run, world)

    assert isinstance(build_switch(asked.ab), Switch)
    assert [
        (trial.arm, each.base_url) for trial, each in zip(trials, world.specs, strict=True)
    ] == [(url, url) for url in urls]
    shared = "the servers send to the same endpoints, 10.0.0.0:8000, 10.0.0.1:8000: what differs"
    assert shared in ab.summarise_trials(trials, asked.ab).remarks[-1]


@table(("flush", "salts"), [(None, 6), ([], 6), (["10.0.0.0:8000"], 1)])
async def test_each_run_has_prompts_of_its_own_where_no_cache_is_emptied(
    flush: list[str] | None, salts: int
) -> None:
    """Two gateways before one set of engines: the second would find what the first has cached."""
    world, asked = ScriptedRuns(), comparing(flush=flush, prime="30s")
    found = await compared(world, asked)

    # Priming has its run's salt: it fills what that run shares.
    assert len({each.traffic.dataset.salt for each in world.specs}) == salts
    assert ("prompts of its own" in "".join(found.remarks)) == (salts > 1)


async def test_unequal_load_makes_the_comparison_invalid() -> None:
    world = ScriptedRuns()
    trials = await ab.run_trials(comparing(), world.run, world)
    slow = result([record(index, index / 8) for index in range(80)], duration_s=11.4)
    trials[1] = Trial(trials[1].arm, trials[1].repeat, report.build(slow))

    summary = ab.summarise_trials(trials, comparing().ab)

    assert not summary.is_valid
    assert "<svg" not in ab.ab_html(summary)
    assert any("unequal load" in fault for fault in summary.faults)


async def test_interrupted_comparison_says_how_far_it_came() -> None:
    """The run that was cut off is kept, as a partial one, and is no trial; no run comes after it."""
    world, between = ScriptedRuns(broken_off=3), ScriptedRuns(stop_before=5)
    kept: list[Trial] = []
    trials = await ab.run_trials(comparing(), world.run, world, lambda one, _: kept.append(one))
    stopped = await ab.run_trials(comparing(), between.run, between)

    assert (len(trials), len(kept), len(world.specs)) == (2, 3, 3)
    assert kept[-1].report.verdict.kinds == ("partial",)
    for made, count in ((trials, 2), (stopped, 4)):
        faults = ab.summarise_trials(made, comparing().ab).faults
        assert faults == (f"partial: interrupted after {count} of 6 runs",)


async def test_failed_runs_leave_figures_out_and_say_so() -> None:
    summary = await compared(ScriptedRuns(failure="timeout"), comparing())

    assert "ttft_mean_ms" not in summary.arms[0].figures
    assert "100 of 100 requests failed (100.0%, 1.0% allowed): timeout 100" in summary.faults[0]
    assert "not comparable" in ab.ab_html(summary)
    with pytest.raises(SettingsError, match="none of the arms"):
        await compared(ScriptedRuns(), comparing(baseline="fastest"))


async def test_clients_limit_is_told_from_other_faults_by_its_kind() -> None:
    """Not by a text, which an arm's name or a server's words may have."""
    limited = await ab.run_trials(
        seeded := comparing(repeats=1), (world := ScriptedRuns(started_s=None)).run, world
    )
    failed = await ab.run_trials(seeded, (world := ScriptedRuns(failure="timeout")).run, world)
    renamed = [replace(trial, arm="invalid: client-limited") for trial in failed[:1]]

    found = [ab.summarise_trials(each, seeded.ab) for each in (limited, [*limited[:1], *renamed])]
    assert [one.is_client_limited_only for one in found] == [True, False]
    assert "invalid: client-limited (repeat 1) is invalid: requests failed" in found[1].faults[1]


@table(("count", "rows"), [(1, 8), (2, 8), (4, 16)])
async def test_terminal_has_the_headline_figures_in_a_hundred_columns(
    count: int, rows: int
) -> None:
    """Means beside their change, or in a table of their own where more than two arms are compared."""
    arms = ["round_robin", "prefix_hash", *({"name": "prefix_hash", "x": x} for x in (1, 2))][
        :count
    ]
    text = ab.ab_markdown(await compared(ScriptedRuns(), comparing(arms=arms)))

    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == rows + 2 * (rows // 8)
    assert max(map(len, table)) <= 100
    assert (count > 1) == any(
        "TTFT mean" in line and "-75.0% [-75.0, -75.0]*" in line for line in table
    )
    assert "failed" in ab.ab_markdown(
        await compared(ScriptedRuns(failure="timeout"), comparing(arms=arms))
    )


async def test_page_has_every_figure_and_the_json_every_trial() -> None:
    summary = await compared(ScriptedRuns(), comparing(baseline="prefix_hash(load_factor=2)"))
    page, fields = ab.ab_html(summary), json.loads(report.encode_report(summary))

    for part in (
        "101.0 ms [98.5 ms, 103.5 ms]",
        "+300.0% [+300.0, +300.0]*",
        "+0.0 points",
        "TPOT p99",
    ):
        assert part in page
    assert 'class="whisker"' not in page  # an arm's own is wider than the change's
    # The change is that of the second column to the first.
    assert [arm.label for arm in summary.arms] == ["prefix_hash(load_factor=2)", "round_robin"]
    assert fields["schema"] == "extproc-bench-ab/2"
    assert [trial["repeat"] for trial in fields["trials"]] == [0, 0, 1, 1, 2, 2]


def test_student_quantile_agrees_with_the_tables() -> None:
    """Published tables of Student's t, two-sided."""
    asked = [(0.95, 1), (0.95, 2), (0.95, 9), (0.99, 3), (0.9, 30), (0.95, 120)]

    assert [student_quantile(*each) for each in asked] == pytest.approx(
        [12.706, 4.303, 2.262, 5.841, 1.697, 1.980], abs=6e-4
    )


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    intervals = [mean_interval(rng.normal(5, 2, 4).tolist(), 0.9) for _ in range(2000)]
    covered = [
        i.low <= 5 <= i.high for i in intervals if i and i.low is not None and i.high is not None
    ]

    assert len(covered) == 2000
    assert math.isclose(np.mean(covered), 0.9, abs_tol=0.02)
    assert mean_interval([], 0.95) is None
