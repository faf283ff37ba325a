"""A trace from the fleet in virtual time, sent again to simulated endpoints over HTTP."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import aiohttp
import orjson

from extproc.simulator.fleet.flight import Flight
from extproc.simulator.fleet.session import PlannedSession

# Keeps the texts of sessions and of families apart, token by token.
TEXT_TOKENS = 1 << 20
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trace got, in engine seconds."""

    ttft_s: float
    tokens_per_s: float
    cached_tokens: int

    def __str__(self) -> str:
        return f"TTFT mean {self.ttft_s:.3f} s, {self.tokens_per_s:.0f} tokens/s, {self.cached_tokens} cached"


def sum_up(flights: Sequence[Flight]) -> Outcome:
    return Outcome(
        mean(flight.ttft_s for flight in flights),
        sum(flight.asked.output_tokens for flight in flights) / max(flight.ended_at for flight in flights),
        sum(flight.cached_tokens for flight in flights),
    )


async def replay(flights: Sequence[Flight], urls: dict[str, str], speed: float, block_size: int) -> Outcome:
    """Sends each request when and where the fleet did; `urls` are those of its endpoints by name."""
    clock = asyncio.get_running_loop().time
    bodies = [write_body(flight, block_size) for flight in flights]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=JSON) as client:
        begins = clock() + 0.1

        async def send(flight: Flight, body: bytes) -> tuple[float, float]:
            await asyncio.sleep(begins + flight.sent_at / speed - clock())
            first = None
            async with client.post(f"{urls[flight.endpoint]}/v1/completions", data=body) as answer:
                assert answer.status == 200
                async for _ in answer.content.iter_any():
                    first = first or clock()
            assert first
            return (first - begins) * speed - flight.sent_at, (clock() - begins) * speed

        times = await asyncio.gather(*map(send, flights, bodies))
        cached_tokens = [await read_hits(client, url) for url in urls.values()]
    ttfts, ends = zip(*times, strict=True)
    tokens = sum(flight.asked.output_tokens for flight in flights)
    return Outcome(mean(ttfts), tokens / max(ends), sum(cached_tokens))


async def read_hits(client: aiohttp.ClientSession, url: str) -> int:
    async with client.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(
        int(float(line.split()[1])) for line in lines if line.startswith("vllm:prefix_cache_hits_total{")
    )


def write_body(flight: Flight, block_size: int) -> bytes:
    body = {
        "prompt": write_prompt(flight.session, flight.turn, block_size),
        "max_tokens": flight.asked.output_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    return orjson.dumps(body)


def write_prompt(session: PlannedSession, turn: int, block_size: int) -> list[int]:
    """Returns tokens with the same blocks in common that the session's identities have."""
    tokens = session.turns[turn].prompt_tokens
    head = min(session.head_tokens // block_size * block_size, tokens)
    family = session.heads[0].text if session.heads else 0
    common, own = 2 * family * TEXT_TOKENS, (2 * session.owner + 1) * TEXT_TOKENS
    return [*range(common, common + head), *range(own + head, own + tokens)]
