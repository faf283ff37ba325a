"""The workloads: what is sent to a fleet, from a seed. `workloads.yaml` has their figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from random import Random
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct, structs

from extproc.documents import parse_document, suggest_name
from extproc.errors import SettingsError
from extproc.simulator.engine.profiles import DEFAULT_PROFILE
from extproc.simulator.fleet import everyday, held_out
from extproc.simulator.fleet.chats import (
    ChatKind,
    Demand,
    Sessions,
    draw_talks,
    lognormal,
    take_turns,
)
from extproc.simulator.fleet.session import PlannedSession, PlannedTurn, Transcript

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


Draw = Callable[[Demand, Random], Sessions]


class FleetWorkload(Struct, frozen=True):
    """A kind of load, by its name and its letter. The fields are those of `workloads.yaml`.

    `profile` is what its endpoints are, `scenario` what happens to them, unless a cell names
    others.
    """

    letter: str
    about: str
    capacity_rps: float
    name: str = ""
    think_s: float = 0.0
    warmup_s: float = 300.0
    measured_s: float | None = 500.0
    requests: int = 1000
    profile: str = DEFAULT_PROFILE
    scenario: str = "plain"


def find_workload(name: str) -> FleetWorkload:
    """Returns the workload with this name or letter; raises `SettingsError`."""
    found = WORKLOADS.get(name) or next(
        (one for one in WORKLOADS.values() if one.letter == name), None
    )
    if found is None:
        names = ", ".join(f"{one.name} ({one.letter})" for one in WORKLOADS.values())
        raise SettingsError(
            f"{name!r} is no workload: choose from {names}{suggest_name(name, WORKLOADS)}"
        )
    return found


def draw_sessions(name: str, demand: Demand, seed: int) -> list[PlannedSession]:
    """Returns the sessions of a workload, the same for the same seed.

    Raises `SettingsError` for a name that is not in `WORKLOADS`.
    """
    name = find_workload(name).name
    rng = Random(f"{name} {seed}")  # noqa: S311  # no secret
    found, missing = list[PlannedSession](), demand.requests
    for session in _DRAWS[name](demand, rng):
        found.append(structs.replace(session, turns=session.turns[:missing]))
        missing -= len(found[-1].turns)
        if not missing:
            break
    return found


def _replay(demand: Demand, rng: Random) -> Sessions:
    """A tenth as many prompts in random order, gone through ten times, as KubeAI's script does."""
    prompts = list(_prompts(-(-demand.requests // 10), rng))
    rng.shuffle(prompts)
    for number, (owner, script, reply) in enumerate((prompts * 10)[: demand.requests]):
        yield PlannedSession(owner, (script.ask(f"generated {number}", reply),))


def _prompts(requests: int, rng: Random) -> Iterator[tuple[int, Transcript, int]]:
    """Every turn of every chat as a request of its own, history and recorded replies included."""
    blank = Transcript(rng.getrandbits(63))
    for owner, chat in enumerate(SHAREGPT.draw(requests, rng)):
        script = blank
        for question, reply in chat:
            script = script.then("user", f"{owner}.asked", question)
            yield owner, script, reply
            script = script.then("assistant", f"{owner}.recorded", reply)


def _chats(kind: ChatKind) -> Draw:
    def draw(demand: Demand, rng: Random) -> Sessions:
        head = Transcript(rng.getrandbits(63))
        if kind.system_tokens:
            head = head.then("system", "head", kind.system_tokens)
        for owner, chat in enumerate(kind.draw(demand.requests, rng)):
            turns = take_turns(head, f"chat {owner}", demand.think_s, rng, chat)
            yield PlannedSession(owner, tuple(turns))

    return draw


def _tenants(role: str) -> Draw:
    def draw(demand: Demand, rng: Random) -> Sessions:
        tenants = max(1, round(TENANTS_PER_ENDPOINT * demand.endpoints))

        def talk(
            blank: Transcript, name: str, _think_s: float, rng: Random
        ) -> Iterator[PlannedTurn]:
            script = blank.then(role, f"tenant {rng.randrange(tenants)}", TENANT_TOKENS)
            script = script.then(
                "user" if role == "system" else "", f"{name}.asked", _QUESTION(rng)
            )
            yield script.ask(f"{name}.said", _ANSWER(rng))

        return draw_talks(talk, demand, rng)

    return draw


def _hot_prefix(blank: Transcript, name: str, think_s: float, rng: Random) -> Iterator[PlannedTurn]:
    head = blank.then("system", "hot", HOT_TOKENS) if rng.random() < HOT_SHARE else blank
    return take_turns(head, name, think_s, rng, [(_HOT_QUESTION(rng), _REPLY(rng))])


def _unique(blank: Transcript, name: str, think_s: float, rng: Random) -> Iterator[PlannedTurn]:
    return take_turns(blank, name, think_s, rng, [(_UNIQUE(rng), _REPLY(rng))])


_AGENT_ANSWER = lognormal(150, 0.7, 10, 800)
_AGENT_TURNS, _AGENT_FIRST, _AGENT_LAST = (20, 40), 2_000, 30_000


def _agents(blank: Transcript, name: str, think_s: float, rng: Random) -> Iterator[PlannedTurn]:
    """Contexts that grow evenly, by what tools return and what the agent says to it."""
    turns = rng.randint(*_AGENT_TURNS)
    step = (_AGENT_LAST - _AGENT_FIRST) / (turns - 1)
    chat, tokens = [], 0
    for turn in range(turns):
        # An answer and some of what a tool says fit into every step.
        question = max(16, round(_AGENT_FIRST + turn * step) - tokens)
        chat.append((question, min(round(_AGENT_ANSWER(rng)), int(step) - 16)))
        tokens += sum(chat[-1])
    return take_turns(blank, name, think_s, rng, chat)


_DRAWS: Final[Mapping[str, Draw]] = {
    "replay": _replay,
    "sessions": _chats(SHAREGPT),
    "common-system": _chats(
        replace(SHAREGPT, system_tokens=SYSTEM_TOKENS, input_tokens=832.0 + SYSTEM_TOKENS)
    ),
    "tenants": _tenants("system"),
    "tenants-user": _tenants("user"),
    "hot-prefix": partial(draw_talks, _hot_prefix),
    "unique": partial(draw_talks, _unique),
    "agents": partial(draw_talks, _agents),
    "k6-chat": _chats(K6_CHAT),
    "zipf": held_out.draw_zipf_tenants,
    "tot": held_out.draw_trees,
    "fewshot": held_out.draw_jobs,
    "ladder": held_out.draw_ladder,
    "burst": held_out.draw_bursts,
    "diurnal": held_out.draw_days,
    **{name: partial(draw_talks, talk) for name, talk in held_out.TALKS.items()},
    "fanout": everyday.draw_fanout,
    "judge": everyday.draw_judge,
    "translate": everyday.draw_translations,
    "night": everyday.draw_night,
    **{name: partial(draw_talks, talk) for name, talk in everyday.EVERYDAY_TALKS.items()},
}


def _read_workloads() -> dict[str, FleetWorkload]:
    text = files("extproc.simulator.fleet").joinpath("workloads.yaml").read_text("utf-8")
    tree = parse_document(text, "workloads.yaml").tree
    return {
        name: msgspec.convert({"name": name, **fields}, FleetWorkload)
        for name, fields in tree.items()
    }


WORKLOADS: Final[Mapping[str, FleetWorkload]] = MappingProxyType(_read_workloads())
_NAMES: Final = [*WORKLOADS]
GROUPS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "held-out": _NAMES[_NAMES.index("swe") : _NAMES.index("fanout")],
        "everyday": _NAMES[_NAMES.index("fanout") :],
    }
)
"""Workloads that no strategy was tuned to, by the name that stands for all of them."""


def expand_names(names: Iterable[str]) -> list[str]:
    """Returns workloads' names, those of a group in its place."""
    return [one for name in names for one in GROUPS.get(name, (name,))]
