"""What an operator reads of an outage."""

import logging

import pytest

from extproc.router.service.outages import Outages


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_outage_of_an_hour_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Five pools, each of which tries again every second; the line says whom, since when, and why."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    outages = Outages(clock)
    for second in range(3_600):
        clock.now_s = second
        for pool in "abcde":
            outages.failed(pool, "connection", "no route")

    assert len(caplog.records) == 60
    assert lines(caplog)[:2] == [
        "pool a: no word for 0 s (connection, try 1), what is known stays: no route",
        "pools a, b, c, d, e: no word for 60 s (connection, try 301), what is known stays: no route",
    ]


def test_another_kind_of_failure_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages(Clock())
    outages.failed("a", "connection", "refused")
    outages.failed("b", "forbidden", "403: endpointslices is forbidden")
    outages.failed("a", "connection", "refused")

    assert len(caplog.records) == 2
    assert "pool b: no word for 0 s (forbidden" in lines(caplog)[1]


def test_the_end_of_what_was_told_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    outages = Outages(clock)
    outages.failed("a", "connection", "refused")
    outages.failed("b", "connection", "refused")
    outages.failed("c", "connection", "refused")
    clock.now_s = 5
    outages.ended("a")
    outages.ended("b")
    outages.forget("c")
    outages.ended("c")
    outages.ended("d")

    assert lines(caplog)[1:] == ["pool a is heard of again, after 5 s"]


def test_a_source_that_comes_and_goes_does_not_flood(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = Outages(clock)
    for second in range(600):
        clock.now_s = second
        outages.failed("a", "connection", "refused")
        outages.ended("a")

    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 10


def test_a_bug_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    Outages(Clock()).failed("a", "internal", "KeyError at kubernetes.py:7")

    assert [record.levelno for record in caplog.records] == [logging.ERROR]
