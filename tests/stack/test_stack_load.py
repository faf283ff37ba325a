"""Load is counted while a request is in flight; a full pool refuses, makes room, or holds."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.stack.client import (
    CHAT,
    Answer,
    chat_about,
    connect,
    send,
    send_all,
    servers_by_text,
    statuses,
)
from tests.stack.service import pool
from tests.stack.stack import Stack, ends_of_holds, in_flight, states
from tests.stack.upstream import Endpoints, serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

OBJECTIVE, CLIENT = "x-gateway-inference-objective", "x-gateway-inference-fairness-id"
DROPPED = "x-llm-d-request-dropped-reason"
# Four endpoints, one request each: a fifth is one too many, and one place more is the headroom.
FULL: dict[str, Any] = {"max_in_flight": 1}
FAIR = FULL | {"objectives": {"batch": -10, "premium": 10}, "fairness": True}
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def scripted_chat(
    stack: Stack, **settings: Any
) -> AsyncGenerator[tuple[Endpoints, aiohttp.ClientSession]]:
    """Has a pool of four endpoints that hold their answers; nobody probes them."""
    stack.use(pool(stack.spare, probe=False, **settings), endpoints=stack.spare)
    async with serve(stack.spare, holds=b"") as endpoints, connect(stack.url) as session:
        yield endpoints, session


async def fill_endpoints(
    session: aiohttp.ClientSession, endpoints: Endpoints, headers: dict[str, str], count: int = 4
) -> list[asyncio.Task[Answer]]:
    """Sends so many requests and waits until each is at an endpoint."""
    before = endpoints.arrived
    sent = [
        asyncio.create_task(send(session, chat_about(f"{headers} {n}"), headers=headers))
        for n in range(count)
    ]
    await endpoints.until_arrived(before + count)
    return sent


def is_idle(stack: Stack) -> bool:
    """Whether nobody counts anything: the service, its metrics, Envoy."""
    names = ("extproc_endpoint_in_flight", "extproc_streams_open")
    metrics = [stack.service.metric(name) for name in names]
    return not any(
        [in_flight(stack), stack.gateway.cluster("vllm", "upstream_rq_active"), *metrics]
    )


async def go_away(session: aiohttp.ClientSession, number: int) -> None:
    """Leaves during the answer or, every other time, within the milliseconds before it begins."""
    patience_s = 30 if number % 2 else 0.001 * (1 + number % 16)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            body = chat_about(f"gone {number}", max_tokens=2_000, stream=True)
            async with session.post(CHAT, data=body, headers=JSON) as answer:
                await answer.content.readany()
                answer.close()


async def test_clients_that_go_away_leave_nothing_in_flight(stack: Stack) -> None:
    async with connect(stack.url) as session:
        await asyncio.gather(*(go_away(session, number) for number in range(60)))

    await until(lambda: is_idle(stack))


async def test_requests_are_in_flight_until_their_last_byte(stack: Stack) -> None:
    async with scripted_chat(stack) as (endpoints, session):
        requests = await fill_endpoints(session, endpoints, {}, 40)
        counted = in_flight(stack)
        endpoints.release()
        answers = await asyncio.gather(*requests)
        await until(lambda: is_idle(stack))

    assert (counted, statuses(answers)) == (40, {200: 40})


async def test_a_pool_full_of_batch_refuses_batch_and_lets_others_in(stack: Stack) -> None:
    def counted() -> list[float]:
        outcomes = ("sheddable", "overloaded", "routed")
        return [
            stack.service.metric("extproc_requests_total", outcome=outcome) for outcome in outcomes
        ]

    async with scripted_chat(stack, **FAIR) as (endpoints, session):
        before = counted()
        held = await fill_endpoints(session, endpoints, {OBJECTIVE: "batch"})
        refused = await send(session, chat_about("one more"), headers={OBJECTIVE: "batch"})
        held += await fill_endpoints(session, endpoints, {OBJECTIVE: "no-such-objective"}, 1)
        full = await send(session, chat_about("premium"), headers={OBJECTIVE: "premium"})
        endpoints.release()
        answers = await asyncio.gather(*held)

    assert statuses(answers) == {200: 5}
    for answer, code in ((refused, "sheddable"), (full, "overloaded")):
        assert (answer.status, answer.error["code"], answer.error["type"]) == (
            429,
            code,
            "rate_limit_error",
        )
        assert (answer.headers["retry-after"], answer.headers[DROPPED]) == (
            "1",
            "rejected-saturated",
        )
    assert [after - earlier for after, earlier in zip(counted(), before, strict=True)] == [1, 1, 5]


async def test_a_client_with_the_whole_pool_makes_room_for_another(stack: Stack) -> None:
    async with scripted_chat(stack, **FAIR) as (endpoints, session):
        held = await fill_endpoints(session, endpoints, {CLIENT: "greedy"})
        held += await fill_endpoints(session, endpoints, {CLIENT: "modest"}, 1)
        greedy = await send(session, chat_about("more"), headers={CLIENT: "greedy"})
        endpoints.release()
        answers = await asyncio.gather(*held)

    assert statuses(answers) == {200: 5}
    assert greedy.status == 429


async def test_a_request_is_held_until_there_is_room_or_its_client_leaves(stack: Stack) -> None:
    """1. The pool is full: three more are held. 2. A client leaves. 3. Answers end: the others are served."""

    async def until_held(count: int) -> None:
        await until(lambda: stack.service.metric("extproc_held_requests", pool="vllm") == count)

    async with scripted_chat(stack, hold={"wait_s": 300}, **FULL) as (endpoints, session):
        before = ends_of_holds(stack)
        requests = await fill_endpoints(session, endpoints, {})
        gone, *stay = send_all(session, "held", 3)
        await until_held(3)
        gone.cancel()
        await until_held(2)
        endpoints.release(1)
        await until_held(1)
        await endpoints.until_arrived(5)
        endpoints.release()
        answers = await asyncio.gather(*requests, *stay)
        await until(lambda: is_idle(stack))

    assert statuses(answers) == {200: 6}
    assert endpoints.arrived == 6
    assert ends_of_holds(stack, since=before) == [
        2,
        0,
        1,
    ]


async def test_who_waited_in_vain_gets_the_answer_that_others_get_at_once(stack: Stack) -> None:
    """A pool that is full, and one that is empty, by requests that do not wait as long as they may."""
    hurried = {"x-llm-d-inference-ttl": "300ms"}
    async with scripted_chat(stack, hold={"wait_s": 300}, **FULL) as (endpoints, session):
        before = ends_of_holds(stack)
        requests = await fill_endpoints(session, endpoints, {})
        full = await send(session, chat_about("in vain"), headers=hurried)
        stack.use(pool([], hold={"wait_s": 300}, probe=False, **FULL), endpoints=stack.spare)
        empty = await send(session, chat_about("in vain"), headers=hurried)
        endpoints.release()
        await asyncio.gather(*requests)

    answers_given = [
        (one.status, one.error["code"], one.headers["retry-after"]) for one in (full, empty)
    ]
    assert answers_given == [(429, "overloaded", "1"), (503, "no_endpoint", "1")]
    assert {one.headers[DROPPED] for one in (full, empty)} == {"rejected-ttl-expired"}
    assert ends_of_holds(stack, since=before) == [
        0,
        2,
        0,
    ]


async def test_conversations_of_a_closed_endpoint_move_to_the_next(stack: Stack) -> None:
    """Each to one other endpoint, where it stays; nobody else moves."""
    texts, gone = [f"conversation {number}" for number in range(24)], stack.spare[3]
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    async with serve(stack.spare[:3]), connect(stack.url) as session:
        async with serve([gone]):
            homes = await servers_by_text(session, texts)
        moved = await servers_by_text(session, texts)
        again = await servers_by_text(session, texts)

    homeless = {text for text in texts if homes[text] == gone}
    assert homeless
    assert gone not in moved.values()
    assert {text for text in texts if homes[text] != moved[text]} == homeless
    assert moved == again


async def test_endpoint_that_fails_at_once_is_left_out_and_comes_back(stack: Stack) -> None:
    """1. One of four answers 500: it cools, and few requests meet it. 2. It works again: it is ready."""
    bad = stack.addresses[3]
    stack.use(pool(stack.addresses, {"name": "round_robin"}, name="cooling", probe=False))
    stack.fault(bad, error_rate=1)
    async with connect(stack.url) as session:
        failures = 0
        async with asyncio.timeout(60):
            while states(stack)[bad] != "cooling":
                failures += (await send(session, chat_about("fails"))).status == 500
        failed = stack.service.metric("extproc_answers_total", endpoint=bad, **{"class": "5xx"})
        stack.fault(bad)
        async with asyncio.timeout(60):
            while states(stack)[bad] != "ready":
                await send(session, chat_about("works again"))
        back = await servers_by_text(session, [f"back {number}" for number in range(8)])

    assert 1 <= failed <= failures < 50
    assert bad in back.values()


async def test_endpoint_that_is_not_healthy_is_known_without_a_request(stack: Stack) -> None:
    sick = stack.addresses[3]
    probe = {"interval_s": 0.2, "timeout_s": 20}
    stack.use(pool(stack.addresses, {"name": "round_robin"}, name="probed", probe=probe))
    stack.fault(sick, is_sick=True)
    await until(lambda: states(stack)[sick] == "unhealthy")
    async with connect(stack.url) as session:
        meanwhile = await servers_by_text(session, [f"well {number}" for number in range(8)])
    stack.fault(sick)
    await until(lambda: states(stack)[sick] == "ready")

    assert sick not in meanwhile.values()
