import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from aiohttp import web

from extproc.router.cluster.models import ModelsPace, ModelsSource
from extproc.router.cluster.source import Sink, Source
from extproc.router.routing.endpoint import Endpoint, ModelCard
from tests.hosting import hosting
from tests.router.cluster.harness import RecordingSink, running_source

BASE = {"id": "llama", "object": "model", "parent": None}
LORA = {"id": "sql-lora", "object": "model", "parent": "llama"}
QUICK = ModelsPace(settle_s=0.01)


class FixedSource:
    """A source that says what the test says."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.endpoints: Sequence[Endpoint] = endpoints
        self.sink: Sink | None = None

    async def run(self, sink: Sink) -> None:
        self.sink = sink
        sink.replace(self.endpoints)
        await asyncio.Event().wait()


@dataclass
class Asking:
    """A server, the lists with its endpoint, and the source's waits in between."""

    sink: RecordingSink
    cards: list[object] = field(default_factory=lambda: [BASE])
    answer: dict[str, Any] | None = None
    delay_s: float = 0.0
    asked: int = 0
    most_at_once: int = 0
    at_once: int = 0
    delays: list[float] = field(default_factory=list)
    endpoint: Endpoint = field(init=False)

    async def models(self, _: web.Request) -> web.Response:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.delay_s)
        self.at_once -= 1
        if self.answer:
            return web.Response(**self.answer)
        return web.json_response({"object": "list", "data": self.cards})

    def running(
        self, source: Source, pace: ModelsPace = QUICK
    ) -> AbstractAsyncContextManager[object]:
        return running_source(
            ModelsSource(source, pace=pace, rng=Random(7), sleep=self._nap), self.sink
        )

    async def _nap(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await asyncio.sleep(0.005)


@pytest.fixture
async def asking(sink: RecordingSink) -> AsyncIterator[Asking]:
    asking = Asking(sink)
    async with hosting({"GET /v1/models": asking.models}) as address:
        asking.endpoint = Endpoint("default/a", address)
        yield asking


async def test_endpoints_are_listed_at_once_and_again_with_what_they_serve(asking: Asking) -> None:
    asking.cards = [BASE, LORA]
    async with asking.running(FixedSource(asking.endpoint)):
        await asking.sink.until(lambda sink: len(sink.lists) >= 2)

    [before], [after] = asking.sink.lists
    assert before == asking.endpoint
    assert (after.models, after.adapters) == (frozenset({"llama"}), frozenset({"sql-lora"}))
    assert after.cards == {ModelCard("llama"), ModelCard("sql-lora", parent="llama")}
    assert (after.name, after.address, after.is_ready) == (
        asking.endpoint.name,
        asking.endpoint.address,
        True,
    )


async def test_a_loaded_adapter_is_learnt_and_the_same_answer_makes_no_second_list(
    asking: Asking,
) -> None:
    """The questions come seldom, and never in step with others'."""
    async with asking.running(FixedSource(asking.endpoint)):
        await asking.sink.until(lambda _: len(asking.delays) >= 5)
        assert len(asking.sink.lists) == 2
        asking.cards = [BASE, LORA]
        await asking.sink.until(lambda sink: sink.lists[-1][0].adapters == {"sql-lora"})
        asking.cards = [BASE | {"created": 7}]  # as vLLM does: the time of the answer
        await asking.sink.until(lambda sink: not sink.lists[-1][0].adapters)
        await asking.sink.until(lambda _: len(asking.delays) >= 10)

    assert all(240 <= delay <= 360 for delay in asking.delays)
    assert len(set(asking.delays)) == len(asking.delays)


NO_ID, DEEP = b'{"data": [{"name": "no id"}]}', b'{"data": ' + b"[" * 100_000
ELSEWHERE = {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 401, "body": b"{}"},
        ELSEWHERE,
        *({"body": each} for each in (b"<html>", b"\xff", NO_ID, DEEP)),
    ],
    ids=["401", "redirect", "html", "not UTF-8", "no id", "deep"],
)
async def test_an_answer_of_no_use_keeps_what_is_known(
    asking: Asking, answer: dict[str, Any]
) -> None:
    async with asking.running(FixedSource(asking.endpoint)):
        await asking.sink.until(lambda sink: len(sink.lists) >= 2)
        asking.delays.clear()
        asking.answer = answer
        await asking.sink.until(lambda _: len(asking.delays) >= 3)

    assert len(asking.sink.lists) == 2
    assert asking.sink.lists[-1][0].models == {"llama"}


