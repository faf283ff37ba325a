"""The service as the endpoint picker of each Envoy-based gateway, with a real Envoy."""

import asyncio
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import aiohttp
import orjson
import pytest
import xxhash

from tests.stack.client import CHAT, MODEL, SIZES, ask, body_of, connect, send
from tests.stack.pickers import GATEWAYS, Picked, answers_in_duplex, is_probed
from tests.stack.ports import free_ports
from tests.stack.service import pool
from tests.stack.stack import Stack, in_flight
from tests.waiting import until

pytestmark = pytest.mark.envoy

PATIENCE_S, LONG_S = 4.0, 30.0  # of a client whom nobody may answer, and of one who must be
# With the service away: nothing at all, more than one piece of a stream, and more than a buffer
# holds.
BODIES = [body_of(size_bytes) for size_bytes in (SIZES[0], SIZES[3], SIZES[5])]


@pytest.fixture(scope="module", params=GATEWAYS, ids=str)
def picked(request: pytest.FixtureRequest) -> Picked:
    gateway: Picked = request.param
    return gateway


@pytest.fixture(scope="module")
def stack(picked: Picked, shared_stack: Stack) -> Iterator[Stack]:
    """The gateway's listener of the shared Envoy, and the service as the gateway asks it."""
    [health] = free_ports(1)
    shared_stack.use(
        pool(shared_stack.addresses, fallbacks=picked.fallbacks),
        health=f"127.0.0.1:{health}",
        **picked.server,
    )
    gateway = shared_stack.through(picked.listener)
    asyncio.run(_until_picked(gateway))
    yield gateway
    shared_stack.restore()


async def test_bodies_arrive_unchanged_at_a_picked_endpoint(stack: Stack) -> None:
    bodies = [body_of(size_bytes) for size_bytes in SIZES]
    before = stack.service.metric("extproc_picks_total")
    async with connect(stack.url) as session:
        answers = [await send(session, body) for body in bodies]

    assert [answer.headers["x-simulated-body-xxh3"] for answer in answers] == [
        xxhash.xxh3_64_hexdigest(body) for body in bodies
    ]
    assert stack.service.metric("extproc_picks_total") == before + len(bodies)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_of_10_mb_arrives_unchanged(
    stack: Stack, picked: Picked, *, stream: bool
) -> None:
    """200 completions that begin with the prompt. In full duplex the picker has given each piece back."""
    prompt = "".join(f"{number:08}" for number in range(6_500))
    fields = {"n": 200, "echo": True, "max_tokens": 1, "stream": stream}
    before = stack.gateway.ext_proc()["stream_msgs_received"]
    async with connect(stack.url) as session:
        body = orjson.dumps({"model": MODEL, "prompt": prompt, **fields})
        answer = await send(session, body, path="/v1/completions")
    texts = _texts(answer.body)
    given_back = stack.gateway.ext_proc()["stream_msgs_received"] - before

    assert len(answer.body) > 10_000_000
    assert len(texts) == 200
    assert all(text.startswith(prompt) for text in texts)
    assert given_back > 100 if answers_in_duplex(picked) else given_back <= 3
    await _until_idle(stack)


async def test_a_conversation_stays_whatever_its_client_orders_and_all_are_released(
    stack: Stack,
) -> None:
    async with connect(stack.url) as session:
        answers = [await send(session, ask("stay")) for _ in range(8)]
        streamed = await send(session, ask("stay", stream=True, max_tokens=200))
        orders = {
            "x-gateway-destination-endpoint": "127.0.0.1:1",
            "x-llm-d-inference-objective": "premium",
        }
        ordered = await send(session, ask("stay"), headers=orders)

    assert len({answer.served_by for answer in (*answers, streamed, ordered)}) == 1
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    await _until_idle(stack)


async def test_requests_count_while_their_answers_last(stack: Stack) -> None:
    async with connect(stack.url) as session:
        bodies = [ask(f"{number}", stream=True, max_tokens=400) for number in range(6)]
        streams = [asyncio.create_task(send(session, body)) for body in bodies]
        await until(lambda: in_flight(stack) == 6)
        answers = await asyncio.gather(*streams)

    assert {answer.status for answer in answers} == {200}
    await _until_idle(stack)


