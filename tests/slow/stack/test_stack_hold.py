"""Requests that are held longer than Envoy waits for an answer, in every way a gateway may ask."""

import asyncio

import pytest

from tests.slow.stack.variants import TIMEOUT_S
from tests.stack.client import ask, connect, send, statuses
from tests.stack.service import pool
from tests.stack.stack import Stack, ends_of_holds
from tests.stack.upstream import serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

LONG_S = TIMEOUT_S + 1


def held(stack: Stack) -> float:
    return stack.service.metric("extproc_held_requests", pool="vllm")


@pytest.mark.parametrize(
    ("variant", "transport"),
    [("impatient", "grpcio"), ("impatient", "native"), ("impatient_in_full_duplex", "native")],
)
async def test_a_request_waits_longer_than_envoy_would(stack: Stack, variant: str, transport: str) -> None:
    """1. The pool is full: three more wait. 2. One client leaves. 3. Much later there is room for both."""
    full = pool(stack.spare, max_in_flight=1, hold={"wait_s": 300}, probe=False)
    stack.use(full, endpoints=stack.spare, transport=transport)
    other = stack.through(variant)
    other.gateway.wait_until(other.gateway.sees_service)
    before, timeouts = ends_of_holds(stack), other.gateway.ext_proc()["message_timeouts"]
    async with serve(stack.spare, holds=b"") as endpoints, connect(other.url) as session:
        requests = [asyncio.create_task(send(session, ask(f"request {number}"))) for number in range(4)]
        await endpoints.until_arrived(4)
        gone, *waiting = [asyncio.create_task(send(session, ask(f"late {number}"))) for number in range(3)]
        await until(lambda: held(stack) == 3)
        gone.cancel()
        await until(lambda: held(stack) == 2)
        await asyncio.sleep(LONG_S)
        assert (held(stack), any(request.done() for request in (*requests, *waiting))) == (2, False)
        endpoints.release()
        answers = await asyncio.gather(*requests, *waiting)
        await until(lambda: stack.service.metric("extproc_endpoint_in_flight") == 0)

    assert statuses(answers) == {200: 6}
    assert [now - earlier for now, earlier in zip(ends_of_holds(stack), before, strict=True)] == [2, 0, 1]
    assert other.gateway.ext_proc()["message_timeouts"] == timeouts
