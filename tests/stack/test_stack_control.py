"""Who may choose: the service alone. And what operators see of it."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.stack.client import ask, connect, send
from tests.stack.gateway import Tree, cluster
from tests.stack.service import pool
from tests.stack.stack import Stack, eventually, run_stack
from tests.stack.upstream import serve

pytestmark = pytest.mark.envoy

CONTROL = ("x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset", "x-extproc-pool")
REQUESTS = 30


async def _served(stack: Stack, headers: dict[str, str]) -> list[str]:
    async with connect(stack.url) as session:
        answers = [await send(session, ask(f"mine {number}"), headers=headers) for number in range(REQUESTS)]
    assert {answer.status for answer in answers} == {200}
    return [answer.served_by for answer in answers]


async def test_clients_own_control_headers_change_nothing(stack: Stack) -> None:
    for address in stack.addresses[:2]:
        claimed = await _served(stack, dict.fromkeys(CONTROL, address))

        assert claimed == await _served(stack, {})


async def test_clients_own_control_headers_change_nothing_without_the_service(tmp_path: Path) -> None:
    with run_stack(tmp_path) as stack:
        stack.service.kill()
        claimed = Counter(await _served(stack, dict.fromkeys(CONTROL, stack.addresses[0])))

    # Nobody picks, so Envoy's own policy spreads them over the pool.
    assert len(claimed) > 1


@pytest.mark.parametrize("is_up", [True, False])
async def test_address_outside_the_pool_cannot_be_reached(tmp_path: Path, is_up: bool) -> None:
    reached = 0

    async def decoy(_: bytes) -> bytes:
        nonlocal reached
        reached += 1
        return b"{}"

    # The fourth port is an endpoint of nobody's pool: Envoy's cluster is told of three.
    def drop_last(tree: Tree) -> None:
        endpoints = cluster(tree, "vllm")["load_assignment"]["endpoints"][0]["lb_endpoints"]
        del endpoints[-1]

    with run_stack(tmp_path, edits=[drop_last], simulate=None) as stack:

        async def answer(_: bytes) -> bytes:
            return b"{}"

        async with serve(stack.ports[:3], answer), serve(stack.ports[3:], decoy):
            if not is_up:
                stack.service.kill()
            # Even where the service itself picks it: Envoy knows better.
            served = await _served(stack, dict.fromkeys(CONTROL, stack.addresses[3]))

    assert reached == 0
    assert set(served) <= set(stack.addresses[:3])


async def test_decision_is_in_the_response_and_in_the_access_log(stack: Stack) -> None:
    async with connect(stack.url) as session:
        answer = await send(session, ask("who"), headers={"x-request-id": "seen-in-the-log"})

    assert answer.headers["x-extproc-pool"] == "vllm"
    assert answer.headers["x-extproc-reason"]
    assert answer.served_by in stack.addresses

    assert eventually(
        lambda: any(line["request_id"] == "seen-in-the-log" for line in stack.gateway.access_log())
    )
    (line,) = (line for line in stack.gateway.access_log() if line["request_id"] == "seen-in-the-log")
    assert (line["pool"], line["strategy"], line["status"]) == ("vllm", "prefix_hash", 200)
    assert line["endpoint"] == line["served_by"] == answer.served_by
    assert line["reason"] == answer.headers["x-extproc-reason"]
    assert len(line["prefix"]) == 16


async def test_without_the_service_the_response_claims_no_pool(tmp_path: Path) -> None:
    with run_stack(tmp_path, pools=lambda addresses: [pool(addresses)]) as stack:
        stack.service.kill()
        async with connect(stack.url) as session:
            answers = await asyncio.gather(*(send(session, ask(str(number))) for number in range(4)))

    assert {answer.status for answer in answers} == {200}
    assert {answer.headers.get("x-extproc-pool") for answer in answers} == {None}
