"""`/live`: one state a second to those who look, and nothing where nobody does."""

import asyncio
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from extproc.router.routing.signals import EndpointSignals
from extproc.router.service import admin
from extproc.router.service.connection_limit import ConnectionLimit
from extproc.router.service.live.publisher import StatePublisher
from tests.router.service.live_service import live_events, next_state, serving_live
from tests.stack.service import pool
from tests.waiting import until

POOL, ROW = ("name", "strategy", "in_flight"), ("name", "address", "state", "in_flight")
PATIENCE = aiohttp.ClientTimeout(total=60)


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_nobody_looks_and_nothing_is_drawn_or_recorded(tmp_path: Path) -> None:
    """1. An idle service has no task and no recorder. 2. A viewer brings both. 3. With it, both go."""
    async with serving_live(tmp_path) as live:
        before, observer = tasks(), live.app.processor.observer
        assert observer is live.app.metrics
        assert "live" not in before

        async with live.session.get("/live") as answer:
            await next_state(live_events(answer))
            assert "live" in tasks()
            assert live.app.processor.observer is not observer
        await until(lambda: live.app.processor.observer is observer)
        await until(lambda: "live" not in tasks())


async def test_the_stream_of_states_shows_what_pools_shows(tmp_path: Path) -> None:
    pools = [
        pool(["127.0.0.1:8001", "127.0.0.1:8002"], name="a", models=["m"], probe=False),
        pool(["127.0.0.1:8003"], {"name": "least_load"}, name="b", probe=False),
    ]
    async with serving_live(tmp_path, pools) as live, live.session.get("/live") as answer:
        states = live_events(answer)
        await next_state(states)
        live.request(pool_name="a")
        live.request(pool_name="b")
        shown_by = live.app.pools["a"].feedback.signals
        shown_by["127.0.0.1:8001"] = EndpointSignals(first_tokens=4, first_token_s=1.0)
        live.fail("a", "127.0.0.1:8002")
        state = await next_state(states)
        while len(state.decisions) < 2:
            state = await next_state(states)
        reported = await live.pools()
        async with live.session.get("/live") as second:
            first_event = await anext(live_events(second))

    pools_shown = [[getattr(one, name) for name in POOL] for one in state.pools]
    assert pools_shown == [[one[name] for name in POOL] for one in reported]
    shown = [[getattr(row, name) for name in ROW] for one in state.pools for row in one.endpoints]
    assert shown == [[row[name] for name in ROW] for one in reported for row in one["endpoints"]]
    assert state.pools[0].endpoints[0].first_token_s == 0.25
    assert {row.pool for row in state.decisions} == {"a", "b"}
    assert (state.is_ready, state.faults) == (True, [])
    assert first_event["event"] == "history", "who comes later is told what was"
    assert '{"a":{"home":1},"b":{"least_load":1}}' in first_event["data"]


async def test_one_viewer_too_many_gets_a_503(tmp_path: Path) -> None:
    """Half of the port's connections at most, so that whoever scrapes has room."""
    async with (
        serving_live(tmp_path, limit=ConnectionLimit(4)) as live,
        live.session.get("/live") as first,
        live.session.get("/live") as second,
    ):
        async with live.session.get("/live") as third:
            assert (first.status, second.status, third.status) == (200, 200, 503)
            assert third.headers["retry-after"] == "5"
        async with live.session.get("/pools") as answer:
            assert answer.status == 200


@pytest.mark.slow
async def test_a_viewer_stays_beyond_the_doors_patience(tmp_path: Path) -> None:
    limit = ConnectionLimit(8, answer_s=1, idle_s=1)
    async with (
        serving_live(tmp_path, limit=limit) as live,
        live.session.get("/live", timeout=PATIENCE) as answer,
    ):
        states = live_events(answer)
        numbers = [(await next_state(states)).number for _ in range(4)]

    assert numbers == [1, 2, 3, 4]


async def test_a_viewer_that_does_not_read_is_shown_out_and_the_others_see_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing piles up for it: one state is on its way at most."""
    monkeypatch.setattr(admin, "StatePublisher", partial(StatePublisher, pace_s=0.02, slow_s=0.5))
    many = [
        pool(
            [f"10.{n // 250}.0.{n % 250}:80" for n in range(2_000)], {"name": "random"}, probe=False
        )
    ]
    async with serving_live(tmp_path, many) as live:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.setblocking(False)
        host, _, port = live.url.removeprefix("http://").partition(":")
        await asyncio.get_running_loop().sock_connect(deaf, (host, int(port)))
        await asyncio.get_running_loop().sock_sendall(
            deaf, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        await until(lambda: len(live.limit.connections) == 1)
        [transport] = live.limit.connections
        async with live.session.get("/live") as answer:
            states = live_events(answer)
            await next_state(states)
            await until(lambda: transport not in live.limit.connections, 60)
            seen = await next_state(states)
            assert (await next_state(states)).number > seen.number
        deaf.close()


async def test_stopping_does_not_wait_for_viewers(tmp_path: Path) -> None:
    """One that stays is shown out: else it would get a state a second for as long as it likes."""
    async with aiohttp.ClientSession(timeout=PATIENCE) as viewer:
        async with serving_live(tmp_path) as live:
            answer = await viewer.get(f"{live.url}/live")
            await next_state(live_events(answer))
        with suppress(aiohttp.ClientPayloadError):
            rest = await answer.content.read()

    assert rest.count(b"data: ") <= 2
    assert live.limit.connections == {}


async def test_a_configuration_that_is_refused_is_reported_and_the_one_in_force_is_shown(
    tmp_path: Path,
) -> None:
    async with serving_live(tmp_path) as live, live.session.get("/live") as answer:
        states = live_events(answer)
        assert (await next_state(states)).configuration.refusal is None
        async with live.watching():
            live.configure((), "pools: 7")
            while (refusal := (await next_state(states)).configuration.refusal) is None:
                pass
            assert "pools" in refusal.why
            live.configure([pool(["127.0.0.1:8001"], {"name": "random"}, probe=False)])
            while (configuration := (await next_state(states)).configuration).number < 2:
                pass
        async with live.session.get("/config") as config:
            text = await config.text()

    assert configuration.refusal is None
    assert "name: random" in text
    assert "prefix_hash" not in text
