"""The workloads: what a fleet is asked, from a few parameters and a seed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, inf, log
from random import Random
from types import MappingProxyType
from typing import Final

from extproc.errors import SettingsError
from extproc.simulator.fleet.chats import Chat, ChatKind, lognormal
from extproc.simulator.fleet.session import CHARS_PER_TOKEN, CommonText, PlannedSession, PlannedTurn

SHAREGPT: Final = ChatKind(
    turns=8,
    more_turns=3.5,
    question=lognormal(63, 1.2, 4),
    reply=lognormal(82, 0.8, 4, 400),
    input_tokens=832.0,
    output_tokens=76.06,
)
"""A stand-in for ShareGPT conversations of 16 messages or more, as KubeAI's benchmark used them."""

K6_CHAT: Final = ChatKind(
    turns=5,
    more_turns=2.81,
    question=lognormal(130, 1.0, 4),
    reply=lambda rng: rng.uniform(8.5, 10),
    input_tokens=680.0,
)
"""KubeAI's k6 threads: 7.34 requests each, 9.24 tokens out, of which 10 are allowed."""

TENANTS_PER_ENDPOINT: Final = 150 / 8
TENANT_TOKENS, SYSTEM_TOKENS, HOT_TOKENS, HOT_SHARE = 6000, 1000, 1500, 0.25
_QUESTION, _ANSWER = lognormal(150, 0.6, 4), lognormal(100, 0.6, 4)
_UNIQUE, _REPLY = lognormal(800, 1.0, 16, 8192), lognormal(82, 0.8, 4, 400)
_HOT_QUESTION = lognormal(470, 1.0, 16, 8192)
_AGENT_ANSWER = lognormal(150, 0.7, 10, 800)
_AGENT_TURNS, _AGENT_FIRST, _AGENT_LAST, _AGENT_THINK_S = (20, 40), 2_000, 30_000, 3.0


@dataclass(frozen=True, slots=True)
class Demand:
    """How much of a workload: `requests` turns together, with pauses of `think_s` seconds on average.

    Workloads whose prefixes are shared have more of them where there are more `endpoints`.
    """

    requests: int
    think_s: float = 0.0
    endpoints: int = 8


Draw = Callable[[Demand, Random], Iterator[PlannedSession]]


@dataclass(frozen=True, slots=True)
class FleetWorkload:
    """A kind of load, known by a name and a letter.

    `capacity_rps` is what an L4 endpoint sustains with the best strategy known, in requests per second:
    the load 1.0. After `warmup_s` it is measured for `measured_s`; `None`: for as long as `requests` per
    endpoint last.
    """

    name: str
    letter: str
    about: str
    capacity_rps: float
    draw: Draw
    think_s: float = 0.0
    warmup_s: float = 300.0
    measured_s: float | None = 500.0
    requests: int = 1000


def find_workload(name: str) -> FleetWorkload:
    """Returns the workload with this name or letter; raises `SettingsError`."""
    found = WORKLOADS.get(name) or next((one for one in WORKLOADS.values() if one.letter == name), None)
    if found is None:
        known = ", ".join(f"{one.name} ({one.letter})" for one in WORKLOADS.values())
        raise SettingsError(f"{name!r} is no workload: choose from {known}")
    return found


def draw_sessions(name: str, demand: Demand, seed: int) -> list[PlannedSession]:
    """Returns the sessions of a workload, the same for the same seed.

    Raises `SettingsError` for a name that is not in `WORKLOADS`.
    """
    workload = find_workload(name)
    rng = Random(f"{workload.name} {seed}")  # noqa: S311  # no secret
    return list(workload.draw(demand, rng))


def _error(rng: Random) -> float:
    """Characters per token: a language, or code, is off by as much from its first message to its last."""
    return CHARS_PER_TOKEN * rng.uniform(0.8, 1.2)


