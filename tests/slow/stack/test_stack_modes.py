"""Every way a gateway may send bodies: each arrives as the client sent it, and may be held for long."""

import asyncio

import pytest
import xxhash

from tests.slow.stack.variants import MB, TIMEOUT_S
from tests.stack.client import (
    SIZES,
    Answer,
    chat_about,
    chat_of_size,
    connect,
    send,
    send_all,
    statuses,
)
from tests.stack.service import pool
from tests.stack.stack import Stack, ends_of_holds
from tests.stack.upstream import serve
from tests.stack.variants import MODES
from tests.waiting import until

pytestmark = pytest.mark.envoy


def decision_hashes(answers: list[Answer]) -> list[str]:
    return [answer.headers["x-simulated-body-xxh3"] for answer in answers]


LISTENERS = (None, *MODES, "streamed_at_once", "a_part_of_1_mb")


@pytest.mark.parametrize("transport", ["native", "grpcio"])
async def test_bodies_of_any_size_arrive_in_any_mode_and_chats_stay(
    stack: Stack, transport: str
) -> None:
    """STREAMED bodies come after the decision, unless Envoy is set to send them at once."""
    stack.use(transport=transport)
    bodies = [chat_of_size(size_bytes) for size_bytes in SIZES]
    assert [len(body) for body in bodies] == [*SIZES]
    for mode in LISTENERS:
        other = stack if mode is None else stack.through(mode)
        before = other.gateway.ext_proc()
        blind = stack.service.metric("extproc_picks_total", reason="no_prefix")
        async with connect(other.url) as session:
            answers = [await send(session, body) for body in bodies]
            large = [await send(session, chat_of_size(10 * MB)) for _ in range(4)]
            again = [await send(session, chat_about("stay")) for _ in range(8)]
        after = other.gateway.ext_proc()

        assert decision_hashes(answers) == [xxhash.xxh3_64_hexdigest(body) for body in bodies], mode
        assert {answer.headers["x-extproc-pool"] for answer in answers} == {"vllm"}, mode
        assert decision_hashes(large) == [xxhash.xxh3_64_hexdigest(chat_of_size(10 * MB))] * 4, mode
        # BUFFERED_PARTIAL with a body ten times Envoy's buffer: routed by its head.
        if mode == "streamed":
            assert stack.service.metric("extproc_picks_total", reason="no_prefix") - blind >= 12
        else:
            assert [len({answer.served_by for answer in alike}) for alike in (large, again)] == [
                1,
                1,
            ], mode
        for name in ("failure_mode_allowed", "streams_failed"):
            assert after[name] == before[name], mode


LONG_S = TIMEOUT_S + 1


def held(stack: Stack) -> float:
    return stack.service.metric("extproc_held_requests", pool="vllm")


@pytest.mark.parametrize(
    ("variant", "transport"),
    [("impatient", "grpcio"), ("impatient", "native"), ("impatient_in_full_duplex", "native")],
)
async def test_a_request_waits_longer_than_envoy_would(
    stack: Stack, variant: str, transport: str
) -> None:
    """1. The pool is full: three more wait. 2. One client leaves. 3. Much later there is room for both."""
    full = pool(stack.spare, max_in_flight=1, hold={"wait_s": 300}, probe=False)
    stack.use(full, endpoints=stack.spare, transport=transport)
    other = stack.through(variant)
    before, timeouts = ends_of_holds(stack), other.gateway.ext_proc()["message_timeouts"]
    async with serve(stack.spare, holds=b"") as endpoints, connect(other.url) as session:
        requests = send_all(session, "request", 4)
        await endpoints.until_arrived(4)
        gone, *waiting = send_all(session, "late", 3)
        await until(lambda: held(stack) == 3)
        gone.cancel()
        await until(lambda: held(stack) == 2)
        await asyncio.sleep(LONG_S)
        assert (held(stack), any(request.done() for request in (*requests, *waiting))) == (2, False)
        endpoints.release()
        answers = await asyncio.gather(*requests, *waiting)
        await until(lambda: stack.service.metric("extproc_endpoint_in_flight") == 0)

    assert statuses(answers) == {200: 6}
    assert ends_of_holds(stack, since=before) == [
        2,
        0,
        1,
    ]
    assert other.gateway.ext_proc()["message_timeouts"] == timeouts
