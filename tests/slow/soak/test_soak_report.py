"""What makes a run bad, and what is read from logs."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slow.soak.books import Balance, Line, Outage, Picked, Served
from tests.slow.soak.logs import read_lines, read_picked, read_served, unexpected
from tests.slow.soak.report import LIMIT_MB_PER_H, MORE_DESCRIPTORS, Findings, write
from tests.slow.soak.watch import PASSED_BY_S, Life, Sample

SECONDS = 1_800.0


def life(*, mb_per_h: float = 0.0, descriptors: int = 20, name: str = "service 0", from_s: float = 0) -> Life:
    """One that is looked at from `from_s` to the end."""
    times = range(int(from_s), int(SECONDS), 10)
    return Life(name, 1, [Sample(at_s, 100 + at_s * mb_per_h / 3_600, descriptors) for at_s in times])


def findings(**fields: object) -> Findings:
    found = Findings(
        "a run", SECONDS, SECONDS / 2, Balance(), [], 3, {"service 0": 0}, Counter(), [], [], [life()], []
    )
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def broken() -> Balance:
    balance = Balance()
    balance.settle("passed by the service", "request-1", excuse=False)
    return balance


GROWING = 2 * LIMIT_MB_PER_H
BAD: dict[str, Callable[[], Findings]] = {
    "1 entries of the books": lambda: findings(balance=broken()),
    "service 0 counted 7": lambda: findings(counts=["service 0 counted 7, its log has 8"]),
    "in flight: service 0 1": lambda: findings(in_flight={"service 0": 1}),
    "service 0 grows by +24.0": lambda: findings(lives=[life(mb_per_h=GROWING)]),
    "service 0 has 37 descriptors": lambda: findings(
        lives=[life(), life(descriptors=20 + MORE_DESCRIPTORS + 1, from_s=100)]
    ),
    "1 unexpected lines": lambda: findings(unexpected=["a bug"]),
    "an Envoy does not see": lambda: findings(faults=["an Envoy does not see its service"]),
}


@pytest.mark.parametrize(("reason", "build"), BAD.items())
def test_whatever_is_wrong_is_a_reason(reason: str, build: Callable[[], Findings]) -> None:
    bad = build()

    [told] = bad.reasons()
    assert told.startswith(reason)
    assert f"Verdict: FAILED\n  {reason}" in write(bad)


def test_nothing_wrong_is_good() -> None:
    assert write(findings()).endswith("Verdict: good")


def test_a_life_that_began_in_the_second_half_or_in_a_short_run_is_not_judged_by_its_growth() -> None:
    late = findings(lives=[life(mb_per_h=GROWING, from_s=1_000)])
    short = findings(lives=[life(mb_per_h=GROWING)], seconds=120.0)

    assert [[], []] == [late.reasons(), short.reasons()]


def test_who_waits_for_a_core_is_as_good_as_stopped() -> None:
    waited_s = [0.0, 0.5, 2.0, 2.5]
    starving = Life("service 0", 1, [Sample(2 * n, 100, 20, each_s) for n, each_s in enumerate(waited_s)])

    assert [Outage("service 0", 2, 4 + PASSED_BY_S)] == [*starving.starved()]


def test_an_envoys_log_is_lines_but_what_a_kill_tore(tmp_path: Path) -> None:
    log = tmp_path / "envoy.log"
    log.write_text(
        "[2026-11-22][warning] something\n"
        '{"request_id":"a","time":"2026-11-22T11:00:00.500Z","duration_ms":1500,'
        '"status":200,"details":"via_upstream","flags":null,"endpoint":"one","served_by":"127.0.0.1:1"}\n{"reque'
    )

    [line] = read_lines(log, 1)
    assert line == Line("a", 1, line.began_s, line.began_s + 1.5, 200, picked="one", served_by="127.0.0.1:1")
    assert line.began_s % 60 == 0.5


def test_a_services_log_is_its_decisions(tmp_path: Path) -> None:
    log = tmp_path / "extproc.log"
    said = [
        "routed a to <Pick one of vllm: prefix_cache, cold>",
        "pool vllm: 4 ready",
        "answered b: no_endpoint",
    ]
    time = "2026-11-22T11:00:00.000+00:00"
    lines = [f'{{"time": "{time}", "level": "DEBUG", "message": "{text}"}}\n' for text in said]
    log.write_text("".join(lines))

    first, second = read_picked(log, 0)
    assert (first, second) == (Picked("a", 0, first.at_s, "one"), Picked("b", 0, first.at_s, ""))
    assert [second] == read_picked(log, 0, len(lines[0]))
    assert [first] == read_picked(log, 0, 0, len(lines[0]))


def test_an_endpoints_log_is_begins_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "served.jsonl"
    log.write_text('{"at":1,"begin":"a"}\n{"at":2,"begin":"b"}\n{"at":3,"end":"a","status":200}\n')

    assert [Served("a", "e", 1, 3, 200), Served("b", "e", 2, None, None)] == read_served(log, "e")


@pytest.mark.parametrize(
    ("message", "level", "is_expected"),
    [
        ("a stream failed: KeyError", "ERROR", False),
        ("pool vllm: 4 ready", "INFO", True),
        ("pool vllm: vllm-1 fails and is cooled down for 2.0 s", "WARNING", True),
    ],
)
def test_a_line_that_nobody_expects_is_told(
    tmp_path: Path, message: str, level: str, is_expected: bool
) -> None:
    log = tmp_path / "extproc.log"
    log.write_text(f'{{"level": "{level}", "message": "{message}"}}\n')

    assert ([] == [*unexpected("service", log)]) is is_expected


def test_a_traceback_is_told(tmp_path: Path) -> None:
    log = tmp_path / "extproc.log"
    log.write_text("Traceback (most recent call last):\n")

    assert [*unexpected("service", log)]