async def test_a_silent_endpoint_is_asked_again_later(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    asking.delay_s = 0.5
    async with asking.running(FixedSource(asking.endpoint), ModelsPace(timeout_s=0.1)):
        await asking.sink.until(lambda _: len(asking.delays) >= 3)
        assert all(delay <= 2**number for number, delay in enumerate(asking.delays))
        asking.delay_s = 0
        await asking.sink.until(lambda sink: sink.lists[-1][0].models == {"llama"})

    assert caplog.messages == [f"{asking.endpoint.address} does not list its models: TimeoutError"]


async def test_one_that_cannot_be_asked_stops_no_other(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    """An address that no URL can hold: what is raised is none of a request's own errors."""
    caplog.set_level(
        logging.CRITICAL
    )  # what pytest captures has to be UTF-8 where several processes test
    broken = Endpoint("default/broken", "[::1]x:80\ud800")
    async with asking.running(FixedSource(broken, asking.endpoint)):
        await asking.sink.until(
            lambda sink: sink.lists[-1:] and sink.lists[-1][1].models == {"llama"}
        )


async def test_what_was_learnt_outlives_a_failure_of_the_source_within(asking: Asking) -> None:
    class Failing:
        runs = 0

        async def run(self, sink: Sink) -> None:
            self.runs += 1
            sink.replace([asking.endpoint])
            if self.runs == 1:
                await asyncio.sleep(0.1)
                raise LookupError("a bug")
            await asyncio.Event().wait()

    source = Failing()
    async with asking.running(source):
        await asking.sink.until(
            lambda sink: sink.lists[-1:] and sink.lists[-1][0].models == {"llama"}
        )
        await asking.sink.until(lambda _: source.runs >= 2)

    assert asking.sink.lists[-1][0].models == {"llama"}
    assert asking.sink.restarts == ["internal"]


async def test_a_new_endpoint_is_asked_and_one_that_is_gone_is_not(asking: Asking) -> None:
    source = FixedSource()
    async with asking.running(source):
        await asking.sink.until(lambda sink: sink.lists == [[]])
        assert source.sink
        source.sink.replace([asking.endpoint])
        await asking.sink.until(lambda sink: sink.lists[-1] and sink.lists[-1][0].models)
        source.sink.replace([])
        await asyncio.sleep(0.02)
        asked = asking.asked
        await asyncio.sleep(0.05)

    assert asking.asked == asked
    assert asking.sink.lists[-1] == []


async def test_draining_keeps_what_is_known_and_confirmations_and_restarts_pass_through(
    asking: Asking,
) -> None:
    source = FixedSource(asking.endpoint)
    async with asking.running(source):
        await asking.sink.until(lambda sink: len(sink.lists) >= 2)
        assert source.sink
        source.sink.replace(
            [Endpoint(asking.endpoint.name, asking.endpoint.address, is_ready=False)]
        )
        source.sink.confirm()
        source.sink.restarted("expired")

    assert (asking.sink.lists[-1][0].is_ready, asking.sink.lists[-1][0].models) == (
        False,
        frozenset({"llama"}),
    )
    assert (asking.sink.confirmed_total, asking.sink.restarts) == (1, ["expired"])


async def test_only_a_few_are_asked_at_a_time_and_listed_together(asking: Asking) -> None:
    asking.delay_s = 0.01
    many = [Endpoint(f"default/{number}", asking.endpoint.address) for number in range(40)]
    pace = ModelsPace(parallel=4, settle_s=0.05)
    async with asking.running(FixedSource(*many), pace):
        await asking.sink.until(lambda sink: sink.lists and all(e.models for e in sink.lists[-1]))

    assert asking.most_at_once <= 4
    assert len(asking.sink.lists) < len(many)


async def test_nothing_is_left_running_when_the_source_is_cancelled(asking: Asking) -> None:
    def running() -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if "ModelsSource" in repr(task)]

    async with asking.running(FixedSource(asking.endpoint)):
        await asking.sink.until(lambda sink: len(sink.lists) >= 2)
        assert len(running()) == 2

    assert running() == []
