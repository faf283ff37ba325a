"""Asks one engine and takes the times: prompts of many lengths, and answers of several requests at once."""

# An engine that serves others meanwhile is measured wrong, so nothing else should use it. Prompts are
# token ids: their length is exact, and no tokenizer's time is in a step. Ids are random, so a prompt
# is new unless it is meant to begin like another.

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc.calibrate.fit import Capacity, FirstToken, TokenGap
from extproc.errors import ExtprocError

# Every vocabulary has these, and they are no control tokens.
_IDS: Final = range(1_000, 8_000)
_SIZES: Final = (32, 128, 512, 1_024, 2_048, 4_096, 8_000, 16_000, 32_000)
_CACHED: Final = (1_024, 4_096, 8_000)
_BEHIND: Final = 64  # new tokens behind a prompt that is cached
_BATCHES: Final = ((1, 256), (1, 8_000), (8, 512), (8, 4_000), (16, 8_000), (32, 512), (64, 256))
_REPEATS: Final = 3
_ANSWER: Final = 48
_FEWEST_PIECES: Final = 0.7  # of the tokens
_MOST_BYTES: Final = 4_000_000


class CalibrationError(ExtprocError):
    """The engine cannot be measured; says why."""


class MeasuredEngine(Protocol):
    """What is measured: over HTTP, or a model of one in virtual time."""

    async def ask(self, prompt: Sequence[int], tokens: int) -> Sequence[float]:
        """Sends a prompt; returns when each of so many tokens of the answer came, in seconds from then."""

    async def ask_all(
        self, prompts: Sequence[Sequence[int]], tokens: int
    ) -> Sequence[Sequence[float]]:
        """Sends several at once."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured, in the order in which it was."""

    firsts: Sequence[FirstToken]
    gaps: Sequence[TokenGap]


async def measure_engine(
    engine: MeasuredEngine, capacity: Capacity, rng: Random, say: Callable[[str], None]
) -> Measured:
    """Measures one request at a time, and then several; takes a minute or two of a fast engine."""
    longest = min(capacity.max_model_len, capacity.kv_tokens) - _ANSWER - _BEHIND
    firsts, gaps = [], []
    await engine.ask(_prompt(rng, min(longest, _SIZES[-3])), 2)  # what is made on first use
    for size in (size for size in _SIZES if size <= longest):
        say(f"prompts of {size:,} tokens")
        for _ in range(_REPEATS):
            times = await engine.ask(_prompt(rng, size), 1)
            firsts.append(FirstToken(size, 0, times[0] * 1e3))
    for size in (size for size in _CACHED if size <= longest):
        say(f"{_BEHIND} tokens behind {size:,} cached ones")
        head = _prompt(rng, size - size % capacity.block_size)
        await engine.ask(head + _prompt(rng, 1), 1)
        for _ in range(_REPEATS):
            times = await engine.ask(head + _prompt(rng, _BEHIND), 1)
            firsts.append(FirstToken(_BEHIND, len(head), times[0] * 1e3))
    for batch, context in _BATCHES:
        if (
            context > longest
            or batch > capacity.max_num_seqs
            or batch * context > capacity.kv_tokens / 2
        ):
            continue
        say(f"{batch} answers at once, {context:,} tokens each")
        head = _prompt(rng, context)
        await engine.ask(head, 1)  # so that all begin to decode at once
        answers = await engine.ask_all([head + _prompt(rng, 8) for _ in range(batch)], _ANSWER)
        gaps.append(TokenGap(batch * (context + 8 + _ANSWER // 2), _mean_gap(answers) * 1e3))
    return Measured(firsts, gaps)


def _prompt(rng: Random, size: int) -> list[int]:
    return rng.choices(_IDS, k=size)


def _mean_gap(answers: Sequence[Sequence[float]]) -> float:
    """The median of the answers' mean gaps, each in its middle half, when all of them decode.

    A busy server puts a few tokens into one piece: then there are fewer pieces than tokens.
    """
    gaps = []
    for times in answers:
        low, high = len(times) // 4, len(times) * 3 // 4
        gaps.append((times[high] - times[low]) / (high - low) * len(times) / _ANSWER)
    return sorted(gaps)[len(gaps) // 2]


class VllmOverHttp:
    """A vLLM server, by `/v1/completions`. Errors are `CalibrationError` with the server's words."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model

    async def ask(self, prompt: Sequence[int], tokens: int) -> Sequence[float]:
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        data = json.dumps(body).encode()
        begun = time.perf_counter()
        async with self._session.post(
            f"{self._url}/v1/completions", data=data, headers={"content-type": "application/json"}
        ) as answer:
            if answer.status != 200:
                words = (await answer.content.read(300)).decode(errors="replace")
                raise CalibrationError(f"{self._url} answers {answer.status}: {words}")
            times = [
                time.perf_counter() - begun
                async for line in answer.content
                if line.startswith(b"data: {")
            ]
        if len(times) < _FEWEST_PIECES * tokens:
            raise CalibrationError(
                f"{len(times)} pieces came for {tokens} tokens: is a proxy between?"
            )
        return times

    async def ask_all(
        self, prompts: Sequence[Sequence[int]], tokens: int
    ) -> Sequence[Sequence[float]]:
        return await asyncio.gather(*(self.ask(prompt, tokens) for prompt in prompts))


async def find_served_model(
    session: aiohttp.ClientSession, url: str, model: str | None
) -> tuple[str, int]:
    """Returns a model's name and its longest context; without a name, the first that the server lists."""
    listed = json.loads(await _read(session, f"{url}/v1/models"))
    models = {one["id"]: one for one in listed.get("data", ()) if isinstance(one, Mapping)}
    if not models or (model is not None and model not in models):
        raise CalibrationError(f"{url} lists {', '.join(models) or 'no model'}")
    name = model or next(iter(models))
    return name, models[name].get("max_model_len") or 8_192


async def read_cache_size(session: aiohttp.ClientSession, url: str) -> tuple[int, int]:
    """Returns the KV cache's tokens and those of a block, as `/metrics` says them."""
    text = (await _read(session, f"{url}/metrics")).decode(errors="replace")
    for labels in _cache_labels(text):
        with_blocks = re.fullmatch(r"\d+", labels.get("num_gpu_blocks", ""))
        if with_blocks and labels.get("block_size", "").isdecimal():
            size = int(labels["block_size"])
            return int(labels["num_gpu_blocks"]) * size, size
    raise CalibrationError(f"{url}/metrics does not say how large the KV cache is")


def _cache_labels(text: str) -> Iterator[Mapping[str, str]]:
    for family in text_string_to_metric_families(text):
        if family.name.startswith("vllm:cache_config"):
            for sample in family.samples:
                yield sample.labels


async def _read(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as answer:
        if answer.status != 200:
            raise CalibrationError(f"{url} answers {answer.status}")
        return await answer.content.read(_MOST_BYTES)
