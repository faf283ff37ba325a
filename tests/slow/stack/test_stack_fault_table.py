"""What short chats see of faults that cost no stream: `pytest -s` prints the figures of failures.md."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiohttp
import pytest

from tests.stack.client import chat_about, connect, send
from tests.stack.figures import show_figures
from tests.stack.service import pool, write_list
from tests.stack.stack import Stack, states
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

PER_S, ASKED = 30, 150
# So many answers in a row, and every endpoint ready: all is whole.
WELL = 20
CLAIMED = {"x-gateway-destination-endpoint": "127.0.0.1:9", "x-extproc-pool": "another"}
CHAIN = {"name": "prefix_cache"}


class SteadyChats:
    """Chats at a steady rate: what became of each that was asked, in this order; `None`: not yet, or no answer."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.statuses: list[int | None] = []
        self._session = session

    async def go_on(self) -> None:
        start_s = monotonic()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(start_s + len(self.statuses) / PER_S - monotonic())
                self.statuses.append(None)
                tasks.create_task(self._ask(len(self.statuses) - 1))

    async def _ask(self, number: int) -> None:
        with suppress(aiohttp.ClientError, TimeoutError):
            body = chat_about(f"{number} asks " * 20)
            self.statuses[number] = (await send(self._session, body)).status


Fault = Callable[[Stack], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def faulty(stack: Stack, count: int = 1, **faults: object) -> AsyncGenerator[None]:
    for address in stack.addresses[-count:]:
        await asyncio.to_thread(partial(stack.fault, address, **faults))
    yield
    for address in stack.addresses[-count:]:
        await asyncio.to_thread(stack.fault, address)


@asynccontextmanager
async def full_for_now(stack: Stack) -> AsyncGenerator[None]:
    """An engine is healthy, and wants no request for two seconds after each."""
    host, _, port = stack.addresses[-1].rpartition(":")
    head = b"HTTP/1.1 429 Too Many\r\nretry-after: 2\r\ncontent-length: 0\r\n\r\n"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            asked = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if asked.startswith(b"GET") else head)
        writer.close()

    await asyncio.to_thread(stack.simulators[1].kill)
    async with await asyncio.start_server(refuse, host, int(port), reuse_address=True):
        yield
    await asyncio.to_thread(stack.simulators[1].start)


@asynccontextmanager
async def empty_pool(stack: Stack, **settings: Any) -> AsyncGenerator[None]:
    """None, which then has endpoints: another queue would refuse who waits in this one."""
    stack.use(pool([], CHAIN, name="rows", **settings))
    yield
    stack.use(pool(stack.addresses, CHAIN, name="rows", **settings))


@asynccontextmanager
async def bad_configuration(stack: Stack) -> AsyncGenerator[None]:
    usual = stack.service.config.read_text()
    stack.service.write("pools: [{")
    await until(lambda: stack.service.metric("extproc_config_refused") == 1)
    yield
    stack.service.write(usual)


def list_of(stack: Stack) -> Path:
    return stack.service.config.with_name("endpoints.yaml")


@asynccontextmanager
async def half_a_list(stack: Stack) -> AsyncGenerator[None]:
    await asyncio.to_thread(list_of(stack).write_text, "- address: 127.0.0.1\n  port: [")
    yield
    write_list(list_of(stack), stack.addresses)


@asynccontextmanager
async def bad_requests(stack: Stack) -> AsyncGenerator[None]:
    """Somebody sends these all the while."""
    no_json, too_long, no_client = b"{[" * 50_000, b" " * 50_000_000, b"{}"

    async def go_on(body: bytes, path: str) -> None:
        async with connect(stack.url) as session:
            while True:
                with suppress(aiohttp.ClientError):
                    await send(session, body, path=path, headers=CLAIMED)

    sending = [
        asyncio.create_task(go_on(no_json, "/v1/chat/completions")),
        asyncio.create_task(go_on(too_long, "/v1/messages")),
        asyncio.create_task(go_on(no_client, "/v1/load_lora_adapter")),
    ]
    yield
    for task in sending:
        task.cancel()


# What is done, and how many of `ASKED` are answered at least.
ROWS: Final[Mapping[str, tuple[Fault, int]]] = {
    "an endpoint answers half with 500": (partial(faulty, error_rate=0.5), ASKED - 40),
    "an endpoint says 429, retry-after": (full_for_now, ASKED - 30),
    "all endpoints fail": (partial(faulty, count=4, error_rate=1), 0),
    "no endpoint is known": (empty_pool, 0),
    "no endpoint is known, held": (partial(empty_pool, hold={"wait_s": 60}), ASKED),
    "a bad configuration": (bad_configuration, ASKED),
    "half a list of endpoints": (half_a_list, ASKED),
    "bad and over-long bodies, forbidden paths": (bad_requests, ASKED),
}


@pytest.mark.parametrize("row", ROWS)
async def test_as_many_are_answered_as_the_table_says(stack: Stack, row: str) -> None:
    having, least = ROWS[row]
    write_list(list_of(stack), stack.addresses)
    from_file = {"endpoints": {"file": str(list_of(stack))}}
    stack.use(pool([], CHAIN, name="rows", probe={"interval_s": 1}) | from_file)

    def are_ready() -> bool:
        with suppress(OSError):
            return [*states(stack).values()] == ["ready"] * 4
        return False

    await until(lambda: asyncio.to_thread(are_ready))
    async with connect(stack.url) as session:
        chats = SteadyChats(session)
        going = asyncio.create_task(chats.go_on())
        async with having(stack):
            first = len(chats.statuses)
            await until(lambda: len(chats.statuses) >= first + ASKED)
        ended_s = monotonic()
        await until(lambda: asyncio.to_thread(are_ready))
        await until(lambda: chats.statuses[-WELL - 10 : -10] == [200] * WELL)
        whole_s = max(0.0, monotonic() - ended_s - (WELL + 10) / PER_S)
        await until(lambda: None not in chats.statuses[first : first + ASKED])
        going.cancel()

    answered = chats.statuses[first : first + ASKED].count(200)
    show_figures(row, answered, ASKED, whole_s)
    assert answered >= least
