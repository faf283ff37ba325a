"""The verdict: what makes a run the client's, and what only needs saying; and thresholds of figures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.bench.commands import THRESHOLD_MISSED
from extproc.bench.judge.verdict import judge
from extproc.bench.record import ClientStats, LoopSample, RunResult, TokenSource, Window
from extproc.bench.report import report
from extproc.bench.report.report import Report
from extproc.bench.spec.thresholds import Claim, parse_claim
from extproc.bench.spec.tree import Spec, parse_spec
from extproc.errors import SettingsError
from tests.bench.running import call, write_spec
from tests.bench.synthetic import failed, record, result, spec
from tests.tables import table


def verdict_spec(**shape: object) -> Spec:
    traffic = {"req-rate": 10, "duration": 10, **shape}
    return Spec.model_validate({"endpoint": "127.0.0.1", "performance": {"traffic-shape": traffic}})


SPEC, SPEC_WITHOUT_CAP = verdict_spec(**{"max-concurrency": 50}), verdict_spec()


def build_run(*, lag_s: float = 0.001, latency_s: float = 0.5, missing: int = 0) -> RunResult:
    """A run of ten seconds at 10 req/s, five in flight, of which `missing` never began."""
    records = [
        record(
            i,
            i / 10,
            started_s=i / 10 + lag_s if i >= missing else None,
            end_s=i / 10 + lag_s + latency_s,
        )
        for i in range(100)
    ]
    samples = tuple(LoopSample(i / 10, 0.001, round(10 * latency_s)) for i in range(100))
    client = ClientStats(0, cpu_s=2.0, wall_s=10.0, cap=50, cap_full_s=0.0, samples=samples)
    return with_info(result(records, of=SPEC), clients=(client,))


def with_info(run: RunResult, **changes: object) -> RunResult:
    return replace(run, info=replace(run.info, **changes))  # type: ignore[arg-type]  # fields by name


def with_client(run: RunResult, **changes: object) -> RunResult:
    return with_info(run, clients=(replace(run.info.clients[0], **changes),))  # type: ignore[arg-type]


def with_limits(run: RunResult, spec: Spec = SPEC, **limits: float) -> RunResult:
    return with_info(
        run, spec=spec.model_copy(update={"limits": spec.limits.model_copy(update=limits)})
    )


def without_cap(run: RunResult, window: Window) -> RunResult:
    return with_info(run, spec=SPEC_WITHOUT_CAP, window=window)


def test_run_that_kept_its_schedule_is_valid() -> None:
    verdict = judge(build_run())

    assert verdict.is_valid
    assert (str(verdict), verdict.remarks) == ("valid", ())
    assert not judge(without_cap(build_run(), Window(0.0, 10.0))).remarks
    assert verdict.figures.offered_rps == pytest.approx(10)
    assert verdict.figures.achieved_rps == pytest.approx(10)
    assert verdict.figures.littles_residual == pytest.approx(0, abs=0.01)


@table(
    ("run", "reason"),
    [
        (build_run(lag_s=0.08), "began up to 80 ms late"),
        (
            with_client(build_run(), samples=(LoopSample(1.0, 0.2, 5),)),
            "stood still for up to 200 ms",
        ),
        (with_client(build_run(), cpu_s=9.5), "used 95% of a core"),
        (build_run(missing=20), "offered 10.00 req/s, began 8.00"),
    ],
    ids=["lag", "loop", "cpu", "achieved"],
)
def test_client_that_was_the_limit_makes_a_run_invalid(run: RunResult, reason: str) -> None:
    verdict = judge(run)

    assert str(verdict) == "invalid: client-limited"
    assert reason in "\n".join(verdict.reasons)


def broken_off(run: RunResult) -> RunResult:
    """The run whose last 20 requests its end broke off."""
    ends = (replace(record, failure="interrupted") for record in run.records[80:])
    return replace(run, records=(*run.records[:80], *ends))


def with_first(run: RunResult, count: int, **changes: object) -> RunResult:
    """The run with the first `count` requests changed."""
    first = (replace(each, **changes) for each in run.records[:count])  # type: ignore[arg-type]
    return replace(run, records=(*first, *run.records[count:]))


@table(
    ("run", "reason"),
    [
        (without_cap(build_run(), Window(5.0, 7.9)), "29 requests were measured, 30 are wanted"),
        (with_first(build_run(), 50, first_token_s=None), "50 of 100 answers had no first token"),
    ],
)
def test_figures_of_a_handful_or_of_half_the_answers_are_no_measurement(
    run: RunResult, reason: str
) -> None:
    said = report.build(run)

    assert reason in "".join(said.verdict.reasons)
    assert ("too few" in said.title) == (said.measured.latency("ttft", "p99") is None)


@table(
    ("run", "remark"),
    [
        # The spec asked for the cap.
        (
            with_client(build_run(missing=20), cap_full_s=8.0),
            "the concurrency cap was full 80% of the time",
        ),
        (
            with_client(build_run(), samples=tuple(LoopSample(i / 10, 0.0, i) for i in range(100))),
            "not steady",
        ),
        (replace(build_run(), records=build_run().records[:99]), "few requests: 99 were measured"),
        (without_cap(build_run(), Window(5.0, 9.0)), "few requests: 40 were measured"),
        (
            without_cap(build_run(latency_s=1.0), Window(5.0, 9.0)),
            "short window: its 4.0 s are 4.0 times as long as a request",
        ),
        (with_first(build_run(), 5, first_token_s=None), "5 of 100 answers had no first token"),
        (
            with_first(build_run(), 7, token_source=TokenSource.ESTIMATE),
            "guessed tokens: 7 of 100 answers came without usage",
        ),
        (broken_off(build_run()), "20 requests were cut off when graceful-stop was over"),
        (
            with_info(build_run(), prompts=40),
            "40 prompts began again: 60% of the requests are repeats",
        ),
        (
            with_info(build_run(), spec=verdict_spec(**{"max-concurrency": 50, "warm-up": 2})),
            "warm-up and cool-down are not used",
        ),
    ],
)
def test_what_only_needs_saying_is_a_remark(run: RunResult, remark: str) -> None:
    verdict = judge(run)

    assert verdict.is_valid
    assert any(remark in said for said in verdict.remarks), verdict.remarks


@table(
    ("asked_rps", "text"),
    [
        (10.0, "valid"),
        (10.5, "valid"),
        (10.6, "valid, with remarks"),
        # 130 wanted, 100 due: below 80 %, and within three deviations of random arrivals.
        (13.0, "valid, with remarks"),
        (15.0, "invalid: load not offered"),
        (30.0, "invalid: load not offered"),
    ],
)
def test_load_that_was_not_offered_is_never_a_plain_valid(asked_rps: float, text: str) -> None:
    verdict = judge(with_info(build_run(), offered_rps=asked_rps))
    said = (*verdict.reasons, *verdict.remarks)

    assert (verdict.text, verdict.has_doubts) == (text, text == "valid, with remarks")
    assert any(f"{asked_rps:.2f} req/s asked for, 10.00 due" in each for each in said) == (
        text != "valid"
    )
    # One of ten that is missing in a window of a second is where the window ends.
    few = with_info(build_run(), offered_rps=10.0, window=Window(0.01, 0.99))
    assert not any("asked for" in each for each in judge(few).remarks)


def test_client_that_was_late_says_how_late_and_not_only_the_limit() -> None:
    run = build_run()
    late = tuple(
        replace(record, started_s=record.intended_s + 0.4023, sent_s=record.intended_s + 0.41)
        for record in run.records
    )
    reasons = judge(replace(run, records=late)).reasons

    told = "requests began up to 402 ms late (p99; 50 ms allowed): this machine was too busy"
    assert reasons[0] == told


def fail(run: RunResult, count: int, *, at_s: float = 0.0) -> RunResult:
    """The run with `count` requests from `at_s` on answered with an error."""
    failing = {round(at_s * 10) + place for place in range(count)}
    records = tuple(
        replace(record, failure="http 500", failure_detail="out of memory")
        if record.index in failing
        else record
        for record in run.records
    )
    return replace(run, records=records)


def test_run_of_a_dead_server_is_invalid_and_its_causes_are_counted() -> None:
    run = build_run()
    verdict = judge(fail(run, 100))
    mixed = [replace(record, failure=f"http {500 + record.index % 6}") for record in run.records]
    (reason, _) = judge(replace(run, records=tuple(mixed))).reasons

    assert str(verdict) == "invalid: requests failed, nothing measured"
    assert verdict.reasons == (
        "100 of 100 requests failed (100.0%, 1.0% allowed): http 500 100 (out of memory)",
        "no request was completed where it was measured",
    )
    assert reason.endswith("http 500 17, http 501 17, http 502 17, http 503 17, others 32")


@table(("count", "is_valid"), [(0, True), (1, True), (2, False), (43, False)])
def test_one_request_in_a_hundred_may_fail(count: int, is_valid: bool) -> None:
    verdict = judge(fail(build_run(), count))

    assert verdict.is_valid is is_valid
    assert verdict.kinds == (() if is_valid else ("requests failed",))


def test_failures_in_the_window_do_not_hide_behind_a_long_run() -> None:
    """Two of a hundred requests are within a limit of 3 %, two of the window's ten are not."""
    run = with_limits(fail(build_run(), 2, at_s=5.0), SPEC_WITHOUT_CAP, errors=0.03)

    assert judge(with_info(run, window=Window(0.0, 10.0))).is_valid
    reasons = judge(with_info(run, window=Window(5.0, 6.0))).reasons
    assert "2 of 10 requests in the window failed (20.0%" in reasons[0]


