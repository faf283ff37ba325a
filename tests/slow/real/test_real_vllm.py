"""The simulator beside a real vLLM 0.32.0, and what `prefix_cache` foresees of such servers.

`make test-vllm` sets one up and names its directory.
"""

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from time import monotonic
from typing import Any

import aiohttp
import msgspec
import orjson
import pytest
import zmq
import zmq.asyncio

from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.scraper import fetch_signals
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.simulator.http.endpoint import ServerOptions
from extproc.simulator.http.publisher import Publisher
from extproc.simulator.http.tokens import FileTokenizer
from tests.simulator import wording
from tests.simulator.face import NOON, QUICK, events, post, serving
from tests.simulator.recorder import Recorder
from tests.simulator.wording import CHAT, ERRORS, STREAMS, WHOLE, list_kinds, mask
from tests.slow.real.process import DIRECTORY, WORDS, needs_vllm, run_vllm
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


def write_conversations(random: Random) -> list[dict[str, Any]]:
    """Returns 200 requests: shared system prompts, growing conversations, repeats, and cache salts."""

    def text(words: int) -> str:
        return " ".join(random.choice(WORDS) for _ in range(words))

    systems = [text(random.randint(20, 400)) for _ in range(6)]
    conversations: list[list[dict[str, str]]] = []
    requests: list[dict[str, Any]] = []
    while len(requests) < 200:
        kind = random.random()
        if kind < 0.3 or not conversations:
            opening = {"role": "system", "content": random.choice(systems)}
            conversations.append([opening, {"role": "user", "content": text(random.randint(5, 120))}])
            messages = conversations[-1]
        elif kind < 0.75:
            messages = random.choice(conversations)
            messages.append({"role": "assistant", "content": text(random.randint(5, 60))})
            messages.append({"role": "user", "content": text(random.randint(5, 80))})
        else:
            messages = random.choice(conversations)
        salt = {"cache_salt": "pepper"} if random.random() < 0.1 else {}
        requests.append({"messages": list(messages), "max_tokens": 3, "temperature": 0, **salt})
    return requests


async def read_counters(client: aiohttp.ClientSession) -> dict[str, float]:
    async with client.get("/metrics") as answer:
        text = await answer.text()
    names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens")
    return {
        name: float(match[1])
        for name in names
        if (match := re.search(rf"^vllm:{name}_total{{[^}}]*}} (\S+)$", text, re.MULTILINE))
    }


async def test_cached_tokens_equal_vllms_request_by_request(real: str, options: ServerOptions) -> None:
    requests = write_conversations(Random(2026))
    async with aiohttp.ClientSession(real) as client, serving(options, speed=50) as face:
        await post(client, "/reset_prefix_cache", b"")
        before = await read_counters(client)
        pairs = []
        for request in requests:
            _, expected = await post(client, CHAT, request)
            _, actual = await face.post(CHAT, request)
            usages = [answer["usage"] for answer in (expected, actual)]
            pairs.append([(usage["prompt_tokens"], usage["prompt_tokens_details"]) for usage in usages])
        after = await read_counters(client)
        simulated = await read_counters(face.client)
    cached = [expected[1]["cached_tokens"] for expected, _ in pairs]
    equal = sum(expected == actual for expected, actual in pairs)
    grown = {name: after[name] - before[name] for name in after}
    print(f"\n{equal} of {len(pairs)} equal; {sum(map(bool, cached))} with hits, {sum(cached)} tokens")  # noqa: T201
    print(f"vLLM: {grown}\nsimulator: {simulated}")  # noqa: T201

    assert [expected for expected, _ in pairs] == [actual for _, actual in pairs]
    assert sum(map(bool, cached)) > 100
    assert grown == simulated


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_streams_have_vllms_events(
    real: str, options: ServerOptions, path: str, body: dict[str, Any]
) -> None:
    body = wording.as_stream(body)
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        await post(client, "/reset_prefix_cache", b"")
        expected = await events(client, path, body)
        actual = await face.events(path, body)

    assert list_kinds(expected) == list_kinds(actual)


@pytest.mark.parametrize(("path", "body"), WHOLE)
async def test_whole_answers_have_vllms_fields(
    real: str, options: ServerOptions, path: str, body: dict[str, Any]
) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        await post(client, "/reset_prefix_cache", b"")
        answers = [await post(one, path, body) for one in (client, face.client)]
    (expected_status, expected), (actual_status, actual) = answers

    assert expected_status == actual_status
    assert mask(orjson.dumps(expected).decode()) == mask(orjson.dumps(actual).decode())


@pytest.mark.parametrize(("path", "body"), ERRORS)
async def test_errors_are_vllms(real: str, options: ServerOptions, path: str, body: object) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected = await post(client, path, body)
        actual = await face.post(path, body)

    assert expected == actual


async def test_metrics_have_vllms_names_and_labels(real: str, options: ServerOptions) -> None:
    async with aiohttp.ClientSession(real) as client, serving(options) as face:
        expected, actual = [await read_families(one) for one in (client, face.client)]

    assert expected == actual