async def test_the_picker_is_killed_and_comes_back(stack: Stack, picked: Picked) -> None:
    """1. Killed while an answer streams: it goes on, or breaks off where it passes through the picker.

    2. Once the gateway has noticed, each client gets what the table says, whatever its body.
    3. Back: bodies of every size are picked for again, and a conversation has its home.
    """
    breaks = (
        pytest.raises(aiohttp.ClientPayloadError) if answers_in_duplex(picked) else nullcontext()
    )
    async with connect(stack.url) as session:
        home = await send(session, ask("home"))
        with breaks:
            await _stream_while(session, stack.service.kill)
        async with asyncio.timeout(30):
            while await _status(session) != picked.when_killed:
                pass
        statuses = [await _status(session, body, LONG_S) for body in (*BODIES, *[None] * 3)]
        stack.restart_service()
        await _until_picked(stack)
        picks = stack.service.metric("extproc_picks_total")
        again = [await _status(session, body, LONG_S) for body in BODIES]
        back = await send(session, ask("home"))

    assert statuses == [picked.when_killed] * 6
    assert again == [200] * len(BODIES)
    assert stack.service.metric("extproc_picks_total") == picks + len(BODIES) + 1
    assert back.served_by == home.served_by


async def test_the_picker_hangs_and_goes_on(stack: Stack, picked: Picked) -> None:
    """1. Hung: once the gateway has noticed, if it does, bodies of every size get the same.

    All at once: a gateway that does not notice gives up ten seconds after it wants a further
    connection.
    2. Goes on: affinity.
    """
    async with connect(stack.url) as session:
        stack.service.send(signal.SIGSTOP)
        try:
            if picked.when_hung and is_probed(picked):
                await until(lambda: not stack.gateway.sees_service())
            patience_s = LONG_S if picked.when_hung else PATIENCE_S
            statuses = await asyncio.gather(
                *(_status(session, body, patience_s) for body in (None, *BODIES))
            )
        finally:
            stack.service.send(signal.SIGCONT)
        await _until_picked(stack)
        await _until_at_home(session)

    assert statuses == [picked.when_hung] * (1 + len(BODIES))


async def test_the_picker_hangs_for_a_moment_while_an_answer_streams(stack: Stack) -> None:
    def hang() -> None:
        stack.service.send(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.5, stack.service.send, signal.SIGCONT)

    await _until_picked(stack)
    async with connect(stack.url) as session:
        received = await _stream_while(session, hang)

    assert received.count(b"data: ") >= 2_000


async def _stream_while(session: aiohttp.ClientSession, happens: Callable[[], None]) -> bytes:
    """Something happens after an answer's first chunk; returns all of it, raises if it breaks off."""
    body = ask("stream", stream=True, max_tokens=2_000, ignore_eos=True)
    async with session.post(
        CHAT, data=body, headers={"content-type": "application/json"}
    ) as answer:
        received = await answer.content.readany()
        happens()
        received += await answer.content.read()
    assert received.endswith(b"data: [DONE]\n\n")
    return received


def _texts(body: bytes) -> list[str]:
    """The completions of an answer, in one piece or as events."""
    parts = [line.removeprefix(b"data: ") for line in body.splitlines() if line]
    texts = defaultdict[int, str](str)
    for part in parts:
        for choice in orjson.loads(part)["choices"] if part != b"[DONE]" else ():
            texts[choice["index"]] += choice["text"]
    return list(texts.values())


async def _status(
    session: aiohttp.ClientSession, body: bytes | None = None, patience_s: float = PATIENCE_S
) -> int | None:
    """`None`: no answer in the client's time. What is answered has got to an endpoint as it was sent."""
    body = ask("while it is away") if body is None else body
    try:
        async with asyncio.timeout(patience_s):
            answer = await send(session, body)
    except TimeoutError:
        return None
    arrived = answer.headers.get("x-simulated-body-xxh3", xxhash.xxh3_64_hexdigest(body))
    assert arrived == xxhash.xxh3_64_hexdigest(body)
    await asyncio.sleep(0.1)
    return 200 if "x-simulated-body-xxh3" in answer.headers else answer.status


async def _until_picked(stack: Stack) -> None:
    """Until a request meets the picker: Envoy's threads hear of its health a second after its counters."""
    before = stack.service.metric("extproc_picks_total")
    async with connect(stack.url) as session, asyncio.timeout(60):
        while (
            await _status(session) != 200 or stack.service.metric("extproc_picks_total") == before
        ):
            pass


async def _until_at_home(session: aiohttp.ClientSession) -> None:
    """Answers that passed the picker by may come for a while; then every one has the same endpoint."""

    async def is_at_home() -> bool:
        return len({(await send(session, ask("home"))).served_by for _ in range(5)}) == 1

    await until(is_at_home)


async def _until_idle(stack: Stack) -> None:
    await until(lambda: in_flight(stack) == 0)