def test_limits_of_the_spec_decide() -> None:
    assert judge(with_limits(fail(build_run(), 43), errors=0.5)).is_valid
    assert judge(with_limits(build_run(lag_s=0.08), lag_p99=0.1)).is_valid


def test_window_without_a_completed_request_measures_nothing() -> None:
    run = build_run()
    late = judge(without_cap(run, Window(12.0, 12.0)))
    empty = judge(without_cap(replace(run, records=run.records[:50]), Window(6.0, 9.0)))

    assert late.kinds == empty.kinds == ("nothing measured",)
    assert "leave nothing of it" in late.reasons[0]


def test_interrupted_run_is_partial_whatever_its_figures() -> None:
    verdict = judge(with_info(build_run(), interrupted_s=7.0))

    assert str(verdict) == "invalid: partial"
    assert verdict.reasons == ("interrupted after 7.0 s: the report holds what was done",)


CLAIMS = {
    "ttft_ms.p95 < 500": Claim("ttft", "p95", "<", 500),
    "ttft.p95<0.5s": Claim("ttft", "p95", "<", 500),
    "time_per_token_ms.avg <= 120ms": Claim("time_per_token", "mean", "<=", 120),
    "e2e_ms.med < 2 s": Claim("e2e", "p50", "<", 2000),
    "failed < 1%": Claim("failed", None, "<", 0.01),
    "hit_rate >= 0.5": Claim("hit_rate", None, ">=", 0.5),
    "total_tok_per_s > 5000": Claim("total_tok_per_s", None, ">", 5000),
}
FAULTS = {
    "fast": "is no threshold such as",
    "ttft_ms < 500": "say which value of the latency",
    "ttft_ms.p42 < 500": "say which value of the latency",
    "ttft_ms.p95 < 5%": "a latency is not in %",
    "speed > 5": "there is no such figure; there are ttft_ms.p95",
    "failed.p95 < 1": "there is no such figure",
    "req_per_s > 5ms": "req_per_s is not in ms",
}


