"""The summary in k6's layout, held against lines that k6 printed for KubeAI's runs."""

from dataclasses import replace

import pytest

from extproc.bench.measure.conversations import count_conversations
from extproc.bench.record import INTERRUPTED, Record, RunResult
from extproc.bench.report import report
from extproc.bench.report.k6 import duration, k6_text
from extproc.bench.spec.tree import Spec
from tests.bench.synthetic import failed, record, result


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (1.72e-6, "1.72µs"),
        (79.02e-6, "79.02µs"),
        (0.01447, "14.47ms"),
        (0.78, "780ms"),
        (0.827, "827ms"),
        (1.0, "1s"),
        (1.09, "1.09s"),
        (2.2, "2.2s"),
        (50.64, "50.64s"),
        (80.2, "1m20s"),
        (229, "3m49s"),
        (617, "10m17s"),
        (3723, "1h2m3s"),
    ],
)
def test_durations_are_written_as_k6_writes_them(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def conversation(session: int, *, turns: int, last: Record | None = None) -> list[Record]:
    """Two turns of 1.5 s each, one after the other; `last` replaces the last."""
    made = [
        record(10 * session + turn, 2.0 * turn, session=session, turn=turn, is_last=turn == 1)
        for turn in range(turns)
    ]
    return [*made[:-1], last] if last else made


def test_conversations_are_completed_interrupted_or_failed() -> None:
    broken = record(11, 2.0, session=1, turn=1, is_last=True, failure=INTERRUPTED)
    counted = count_conversations(
        [
            *conversation(0, turns=2),
            *conversation(1, turns=2, last=broken),
            *conversation(2, turns=1),
            *conversation(3, turns=2, last=replace(failed(31, 2.0), session=3, turn=1, is_last=True)),
        ]
    )

    assert counted.durations_s == (3.5,)
    assert counted.interrupted == 2


def run() -> RunResult:
    spec = Spec.model_validate(
        {"endpoint": "127.0.0.1:1", "performance": {"traffic-shape": {"preset": "kubeai-k6"}}}
    )
    broken = record(21, 626.0, session=2, turn=1, is_last=True, failure=INTERRUPTED, end_s=630.0)
    records = [*conversation(0, turns=2), *conversation(1, turns=2), *conversation(2, turns=2, last=broken)]
    return result(records, duration_s=630.0, of=spec)


def trend(name: str, value: str) -> str:
    """A line whose points are all the same, each column as wide as the widest value: `136.36ms`."""
    labels = ("avg", "min", "med", "max", "p(90)", "p(95)")
    points = " ".join(f"{label}={value:<8}" for label in labels)
    return f"     {name:.<31}: {points}".rstrip()


def test_summary_has_the_lines_of_k6() -> None:
    """Five requests of 1.5 s and 11 tokens each; one more was broken off after ten and a half minutes."""
    lines = k6_text(run(), report.build(run())).splitlines()

    assert lines == [
        "     checks.........................: 100.00% 5 out of 5",
        trend("http_req_duration", "1.5s"),
        "   ✓ http_req_failed................: 0.00%   0 out of 5",
        "     http_reqs......................: 5       0.007937/s",
        "     input_tokens...................: 500     0.793651/s",
        trend("iteration_duration", "3.5s"),
        "     iterations.....................: 2       0.003175/s",
        "     new_tokens.....................: 55      0.087302/s",
        trend("time_per_token", "136.36ms"),
        "     tokens.........................: 555     0.880952/s",
        "     vus_max........................: 320",
        "",
        "",
        "running (10m30.0s), 000/320 VUs, 2 complete and 1 interrupted iterations",
    ]


def test_failed_requests_fail_the_check() -> None:
    made = result([record(0, 0.0), failed(1, 0.5)])
    text = k6_text(made, report.build(made))

    assert "checks.........................: 50.00% 1 out of 2" in text
    assert "   ✗ http_req_failed................: 50.00%   1 out of 2" in text


def test_run_without_an_answer_has_a_summary() -> None:
    made = result([], duration_s=0.0)

    assert "http_reqs......................: 0" in k6_text(made, report.build(made))
