"""When a list or a watch that failed is tried again."""

import asyncio
from contextlib import AsyncExitStack
from random import Random

import pytest

from extproc.router.cluster.kube_api import read_retry_after
from tests.router.cluster.api_server import ApiServer, refuses, serving, streams
from tests.router.cluster.harness import BuildSource, RecordingSink, has, running
from tests.router.cluster.objects import A, B, C, slice_object
from tests.tables import table


@pytest.mark.slow
async def test_an_outage_keeps_the_pool_and_backs_off(
    build: BuildSource, server: ApiServer, sink: RecordingSink, delays: list[float]
) -> None:
    second = ApiServer()
    async with serving(second):
        port = int(second.url.rpartition(":")[2])
        second.put(slice_object("s1", A, B))
        server.url = second.url
        source = build()
        task = asyncio.create_task(source.run(sink))
        await sink.until(lambda _: second.watchers)
    await sink.until(lambda _: len(delays) > 50)

    assert [[e.name for e in told] for told in sink.lists] == [["default/a", "default/b"]]
    assert max(delays) <= 30
    assert max(delays[:30]) <= 2
    assert max(delays[36:]) > 10
    assert all(delay <= 0.5 * 2**number for number, delay in enumerate(delays))

    async with serving(second, port):
        second.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))
        task.cancel()


async def test_back_off_starts_over_once_a_watch_has_said_something(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("list", *[refuses(500)] * 10)
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.bookmark()
        await sink.until(lambda told: told.confirmed_total)
        server.end_watches()
        await sink.until(lambda _: len(delays) >= 11)

    assert max(delays[:10]) > 0.5
    assert delays[10] <= 0.5


async def test_a_server_that_ends_every_watch_at_once_is_backed_off_from(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("watch", *[streams()] * 40)
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 40)

    assert 1 < max(delays[:30]) <= 2
    assert max(delays) > 4


async def test_a_server_that_lists_but_refuses_every_watch_is_backed_off_from(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    """A Role without the verb watch: a list that works says nothing of watches."""
    server.answer_next("watch", *[refuses(403)] * 40)
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 40)

    assert len(server.lists) >= 40
    assert max(delays) > 4


async def test_a_list_that_worked_starts_the_back_off_of_lists_over(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("list", *[refuses(500)] * 10)
    server.answer_next("watch", refuses(500))
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 11)
        server.answer_next("list", refuses(500))
        await sink.until(lambda _: server.watchers)

    assert max(delays[:10]) > 0.5
    assert max(delays[10:]) <= 0.5


async def test_an_expired_version_costs_no_wait(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("watch", refuses(410))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)

    assert delays == [0]
    assert sink.reasons == [None]


async def test_a_server_that_calls_every_version_expired_is_backed_off_from(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.answer_next("watch", *[refuses(410)] * 40)
    async with running(build(), sink):
        await sink.until(lambda _: len(delays) >= 40)

    assert delays.count(0) == 1
    assert max(delays) > 4


@pytest.mark.parametrize("call", ["list", "watch"])
@pytest.mark.parametrize("code", [429, 503])
async def test_a_server_says_when_to_come_back(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float], *, call: str, code: int
) -> None:
    server.answer_next(call, refuses(code, "7"))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)

    [delay_s] = delays
    assert 7 <= delay_s <= 7 * 1.25


@table(
    ("text", "read_s"),
    [
        ("1", 1),
        ("120", 120),
        ("999999999", 120),
        ("0", None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("²", None),
        ("9" * 5_000, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)
def test_a_retry_after_is_whole_seconds_and_no_more_than_two_minutes(text: str, read_s: int | None) -> None:
    assert read_retry_after(text) == read_s


@pytest.mark.slow
async def test_a_restart_of_the_api_server_costs_seconds(
    build: BuildSource, server: ApiServer, sink: RecordingSink
) -> None:
    """It refuses connections for a second, then 403 until it knows its Roles; then it is heard at once.

    Real waits, drawn by ten sources: one lucky draw proves nothing. None exceeds three seconds.
    """
    drawn_s: list[float] = []

    async def nap(delay_s: float) -> None:
        drawn_s.append(delay_s)
        await asyncio.sleep(delay_s)

    second = ApiServer()
    sinks = [RecordingSink() for _ in range(10)]
    async with AsyncExitStack() as stack:
        async with serving(second):
            port = int(second.url.rpartition(":")[2])
            second.put(slice_object("s1", A, B))
            server.url = second.url
            for number, told in enumerate(sinks):
                source = build(rng=Random(number), sleep=nap)
                await stack.enter_async_context(running(source, told))
            await sinks[0].until(lambda _: len(second.watchers) == 10)
        await asyncio.sleep(1.0)
        async with serving(second, port):
            tokens, second.tokens = second.tokens, set()
            second.refusal = 403
            await asyncio.sleep(3.0)
            second.tokens = tokens
            second.put(slice_object("s2", C))
            for told in sinks:
                await told.until(has("a", "b", "c"))

    assert {"connection", "forbidden"} <= {why for told in sinks for why in told.restarts}
    assert max(drawn_s) <= 3


async def test_a_long_quiet_watch_counts_as_a_good_one_and_confirms_the_list(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    now_s = iter(range(0, 100_000, 240))
    server.answer_next("watch", *[streams()] * 12)
    async with running(build(clock=lambda: next(now_s)), sink):
        await sink.until(lambda _: len(delays) >= 12)

    assert max(delays) <= 0.5
    assert sink.confirmed_total >= 12