def test_threshold_is_read_or_refused_with_its_spec() -> None:
    assert {text: parse_claim(text) for text in CLAIMS} == CLAIMS
    for text, fault in FAULTS.items():
        with pytest.raises(ValueError, match=fault):
            parse_claim(text)
        with pytest.raises(SettingsError, match=rf"thresholds\.0: .*{fault}"):
            parse_spec(yaml.safe_dump({**spec().model_dump(mode="json"), "thresholds": [text]}))


def judged(*thresholds: str) -> Report:
    """A hundred requests, TTFT 500 ms each; one of them failed."""
    of = Spec.model_validate({**spec().model_dump(), "thresholds": thresholds})
    records = [record(index, index / 10) for index in range(99)]
    return report.build(result([*records, failed(99, 9.9)], duration_s=11.4, of=of))


def test_thresholds_are_held_against_the_headline_figures() -> None:
    said = judged("ttft_ms.p95 < 500.1", "failed <= 1%", "hit_rate > 70%", "goodput > 0.5")

    assert [outcome.is_met for outcome in said.thresholds] == [True, True, False, False]
    assert [outcome.value for outcome in said.thresholds[1:]] == [0.01, pytest.approx(0.6), None]
    assert said.verdict.is_valid
    assert not said.is_good
    assert said.title == "valid, with remarks; 2 of 4 thresholds not met"
    assert report.decode_report(report.encode_report(said)) == said
    assert said.faults == (
        "threshold not met: hit_rate > 70%: it is 60.00%",
        "threshold not met: goodput > 0.5: it is unknown",
    )


def run_with(tmp_path: Path, port: int, **fields: Any) -> int:
    path = write_spec(tmp_path, port, {"req-rate": 50, "total-prompts": 20}, **fields)
    return call("run", path, "--quiet").exit_code


@pytest.mark.slow
def test_exit_status_tells_a_missed_threshold_from_an_invalid_run(
    null_server: int, tmp_path: Path
) -> None:
    assert run_with(tmp_path, null_server, thresholds=["failed < 1%", "ttft_ms.p95 < 1000 s"]) == 0
    assert run_with(tmp_path, null_server, thresholds=["ttft_ms.p95 > 1000 s"]) == THRESHOLD_MISSED
