"""The workloads: what a fleet is asked, from a few parameters and a seed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType

from xxhash import xxh3_64_intdigest

from extproc.errors import SettingsError
from extproc.vllm.fleet.chats import Chat, ChatKind, lognormal
from extproc.vllm.fleet.session import Session, Turn

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

TENANTS, TENANT_TOKENS, QUESTION_TOKENS = 150, 6000, 120
"""llm-d's published case of shared system prompts: this many, of this length."""

Workload = Callable[[int, float, Random], Iterator[Session]]
"""Takes the number of requests and the mean think time in seconds."""


def draw_sessions(name: str, requests: int, think_s: float, seed: int) -> list[Session]:
    """Returns the sessions of a workload: `requests` turns together.

    Raises `SettingsError` for a name that is not in `WORKLOADS`.
    """
    if name not in WORKLOADS:
        raise SettingsError(f"{name!r} is no workload: choose from {', '.join(WORKLOADS)}")
    rng = Random(f"{name} {seed}")  # noqa: S311  # no secret
    return list(WORKLOADS[name](requests, think_s, rng))


def _replay(requests: int, _think_s: float, rng: Random) -> Iterator[Session]:
    """A tenth as many prompts, ten times each, in one random order."""
    prompts = list(_prompts(-(-requests // 10), rng)) * 10
    rng.shuffle(prompts)
    return iter(prompts[:requests])


def _distinct(requests: int, _think_s: float, rng: Random) -> Iterator[Session]:
    prompts = list(_prompts(requests, rng))
    rng.shuffle(prompts)
    return iter(prompts)


def _prompts(requests: int, rng: Random) -> Iterator[Session]:
    """Every turn of every chat as a request of its own, history and recorded replies included."""
    for owner, chat in enumerate(SHAREGPT.draw(requests, rng)):
        for prompt, output in SHAREGPT.prompts(chat):
            yield Session(owner, _key("chat", owner), (Turn(prompt, output),), is_replayed=True)


def _sessions(requests: int, think_s: float, rng: Random) -> Iterator[Session]:
    return _chats(SHAREGPT, SHAREGPT.draw(requests, rng), think_s, rng)


def _k6_chat(requests: int, think_s: float, rng: Random) -> Iterator[Session]:
    return _chats(K6_CHAT, K6_CHAT.draw(requests, rng), think_s, rng)


def _agents(requests: int, think_s: float, rng: Random) -> Iterator[Session]:
    """One key for each loop: its first user message, after what all of them have in common."""
    return _chats(AGENT, AGENT.draw(requests, rng), think_s, rng)


def _chats(kind: ChatKind, chats: Sequence[Chat], think_s: float, rng: Random) -> Iterator[Session]:
    for owner, chat in enumerate(chats):
        pauses = [0.0] + [rng.expovariate(1 / think_s) if think_s else 0.0 for _ in chat[1:]]
        turns = tuple(Turn(*asked, pause) for asked, pause in zip(kind.prompts(chat), pauses, strict=True))
        yield Session(owner, _key("chat", owner), turns, family_tokens=kind.system_tokens)


def _tenants(requests: int, _think_s: float, rng: Random) -> Iterator[Session]:
    families = (rng.randrange(TENANTS) for _ in range(requests))
    return _questions(families, rng)


def _hot_prefix(requests: int, _think_s: float, rng: Random) -> Iterator[Session]:
    """A quarter of the requests have one prefix in common, the others one of the tenants'."""
    families = (0 if rng.random() < 0.25 else rng.randrange(TENANTS) for _ in range(requests))
    return _questions(families, rng)


def _questions(families: Iterator[int], rng: Random) -> Iterator[Session]:
    question, reply = lognormal(QUESTION_TOKENS, 0.8, 4), lognormal(100, 0.6, 4)
    for owner, family in enumerate(families):
        turn = Turn(TENANT_TOKENS + round(question(rng)), round(reply(rng)))
        yield Session(owner, _key("tenant", family), (turn,), family, TENANT_TOKENS)


def _unique(requests: int, _think_s: float, _rng: Random) -> Iterator[Session]:
    for owner in range(requests):
        yield Session(owner, _key("unique", owner), (Turn(1024, 128),))


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
