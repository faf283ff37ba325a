"""The verdict: what makes a run the client's, and what only needs saying."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from extproc.bench.judge.verdict import judge
from extproc.bench.record import ClientStats, LoopSample, Record, RunInfo, RunResult, Window
from extproc.bench.spec.tree import Spec

SPEC = Spec.model_validate(
    {
        "endpoint": "127.0.0.1",
        "performance": {"traffic-shape": {"req-rate": 10, "duration": 10, "max-concurrency": 50}},
    }
)


def build_run(*, lag_s: float = 0.001, latency_s: float = 0.5, missing: int = 0) -> RunResult:
    """A run of ten seconds at 10 req/s, five in flight, of which `missing` never began."""
    records = tuple(
        Record(
            i,
            i,
            0,
            intended_s=i / 10,
            admitted_s=i / 10,
            started_s=i / 10 + lag_s if i >= missing else None,
            end_s=i / 10 + lag_s + latency_s,
        )
        for i in range(100)
    )
    samples = tuple(LoopSample(i / 10, 0.001, round(10 * latency_s)) for i in range(100))
    client = ClientStats(0, cpu_s=2.0, wall_s=10.0, cap=50, cap_full_s=0.0, samples=samples)
    info = RunInfo(
        spec=SPEC,
        model="m",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_s=10.5,
        window=Window(0.0, 10.0),
        schedule_s=tuple(i / 10 for i in range(100)),
        offered_rps=10.0,
        clients=(client,),
        scrapes=(),
    )
    return RunResult(info, records)


def with_client(run: RunResult, **changes: object) -> RunResult:
    client = replace(run.info.clients[0], **changes)  # type: ignore[arg-type]  # fields by name
    return replace(run, info=replace(run.info, clients=(client,)))


def test_run_that_kept_its_schedule_is_valid() -> None:
    verdict = judge(build_run())

    assert verdict.is_valid
    assert str(verdict) == "valid"
    assert verdict.remarks == ()
    assert verdict.figures.offered_rps == pytest.approx(10)
    assert verdict.figures.achieved_rps == pytest.approx(10)
    assert verdict.figures.littles_residual == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (build_run(lag_s=0.08), "lag p99 80.0 ms"),
        (with_client(build_run(), samples=(LoopSample(1.0, 0.2, 5),)), "event loop lag p99 200.0 ms"),
        (with_client(build_run(), cpu_s=9.5), "used 95% of a core"),
        (build_run(missing=20), "offered 10.00 req/s, began 8.00"),
    ],
    ids=["lag", "loop", "cpu", "achieved"],
)
def test_client_that_was_the_limit_makes_a_run_invalid(run: RunResult, reason: str) -> None:
    verdict = judge(run)

    assert str(verdict) == "invalid: client-limited"
    assert reason in "\n".join(verdict.reasons)


def test_full_cap_is_a_remark_because_the_spec_asked_for_it() -> None:
    verdict = judge(with_client(build_run(missing=20), cap_full_s=8.0))

    assert verdict.is_valid
    assert "the concurrency cap was full 80% of the time" in verdict.remarks[0]


def test_growing_queue_is_told_as_not_steady() -> None:
    growing = tuple(LoopSample(i / 10, 0.0, i) for i in range(100))
    verdict = judge(with_client(build_run(), samples=growing))

    assert verdict.is_valid
    assert "not steady" in verdict.remarks[0]


def test_sessions_that_had_not_all_begun_are_told() -> None:
    run = build_run()
    verdict = judge(replace(run, info=replace(run.info, offered_rps=20.0)))

    assert verdict.is_valid
    assert "20.00 req/s asked for, 10.00 due" in verdict.remarks[0]


def test_limits_of_the_spec_decide() -> None:
    run = build_run(lag_s=0.08)
    spec = SPEC.model_copy(update={"limits": SPEC.limits.model_copy(update={"lag_p99": 0.1})})

    assert judge(replace(run, info=replace(run.info, spec=spec))).is_valid