def _replay(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    """A tenth as many prompts in random order, gone through ten times, as KubeAI's script does."""
    prompts = list(_prompts(-(-demand.requests // 10), rng))
    rng.shuffle(prompts)
    return iter((prompts * 10)[: demand.requests])


def _distinct(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    prompts = list(_prompts(demand.requests, rng))
    rng.shuffle(prompts)
    return iter(prompts)


def _prompts(requests: int, rng: Random) -> Iterator[PlannedSession]:
    """Every turn of every chat as a request of its own, history and recorded replies included."""
    for owner, chat in enumerate(SHAREGPT.draw(requests, rng)):
        said, chars = [tokens for pair in chat for tokens in pair], _error(rng)
        for place, asked in enumerate(SHAREGPT.prompts(chat)):
            history = tuple(said[: 2 * place + 1])
            yield PlannedSession(
                owner, (PlannedTurn(*asked),), history=history, is_replayed=True, chars_per_token=chars
            )


def _chats(kind: ChatKind) -> Draw:
    def draw(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
        heads = (CommonText(0, kind.system_tokens, _error(rng)),) if kind.system_tokens else ()
        for owner, chat in enumerate(kind.draw(demand.requests, rng)):
            turns = _pause(kind.prompts(chat), demand.think_s, rng)
            yield PlannedSession(owner, turns, heads, chars_per_token=_error(rng))

    return draw


def _pause(prompts: Chat, think_s: float, rng: Random) -> tuple[PlannedTurn, ...]:
    per_s = 1 / think_s if think_s else inf
    pauses = [0.0, *(rng.expovariate(per_s) for _ in prompts[1:])]
    return tuple(PlannedTurn(*asked, pause) for asked, pause in zip(prompts, pauses, strict=True))


def _tenants(role: str) -> Draw:
    def draw(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
        tenants = max(1, round(TENANTS_PER_ENDPOINT * demand.endpoints))
        heads = [CommonText(tenant, TENANT_TOKENS, _error(rng)) for tenant in range(tenants)]
        for owner in range(demand.requests):
            yield _ask_once(owner, (_QUESTION(rng), _ANSWER(rng)), rng, rng.choice(heads), role)

    return draw


def _hot_prefix(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    hot = CommonText(0, HOT_TOKENS, _error(rng))
    for owner in range(demand.requests):
        head = hot if rng.random() < HOT_SHARE else None
        yield _ask_once(owner, (_HOT_QUESTION(rng), _REPLY(rng)), rng, head)


def _unique(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    for owner in range(demand.requests):
        yield _ask_once(owner, (_UNIQUE(rng), _REPLY(rng)), rng)


def _ask_once(
    owner: int,
    lengths: tuple[float, float],
    rng: Random,
    head: CommonText | None = None,
    role: str = "system",
) -> PlannedSession:
    """One question and its answer, of these lengths."""
    heads = (head,) if head else ()
    question, answer = map(round, lengths)
    turn = PlannedTurn(question + sum(head.tokens for head in heads), answer)
    return PlannedSession(owner, (turn,), heads, role, chars_per_token=_error(rng))


def _agents(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    """Contexts that grow evenly, by what tools return and what the agent says to it."""
    missing, owner = demand.requests, 0
    while missing:
        turns = rng.randint(*_AGENT_TURNS)
        prompts = _agent_prompts(turns, rng)[:missing]
        yield PlannedSession(owner, _pause(prompts, demand.think_s, rng), chars_per_token=_error(rng))
        missing -= len(prompts)
        owner += 1


def _agent_prompts(turns: int, rng: Random) -> Chat:
    step = (_AGENT_LAST - _AGENT_FIRST) / (turns - 1)
    prompts, tokens = [], _AGENT_FIRST
    for turn in range(turns):
        # An answer and some of what a tool says fit into every step.
        answer = min(round(_AGENT_ANSWER(rng)), int(step) - 16)
        prompts.append((max(tokens, round(_AGENT_FIRST + turn * step)), answer))
        tokens = prompts[-1][0] + answer + 16
    return prompts


ZIPF_TENANTS_PER_ENDPOINT: Final = 125
_ZIPF, _ZIPF_TOKENS, _ZIPF_TURNS = 1.05, (300, 12_000), (1, 4)
_ZIPF_REPLY: Final = lognormal(200, 0.6, 8, 800)


def _zipf_tenants(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    """Many tenants, few of them busy, with system prompts from short to very long."""
    count = max(1, ZIPF_TENANTS_PER_ENDPOINT * demand.endpoints)
    shortest, longest = map(log, _ZIPF_TOKENS)
    heads = [
        CommonText(tenant, round(exp(rng.uniform(shortest, longest))), _error(rng)) for tenant in range(count)
    ]
    weights = list(accumulate(1 / (rank + 1) ** _ZIPF for rank in range(count)))
    missing, owner = demand.requests, 0
    while missing > 0:
        (head,) = rng.choices(heads, cum_weights=weights)
        prompts, tokens = [], head.tokens
        for _ in range(min(rng.randint(*_ZIPF_TURNS), missing)):
            tokens += round(_QUESTION(rng))
            prompts.append((tokens, round(_ZIPF_REPLY(rng))))
            tokens += prompts[-1][1]
        yield PlannedSession(
            owner, _pause(prompts, demand.think_s, rng), (head,), chars_per_token=_error(rng)
        )
        missing -= len(prompts)
        owner += 1


_CODING_HEAD, _CODING_TURNS, _CODING_LAST = 9_000, (20, 50), (30_000, 100_000)
_CODING_REPLY: Final = lognormal(300, 0.8, 20, 2_000)
_CODING_TOOL_S: Final = lognormal(4.0, 0.97, 0.1, 120)  # its median is 2.5 s


def _coding_agents(demand: Demand, rng: Random) -> Iterator[PlannedSession]:
    """Contexts of 30,000 to 100,000 tokens behind common instructions; tools answer within seconds."""
    head = CommonText(0, _CODING_HEAD, _error(rng))
    missing, owner = demand.requests, 0
    while missing > 0:
        turns, last = rng.randint(*_CODING_TURNS), rng.randint(*_CODING_LAST)
        step = (last - _CODING_HEAD) // turns
        planned, tokens = [], _CODING_HEAD + 500
        for turn in range(min(turns, missing)):
            reply = min(round(_CODING_REPLY(rng)), max(16, step - 16))
            pause = _CODING_TOOL_S(rng) if turn else 0.0
            planned.append(PlannedTurn(tokens, reply, pause))
            tokens += reply + max(16, round(rng.uniform(0.5, 1.5) * (step - reply)))
        yield PlannedSession(owner, tuple(planned), (head,), chars_per_token=_error(rng))
        missing -= len(planned)
        owner += 1


_ALL: Final = (
    FleetWorkload("replay", "A", "800 prompts, shuffled, gone through 10 times", 11.7, _replay, 0, 0, None),
    FleetWorkload("distinct", "B", "8,000 prompts once each, shuffled", 11.7, _distinct, 0, 0, None),
    FleetWorkload("sessions", "C", "chats of 11 turns, 832 tokens in, 76 out", 6.3, _chats(SHAREGPT), 10.0),
    FleetWorkload(
        "common-system",
        "CS",
        "chats behind one system prompt of 1,000 tokens",
        5.5,
        _chats(replace(SHAREGPT, system_tokens=SYSTEM_TOKENS, input_tokens=832.0 + SYSTEM_TOKENS)),
        10.0,
    ),
    FleetWorkload(
        "tenants", "T", "system prompts of 6,000 tokens, 150 on 8 endpoints", 1.01, _tenants("system")
    ),
    FleetWorkload("tenants-user", "Tu", "the same in the user's message", 1.01, _tenants("user")),
    FleetWorkload("hot-prefix", "H", "a quarter has 1,500 tokens in common", 6.1, _hot_prefix),
    FleetWorkload("unique", "U", "nothing in common, 800 tokens in, 82 out", 4.34, _unique),
    FleetWorkload(
        "agents", "G", "20 to 40 turns, from 2,000 to 30,000 tokens", 0.37, _agents, _AGENT_THINK_S, 600, 1200
    ),
    FleetWorkload(
        "zipf",
        "Z",
        "1,000 tenants of very unequal demand, system prompts of 300 to 12,000 tokens",
        2.1,
        _zipf_tenants,
        10.0,
    ),
    FleetWorkload(
        "coding-agents",
        "S",
        "20 to 50 turns, to 100,000 tokens; for h100-llama8b-bf16",
        1.3,
        _coding_agents,
        2.5,
        600,
        900,
    ),
    FleetWorkload("k6-chat", "K", "KubeAI's k6 threads, 10 tokens out", 6.0, _chats(K6_CHAT), 0, 0, None),
)
WORKLOADS: Final[Mapping[str, FleetWorkload]] = MappingProxyType({one.name: one for one in _ALL})
