"""A pool of `prefix_cache` on a clock of its own, and chats to ask it."""

import random
from collections.abc import Iterable
from typing import Any

import orjson

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.clock import Clock

CHAT = "/v1/chat/completions"


class Fleet:
    """A pool of endpoints `a`, `b`, … and the requests that are open on it."""

    def __init__(self, names: str = "abcd", seed: int = 0, **options: object) -> None:
        self.clock = Clock(0.0)
        self.outside = ClockAndRandom(random.Random(seed), self.clock)
        self.strategy = PrefixCache(self.outside, **options)  # type: ignore[arg-type]
        self.pool = Pool("llama", self.strategy, fallbacks=2)
        self.follow(names)
        self.picker = Picker([Route(self.pool)])

    def follow(self, names: str, subnet: int = 0) -> None:
        self.pool.replace([Endpoint(name, f"10.0.{subnet}.{ord(name)}:80") for name in names])

    def pick(self, *texts: str, system: str = "") -> Pick:
        return self.picker.pick(ask(*texts, system=system)).pick

    def visit(self, *texts: str, system: str = "", after_s: float = 10.0) -> Pick:
        """A request that comes, goes, and is long gone."""
        pick = self.pick(*texts, system=system)
        pick.release()
        self.clock.now_s += after_s
        return pick

    def read(self, *texts: str) -> list[tuple[str, str | bytes]]:
        prompt = parse(CHAT, "", ask(*texts).body or b"")
        return [*prompt.turns(100_000)]

    def explain(self, *texts: str, system: str = "") -> dict[str, dict[str, object]]:
        """The explanation of each candidate, by its name."""
        decision = self.picker.propose(ask(*texts, system=system))
        offers = decision.pick.reading.explain(self.pool.candidates())["candidates"]
        assert isinstance(offers, list)
        return {offer["endpoint"]: offer for offer in offers}


def ask(*texts: str, system: str = "", **fields: Any) -> Query:
    """A chat: a system text, then user and assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    body = {"messages": [{"role": "system", "content": system}, *messages], **fields}
    return Query("POST", CHAT, {}, orjson.dumps(body))


def words(start: str, tokens: int) -> str:
    return start + " " + "word" * tokens


class Shut:
    """A gate that leaves some out."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def set_members(self, names: Iterable[str]) -> None: ...

    def closed(self) -> frozenset[str]:
        return self._names

    def picked(self, name: str) -> None: ...

    def unknown(self) -> tuple[str, ...]:
        return ()

    def shut(self) -> dict[str, str]:
        return {}
