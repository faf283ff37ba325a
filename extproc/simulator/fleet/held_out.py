"""Workloads that no strategy was tuned to: agents, trees of thought, retrieval, jobs, swings of the load.

Made from their descriptions in published work, with a seed; docs/how-to/simulate.md has the table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import accumulate, islice
from math import cos, exp, log, pi
from random import Random
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from extproc.simulator.fleet.chats import (
    Demand,
    Draw,
    Sessions,
    Talk,
    draw_talks,
    lognormal,
    take_turns,
)
from extproc.simulator.fleet.session import PlannedSession, PlannedTurn, Transcript

_LONG_QUESTION: Final = lognormal(250, 0.8, 8)
_LONG_ANSWER: Final = lognormal(3_000, 0.6, 100, 8_000)
_QUESTION: Final = lognormal(150, 0.6, 4)
_REPLY: Final = lognormal(200, 0.6, 8, 800)
_SHORT: Final = lognormal(90, 0.8, 4, 400)
Turns = Iterator[PlannedTurn]
Said = list[tuple[str, str, float]]
"""Role, name and tokens of messages."""


def pause(think_s: float, turn: int, rng: Random) -> float:
    """Returns the seconds before a turn; none before the first."""
    return rng.expovariate(1 / think_s) if turn and think_s else 0.0


def _chat(head: Transcript, name: str, think_s: float, turns: int, rng: Random) -> Turns:
    return take_turns(
        head, name, think_s, rng, [(_QUESTION(rng), _SHORT(rng)) for _ in range(turns)]
    )


def by_zipf(items: int, exponent: float) -> Callable[[Random], int]:
    """Returns a draw of one of so many items, the first ones much more often."""
    weights = list(accumulate(1 / (rank + 1) ** exponent for rank in range(items)))
    return lambda rng: rng.choices(range(items), cum_weights=weights)[0]


_CODE: Final = lognormal(300, 0.8, 20, 2_000)
_TOOLS: Final = by_zipf(60, 1.1)
_CALL: Final = lognormal(137, 0.9, 4, 2_000)
_LONG_REPLY: Final = lognormal(343, 0.7, 8, 2_000)
_TITLES: Final = by_zipf(400, 0.9)
_PROGRAM: Final = lognormal(2_150, 0.85, 1, 7_400)  # 2,048 tokens on average, once it is clipped
_COMPLETION: Final = lognormal(28, 0.9, 1, 500)
_THOUGHT: Final = lognormal(220, 0.3, 60, 600)


def _length(name: str, shortest: float, longest: float) -> float:
    """The tokens of a text that many have in common, by its name; the logarithm is even."""
    return exp(log(shortest) + log(longest / shortest) * xxh3_64_intdigest(name.encode()) / 2**64)


def _code(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """9,000 common tokens, then 20 to 50 turns; tools answer within seconds, 2.5 in the median."""
    script, turns = blank.then("system", "instructions", 9_000), rng.randint(20, 50)
    step = (rng.randint(30_000, 100_000) - script.tokens) // turns
    tools_s = lognormal(1.6 * think_s, 0.97, 0.1, 120)
    for turn in range(turns):
        reply = min(_CODE(rng), max(16, step - 16))
        result = max(16, rng.uniform(0.5, 1.5) * (step - reply)) if turn else 500
        question = script.then("user", f"{name}.result {turn}", result)
        planned = question.ask(f"{name}.call {turn}", reply, tools_s(rng) if turn else 0.0)
        yield planned
        script = script.after(planned)


def _call_tools(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    script = blank.then("system", f"tools {_TOOLS(rng)}", 5_500)
    calls = [(rng.lognormvariate(log(450), 1.0), _CALL(rng)) for _ in range(rng.randint(1, 5))]
    return take_turns(script, name, think_s, rng, calls)


def _talk_long(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    turns = 1 + int(rng.expovariate(1 / 1.2))
    chat = [
        (min(60_000, rng.lognormvariate(log(3_700), 1.2)), _LONG_REPLY(rng)) for _ in range(turns)
    ]
    return take_turns(blank, name, think_s, rng, chat)


def _branch(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """25 % of the turns are sent again, 10 % are edited and go on from an earlier turn."""
    scripts, question = [blank.then("system", "head", 500)], None
    for turn in range(6 + int(rng.expovariate(1 / 4))):
        roll, pause_s = rng.random(), pause(think_s, turn, rng)
        if question is not None and roll < 0.25:
            scripts.pop()
        elif question is not None and roll < 0.35:
            del scripts[rng.randrange(1, len(scripts)) :]
        if question is None or roll >= 0.25:
            question = scripts[-1].then("user", f"{name}.q{turn}", _QUESTION(rng))
        planned = question.ask(f"{name}.a{turn}", _SHORT(rng), pause_s)
        scripts.append(question.after(planned))
        yield planned


def _idle(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    for turn in _chat(blank.then("system", "head", 300), name, think_s, rng.randint(4, 12), rng):
        yield replace(turn, think_s=300.0) if turn.think_s and rng.random() < 0.2 else turn


def _small(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    return _chat(blank.then("system", "head", 400), name, think_s, rng.randint(3, 9), rng)


def _plain(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    return _chat(
        blank.then("system", "head", 600), name, think_s, 5 + int(rng.expovariate(1 / 4)), rng
    )


def _reason(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """Answers begin with thoughts, which the next prompt does not contain."""
    script = blank.then("system", "head", 300)
    for turn in range(rng.randint(3, 7)):
        script, said = script.then("user", f"{name}.q{turn}", _QUESTION(rng)), _SHORT(rng)
        thoughts = rng.lognormvariate(log(400), 0.5)
        yield script.ask(f"{name}.thoughts {turn}", thoughts + said, pause(think_s, turn, rng))
        script = script.then("assistant", f"{name}.said {turn}", said)


def _think_long(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """Answers ten times as long as prompts, nearly all of them thoughts, which the next prompt does not contain."""
    script = blank.then("system", "head", 500)
    for turn in range(rng.randint(1, 4)):
        script, said = script.then("user", f"{name}.q{turn}", _LONG_QUESTION(rng)), _SHORT(rng)
        yield script.ask(f"{name}.thoughts {turn}", _LONG_ANSWER(rng), pause(think_s, turn, rng))
        script = script.then("assistant", f"{name}.said {turn}", said)


def _behind(heads: Iterable[Transcript], name: str, think_s: float, rng: Random) -> Turns:
    """A chat whose head is another one in each turn."""
    said: Said = []
    for turn, script in enumerate(heads):
        said.append(("user", f"{name}.q{turn}", _QUESTION(rng)))
        for message in said:
            script = script.then(*message)  # noqa: PLW2901  # the head, and what stands behind it
        said.append(("assistant", f"{name}.a{turn}", _SHORT(rng)))
        yield script.ask(said[-1][1], said[-1][2], pause(think_s, turn, rng))


def _clock(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """A clock stands before a tenant's system prompt; for half of the tenants each request has another."""
    tenant, minute = rng.randrange(40), rng.randrange(6)
    clocks = [
        f"{name} {turn}" if tenant % 2 else f"{minute + turn // 3}"
        for turn in range(rng.randint(3, 8))
    ]
    heads = [
        blank.then("system", f"{clock}", 12).then("", f"tenant {tenant}", 800) for clock in clocks
    ]
    return _behind(heads, name, think_s, rng)


