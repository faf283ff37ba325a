"""What streaming clients lose while a part fails for 15 s; `pytest -s` prints the figures of failures.md."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from time import monotonic

import aiohttp
import pytest

from tests.stack.client import CHAT, chat_about, connect
from tests.stack.figures import show_figures
from tests.stack.process import Process
from tests.stack.service import pool
from tests.stack.stack import Stack, states
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

PER_S, TOKENS, FIRST_S, FAULT_S = 30, 20, 10, 15
LATE_S = 1.0
JSON = {"content-type": "application/json"}
BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"


class TimedStream:
    """One stream: when it was due, how long until its first bytes, from whom, and whether it came whole."""

    def __init__(self) -> None:
        self.due_s, self.first_s = monotonic(), float("inf")
        self.server, self.is_whole = "", False

    async def ask(self, session: aiohttp.ClientSession, number: int) -> None:
        body = chat_about(f"question {number}", max_tokens=TOKENS, ignore_eos=True, stream=True)
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.post(CHAT, data=body, headers=JSON) as answer:
                self.server = answer.headers.get("x-served-by", "")
                text = await answer.content.readany()
                self.first_s = monotonic() - self.due_s
                text += await answer.content.read()
                self.is_whole = answer.status == 200 and text.endswith(b"data: [DONE]\n\n")


@asynccontextmanager
async def timed_streams(stack: Stack) -> AsyncGenerator[list[TimedStream]]:
    asked: list[TimedStream] = []
    async with connect(stack.url) as session, asyncio.TaskGroup() as tasks:

        async def go_on() -> None:
            start_s = monotonic()
            while True:
                await asyncio.sleep(start_s + len(asked) / PER_S - monotonic())
                asked.append(TimedStream())
                tasks.create_task(asked[-1].ask(session, len(asked)))

        going = tasks.create_task(go_on())
        try:
            yield asked
        finally:
            going.cancel()


def bad(stack: Stack) -> str:
    return stack.addresses[3]


@asynccontextmanager
async def failing(stack: Stack, **faults: object) -> AsyncGenerator[None]:
    await asyncio.to_thread(partial(stack.fault, bad(stack), **faults))
    yield
    await asyncio.to_thread(stack.fault, bad(stack))


@asynccontextmanager
async def stopped_part(
    stack: Stack, how: Callable[[Process], object], *, service: bool = False
) -> AsyncGenerator[None]:
    part = stack.service if service else stack.simulators[1]
    await asyncio.to_thread(how, part)
    yield
    part.send(signal.SIGCONT) if part.is_running else part.start()
    await asyncio.to_thread(part.wait_ready)


@asynccontextmanager
async def breaking(stack: Stack, head: bytes) -> AsyncGenerator[None]:
    """Begins each answer with this head, and cuts it; without one it resets the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await writer.drain()
        writer.close() if head else writer.transport.abort()

    async with stopped_part(stack, Process.kill):
        host, _, port = bad(stack).rpartition(":")
        async with await asyncio.start_server(answer, host, int(port), reuse_address=True):
            yield


def hang(part: Process) -> None:
    part.send(signal.SIGSTOP)


