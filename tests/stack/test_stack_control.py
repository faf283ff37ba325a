"""Who may choose: the service alone. And what operators see of it."""

import asyncio
import signal
from collections.abc import Sequence

import pytest

from tests.stack.client import Answer, chat_about, connect, send, send_all, statuses
from tests.stack.gateway import Tree
from tests.stack.service import pool
from tests.stack.stack import Stack
from tests.stack.upstream import serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

CONTROL = (
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-extproc-pool",
)
# Its address counts as internal here, so Envoy alone would heed its x-envoy headers.
CLAIMS = {
    **dict.fromkeys(
        ("X-Gateway-Model-Name", "x-extproc-pool", "x-extproc-reason", "x-served-by"), "claim"
    ),
    "x_extproc_pool": "claim",
    "x-gateway-destination-endpoint-served": "1.1.1.1:1",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-max-retries": "9",
    "x-envoy-force-trace": "true",
    "x-envoy-original-path": "/metrics",
}
# llm-d's sidecar in a Pod would obey them: send the prompt elsewhere, or pull another Pod's cache.
SIDECAR_ORDERS = (
    *("x-prefiller-host-port", "X-PREFILLER-Host-Port", "x_prefiller_host_port"),
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-data-parallel-host-port",
    "x-data-parallel-rank",
)
ORDERS = {
    "x-gateway-inference-objective": "batch",
    "x-gateway-inference-fairness-id": "somebody",
    "x-llm-d-inference-objective": "premium",
    "x-llm-d-inference-fairness-id": "somebody",
    "x-llm-d-inference-ttl": "2s",
    **dict.fromkeys(SIDECAR_ORDERS, "10.0.0.1:8000"),
}
TEXTS = [f"mine {number}" for number in range(16)]


async def ask_each(stack: Stack, claimed: str = "") -> list[Answer]:
    """Asks once per text, one after the other, with control headers that name an address."""
    headers = dict.fromkeys(CONTROL, claimed) if claimed else {}
    async with connect(stack.url) as session:
        answers = [await send(session, chat_about(text), headers=headers) for text in TEXTS]
    assert statuses(answers) == {200: len(TEXTS)}
    return answers


def homes_of(answers: Sequence[Answer]) -> list[str]:
    return [answer.served_by for answer in answers]


async def test_control_headers_of_clients_change_nothing(stack: Stack) -> None:
    homes = homes_of(await ask_each(stack))
    claimed = [homes_of(await ask_each(stack, address)) for address in stack.addresses[:2]]

    assert claimed == [homes, homes]


async def test_address_outside_the_pool_cannot_be_reached(stack: Stack) -> None:
    """Even where the service itself picks it: Envoy knows better."""
    *known, outside = stack.spare
    stack.use(pool(stack.spare, probe=False), endpoints=known)
    async with serve(known), serve([outside]) as decoy:
        served = {*homes_of(await ask_each(stack, outside))}
        stack.use(pool([outside], probe=False), endpoints=known)
        served |= {*homes_of(await ask_each(stack, outside))}

    assert decoy.requests == []
    assert served <= {*known}


async def test_endpoints_get_no_header_that_only_gateways_say(stack: Stack) -> None:
    """Nor what is said about priorities and clients; and no claim of a client is in its answer."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    async with serve(stack.spare) as endpoints, connect(stack.url) as session:
        answer = await send(
            session, chat_about("hello"), headers={**CLAIMS, **ORDERS, "x-mine": "kept"}
        )

    [request] = endpoints.requests
    assert (answer.status, request.headers["x-mine"]) == (200, "kept")
    assert request.headers["x-extproc-pool"] == "vllm"
    assert not {name.lower() for name in (*CLAIMS, *ORDERS)} & {*request.headers} - {
        "x-extproc-pool"
    }
    assert "claim" not in (*answer.headers.values(), *request.headers.values())
    assert "somebody" not in stack.service.log.read_text()


async def test_decision_is_in_the_response_and_in_the_access_log(stack: Stack) -> None:
    async with connect(stack.url) as session:
        answer = await send(session, chat_about("who"), headers={"x-request-id": "seen-in-the-log"})
    lines: list[Tree] = []

    def is_logged() -> bool:
        lines[:] = [
            line for line in stack.gateway.access_log() if line["request_id"] == "seen-in-the-log"
        ]
        return bool(lines)

    await until(is_logged)
    [line] = lines

    assert (line["pool"], line["strategy"], line["status"]) == ("vllm", "prefix_hash", 200)
    assert answer.headers["x-extproc-pool"] == "vllm"
    assert line["endpoint"] == line["served_by"] == answer.served_by
    assert line["reason"] == answer.headers["x-extproc-reason"] != ""
    assert len(line["prefix"]) == 16


async def test_service_is_killed_and_comes_back(stack: Stack) -> None:
    """1. An answer streams. 2. The service is killed: new requests are spread, and claim no pool.

    3. Clients' own headers choose nothing all the same, and an outside address stays out of reach;
       Envoy's
    health is its own. 4. The stream ends whole. 5. The service is back: so is affinity.
    """
    addresses = [*stack.spare[:3], stack.addresses[0]]
    stack.use(pool(addresses, probe=False), endpoints=addresses)
    async with (
        serve(stack.spare[:3]) as endpoints,
        serve(stack.spare[3:]) as decoy,
        connect(stack.url) as session,
    ):
        homes = homes_of(await ask_each(stack))
        streams = send_all(session, "held", 8)
        await until(lambda: sum(stream.done() for stream in streams) + endpoints.held == 8)
        stack.service.kill()
        without = await ask_each(stack, stack.spare[3])
        claiming = await send(session, chat_about("claims"), headers={**CLAIMS, **ORDERS})
        health = await send(session, b"", path="/health", method="GET")
        endpoints.release()
        streamed = await asyncio.gather(*streams)
        await asyncio.to_thread(stack.restart_service)
        back = homes_of(await ask_each(stack))

    assert {*homes_of(without)} <= {*addresses}
    assert len({*homes_of(without)}) > 1
    assert {answer.headers.get("x-extproc-pool") for answer in (*without, claiming)} == {None}
    assert "claim" not in claiming.headers.values()
    for request in endpoints.requests:
        assert not {name.lower() for name in (*CLAIMS, *ORDERS)} & {*request.headers} - {
            "x-extproc-pool"
        }
    assert decoy.requests == []
    assert (health.status, health.body) == (200, b"")
    assert {answer.body for answer in streamed if answer.served_by in stack.spare} == {
        b"first last"
    }
    assert back == homes


async def test_service_drains(stack: Stack) -> None:
    """SIGTERM: open streams end whole, new requests pass it by; status 0: none was cut."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    async with serve(stack.spare) as endpoints, connect(stack.url) as session:
        streams = send_all(session, "held", 8)
        await until(lambda: endpoints.held == 8)
        stack.service.send(signal.SIGTERM)
        await until(lambda: not stack.gateway.sees_service())
        meanwhile = await ask_each(stack)
        is_draining = stack.service.is_running
        endpoints.release()
        answers = await asyncio.gather(*streams)
        status = await asyncio.to_thread(stack.service.wait, 60)

    assert is_draining
    assert {(answer.status, answer.body) for answer in answers} == {(200, b"first last")}
    assert {answer.headers.get("x-extproc-pool") for answer in meanwhile} == {None}
    assert status == 0
