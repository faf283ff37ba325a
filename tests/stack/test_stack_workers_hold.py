"""Requests that workers hold, each in a queue of its own: when they leave, in which order, and how many."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.slow.share.test_stack_share import ENDPOINTS, Proxy
from tests.stack.service import pool
from tests.stack.stack import eventually
from tests.stack.test_stack_workers_alone import LANES, LONG_S, PREFIX_CACHE, Crew

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT = 2


class Clients:
    """Requests of one proxy that has a connection to each worker. Each lasts until it is told to end."""

    def __init__(self, crew: Crew, proxy: Proxy) -> None:
        self._crew = crew
        self._proxy = proxy
        self._ends: dict[asyncio.Task[None], asyncio.Event] = {}
        self.routed: list[asyncio.Task[None]] = []

    def ask(self, connection: int, count: int = 1) -> list[asyncio.Task[None]]:
        asked = [asyncio.create_task(self._ask(connection)) for _ in range(count)]
        self._ends |= {task: asyncio.Event() for task in asked}
        return asked

    async def end(self, *requests: asyncio.Task[None]) -> None:
        for request in requests:
            self._ends[request].set()
        await asyncio.gather(*requests)

    async def settle(self, count: int) -> int:
        """Waits until each of `count` is in flight or held; returns how many are in flight."""
        await until(lambda: self._in_flight() == {count - self._held()})
        return self._in_flight().pop()

    async def until(self, in_flight: int, held: int) -> None:
        """Until each worker counts so many in flight of all together, and so many are held by both."""
        await until(lambda: (self._in_flight(), self._held()) == ({in_flight}, held))

    def _in_flight(self) -> set[int]:
        """What workers count."""
        return {self._crew.workers.in_flight(lane) for lane in LANES}

    def _held(self) -> float:
        return self._crew.metric("extproc_held_requests", pool="vllm")

    async def _ask(self, connection: int) -> None:
        request = asyncio.current_task()
        assert request is not None
        async with self._proxy.asking(connection, ["a question"]):
            self.routed.append(request)
            await self._ends[request].wait()


@asynccontextmanager
async def running(directory: Path) -> AsyncGenerator[Clients]:
    full = pool(ENDPOINTS[:1], PREFIX_CACHE, probe=False, max_in_flight=LIMIT, hold={"wait_s": 200})
    with Crew(directory, pools=[full]) as crew:
        await asyncio.to_thread(crew.wait_all)
        await until(
            lambda: (
                [crew.workers.metric(lane, "extproc_share_peers", state="prompt") for lane in LANES] == [1, 1]
            )
        )
        proxy = Proxy([crew, crew])
        yield Clients(crew, proxy)
        await proxy.close()


async def until(is_true: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(eventually, is_true, LONG_S)


async def test_a_request_leaves_one_worker_when_another_ones_request_ends(tmp_path: Path) -> None:
    """All that is in flight is one worker's, and all that is held the other one's."""
    async with running(tmp_path) as clients:
        first, second = clients.ask(0, LIMIT)
        await clients.until(LIMIT, 0)
        later = clients.ask(1, 2)
        await clients.until(LIMIT, 2)
        await clients.end(first)
        await clients.until(LIMIT, 1)
        await clients.end(second)
        await clients.until(LIMIT, 0)
        routed = clients.routed[LIMIT:]
        await clients.end(*later)

    assert set(later) == set(routed)


async def test_requests_of_both_workers_leave_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """All ends are in one worker's hands; those whom the other one holds came first, and by turns."""
    async with running(tmp_path) as clients:
        ends = clients.ask(0, LIMIT)
        await clients.until(LIMIT, 0)
        for place, connection in enumerate((1, 1, 0, 1, 0, 0, 1, 0)):
            ends += clients.ask(connection)
            await clients.until(LIMIT, place + 1)
        for place, request in enumerate(ends):
            await clients.end(request)
            left = len(ends) - place - 1
            await clients.until(min(LIMIT, left), max(0, left - LIMIT))

    assert clients.routed[LIMIT:] == ends[LIMIT:]


async def test_the_limit_holds_for_all_workers_but_for_one_that_comes_at_once(tmp_path: Path) -> None:
    """1. More come to both workers at once than there is room for: one too many is let in at most.

    2. They end, one after the other: nobody is let in before fewer than the limit are in flight, and then one
    for each end.
    """
    async with running(tmp_path) as clients:
        asked = clients.ask(0, 2 * LIMIT) + clients.ask(1, 2 * LIMIT)
        in_flight = most = await clients.settle(len(asked))
        for ended in range(len(asked)):
            await clients.end(clients.routed[ended])
            left = len(asked) - ended - 1
            in_flight = min(left, max(LIMIT, in_flight - 1))
            await clients.until(in_flight, left - in_flight)

    assert LIMIT <= most <= LIMIT + len(LANES) - 1
