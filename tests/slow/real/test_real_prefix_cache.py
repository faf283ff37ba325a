"""What `prefix_cache` foresees of real vLLM 0.32.0 servers, and what they find: see `make test-vllm`."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Any

import aiohttp
import orjson
import pytest

from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.scraper import fetch_signals
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.simulator.face import post
from tests.simulator.wording import CHAT
from tests.slow.real.process import WORDS, needs_vllm, run_vllm
from tests.stack.ports import free_ports

pytestmark = needs_vllm
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
