"""Hearing of caches over real sockets: what the index forgets, what is asked again, when it is too much."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extproc.router.events.kv_log import EventLog, EventLogs
from extproc.router.events.kv_reader import EventReader
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.clock import Clock
from tests.router.events.publishing import CLEARED, Publisher, payload, publishing_events, stored
from tests.waiting import until

NO_ADDRESS = "127.0.0.1:9"


class ReaderScene:
    """A pool with one endpoint at a time, `e` at first, and what is heard of it."""

    def __init__(self, address: str) -> None:
        self.heard: EventLogs = {}
        self.has_changed = asyncio.Event()
        self.strategy = PrefixCache(ClockAndRandom(random.Random(1), Clock()))
        self.pool = Pool("llama", self.strategy)
        self.move(address)

    def move(self, address: str, name: str = "e") -> None:
        self.pool.replace([Endpoint(name, address)])
        self.has_changed.set()

    def pick(self, text: str) -> Pick:
        body = b'{"prompt": "%b"}' % (text.encode() * 500)
        return self.pool.pick(self.strategy.read(parse("/v1/completions", "", body), {}, ""))

    @property
    def log(self) -> EventLog:
        [log] = self.heard["e"]
        return log

    async def join(self, publisher: Publisher) -> None:
        """Has it speak until it is heard: subscribing takes its time."""

        async def is_known() -> bool:
            await publisher.say()
            return bool(self.heard.get("e")) and self.log.next is not None

        await until(is_known)
        await self.catch_up(publisher)

    async def catch_up(self, publisher: Publisher) -> None:
        await until(lambda: self.log.next == publisher.number, lambda: self.log.next)


@asynccontextmanager
async def reading(address: str, port: int | None = None) -> AsyncIterator[ReaderScene]:
    scene = ReaderScene(address)
    reader = EventReader(scene.pool, scene.heard, port, {}, Clock(), scene.has_changed)
    task = asyncio.create_task(reader.run())
    try:
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_cleared_and_a_new_engine_are_forgotten_but_for_what_it_answers_now() -> None:
    async with publishing_events() as publisher, reading(publisher.address) as scene:
        await scene.join(publisher)
        scene.pick("old ").release()
        late = scene.pick("late ")
        index, holding = scene.strategy.index, scene.strategy.index.holding("e")
        assert holding is not None
        await publisher.say(CLEARED, stored(3))
        await scene.catch_up(publisher)
        assert (len(holding.idle), len(index)) == (0, len(holding.pinned))
        late.release()
        assert len(holding.idle) == len(index) > 0

        publisher.number = 0
        await publisher.say(stored(3))
        await until(lambda: not index)
        assert (scene.log.emptied, scene.log.cached_tokens) == (2, 48)


async def test_what_was_missed_is_asked_for_and_what_is_gone_for_good_is_reported() -> None:
    async with publishing_events() as publisher, reading(publisher.address) as scene:
        await scene.join(publisher)
        await publisher.say(CLEARED)
        for _ in range(3):
            await publisher.say(stored(2), is_lost=True)
        await publisher.say(stored(2))
        await scene.catch_up(publisher)
        assert (scene.log.why, scene.log.cached_tokens, publisher.asked) == ("", 8 * 16, 1)

        await publisher.say(stored(2), is_lost=True)
        publisher.kept.clear()
        await publisher.say(stored(2))
        await scene.catch_up(publisher)
        assert (scene.log.why, scene.log.missed, publisher.asked) == ("gap", 1, 2)

        # Another process has come that far meanwhile.
        publisher.kept = [(publisher.kept[-1][0], payload(stored(5)))]
        await publisher.say(is_lost=True)
        await publisher.say()
        await scene.catch_up(publisher)
        assert (scene.log.emptied, scene.log.missed) == (2, 1)


async def test_strange_frames_are_noted_and_who_has_no_replay_is_not_asked() -> None:
    async with publishing_events(replays=False) as publisher, reading(publisher.address) as scene:
        await scene.join(publisher)
        for frames in ((b"kv",), (b"kv", b"123", b""), (b"kv", bytes(8), b"", b"")):
            await publisher.publishing.send_multipart(frames)
        await until(lambda: scene.log.why == "garbled")
        await publisher.say(is_lost=True)
        await publisher.say()
        await until(lambda: scene.log.why == "gap")
        assert (scene.log.missed, publisher.asked) == (1, 0)


async def test_a_flood_is_left_alone() -> None:
    async with publishing_events() as publisher, reading(NO_ADDRESS, publisher.ports[0]) as scene:
        await scene.join(publisher)
        while scene.log.why != "flood":
            await publisher.say(stored(1))
            await asyncio.sleep(0)
        assert (scene.log.next, scene.log.stored <= 4_001) == (None, True)


async def test_another_engine_at_an_address_and_another_address_of_an_endpoint_begin_anew() -> None:
    async with (
        publishing_events() as first,
        publishing_events() as second,
        reading(first.address) as scene,
    ):
        await scene.join(first)
        before = scene.log
        scene.move(second.address)
        await until(lambda: scene.heard.get("e") and scene.log is not before)
        await scene.join(second)
        scene.move(second.address, "f")
        await until(lambda: list(scene.heard) == ["f"])
        scene.move(NO_ADDRESS, "f")
        await until(lambda: scene.heard == {"f": []})
