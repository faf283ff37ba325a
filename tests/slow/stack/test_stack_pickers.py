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

from tests.stack.client import CHAT, MODEL, SIZES, chat_about, chat_of_size, connect, send
from tests.stack.pickers import GATEWAYS, PickerGateway, answers_in_duplex, is_probed
from tests.stack.ports import free_ports
from tests.stack.service import pool
from tests.stack.stack import Stack, in_flight
from tests.waiting import until

pytestmark = pytest.mark.envoy

PATIENCE_S, LONG_S = 4.0, 30.0  # of a client whom nobody may answer, and of one who must be
# With the service away: nothing at all, more than one piece of a stream, and more than a buffer
# holds.
BODIES = [chat_of_size(size_bytes) for size_bytes in (SIZES[0], SIZES[3], SIZES[5])]


@pytest.fixture(scope="module", params=GATEWAYS, ids=str)
def picker_gateway(request: pytest.FixtureRequest) -> PickerGateway:
    gateway: PickerGateway = request.param
    return gateway


@pytest.fixture(scope="module")
def picker_stack(picker_gateway: PickerGateway, shared_stack: Stack) -> Iterator[Stack]:
    """The gateway's listener of the shared Envoy, and the service as the gateway asks it."""
    [health] = free_ports(1)
    shared_stack.use(
        pool(shared_stack.addresses, fallbacks=picker_gateway.fallbacks),
        health=f"127.0.0.1:{health}",
        **picker_gateway.server,
    )
    gateway = shared_stack.through(picker_gateway.listener)
    asyncio.run(_until_picked(gateway))
    yield gateway
    shared_stack.restore()


async def test_bodies_arrive_unchanged_at_a_picked_endpoint(picker_stack: Stack) -> None:
    bodies = [chat_of_size(size_bytes) for size_bytes in SIZES]
    before = picker_stack.service.metric("extproc_picks_total")
    async with connect(picker_stack.url) as session:
        answers = [await send(session, body) for body in bodies]

    assert [answer.headers["x-simulated-body-xxh3"] for answer in answers] == [
        xxhash.xxh3_64_hexdigest(body) for body in bodies
    ]
    assert picker_stack.service.metric("extproc_picks_total") == before + len(bodies)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_of_10_mb_arrives_unchanged(
    picker_stack: Stack, picker_gateway: PickerGateway, *, stream: bool
) -> None:
    """200 completions that begin with the prompt. In full duplex the picker has given each piece back."""
    prompt = "".join(f"{number:08}" for number in range(6_500))
    fields = {"n": 200, "echo": True, "max_tokens": 1, "stream": stream}
    before = picker_stack.gateway.ext_proc()["stream_msgs_received"]
    async with connect(picker_stack.url) as session:
        body = orjson.dumps({"model": MODEL, "prompt": prompt, **fields})
        answer = await send(session, body, path="/v1/completions")
    texts = _texts(answer.body)
    given_back = picker_stack.gateway.ext_proc()["stream_msgs_received"] - before

    assert len(answer.body) > 10_000_000
    assert len(texts) == 200
    assert all(text.startswith(prompt) for text in texts)
    assert given_back > 100 if answers_in_duplex(picker_gateway) else given_back <= 3
    await _until_idle(picker_stack)


async def test_a_conversation_stays_whatever_its_client_orders_and_all_are_released(
    picker_stack: Stack,
) -> None:
    async with connect(picker_stack.url) as session:
        answers = [await send(session, chat_about("stay")) for _ in range(8)]
        streamed = await send(session, chat_about("stay", stream=True, max_tokens=200))
        orders = {
            "x-gateway-destination-endpoint": "127.0.0.1:1",
            "x-llm-d-inference-objective": "premium",
        }
        ordered = await send(session, chat_about("stay"), headers=orders)

    assert len({answer.served_by for answer in (*answers, streamed, ordered)}) == 1
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    await _until_idle(picker_stack)


