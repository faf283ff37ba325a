"""The workloads: what a fleet is asked, from a few parameters and a seed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from random import Random
from types import MappingProxyType

from xxhash import xxh3_64_intdigest

from extproc.errors import SettingsError
from extproc.vllm.fleet.chats import ChatKind, lognormal
from extproc.vllm.fleet.session import PlannedSession, PlannedTurn

SHAREGPT = ChatKind(
    turns=8,
    more_turns=3.5,
    question=lognormal(63, 1.2, 4),
    reply=lognormal(82, 0.8, 4, 400),
    input_tokens=832.0,
    output_tokens=76.06,
)
"""A stand-in for ShareGPT conversations of 16 messages or more, as KubeAI's benchmark used them."""

K6_CHAT = ChatKind(
    turns=5,
    more_turns=2.81,
    question=lognormal(130, 1.0, 4),
    reply=lambda rng: rng.uniform(8.5, 10),
    input_tokens=680.0,
)
"""KubeAI's k6 threads: 7.34 requests each, 9.24 tokens out, of which 10 are allowed."""

AGENT = ChatKind(
    turns=6,
    more_turns=8.0,
    question=lognormal(350, 1.0, 10, 4000),
    reply=lognormal(90, 0.7, 10, 800),
    system_tokens=4000,
    longest=15_000,
)
"""Agent loops: tools and instructions that all have in common, then results that make the context grow."""

TENANT_TOKENS, QUESTION_TOKENS, HOT_SHARE = 6000, 120, 0.25


@dataclass(frozen=True, slots=True)
class Demand:
    """How much of a workload: `requests` turns together, with pauses of `think_s` seconds on average.

    `tenants` is how many prefixes there are where prefixes are shared, as in llm-d's published case; a
    larger fleet should have more of them.
    """

    requests: int
    think_s: float = 0.0
    tenants: int = 150


Workload = Callable[[Demand, Random], Iterator[PlannedSession]]


def draw_sessions(name: str, demand: Demand, seed: int) -> list[PlannedSession]:
    """Returns the sessions of a workload, the same for the same seed.

    Raises `SettingsError` for a name that is not in `WORKLOADS`.
    """
    if name not in WORKLOADS:
        raise SettingsError(f"{name!r} is no workload: choose from {', '.join(WORKLOADS)}")
    rng = Random(f"{name} {seed}")  # noqa: S311  # no secret
    return list(WORKLOADS[name](demand, rng))


def _replay(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    """A tenth as many prompts, ten times each, in one random order."""
    prompts = list(_prompts(-(-demand.requests // 10), rng)) * 10
    rng.shuffle(prompts)
    return iter(prompts[: demand.requests])


def _distinct(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    prompts = list(_prompts(demand.requests, rng))
    rng.shuffle(prompts)
    return iter(prompts)


def _prompts(requests: int, rng: Random) -> Iterator[PlannedSession]:
    """Every turn of every chat as a request of its own, history and recorded replies included."""
    for owner, chat in enumerate(SHAREGPT.draw(requests, rng)):
        for prompt, output in SHAREGPT.prompts(chat):
            yield PlannedSession(owner, _key("chat", owner), (PlannedTurn(prompt, output),), is_replayed=True)


def _sessions(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    return _chats(SHAREGPT, demand, rng)


def _k6_chat(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    return _chats(K6_CHAT, demand, rng)


def _agents(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    """One key for each loop: its first user message, after what all of them have in common."""
    return _chats(AGENT, demand, rng)


def _chats(kind: ChatKind, demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    per_s = 1 / demand.think_s if demand.think_s else inf
    for owner, chat in enumerate(kind.draw(demand.requests, rng)):
        pauses = [0.0, *(rng.expovariate(per_s) for _ in chat[1:])]
        turns = tuple(
            PlannedTurn(*asked, pause) for asked, pause in zip(kind.prompts(chat), pauses, strict=True)
        )
        yield PlannedSession(owner, _key("chat", owner), turns, family_tokens=kind.system_tokens)


def _tenants(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    families = (rng.randrange(demand.tenants) for _ in range(demand.requests))
    return _questions(families, rng)


def _hot_prefix(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    """A quarter of the requests have one prefix in common, the others one of the tenants'."""
    hot = (rng.random() < HOT_SHARE for _ in range(demand.requests))
    families = (0 if is_hot else rng.randrange(demand.tenants) for is_hot in hot)
    return _questions(families, rng)


def _questions(families: Iterator[int], rng: Random) -> Iterator[PlannedSession]:
    question, reply = lognormal(QUESTION_TOKENS, 0.8, 4), lognormal(100, 0.6, 4)
    for owner, family in enumerate(families):
        turn = PlannedTurn(TENANT_TOKENS + round(question(rng)), round(reply(rng)))
        yield PlannedSession(owner, _key("tenant", family), (turn,), family, TENANT_TOKENS)


def _unique(demand: Demand, _rng: Random) -> Iterator[PlannedSession]:
    for owner in range(demand.requests):
        yield PlannedSession(owner, _key("unique", owner), (PlannedTurn(1024, 128),))


def _key(kind: str, name: int) -> int:
    return xxh3_64_intdigest(f"{kind} {name}".encode())


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "replay": _replay,
        "distinct": _distinct,
        "sessions": _sessions,
        "tenants": _tenants,
        "hot-prefix": _hot_prefix,
        "unique": _unique,
        "k6-chat": _k6_chat,
        "agents": _agents,
    }
)