def _read_chat(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    heads = [_lay_out(blank, _choose(_TITLES, 3, rng)) for _ in range(rng.randint(3, 8))]
    return _behind(heads, name, think_s, rng)


def _read(
    draw: Callable[[Random], Sequence[int]], blank: Transcript, name: str, _s: float, rng: Random
) -> Turns:
    """One question behind 5 of 400 documents."""
    question = _lay_out(blank, draw(rng)).then("user", f"{name}.q", _QUESTION(rng))
    yield question.ask(f"{name}.a", _REPLY(rng))


def _lay_out(blank: Transcript, documents: Iterable[int]) -> Transcript:
    script = blank.then("system", "head", 200)
    for document in documents:
        script = script.then(
            "", f"document {document}", _length(f"document {document}", 250, 1_400)
        )
    return script


def _choose(draw: Callable[[Random], int], size: int, rng: Random) -> list[int]:
    found: dict[int, None] = {}
    while len(found) < size:
        found[draw(rng)] = None
    return list(found)


_read_any: Final = partial(_read, lambda rng: rng.sample(range(400), 5))
_read_popular: Final = partial(_read, lambda rng: sorted(_choose(_TITLES, 5, rng)))


def _ask_once(
    question: Draw, reply: Draw, blank: Transcript, name: str, _think_s: float, rng: Random
) -> Turns:
    return take_turns(blank, name, 0, rng, [(question(rng), reply(rng))])


_complete: Final = partial(_ask_once, _PROGRAM, _COMPLETION)
_read_document: Final = partial(_ask_once, lambda rng: rng.uniform(2_000, 8_000), _REPLY)


def _act(blank: Transcript, name: str, _think_s: float, rng: Random) -> Turns:
    """An agent: contexts to 15,000 tokens, tools that answer in two seconds."""
    chat = [(rng.uniform(200, 800), _SHORT(rng)) for _ in range(rng.randint(8, 20))]
    return take_turns(blank.then("system", "agent", 2_000), name, 2.0, rng, chat)


def _mix(blank: Transcript, name: str, think_s: float, rng: Random) -> Iterable[PlannedTurn]:
    (talk,) = rng.choices((_plain, _act, _read_any, _read_document), (8, 1, 12, 6))
    return talk(blank, name, think_s, rng)


def _generate_code(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    script = blank.then("system", f"{name}.repository", rng.triangular(3_000, 100_000, 62_000))
    return take_turns(
        script, name, think_s, rng, [(1_500, 800)] * min(20, 2 + int(rng.expovariate(1 / 4.5)))
    )


def _show(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """Chats of which 60 % of the turns begin with a picture."""
    script = blank.then("system", "head", 600)
    for turn in range(5 + int(rng.expovariate(1 / 4))):
        has_picture = rng.random() < 0.6
        if has_picture:
            script = script.then("user", f"{name}.picture {turn}", 1_200, is_picture=True)
        script = script.then("" if has_picture else "user", f"{name}.q{turn}", _QUESTION(rng))
        planned = script.ask(f"{name}.a{turn}", _SHORT(rng), pause(think_s, turn, rng))
        yield planned
        script = script.after(planned)


def _count(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    return (replace(turn, is_ids=True) for turn in _plain(blank, name, think_s, rng))


TALKS: Final[Mapping[str, Talk]] = MappingProxyType(
    {
        "codegen": _generate_code,
        "image": _show,
        "ids": _count,
        "swe": _code,
        "mconv": _talk_long,
        "mtool": _call_tools,
        "branch": _branch,
        "idle": _idle,
        "small": _small,
        "reason": _reason,
        "longout": _think_long,
        "mixed": _mix,
        "hetero": _plain,
        "churn": _plain,
        "volatile": _clock,
        "rag": _read_any,
        "ragtop": _read_popular,
        "azcode": _complete,
        "ragchat": _read_chat,
    }
)

ZIPF_TENANTS_PER_ENDPOINT: Final = 125


def draw_zipf_tenants(demand: Demand, rng: Random) -> Sessions:
    """Many tenants, few of them busy, with system prompts from short to very long."""
    draw = by_zipf(max(1, ZIPF_TENANTS_PER_ENDPOINT * demand.endpoints), 1.05)

    def talk(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
        tenant = f"tenant {draw(rng)}"
        head = blank.then("system", tenant, _length(f"{blank.seed} {tenant}", 300, 12_000))
        chat = [(_QUESTION(rng), _REPLY(rng)) for _ in range(rng.randint(1, 4))]
        return take_turns(head, name, think_s, rng, chat)

    return draw_talks(talk, demand, rng)


# Workloads with arrivals of their own: sessions with `start_s`.


def draw_trees(demand: Demand, rng: Random) -> Sessions:
    """Trees of thought: 16 requests at once behind a new prefix of 3,000 tokens, then three levels of 4 by 4.

    Each of the 16 sends its next level when its own answer is there; the thought it builds on is
    its beam's.
    """
    blank = Transcript(rng.getrandbits(63))
    for tree, start_s in enumerate(arrivals(demand, 64, rng)):
        for slot in range(16):
            script, turns = blank.then("user", f"tree {tree}.problem", 3_000), []
            for level in range(4):
                thought = f"tree {tree}.thought {level} "
                turns.append(script.ask(f"{thought}{slot}", _THOUGHT(rng), 0.5 * bool(level)))
                script = script.then("assistant", f"{thought}{slot // 4 * 4}", 220)
                script = script.then("user", f"tree {tree}.go on {level}", 40)
            yield PlannedSession(tree * 16 + slot, tuple(turns), start_s)


def draw_jobs(demand: Demand, rng: Random) -> Sessions:
    """Batch jobs: a task prompt, three variants behind it, 120 to 380 items at 12 a second each."""
    blank = Transcript(rng.getrandbits(63))
    starts = islice(arrivals(demand, 250, rng), -(-demand.requests // 120))
    jobs = [_job(blank, job, at_s, rng) for job, at_s in enumerate(starts)]
    items = merge(*jobs, key=lambda session: session.start_s or 0.0)
    for owner, session in enumerate(items):
        yield replace(session, owner=owner)


def _job(blank: Transcript, job: int, at_s: float, rng: Random) -> Sequence[PlannedSession]:
    task = blank.then("system", f"job {job}.task", rng.uniform(1_500, 5_000))
    variants = [
        task.then("user", f"job {job}.variant {one}", rng.uniform(300, 1_200)) for one in range(3)
    ]
    found = []
    for item in range(rng.randint(120, 380)):
        question = rng.choice(variants).then("", f"job {job}.item {item}", rng.uniform(40, 200))
        turn = question.ask(f"job {job}.label {item}", rng.uniform(10, 60))
        found.append(PlannedSession(0, (turn,), at_s + item / 12))
    return found


def arrivals(demand: Demand, requests: int, rng: Random) -> Iterator[float]:
    """Yields Poisson arrivals of what has so many requests each."""
    at_s = 0.0
    while True:
        yield at_s
        at_s += rng.expovariate(demand.rps / requests)


def _draw_at(
    weight: Callable[[float], float], mean: float, demand: Demand, rng: Random
) -> Sessions:
    """Plain chats that begin at a rate which follows `weight`, whose mean over a period is `mean`."""
    at_s, turns = 0.0, 5 + 1 / (exp(1 / 4) - 1)
    for session in draw_talks(_plain, demand, rng):
        yield replace(session, start_s=at_s)
        at_s += rng.expovariate(demand.rps / turns * weight(at_s) / mean)


draw_bursts: Final = partial(_draw_at, lambda at_s: 10.0 if at_s % 150 < 30 else 1.0, 2.8)
draw_plain: Final = partial(_draw_at, lambda _at_s: 1.0, 1.0)
draw_days: Final = partial(_draw_at, lambda at_s: 3 - 2 * cos(2 * pi * at_s / 600), 3.0)


_STEPS: Final = "15x50 3x20 10x20 15x20 20x38 22x34 25x30 30x25 35x21 40x38 43x36 46x33 49x30 52x29 55x27 57x26 60x25"


def draw_ladder(_demand: Demand, rng: Random) -> Sessions:
    """llm-d's ladder: 750 prompts, five behind each long one, at so many a second for so many seconds.

    A step each 1,000 s, in which the last one is answered; the first only fills the caches.
    """
    blank = Transcript(rng.getrandbits(63))
    for step, (rate, seconds) in enumerate(map(int, each.split("x")) for each in _STEPS.split()):
        for number, at_s in enumerate(
            sorted(rng.random() * seconds for _ in range(rate * seconds))
        ):
            place = rng.randrange(750)
            head = blank.then("system", f"group {place // 5}", 6_000).then(
                "user", f"question {place}", 1_200
            )
            turn = head.ask(f"answer {step} {number}", 1_000)
            yield PlannedSession(10_000 * step + number, (turn,), 1_000 * step + at_s)
