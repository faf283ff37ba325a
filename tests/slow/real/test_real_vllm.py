"""The simulator beside a real vLLM 0.32.0.

`make test-vllm` sets one up and names its directory.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import orjson
import pytest
import zmq
import zmq.asyncio

from extproc.simulator.http.endpoint import ServerOptions
from extproc.simulator.http.publisher import Publisher
from extproc.simulator.http.tokens import FileTokenizer
from tests.simulator import wording
from tests.simulator.face import NOON, QUICK, events, post, serving
from tests.simulator.recorder import Recorder
from tests.simulator.wording import CHAT, ERRORS, STREAMS, WHOLE, list_kinds, mask
from tests.slow.real.process import DIRECTORY, Talks, needs_vllm, run_vllm
from tests.stack.ports import free_ports

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def events_port() -> int:
    """Where the real server publishes KV events."""
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, events_port: int) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    place = {"publisher": "zmq", "endpoint": f"tcp://*:{events_port}", "topic": "kv@real"}
    events_config = {"enable_kv_cache_events": True, **place}
    options = ("--kv-events-config", orjson.dumps(events_config).decode())
    with run_vllm(free_ports(1)[0], log, *options) as url:
        yield url


@pytest.fixture(scope="module")
def options() -> ServerOptions:
    """The simulator's settings that equal the real server's."""
    profile = replace(QUICK, block_size=32, kv_tokens=1_048_576, max_model_len=4096)
    tokenizer = FileTokenizer(DIRECTORY / "model/tokenizer.json")
    return ServerOptions(profile=profile, tokenizer=tokenizer, models=("tiny",))


def write_requests(talks: Talks) -> Iterator[dict[str, Any]]:
    """Yields 200 requests: shared system prompts, growing conversations, repeats, and cache salts."""
    for number in range(200):
        if not number or talks.rng.random() < 0.75:
            messages = talks.ask()
        salt = {"cache_salt": "pepper"} if talks.rng.random() < 0.1 else {}
        yield {"messages": [*messages], "max_tokens": 3, "temperature": 0, **salt}
        if messages[-1]["role"] == "user" and talks.rng.random() < 0.6:
            messages.append({"role": "assistant", "content": talks.write(5, 60)})


async def read_counters(client: aiohttp.ClientSession) -> dict[str, float]:
    async with client.get("/metrics") as answer:
        text = await answer.text()
    names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens")
    return {
        name: float(match[1])
        for name in names
        if (match := re.search(rf"^vllm:{name}_total{{[^}}]*}} (\S+)$", text, re.MULTILINE))
    }


async def test_cached_tokens_equal_vllms_request_by_request(
    real: str, options: ServerOptions
) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options, speed=50) as simulator:
        await post(client, "/reset_prefix_cache", b"")
        before = await read_counters(client)
        pairs = []
        for request in write_requests(Talks(2026)):
            _, expected = await post(client, CHAT, request)
            _, actual = await simulator.post(CHAT, request)
            usages = [answer["usage"] for answer in (expected, actual)]
            pairs.append(
                [(usage["prompt_tokens"], usage["prompt_tokens_details"]) for usage in usages]
            )
        after = await read_counters(client)
        simulated = await read_counters(simulator.client)
    cached = [expected[1]["cached_tokens"] for expected, _ in pairs]
    equal = sum(expected == actual for expected, actual in pairs)
    grown = {name: after[name] - before[name] for name in after}
    hits = f"{sum(map(bool, cached))} with hits, {sum(cached)} tokens"
    print(f"\n{equal} of {len(pairs)} equal; {hits}")  # noqa: T201
    print(f"vLLM: {grown}\nsimulator: {simulated}")  # noqa: T201

    assert [expected for expected, _ in pairs] == [actual for _, actual in pairs]
    assert sum(map(bool, cached)) > 100
    assert grown == simulated


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_streams_have_vllms_events(
    real: str, options: ServerOptions, path: str, body: dict[str, Any]
) -> None:
    body = wording.as_stream(body)
    async with aiohttp.ClientSession(real) as client, serving(options) as simulator:
        await post(client, "/reset_prefix_cache", b"")
        expected = await events(client, path, body)
        actual = await simulator.events(path, body)

    assert list_kinds(expected) == list_kinds(actual)


@pytest.mark.parametrize(("path", "body"), WHOLE)
async def test_whole_answers_have_vllms_fields(
    real: str, options: ServerOptions, path: str, body: dict[str, Any]
) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as simulator:
        await post(client, "/reset_prefix_cache", b"")
        answers = [await post(one, path, body) for one in (client, simulator.client)]
    (expected_status, expected), (actual_status, actual) = answers

    assert expected_status == actual_status
    assert mask(orjson.dumps(expected).decode()) == mask(orjson.dumps(actual).decode())


@pytest.mark.parametrize(("path", "body"), ERRORS)
async def test_errors_are_vllms(real: str, options: ServerOptions, path: str, body: object) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as simulator:
        expected = await post(client, path, body)
        actual = await simulator.post(path, body)

    assert expected == actual


async def test_metrics_have_vllms_names_and_labels(real: str, options: ServerOptions) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as simulator:
        expected, actual = [await sample_families(one) for one in (client, simulator.client)]

    assert expected == actual


async def test_cache_events_are_vllms(real: str, options: ServerOptions, events_port: int) -> None:
    nines: dict[str, Any] = {"prompt": [9] * 100}
    asked = [nines, nines, {"prompt": [9] * 64 + [8] * 64}, nines | {"cache_salt": "pepper"}]
    asked.append({"prompt": [7] * 10})
    recorder = Recorder()
    publisher = Publisher(recorder, "tcp://*:0", "kv@simulated", lambda: NOON)
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe("kv@real")
        subscriber.connect(f"tcp://127.0.0.1:{events_port}")
        async with (
            aiohttp.ClientSession(real) as client,
            serving(options, publisher=publisher) as simulator,
        ):
            # Until the subscription has arrived, no event comes.
            while not await subscriber.poll(200):
                await post(client, wording.COMPLETIONS, {"prompt": [5] * 40, "max_tokens": 1})
                await post(client, "/reset_prefix_cache", b"")
            for body in asked:
                for one in (client, simulator.client):
                    await post(one, wording.COMPLETIONS, body | {"max_tokens": 1})
            for one in (client, simulator.client):
                await post(one, "/reset_prefix_cache", b"")
                # vLLM publishes a reset with its next step.
                await post(one, wording.COMPLETIONS, {"prompt": [6] * 40, "max_tokens": 1})
        received: list[dict[str, Any]] = []
        while await subscriber.poll(1000):
            topic, _, payload = await subscriber.recv_multipart()
            received += msgspec.msgpack.decode(payload)[1]

    assert topic == b"kv@real"
    expected = number_hashes(received[-len(recorder.events) :])
    print(f"\n{len(expected)} events: {[event['type'] for event in expected]}")  # noqa: T201
    assert expected == number_hashes(recorder.events)


def number_hashes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns events with every block's hash replaced by its place in the order of appearance."""
    numbers: dict[int | None, int | None] = {None: None}
    for event in found:
        for block in event.get("block_hashes", ()):
            numbers.setdefault(block, len(numbers))
    return [
        event
        | {"block_hashes": [numbers[block] for block in event.get("block_hashes", ())]}
        | (
            {"parent_block_hash": numbers[event["parent_block_hash"]]}
            if "parent_block_hash" in event
            else {}
        )
        for event in found
    ]


async def sample_families(client: aiohttp.ClientSession) -> dict[str, set[tuple[str, ...]]]:
    """Returns the label names of every sample of vLLM's own metrics, after one request."""
    await post(client, CHAT, {"messages": wording.HELLO, "max_tokens": 2})
    async with client.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    families: dict[str, set[tuple[str, ...]]] = {}
    for line in lines:
        if match := re.match(r"(vllm:\w+)(?:\{(.*)\})? \S+$", line):
            families.setdefault(match[1], set()).add(tuple(re.findall(r'(\w+)="', match[2] or "")))
    return families