async def test_cache_events_are_vllms(real: str, options: ServerOptions, events_port: int) -> None:
    nines: dict[str, Any] = {"prompt": [9] * 100}
    asked = [
        nines,
        nines,
        {"prompt": [9] * 64 + [8] * 64},
        nines | {"cache_salt": "pepper"},
        {"prompt": [7] * 10},
    ]
    recorder = Recorder()
    publisher = Publisher(recorder, "tcp://*:0", "kv@simulated", lambda: NOON)
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe("kv@real")
        subscriber.connect(f"tcp://127.0.0.1:{events_port}")
        async with aiohttp.ClientSession(real) as client, serving(options, publisher=publisher) as face:
            # Until the subscription has arrived, no event comes.
            while not await subscriber.poll(200):
                await post(client, wording.COMPLETIONS, {"prompt": [5] * 40, "max_tokens": 1})
                await post(client, "/reset_prefix_cache", b"")
            for body in asked:
                for one in (client, face.client):
                    await post(one, wording.COMPLETIONS, body | {"max_tokens": 1})
            for one in (client, face.client):
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
        | ({"parent_block_hash": numbers[event["parent_block_hash"]]} if "parent_block_hash" in event else {})
        for event in found
    ]


async def read_families(client: aiohttp.ClientSession) -> dict[str, set[tuple[str, ...]]]:
    """Returns the label names of every sample of vLLM's own metrics, after one request."""
    await post(client, CHAT, {"messages": wording.HELLO, "max_tokens": 2})
    async with client.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    families: dict[str, set[tuple[str, ...]]] = {}
    for line in lines:
        if match := re.match(r"(vllm:\w+)(?:\{(.*)\})? \S+$", line):
            families.setdefault(match[1], set()).add(tuple(re.findall(r'(\w+)="', match[2] or "")))
    return families


BLOCK_TOKENS = 32
WARM_UP, MEASURED = 110, 200


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two servers."""
    with ExitStack() as stack:
        ports = free_ports(2)
        for port in ports:
            log = tmp_path_factory.mktemp("vllm") / f"{port}.log"
            stack.enter_context(run_vllm(port, log))
        yield [f"127.0.0.1:{port}" for port in ports]


class Talks:
    """Interleaved conversations that share system prompts; the models' own answers become part of them.

    Three tokens each: what random weights say does not become the same tokens when it is read again.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._systems = [self._text(self._rng.randint(20, 400)) for _ in range(6)]
        self._talks: list[list[dict[str, str]]] = []

    def ask(self) -> list[dict[str, str]]:
        rng = self._rng
        if rng.random() < 0.3 or not self._talks:
            self._talks.append([{"role": "system", "content": rng.choice(self._systems)}])
        talk = self._talks[-1] if len(self._talks[-1]) == 1 else rng.choice(self._talks[-8:])
        talk.append({"role": "user", "content": self._text(rng.randint(5, 120))})
        return talk

    def _text(self, words: int) -> str:
        return " ".join(self._rng.choice(WORDS) for _ in range(words))


async def test_what_is_predicted_is_what_vllm_finds_within_one_block(addresses: list[str]) -> None:
    """1. Some requests show how long a token is. 2. Of 200 more, 95 % find what was predicted."""
    strategy = PrefixCache(Outside(random.Random(1), monotonic))
    pool = Pool("tiny", strategy)
    pool.replace([Endpoint(address, address) for address in addresses])
    feedback = PoolFeedback(pool, Cooling(Rules(), clock=monotonic, rng=random.Random(2)))
    picker, talks = Picker([Route(pool)]), Talks(2026)
    pairs: list[tuple[float, int, int]] = []
    async with aiohttp.ClientSession() as client:
        for number in range(WARM_UP + MEASURED):
            if number % 20 == 0:
                for endpoint in pool.snapshot.ready.values():
                    url = f"http://{endpoint.address}/metrics"
                    feedback.apply_signals(endpoint, await fetch_signals(client, url))
            talk = talks.ask()
            body = {"model": "tiny", "messages": talk, "max_tokens": 3, "temperature": 0}
            before = _predicted(strategy)
            pick = picker.pick(Query("POST", CHAT, {}, orjson.dumps(body))).pick
            predicted = _predicted(strategy) - before
            _, answer = await post(client, f"http://{pick.endpoint.address}{CHAT}", body)
            pick.release()
            talk.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            pairs.append((predicted, *_usage(answer)))
    measured = pairs[WARM_UP:]
    within = sum(abs(predicted - found) <= BLOCK_TOKENS for predicted, found, _ in measured)
    totals = [round(sum(pair[place] for pair in measured)) for place in range(3)]
    per_token = strategy.engine.bytes_per_token
    told = f"{within} of {len(measured)} within {BLOCK_TOKENS}; {per_token:.2f} bytes a token"
    print(f"\n{told}; tokens predicted, found, asked: {totals}")  # noqa: T201

    assert within >= 0.95 * len(measured)
    assert sum(found > BLOCK_TOKENS for _, found, _ in measured) > MEASURED / 2


def _predicted(strategy: PrefixCache) -> float:
    """Tokens believed to be cached, of all picks so far."""
    return sum(told.cached for told in strategy.predicted().values())


def _usage(answer: dict[str, Any]) -> tuple[int, int]:
    usage = answer["usage"]
    return (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0, usage["prompt_tokens"]
