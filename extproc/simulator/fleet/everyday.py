"""Workloads of everyday use: what people build on a pool of engines, in twelve shapes.

The rule was fixed when they were written. docs/how-to/simulate.md has the table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import count, islice
from random import Random
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from extproc.simulator.fleet.chats import (
    Demand,
    Draw,
    Sessions,
    Talk,
    lognormal,
    take_turns,
)
from extproc.simulator.fleet.held_out import Turns, arrivals, by_zipf, draw_plain, pause
from extproc.simulator.fleet.session import PlannedSession, Transcript

_QUESTION: Final = lognormal(150, 0.6, 4)
_WORDS: Final = lognormal(40, 0.7, 3, 300)
_REPLY: Final = lognormal(200, 0.6, 8, 800)
_REMARK: Final = lognormal(60, 0.6, 4, 300)
_CODE: Final = lognormal(250, 0.8, 20, 1_500)
_RESULT: Final = lognormal(900, 0.8, 20, 6_000)
_CHARACTERS: Final = by_zipf(500, 1.0)
_READERS: Final = by_zipf(40, 0.8)


def _lines(turns: int, says: Draw, hears: Draw, rng: Random) -> list[tuple[float, float]]:
    return [(says(rng), hears(rng)) for _ in range(turns)]


def _ask_about(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """Three to eight questions about one of 40 long documents, some of which many read."""
    document = _READERS(rng)
    tokens = 20_000 + 60_000 * Random(f"{blank.seed} {document}").random()  # noqa: S311  # no secret
    head = blank.then("system", "head", 300).then("user", f"document {document}", tokens)
    return take_turns(head, name, think_s, rng, _lines(rng.randint(3, 8), _WORDS, _REPLY, rng))


def _adapt(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """Chats with one of 24 adapters, which have no block in common."""
    head = blank.then("system", f"adapter {rng.randrange(24)}", 500)
    return take_turns(head, name, think_s, rng, _lines(rng.randint(2, 8), _QUESTION, _REPLY, rng))


def _help(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """A help desk: instructions and tools for all, short questions, a slow customer."""
    head = blank.then("system", "instructions", 3_000)
    return take_turns(head, name, think_s, rng, _lines(rng.randint(2, 7), _WORDS, _REPLY, rng))


def _speak(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """Voices: one of 30 assistants, some words each way, the next ones at once."""
    head = blank.then("system", f"assistant {rng.randrange(30)}", 1_200)
    return take_turns(head, name, think_s, rng, _lines(rng.randint(6, 20), _WORDS, _REMARK, rng))


def _compact(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """Coding agents who replace a history of 24,000 tokens by a summary of it, and go on."""
    head = script = blank.then("system", "agent", 8_000)
    for turn in range(rng.randint(15, 60)):
        if script.tokens > 24_000:
            script = head.then("user", f"{name}.summary {turn}", 2_000)
        script = script.then("user", f"{name}.result {turn}", _RESULT(rng))
        planned = script.ask(f"{name}.call {turn}", _CODE(rng), pause(think_s, turn, rng))
        yield planned
        script = script.after(planned)


def _type(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """An editor asks at each stop of the cursor: the file up to there, which mostly grew by a few words."""
    head = blank.then("system", "completion", 150).then("user", f"{name}.repository", 1_500)
    script = head.then("", f"{name}.file", rng.uniform(200, 4_000))
    for turn in range(rng.randint(10, 50)):
        if rng.random() < 0.1:
            script = head.then("", f"{name}.file {turn}", rng.uniform(200, 4_000))
        script = script.then("", f"{name}.typed {turn}", _WORDS(rng))
        yield script.ask(f"{name}.ghost {turn}", 30, pause(think_s, turn, rng))


def _play(blank: Transcript, name: str, think_s: float, rng: Random) -> Turns:
    """A character talks for long; a client that keeps some 3,000 tokens drops what was said first."""
    head = blank.then("system", f"character {_CHARACTERS(rng)}", 1_200)
    said: list[tuple[str, str, float]] = []
    for turn in range(rng.randint(8, 30)):
        said.append(("user", f"{name}.q{turn}", _WORDS(rng)))
        if sum(tokens for *_, tokens in said) > 3_000:
            del said[: len(said) // 4 * 2]
        script = head
        for message in said:
            script = script.then(*message)
        said.append(("assistant", f"{name}.a{turn}", _REPLY(rng)))
        yield script.ask(said[-1][1], said[-1][2], pause(think_s, turn, rng))


def _extract(blank: Transcript, name: str, _think_s: float, rng: Random) -> Turns:
    """A form of 900 tokens, filled from a document that nobody else has."""
    head = blank.then("system", "form", 900)
    return take_turns(head, name, 0, rng, [(rng.uniform(500, 4_000), _REPLY(rng))])


EVERYDAY_TALKS: Final[Mapping[str, Talk]] = MappingProxyType(
    {
        "docqa": _ask_about,
        "lora": _adapt,
        "support": _help,
        "voice": _speak,
        "compact": _compact,
        "typing": _type,
        "roleplay": _play,
        "extract": _extract,
    }
)


def draw_fanout(demand: Demand, rng: Random) -> Sessions:
    """A lead's plan, behind tools that all have, goes to four to eight helpers at once; each works for some turns."""
    tools = Transcript(rng.getrandbits(63)).then("system", "tools", 12_000)
    owner = count()
    for lead, at_s in enumerate(arrivals(demand, 33, rng)):
        plan = tools.then("user", f"lead {lead}.plan", rng.uniform(1_000, 4_000))
        for _ in range(rng.randint(4, 8)):
            number = next(owner)
            head = plan.then("", f"helper {number}.task", 200)
            lines = _lines(rng.randint(3, 8), _RESULT, _CODE, rng)
            turns = take_turns(head, f"helper {number}", demand.think_s, rng, lines)
            yield PlannedSession(number, tuple(turns), at_s)


