"""What an operator reads of an outage."""

import logging

import pytest

from extproc.router.service.failure_log import FailureLog
from tests.clock import Clock


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_outage_of_an_hour_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Five pools, each of which tries again every second; the line says whom, since when, and why."""
    caplog.set_level(logging.INFO)
    clock = Clock(0.0)
    failures = FailureLog(clock)
    for second in range(3_600):
        clock.now_s = second
        for pool in "abcde":
            failures.failed(pool, "connection", "no route")

    assert len(caplog.records) == 60
    assert lines(caplog)[:2] == [
        "pool a: no word for 0 s (connection, try 1), what is known stays: no route",
        "pools a, b, c, d, e: no word for 60 s (connection, try 301), what is known stays: no route",
    ]


def test_another_kind_of_failure_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(Clock(0.0))
    failures.failed("a", "connection", "refused")
    failures.failed("b", "forbidden", "403: endpointslices is forbidden")
    failures.failed("a", "connection", "refused")

    assert len(caplog.records) == 2
    assert "pool b: no word for 0 s (forbidden" in lines(caplog)[1]


def test_the_end_of_what_was_told_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(0.0)
    failures = FailureLog(clock)
    failures.failed("a", "connection", "refused")
    failures.failed("b", "connection", "refused")
    failures.failed("c", "connection", "refused")
    clock.now_s = 5
    failures.ended("a")
    failures.ended("b")
    failures.forget("c")
    failures.ended("c")
    failures.ended("d")

    assert lines(caplog)[1:] == ["pool a is heard of again, after 5 s"]


def test_a_source_that_comes_and_goes_does_not_flood(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(0.0)
    failures = FailureLog(clock)
    for second in range(600):
        clock.now_s = second
        failures.failed("a", "connection", "refused")
        failures.ended("a")

    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 10


def test_a_bug_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    FailureLog(Clock(0.0)).failed("a", "internal", "KeyError at kubernetes.py:7")

    assert [record.levelno for record in caplog.records] == [logging.ERROR]
