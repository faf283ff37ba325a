"""A client that asks a simulated run's sessions in real time: who asks what, when, and with which pauses."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import aiohttp
import msgspec

from extproc.simulator.fleet.cell import MatrixCell
from tests.benchmarks.export import export_run
from tests.stack.client import CHAT, chat_body


def plan_talk(cell: MatrixCell) -> list[dict[str, Any]]:
    """The sessions of a cell, as a client sends them."""
    _, *lines = export_run(cell.simulate()).splitlines()
    return [msgspec.json.decode(line) for line in lines]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request that was answered. Times are the engines'."""

    at_s: float
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


class Talk:
    """Asks the sessions, each at its time; `turns` grows."""

    def __init__(self, sessions: Sequence[aiohttp.ClientSession], speed: float, seed: int) -> None:
        self._sessions = sessions
        self._speed = speed
        self._rng = random.Random(seed)
        self._began_s = monotonic()
        self.turns: list[Turn] = []
        self.failed = Counter[str]()

    def now_s(self) -> float:
        return (monotonic() - self._began_s) * self._speed

    async def ask_all(self, planned: Sequence[dict[str, Any]], until_s: float) -> None:
        """Stops at `until_s`, whatever is still open."""
        tasks = [asyncio.create_task(self._converse(one)) for one in planned]
        try:
            await asyncio.sleep(until_s / self._speed)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.failed.update(str(end) for end in ended if isinstance(end, Exception))

    async def _converse(self, planned: dict[str, Any]) -> None:
        await asyncio.sleep(planned["arrival_s"] / self._speed)
        said: list[dict[str, str]] = []
        for turn in planned["turns"]:
            await asyncio.sleep(turn["think_s"] / self._speed)
            said += turn["messages"]
            said.append(await self._ask(said, turn["output_tokens"]))

    async def _ask(self, said: Sequence[dict[str, str]], tokens: int) -> dict[str, str]:
        body = chat_body(
            said,
            max_tokens=tokens,
            stream=True,
            ignore_eos=True,
            stream_options={"include_usage": True},
        )
        asked_s, first_s, text = self.now_s(), 0.0, ""
        headers = {"content-type": "application/json"}
        async with self._rng.choice(self._sessions).post(
            CHAT, data=body, headers=headers
        ) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                chunk = read_chunk(line)
                content = "".join(
                    choice["delta"].get("content") or "" for choice in chunk.get("choices", ())
                )
                if content and not first_s:
                    first_s = self.now_s()
                text += content
                if usage := chunk.get("usage"):
                    cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
                    self.turns.append(
                        Turn(asked_s, first_s - asked_s, usage["prompt_tokens"], cached)
                    )
        return {"role": "assistant", "content": text}


def read_chunk(line: bytes) -> dict[str, Any]:
    """Returns what a line of an event stream holds; nothing, if it is no JSON."""
    data = line.removeprefix(b"data: ").strip()
    chunk: dict[str, Any] = msgspec.json.decode(data) if data.startswith(b"{") else {}
    return chunk
