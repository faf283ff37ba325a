"""Logs: one JSON object per line, of an exception its type alone. Metrics: counted plainly, told as ever."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from extproc.errors import NoRoomForBody
from extproc.routing.picker import Ask
from extproc.telemetry import JsonFormatter, Metrics, configure_logging
from tests.stream.conversations import one_pool


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("extproc")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers.clear()
    yield root
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_a_log_line_is_one_json_object(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging("INFO", stream)
    logging.getLogger("extproc.x").info('two\nlines, \x1b[31m a "quote" and %s', "\ud800")
    logging.getLogger("extproc.x").debug("not at this level")
    logging.getLogger("other").info("nor of others")
    logging.getLogger("other").warning("but their warnings")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert [line["message"] for line in lines] == [
        'two\nlines, \x1b[31m a "quote" and \ud800',
        "but their warnings",
    ]
    assert set(lines[0]) == {"time", "level", "logger", "message"}
    assert (lines[0]["level"], lines[0]["logger"]) == ("INFO", "extproc.x")


def test_an_exception_is_logged_by_its_type_alone() -> None:
    error = RuntimeError("the prompt says: secret")
    record = logging.LogRecord(
        "extproc", logging.ERROR, __file__, 1, "it failed", None, (type(error), error, None)
    )
    text = JsonFormatter().format(record)

    assert json.loads(text)["exception"] == "RuntimeError"
    assert "secret" not in text


def test_requests_are_told_by_pool_and_by_how_long_their_picks_took() -> None:
    metrics, picker = Metrics(), one_pool()
    for elapsed_s in (1e-5, 5e-5, 3e-4, 2.0):
        metrics.routed(picker.pick(Ask("POST", "/v1/completions", {"x-session": "s"})), elapsed_s)
    metrics.routed(picker.pick(Ask("POST", "/v1/completions", {}, fault=NoRoomForBody("full"))), 3e-4)
    metrics.answered("llama", "overloaded")
    metrics.answered("", "models")
    metrics.opened()
    lines = generate_latest(metrics.registry).decode().splitlines()

    for line in (
        'extproc_picks_total{pool="llama",reason="home",strategy="prefix_hash"} 4.0',
        'extproc_picks_total{pool="llama",reason="no_prefix",strategy="prefix_hash"} 1.0',
        'extproc_requests_total{outcome="routed",pool="llama"} 5.0',
        'extproc_requests_total{outcome="overloaded",pool="llama"} 1.0',
        'extproc_requests_total{outcome="models",pool=""} 1.0',
        'extproc_prompt_errors_total{why="budget"} 1.0',
        "extproc_streams_open 1.0",
        'extproc_pick_duration_seconds_bucket{le="5e-05"} 2.0',
        'extproc_pick_duration_seconds_bucket{le="0.0002"} 2.0',
        'extproc_pick_duration_seconds_bucket{le="0.0005"} 4.0',
        'extproc_pick_duration_seconds_bucket{le="0.05"} 4.0',
        'extproc_pick_duration_seconds_bucket{le="+Inf"} 5.0',
        "extproc_pick_duration_seconds_count 5.0",
    ):
        assert line in lines
    assert metrics.registry.get_sample_value("extproc_pick_duration_seconds_sum") == pytest.approx(2.00066)
