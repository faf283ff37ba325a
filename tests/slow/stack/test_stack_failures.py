"""Every part fails in turn, and clients get their answers: hangs, black holes, lists that change."""

import asyncio
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.stack.client import Answer, chat_about, connect, send, servers_by_text, statuses
from tests.stack.figures import show_figures
from tests.stack.service import pool, write_list
from tests.stack.stack import Stack, states
from tests.stack.upstream import serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

TEXTS = [f"conversation {number}" for number in range(24)]


@pytest.mark.parametrize("transport", ["native", "grpcio"])
async def test_service_hangs(stack: Stack, transport: str) -> None:
    """A stopped process holds no request longer than Envoy's patience; soon it is passed by."""
    stack.use(transport=transport)
    async with connect(stack.url) as session:
        homes = await servers_by_text(session, TEXTS)
        stack.service.send(signal.SIGSTOP)
        first = await send(session, chat_about("while it hangs"))
        await until(lambda: not stack.gateway.sees_service())
        timeouts = stack.gateway.ext_proc()["message_timeouts"]
        await servers_by_text(session, TEXTS)
        assert stack.gateway.ext_proc()["message_timeouts"] == timeouts
        stack.service.send(signal.SIGCONT)
        await until(stack.gateway.sees_service)
        back = await servers_by_text(session, TEXTS)

    assert first.status == 200
    assert back == homes


async def test_endpoint_that_swallows_connections_costs_its_conversations_a_moment(
    stack: Stack,
) -> None:
    """A node that vanished answers no SYN: a connect timeout later the next one is tried. Three times."""
    gone = stack.spare[3]
    stack.use(pool(stack.spare, name="vanishing", probe=False), endpoints=stack.spare)
    before = timeouts(stack)
    async with serve(stack.spare[:3]), connect(stack.url) as session:
        async with serve([gone]):
            homes = await servers_by_text(session, TEXTS)
        with black_hole(gone):
            homeless = [text for text in TEXTS if homes[text] == gone]
            moved = await servers_by_text(session, homeless)

    assert homeless
    assert gone not in moved.values()
    show_figures("an endpoint answers no SYN", len(moved), len(homeless))
    # The fourth may have left before the outcome of the third came; the fifth half a second later.
    assert min(3, len(homeless)) <= timeouts(stack) - before <= 4


async def test_without_the_service_a_vanished_endpoint_is_ejected(stack: Stack) -> None:
    """A few requests meet it, then the fallback policy leaves it out: not every fourth one of 200."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    stack.service.kill()
    before = timeouts(stack)
    async with serve(stack.spare[:3]), connect(stack.url) as session:
        with black_hole(stack.spare[3]):
            await servers_by_text(session, [f"anyone {number}" for number in range(200)])

    assert 3 <= timeouts(stack) - before < 25


def timeouts(stack: Stack) -> int:
    return stack.gateway.cluster("vllm", "upstream_cx_connect_timeout")


@contextmanager
def black_hole(address: str) -> Iterator[None]:
    """Listens with a backlog that is full: the kernel drops further connections."""
    ip, _, port = address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, int(port)))
        listener.listen(0)
        fill = [socket.socket() for _ in range(4)]
        try:
            for one in fill:
                one.setblocking(False)
                one.connect_ex((ip, int(port)))
            yield
        finally:
            for one in fill:
                one.close()


async def test_endpoints_change_under_load(stack: Stack, tmp_path: Path) -> None:
    """The watched list loses and regains an endpoint, again and again, while requests go on."""
    listed = tmp_path / "endpoints.yaml"

    async def change(addresses: Sequence[str]) -> None:
        write_list(listed, addresses)
        await until(
            lambda: {a for a, state in states(stack).items() if state == "ready"} == {*addresses}
        )

    write_list(listed, stack.addresses)
    stack.use(pool([], name="listed") | {"endpoints": {"file": str(listed)}})
    await change(stack.addresses)
    passed_by = stack.gateway.ext_proc()["failure_mode_allowed"]
    async with connect(stack.url) as session:
        is_over = asyncio.Event()
        load = [asyncio.create_task(chat_until(session, number, is_over)) for number in range(8)]
        for _ in range(4):
            await change(stack.addresses[:3])
            await change(stack.addresses)
        await change(stack.addresses[:3])
        is_over.set()
        answers = [answer for answers in await asyncio.gather(*load) for answer in answers]
        without = await servers_by_text(session, TEXTS)

    show_figures("endpoints come and go", statuses(answers)[200], len(answers))
    assert len(answers) > 100
    assert statuses(answers) == {200: len(answers)}
    assert stack.gateway.ext_proc()["failure_mode_allowed"] == passed_by
    assert stack.addresses[3] in {answer.served_by for answer in answers}
    assert stack.addresses[3] not in without.values()


async def chat_until(
    session: aiohttp.ClientSession, number: int, is_over: asyncio.Event
) -> list[Answer]:
    answers: list[Answer] = []
    while not is_over.is_set():
        answers.append(await send(session, chat_about(f"load {number} {len(answers) % 40}")))
    return answers
