"""Requests that are held, with a real Envoy: until there is room, an endpoint, no time left, or no client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import aiohttp
import pytest
import yaml

from tests.slow.stack.live import run_cluster
from tests.slow.stack.pickers import FULL_DUPLEX
from tests.stack.client import Answer, ask, connect, send
from tests.stack.gateway import Edit, Tree, ext_proc_filter
from tests.stack.service import Pool, pool
from tests.stack.stack import Stack, run_stack
from tests.stack.upstream import serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

# Less than a request is held here: without a word of the service Envoy would give up.
TIMEOUT_S = 5.0
LONG_S = TIMEOUT_S + 1


def impatient(tree: Tree) -> None:
    """As shipped, but with a short time for answers of the service, and no way around it."""
    config = ext_proc_filter(tree)
    config.update(message_timeout=f"{TIMEOUT_S}s", failure_mode_allow=False)


def in_full_duplex(tree: Tree) -> None:
    """As gateways configure it for an InferencePool."""
    impatient(tree)
    config = ext_proc_filter(tree)
    config.pop("allow_mode_override")
    config["processing_mode"] = FULL_DUPLEX


MODES = pytest.mark.parametrize("edit", [impatient, in_full_duplex], ids=["buffered", "full duplex"])


class Endpoints:
    """Four endpoints that answer as often as the test says."""

    def __init__(self) -> None:
        self.arrived = 0
        self.places = asyncio.Semaphore(0)

    async def answer(self, _: bytes) -> bytes:
        self.arrived += 1
        await self.places.acquire()
        return b"{}"

    def release(self, count: int) -> None:
        for _ in range(count):
            self.places.release()


@asynccontextmanager
async def running(
    directory: Path, edit: Edit, pools: Callable[[list[str]], list[Pool]], transport: str = "native"
) -> AsyncIterator[tuple[Stack, Endpoints, aiohttp.ClientSession]]:
    endpoints = Endpoints()
    with run_stack(directory, simulate=None, edits=[edit], pools=pools, transport=transport) as stack:
        async with serve(stack.ports, endpoints.answer), connect(stack.url) as session:
            yield stack, endpoints, session


def full_pool(**hold: float) -> Callable[[list[str]], list[Pool]]:
    """One request an endpoint, of four. Nobody probes them: they would count that as a request."""
    return lambda addresses: [pool(addresses, max_in_flight=1, hold=hold, probe=False)]


async def open_requests(session: aiohttp.ClientSession, count: int) -> list[asyncio.Task[Answer]]:
    return [asyncio.create_task(send(session, ask(f"request {number}"))) for number in range(count)]


def held(stack: Stack) -> float:
    return stack.service.metric("extproc_held_requests", pool="vllm")


def ends(stack: Stack) -> dict[str, float]:
    return {
        end: stack.service.metric("extproc_held_seconds_count", pool="vllm", end=end)
        for end in ("served", "refused", "aborted")
    }


async def until_held(stack: Stack, count: int) -> None:
    await until(lambda: held(stack) == count)


@pytest.mark.parametrize(
    ("edit", "transport"),
    [(impatient, "grpcio"), (in_full_duplex, "native")],
    ids=["buffered, grpcio", "full duplex"],
)
async def test_a_request_waits_for_room_longer_than_envoy_waits_for_answers(
    tmp_path: Path, edit: Edit, transport: str
) -> None:
    async with running(tmp_path, edit, full_pool(wait_s=60), transport) as (stack, endpoints, session):
        requests = await open_requests(session, 4)
        await until(lambda: endpoints.arrived >= 4)
        requests += await open_requests(session, 3)
        await until_held(stack, 3)
        await asyncio.sleep(LONG_S)
        still = [held(stack), float(sum(request.done() for request in requests))]
        endpoints.release(1)
        await until_held(stack, 2)
        await until(lambda: endpoints.arrived >= 5)
        endpoints.release(6)
        answers = await asyncio.gather(*requests)
        told = ends(stack), stack.gateway.ext_proc()["message_timeouts"]

    assert still == [3, 0]
    assert [answer.status for answer in answers] == [200] * 7
    assert told == ({"served": 3, "refused": 0, "aborted": 0}, 0)


async def test_a_request_that_came_before_any_endpoint_is_served_by_the_first(tmp_path: Path) -> None:
    listed = tmp_path / "endpoints.yaml"
    listed.write_text("[]")

    def empty(_: list[str]) -> list[Pool]:
        return [
            {"name": "vllm", "endpoints": {"file": str(listed)}, "hold": {"settle_s": 0.1}, "probe": False}
        ]

    async with running(tmp_path, impatient, empty) as (stack, endpoints, session):
        requests = await open_requests(session, 3)
        await until_held(stack, 3)
        listed.write_text(yaml.safe_dump([{"address": "127.0.0.1", "port": stack.ports[0]}]))
        endpoints.release(3)
        answers = await asyncio.gather(*requests)

    assert [answer.status for answer in answers] == [200] * 3
    assert {answer.served_by for answer in answers} == {stack.addresses[0]}


@MODES
async def test_a_client_that_leaves_is_held_no_more(tmp_path: Path, edit: Edit) -> None:
    async with running(tmp_path, edit, full_pool(wait_s=60)) as (stack, endpoints, session):
        requests = await open_requests(session, 4)
        await until(lambda: endpoints.arrived == 4)
        gone, stays = await open_requests(session, 2)
        await until_held(stack, 2)
        gone.cancel()
        await until_held(stack, 1)
        endpoints.release(5)
        answers = await asyncio.gather(*requests, stays)
        await until(lambda: stack.service.metric("extproc_endpoint_in_flight") == 0)
        told = ends(stack)

    assert [answer.status for answer in answers] == [200] * 5
    assert told == {"served": 1, "refused": 0, "aborted": 1}
    assert endpoints.arrived == 5


@pytest.mark.parametrize(
    ("edit", "is_empty", "status", "code"),
    [(impatient, False, 429, "overloaded"), (in_full_duplex, True, 503, "no_endpoint")],
    ids=["full", "empty, full duplex"],
)
async def test_who_waited_in_vain_is_told_what_others_are_told_at_once(  # a table's columns
    tmp_path: Path, edit: Edit, is_empty: bool, status: int, code: str
) -> None:
    def pools(addresses: Sequence[str]) -> list[Pool]:
        return [pool([] if is_empty else addresses, max_in_flight=1, hold={"wait_s": 1}, probe=False)]

    async with running(tmp_path, edit, pools) as (stack, endpoints, session):
        requests = await open_requests(session, 0 if is_empty else 4)
        await until(lambda: endpoints.arrived == len(requests))
        began_s = monotonic()
        refused = await send(session, ask("in vain"))
        waited_s = monotonic() - began_s
        endpoints.release(4)
        await asyncio.gather(*requests)
        told = ends(stack)

    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (status, code, "1")
    assert waited_s >= 1
    assert told == {"served": 0, "refused": 1, "aborted": 0}


async def test_an_envoy_that_may_not_wait_longer_gives_up(tmp_path: Path) -> None:
    """The proof that the tests above can fail: without the filter's `max_message_timeout`."""

    def stubborn(tree: Tree) -> None:
        impatient(tree)
        ext_proc_filter(tree).pop("max_message_timeout")

    async with running(tmp_path, stubborn, full_pool(wait_s=60)) as (stack, endpoints, session):
        requests = await open_requests(session, 4)
        await until(lambda: endpoints.arrived == 4)
        given_up = await send(session, ask("too long"))  # by Envoy itself
        endpoints.release(4)
        await asyncio.gather(*requests)
        await until(lambda: held(stack) == 0)

    assert given_up.status >= 500


async def test_over_xds_the_first_endpoint_answers_what_waited_for_it(tmp_path: Path) -> None:
    """Envoy has no endpoint either, until it is told."""
    async with run_cluster(tmp_path) as cluster:
        cluster.apply()
        await cluster.until()
        service = cluster.service
        written = yaml.safe_load(service.config.read_text())
        service.configure([{**written["pools"][0], "hold": {}}], xds=True)
        await until(lambda: service.metric("extproc_config_reloads_total", result="applied") == 1)
        async with connect(cluster.gateway.url) as session:
            requests = await open_requests(session, 5)
            await until(lambda: service.metric("extproc_held_requests", pool="llama") == len(requests))
            cluster.apply(1)
            answers = await asyncio.gather(*requests)

    assert {(answer.status, answer.served_by) for answer in answers} == {(200, cluster.address(1))}