def draw_judge(demand: Demand, rng: Random) -> Sessions:
    """Grades: 40 to 200 answers to one task, behind one of 60 rubrics, eight a second."""

    def grade(blank: Transcript, task: int) -> Turns:
        head = blank.then("system", f"rubric {rng.randrange(60)}", 2_500)
        head = head.then("user", f"task {task}.text", rng.uniform(200, 1_500))
        for answer in range(rng.randint(40, 200)):
            script = head.then("", f"task {task}.answer {answer}", rng.uniform(100, 1_200))
            yield script.ask(f"task {task}.grade {answer}", 40)

    return _draw_batches(grade, 120, 8.0, demand, rng)


def draw_translations(demand: Demand, rng: Random) -> Sessions:
    """Documents in 20 to 80 pieces, four a second, behind one of 30 customers' glossaries."""

    def translate(blank: Transcript, document: int) -> Turns:
        head = blank.then("system", f"glossary {rng.randrange(30)}", 1_500)
        for piece in range(rng.randint(20, 80)):
            tokens = rng.uniform(150, 450)
            script = head.then("user", f"document {document}.piece {piece}", tokens)
            yield script.ask(f"document {document}.translated {piece}", 1.1 * tokens)

    return _draw_batches(translate, 50, 4.0, demand, rng)


def _draw_batches(
    ask: Callable[[Transcript, int], Turns], size: int, rate: float, demand: Demand, rng: Random
) -> Sessions:
    """Yields batches of single requests, `size` on average and `rate` a second each."""
    blank = Transcript(rng.getrandbits(63))
    starts = islice(arrivals(demand, size, rng), 10 + 2 * demand.requests // size)

    def batch(number: int, at_s: float) -> Sequence[PlannedSession]:
        turns = ask(blank, number)
        return [PlannedSession(0, (turn,), at_s + place / rate) for place, turn in enumerate(turns)]

    return _in_order(*(batch(number, at_s) for number, at_s in enumerate(starts)))


def _in_order(*sessions: Iterable[PlannedSession]) -> Sessions:
    """Yields sessions that have a time of their own by that time, numbered."""
    merged = merge(*sessions, key=lambda session: session.start_s or 0.0)
    return (replace(session, owner=owner) for owner, session in enumerate(merged))


def draw_night(demand: Demand, rng: Random) -> Sessions:
    """Chats, and from 400 s on, for 250 s, a job that reads lone documents at a tenth of their rate."""
    blank, every_s = Transcript(rng.getrandbits(63)), 10 / demand.rps
    lone = (
        tuple(_read(blank, f"document {number}", rng)) for number in range(round(250 / every_s))
    )
    job = [PlannedSession(0, turns, 400 + number * every_s) for number, turns in enumerate(lone)]
    return _in_order(draw_plain(demand, rng), job)


def _read(blank: Transcript, name: str, rng: Random) -> Turns:
    return take_turns(blank, name, 0, rng, [(rng.uniform(1_000, 6_000), _REPLY(rng))])
