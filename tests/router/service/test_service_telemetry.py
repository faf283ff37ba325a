"""Logs: one JSON object per line, of an exception its type alone. Metrics: counted plainly, shown as ever."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from extproc.errors import NoRoomForBody
from extproc.router.cluster.kube_api import WatchLost
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.logs import ONCE_A_MINUTE, RateLimit, configure_logging
from extproc.router.routing.picker import Query
from extproc.router.telemetry import Metrics
from tests.reach import size_of
from tests.router.stream.conversations import one_pool


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, whose handlers are put back afterwards."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()
    yield root
    root.handlers[:] = handlers


def test_a_log_line_is_one_json_object_and_has_of_an_exception_its_type_alone(
    root: logging.Logger,
) -> None:
    stream = io.StringIO()
    configure_logging("INFO", stream)
    logging.getLogger("extproc.x").info('two\nlines, \x1b[31m a "quote" and %s', "\ud800")
    logging.getLogger("extproc.x").debug("not at this level")
    logging.getLogger("other").info("nor of others")
    logging.getLogger("other").warning("but their warnings")
    error = RuntimeError("the prompt says: secret")
    logging.getLogger("extproc.x").error("it failed", exc_info=error)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]

    odd = 'two\nlines, \x1b[31m a "quote" and \ud800'
    assert [line["message"] for line in lines] == [odd, "but their warnings", "it failed"]
    assert lines[2]["exception"] == "RuntimeError"
    assert "secret" not in stream.getvalue()
    assert set(lines[0]) == {"time", "level", "logger", "message"}
    assert (lines[0]["level"], lines[0]["logger"]) == ("INFO", "extproc.x")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_log_line_is_plain(root: logging.Logger) -> None:
    """One line, whatever is in it; nothing reaches the terminal that it would obey."""
    now_s, stream = [0.0], Terminal()
    configure_logging("INFO", stream, clock=lambda: now_s[0])
    logging.getLogger("extproc.x").info("prêt:\ntwo\r\nlines \x1b[31m \u202e %s", "\ud800")
    logging.getLogger("extproc.x").error("it failed", exc_info=ValueError("secret"))
    for _ in range(13):
        logging.getLogger("extproc.x").info("again")
    now_s[0] = 1
    logging.getLogger("extproc.x").info("again")
    lines = stream.getvalue().splitlines()

    assert lines[-1].endswith(" again (and 3 more of this kind)")
    odd = " INFO    prêt: | two | lines \\x1b[31m \\u202e \\ud800"
    assert [line[8:] for line in lines[:2]] == [odd, " ERROR   it failed (ValueError)"]
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)


async def test_without_a_cluster_the_kubernetes_client_logs_nothing(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would say so with every try; the error says it, which `PoolKeeper` logs once a minute."""
    place = "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(place, str(tmp_path / "no"))
    stream = io.StringIO()
    configure_logging("DEBUG", stream)
    with pytest.raises(WatchLost, match="Invalid kube-config file"):
        await KubeClients(None, {}).open()

    assert stream.getvalue() == ""


def test_requests_are_counted_by_pool_and_by_how_long_their_picks_took() -> None:
    metrics, picker = Metrics(), one_pool()
    for elapsed_s in (1e-5, 5e-5, 3e-4, 2.0):
        metrics.routed(picker.pick(Query("POST", "/v1/completions", {"x-session": "s"})), elapsed_s)
    metrics.routed(
        picker.pick(Query("POST", "/v1/completions", {}, fault=NoRoomForBody("full"))), 3e-4
    )
    metrics.answered("llama", "overloaded")
    metrics.answered("", "models")
    metrics.streams_open.set(1)
    lines = generate_latest(metrics.registry).decode().splitlines()

    buckets = {"5e-05": 2, "0.0002": 2, "0.0005": 4, "0.05": 4, "+Inf": 5}
    for line in (
        'extproc_picks_total{pool="llama",reason="home",strategy="prefix_hash"} 4.0',
        'extproc_picks_total{pool="llama",reason="no_prefix",strategy="prefix_hash"} 1.0',
        'extproc_requests_total{outcome="routed",pool="llama"} 5.0',
        'extproc_requests_total{outcome="overloaded",pool="llama"} 1.0',
        'extproc_requests_total{outcome="models",pool=""} 1.0',
        'extproc_prompt_errors_total{why="budget"} 1.0',
        "extproc_streams_open 1.0",
        *(f'extproc_pick_duration_seconds_bucket{{le="{le}"}} {n}.0' for le, n in buckets.items()),
        "extproc_pick_duration_seconds_count 5.0",
    ):
        assert line in lines
    assert metrics.registry.get_sample_value("extproc_pick_duration_seconds_sum") == pytest.approx(
        2.00066
    )


class TestFloods:
    """A flood of one message is a few lines; other messages are said as ever."""

    @pytest.fixture
    def stream(self, root: logging.Logger) -> io.StringIO:
        self.now_s = 0.0
        stream = io.StringIO()
        configure_logging("DEBUG", stream, clock=lambda: self.now_s)
        return stream

    def lines(self, stream: io.StringIO) -> list[dict[str, object]]:
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    def test_a_flood_is_ten_lines_then_one_a_second_and_others_are_logged(
        self, stream: io.StringIO
    ) -> None:
        log = logging.getLogger("extproc.cluster.xds")
        for number in range(60_000):
            self.now_s = number / 1_000
            log.warning("envoy %s refused cluster: %s", number, "x")
        log.warning("another")
        log.error("envoy %s refused cluster: %s", 0, "x")
        *lines, another, worse = self.lines(stream)

        assert 60 <= len(lines) <= 70
        assert lines[0].get("unsaid") is None
        assert (another["message"], worse["level"]) == ("another", "ERROR")
        assert sum(int(str(line.get("unsaid", 0))) for line in lines) + len(lines) > 59_000

    def test_what_every_try_of_an_outage_repeats_is_logged_once_a_minute(
        self, stream: io.StringIO
    ) -> None:
        """As of peers that cannot be found, and of the operator's watches."""
        log = logging.getLogger("extproc")
        for number in range(600):
            self.now_s = number / 2
            log.warning("no answer: %d", number, extra=ONCE_A_MINUTE)
        for number in range(100):
            log.debug("routed to %d", number)

        lines = self.lines(stream)
        assert len(lines) == 5 + 100, "debug says everything"
        assert [line.get("unsaid") for line in lines[:2]] in ([None, 119], [None, 120])

    def test_texts_that_are_never_the_same_take_no_memory_for_good(self) -> None:
        limit = RateLimit(lambda: 0.0, kinds=4)
        sizes = []
        for number in range(1_000):
            record = logging.LogRecord(
                "extproc", logging.ERROR, __file__, 1, f"text {number}", None, None
            )
            assert limit.filter(record)
            sizes.append(size_of(limit))

        assert sizes[0] < sizes[1] < sizes[2] < sizes[3] == max(sizes) == sizes[-1]