async def test_requests_count_while_their_answers_last(picker_stack: Stack) -> None:
    async with connect(picker_stack.url) as session:
        bodies = [chat_about(f"{number}", stream=True, max_tokens=400) for number in range(6)]
        streams = [asyncio.create_task(send(session, body)) for body in bodies]
        await until(lambda: in_flight(picker_stack) == 6)
        answers = await asyncio.gather(*streams)

    assert {answer.status for answer in answers} == {200}
    await _until_idle(picker_stack)


async def test_the_picker_is_killed_and_comes_back(
    picker_stack: Stack, picker_gateway: PickerGateway
) -> None:
    """1. Killed while an answer streams: it goes on, or breaks off where it passes through the picker.

    2. Once the gateway has noticed, each client gets what the table says, whatever its body.
    3. Back: bodies of every size are picked for again, and a conversation has its home.
    """
    breaks = (
        pytest.raises(aiohttp.ClientPayloadError)
        if answers_in_duplex(picker_gateway)
        else nullcontext()
    )
    async with connect(picker_stack.url) as session:
        home = await send(session, chat_about("home"))
        with breaks:
            await _stream_while(session, picker_stack.service.kill)
        async with asyncio.timeout(30):
            while await _status(session) != picker_gateway.when_killed:
                pass
        statuses = [await _status(session, body, LONG_S) for body in (*BODIES, *[None] * 3)]
        picker_stack.restart_service()
        await _until_picked(picker_stack)
        picks = picker_stack.service.metric("extproc_picks_total")
        again = [await _status(session, body, LONG_S) for body in BODIES]
        back = await send(session, chat_about("home"))

    assert statuses == [picker_gateway.when_killed] * 6
    assert again == [200] * len(BODIES)
    assert picker_stack.service.metric("extproc_picks_total") == picks + len(BODIES) + 1
    assert back.served_by == home.served_by


async def test_the_picker_hangs_and_goes_on(
    picker_stack: Stack, picker_gateway: PickerGateway
) -> None:
    """1. Hung: once the gateway has noticed, if it does, bodies of every size get the same.

    All at once: a gateway that does not notice gives up ten seconds after it wants a further
    connection.
    2. Goes on: affinity.
    """
    async with connect(picker_stack.url) as session:
        picker_stack.service.send(signal.SIGSTOP)
        try:
            if picker_gateway.when_hung and is_probed(picker_gateway):
                await until(lambda: not picker_stack.gateway.sees_service())
            patience_s = LONG_S if picker_gateway.when_hung else PATIENCE_S
            statuses = await asyncio.gather(
                *(_status(session, body, patience_s) for body in (None, *BODIES))
            )
        finally:
            picker_stack.service.send(signal.SIGCONT)
        await _until_picked(picker_stack)
        await _until_at_home(session)

    assert statuses == [picker_gateway.when_hung] * (1 + len(BODIES))


async def test_the_picker_hangs_for_a_moment_while_an_answer_streams(picker_stack: Stack) -> None:
    def hang() -> None:
        picker_stack.service.send(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.5, picker_stack.service.send, signal.SIGCONT)

    await _until_picked(picker_stack)
    async with connect(picker_stack.url) as session:
        received = await _stream_while(session, hang)

    assert received.count(b"data: ") >= 2_000


async def _stream_while(session: aiohttp.ClientSession, happens: Callable[[], None]) -> bytes:
    """Something happens after an answer's first chunk; returns all of it, raises if it breaks off."""
    body = chat_about("stream", stream=True, max_tokens=2_000, ignore_eos=True)
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
    body = chat_about("while it is away") if body is None else body
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
        return len({(await send(session, chat_about("home"))).served_by for _ in range(5)}) == 1

    await until(is_at_home)


async def _until_idle(stack: Stack) -> None:
    await until(lambda: in_flight(stack) == 0)