DOWN = {"unhealthy", "cooling"}
# What is done, how many streams it may cost, and how the endpoint is shown meanwhile.
FAULTS: dict[str, tuple[Callable[[Stack], AbstractAsyncContextManager[None]], int, set[str]]] = {
    "an endpoint answers 500": (partial(failing, error_rate=1), 30, {"cooling", "ready"}),
    "an endpoint resets": (partial(breaking, head=b""), 30, DOWN),
    "an endpoint cuts": (partial(breaking, head=BEGUN), 30, DOWN),
    "an endpoint begins 2 s late": (partial(failing, delay_s=2), 0, {"ready"}),
    "an endpoint hangs": (partial(stopped_part, how=hang), 0, {"unhealthy", "ready"}),
    "an endpoint is killed": (partial(stopped_part, how=Process.kill), 20, DOWN),
    "an endpoint gets SIGTERM": (partial(stopped_part, how=Process.stop), 20, DOWN),
    "the service is killed": (partial(stopped_part, how=Process.kill, service=True), 0, {""}),
    "the service hangs": (partial(stopped_part, how=hang, service=True), 0, {""}),
    "the service gets SIGTERM": (partial(stopped_part, how=Process.stop, service=True), 0, {""}),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_few_streams_are_lost_and_the_endpoint_has_its_share_again(
    stack: Stack, fault: str
) -> None:
    """Without cooling, seven of eight requests met the endpoint that fails at once."""
    having, most, shown = FAULTS[fault]
    stack.use(pool(stack.addresses, {"name": "prefix_cache"}, name=fault.replace(" ", "-")))

    def state() -> str:
        with suppress(OSError):
            return states(stack)[bad(stack)]
        return ""

    async with timed_streams(stack) as asked:
        await until(lambda: len(asked) > 2 * PER_S)
        begin_s = monotonic()
        async with having(stack):
            await until(lambda: monotonic() > begin_s + FAULT_S)
            meanwhile, mended_s = await asyncio.to_thread(state), monotonic()
        await until(lambda: asyncio.to_thread(lambda: state() == "ready"))
        back, whole_s = len(asked), monotonic() - mended_s
        await until(lambda: bad(stack) in {one.server for one in asked[back:]})

    def count(is_meant: Callable[[TimedStream], bool]) -> list[int]:
        """Of those that were open, of the first ten seconds, of the next five, later."""
        edges = (0.0, begin_s, begin_s + FIRST_S, mended_s, float("inf"))
        met = [one.due_s for one in asked if is_meant(one)]
        return [sum(edges[n] <= due_s < edges[n + 1] for due_s in met) for n in range(4)]

    lost, late = count(lambda one: not one.is_whole), count(lambda one: one.first_s > LATE_S)
    shown_as = f"{fault} (lost {lost}, late {late}; {meanwhile})"
    met = sum(count(lambda _: True)[:3])
    show_figures(shown_as, met - sum(lost[:3]), met, whole_s)
    assert sum(lost) <= most
    assert meanwhile in shown


async def test_response_headers_are_enough(stack: Stack) -> None:
    stack.use(pool(stack.addresses, name="headers"))
    async with (
        timed_streams(stack.through("headers_instead_of_the_log")) as asked,
        failing(stack, error_rate=1),
    ):
        await until(lambda: len(asked) > FIRST_S * PER_S)
        # It is on trial now and then: shown as ready where probes speak well of it.
        await until(lambda: asyncio.to_thread(lambda: states(stack)[bad(stack)] == "cooling"))
    failed = sum(one.server == bad(stack) and not one.is_whole for one in asked)
    counted = stack.service.metric("extproc_answers_total", pool="headers", **{"class": "5xx"})

    assert 3 <= counted == failed <= 30


async def test_who_never_answers_is_cooled_down_by_clients_that_waited_and_gave_up(
    stack: Stack,
) -> None:
    stack.use(pool(stack.addresses, name="deaf", probe={"interval_s": 1}))
    await until(lambda: asyncio.to_thread(lambda: {*states(stack).values()} == {"ready"}))
    async with failing(stack, delay_s=600), connect(stack.url) as session:

        async def ask(number: int, patience_s: float) -> None:
            limit = aiohttp.ClientTimeout(total=patience_s)
            with suppress(TimeoutError):
                await session.post(
                    CHAT, data=chat_about(f"question {number}"), headers=JSON, timeout=limit
                )

        await asyncio.gather(*(ask(number, 1) for number in range(24)))
        assert states(stack)[bad(stack)] == "ready"
        await asyncio.gather(*(ask(number, 12) for number in range(100, 124)))
        await until(lambda: asyncio.to_thread(lambda: states(stack)[bad(stack)] == "cooling"))
        silent_s = stack.service.metric("extproc_endpoint_silent_seconds", endpoint=bad(stack))
    aborted = stack.service.metric("extproc_answers_total", pool="deaf", **{"class": "aborted"})

    assert (aborted >= 6, silent_s >= 12) == (True, True)
