"""Logs: one JSON object per line, whatever the message holds, and of an exception its type alone."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from extproc.telemetry import JsonFormatter, configure_logging


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
