"""What `prefix_cache` predicts of a real vLLM 0.32.0, with its KV events and without them.

`make test-vllm` sets one up, and prints the table of docs/why/events.md. Each request's prediction
is from the moment before it is sent; the truth is the engine's own `cached_tokens`.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from math import ceil
from pathlib import Path
from time import monotonic

import aiohttp
import orjson

from extproc.router.events.kv_log import EventLogs
from extproc.router.events.kv_reader import EventReader
from extproc.router.feedback.scraper import fetch_signals
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.simulator.face import post
from tests.simulator.wording import CHAT
from tests.slow.real.process import Talks, needs_vllm, run_vllm
from tests.stack.ports import free_ports
from tests.waiting import until

pytestmark = needs_vllm
BLOCK = 32
CHATS, RESET, RESTARTED = (
    "chats",
    "`/reset_prefix_cache` each 25 requests",
    "ended, and started again",
)
SMALL_CACHE = "60 open chats, a cache of 9,600 tokens"
SMALL = ("--num-gpu-blocks-override", "300")


@asynccontextmanager
async def running_vllm(port: int, log: Path, *options: str) -> AsyncIterator[None]:
    """While it starts, who listens to it goes on."""
    with ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, run_vllm(port, log, *options))
        yield


class EnginePool:
    """A pool of one engine."""

    def __init__(self, address: str) -> None:
        self.heard: EventLogs = {}
        self.strategy = PrefixCache(ClockAndRandom(random.Random(1), monotonic))
        self.pool = Pool("tiny", self.strategy)
        self.pool.replace([Endpoint("e", address)])
        self._picker = Picker([Route(self.pool)])

    def pick(self, body: bytes) -> tuple[Pick, float]:
        """Returns a pick and how many tokens it should find."""
        before = self._predicted()
        return self._picker.pick(Query("POST", CHAT, {}, body)).pick, self._predicted() - before

    def _predicted(self) -> float:
        return sum(predicted.cached for predicted in self.strategy.signals.predicted().values())


class PredictionScene:
    """One client and two routers, the second of which hears events. Rows: tokens found, predicted, asked."""

    def __init__(self, address: str, client: aiohttp.ClientSession) -> None:
        self.routers, self.talks = [EnginePool(address), EnginePool(address)], Talks(2026)
        self._client, self.url, self._asked = client, f"http://{address}", 0

    @property
    def emptied(self) -> int:
        return sum(log.emptied for log in self.routers[1].heard.get("e", ()))

    async def ask(self, count: int) -> list[tuple[float, ...]]:
        rows = []
        for _ in range(count):
            if self._asked % 20 == 0:
                signals = await fetch_signals(self._client, f"{self.url}/metrics")
                for router in self.routers:
                    router.strategy.signals.apply_signals("e", signals, router.pool.book.counts)
            self._asked += 1
            talk = self.talks.ask()
            body = {"model": "tiny", "messages": talk, "max_tokens": 3, "temperature": 0}
            picks = [router.pick(orjson.dumps(body)) for router in self.routers]
            _, answer = await post(self._client, self.url + CHAT, body)
            for pick, _ in picks:
                pick.release()
            talk.append(
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            )
            found = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
            rows.append(
                (found, *(predicted for _, predicted in picks), answer["usage"]["prompt_tokens"])
            )
        return rows

    async def ask_emptied(self, count: int) -> list[tuple[float, ...]]:
        """Asks an engine that was just emptied: it says so with its first request, and the next one knows."""
        emptied = self.emptied
        rows = await self.ask(1)
        await until(lambda: self.emptied > emptied)
        rows += await self.ask(count - 1)
        assert rows[1][2] <= rows[0][3] + BLOCK, rows[:2]
        return rows


def print_row(name: str, rows: list[tuple[float, ...]]) -> list[float]:
    """Prints a row of the table; returns the shares of requests that were right to one block."""
    shares, cells = [], [name, str(len(rows))]
    for place in (1, 2):
        errors = sorted(abs(row[place] - row[0]) / BLOCK for row in rows)
        shares.append(sum(error <= 1 for error in errors) / len(rows))
        wrong = sum(abs(row[place] - row[0]) for row in rows) / sum(row[3] for row in rows)
        cells += [f"{shares[-1]:.1%}", f"{errors[ceil(0.99 * len(rows)) - 1]:.0f}", f"{wrong:.1%}"]
    print("| " + " | ".join(cells) + " |")  # noqa: T201
    return shares


async def test_what_is_predicted_is_what_vllm_finds(tmp_path: Path) -> None:
    """1. Some requests show how long a token is. 2. An engine that is emptied, replaced, or too small."""
    port, events_port, replay_port = free_ports(3)
    places = {"endpoint": f"tcp://*:{events_port}", "replay_endpoint": f"tcp://*:{replay_port}"}
    config = orjson.dumps({"enable_kv_cache_events": True, "publisher": "zmq", **places}).decode()
    rows = {RESET: list[tuple[float, ...]]()}
    async with aiohttp.ClientSession() as client:
        scene = PredictionScene(f"127.0.0.1:{port}", client)
        hearing = scene.routers[1]
        reader = asyncio.create_task(
            EventReader(hearing.pool, hearing.heard, None, {}, monotonic, asyncio.Event()).run()
        )
        async with running_vllm(port, tmp_path / "1.log", "--kv-events-config", config):
            await scene.ask(110)
            await until(lambda: any(log.next for log in hearing.heard["e"]))
            rows[CHATS] = await scene.ask(200)
            for _ in range(8):
                await post(client, f"{scene.url}/reset_prefix_cache", b"")
                rows[RESET] += await scene.ask_emptied(25)
            await scene.ask(60)
        async with running_vllm(port, tmp_path / "2.log", "--kv-events-config", config, *SMALL):
            rows[RESTARTED] = await scene.ask_emptied(100)
            scene.talks.latest = 60
            await scene.ask(60)
            rows[SMALL_CACHE] = await scene.ask(200)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    print()  # noqa: T201
    shares = {name: print_row(name, each) for name, each in rows.items()}

    # With events, then how much better than without.
    limits = {
        CHATS: (0.95, 0.0),
        RESET: (0.85, 0.1),
        RESTARTED: (0.93, 0.02),
        SMALL_CACHE: (0.9, 0.0),
    }
    for name, (inferred, signals) in shares.items():
        assert signals >= limits[name][0], name
        assert signals >= inferred + limits[name][1], name
    assert all(sum(row[0] > BLOCK for row in each) > len(each) / 3 for each in rows.values())
