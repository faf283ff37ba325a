"""A run's sessions as a dataset for `extproc bench`: who asks what, when, and with which pauses.

The same load then meets real proxies and endpoints in real time. Prompts have the lengths of the plan in
tokens of four bytes, as a simulated endpoint counts them behind its chat template, and only ASCII: what a
router sees is four characters per token for all of them, however far off they were in the run.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from extproc.simulator.fleet.dialogue import make_text
from extproc.simulator.fleet.fleet import FleetRun
from extproc.simulator.fleet.session import PlannedSession

_HEADER: Final = b'{"format":"extproc-dataset","version":1}'
_BYTES_PER_TOKEN: Final = 4
# What ChatML writes around a message, in tokens: `<|im_start|>user\n` before it, `<|im_end|>\n` behind it.
_HEAD: Final = {"system": 5, "user": 5, "assistant": 6}
_END: Final = 3

_Said = dict[str, str]


def export_run(run: FleetRun) -> bytes:
    """Returns a file that a bench spec reads as `dataset: {name: prepared}`, with `shape: trace`."""
    started = sorted((flight.due_at, flight.number) for flight in run.flights if not flight.turn)
    sessions = {flight.number: flight.session for flight in run.flights if not flight.turn}
    lines = (orjson.dumps(_conversation(sessions[number], at_s)) for at_s, number in started)
    return b"".join(line + b"\n" for line in (_HEADER, *lines))


def _conversation(session: PlannedSession, at_s: float) -> dict[str, Any]:
    return {"turns": [*_turns(session)], "arrival_s": at_s}


def _turns(session: PlannedSession) -> Iterator[dict[str, Any]]:
    """The prompts have their planned lengths, but where a question is too short for what frames it.

    The next ones then make up for it.
    """
    before, used = [*_begin(session)], 0
    for number, turn in enumerate(session.turns):
        head = _shared_text(session) if not number and session.head_role == "user" else ""
        used += sum(map(_count, before)) + _count({"role": "user", "content": head}) + _HEAD["assistant"]
        place = max(0, len(session.history) - 1) + 2 * number
        own = _own_text(session, place, turn.prompt_tokens - used)
        asked = {"role": "user", "content": head + own}
        yield {"messages": [*before, asked], "output_tokens": turn.output_tokens, "think_s": turn.think_s}
        used += len(own) // _BYTES_PER_TOKEN + turn.output_tokens + _END
        before = []


def _begin(session: PlannedSession) -> Iterator[_Said]:
    """Yields what stands before the first question: instructions, and what was said earlier."""
    if session.heads and session.head_role == "system":
        around = (_HEAD["system"] + _END) * _BYTES_PER_TOKEN
        yield {"role": "system", "content": _shared_text(session)[:-around]}
    for place, tokens in enumerate(session.history[:-1]):
        role = "assistant" if place % 2 else "user"
        yield {"role": role, "content": _own_text(session, place, tokens - _HEAD[role] - _END)}


def _count(said: _Said) -> int:
    return _HEAD[said["role"]] + -(-len(said["content"]) // _BYTES_PER_TOKEN) + _END


def _shared_text(session: PlannedSession) -> str:
    texts: Sequence[bytes] = [
        make_text(b"all.%d" % head.text, head.tokens * _BYTES_PER_TOKEN) for head in session.heads
    ]
    return b"".join(texts).decode()


def _own_text(session: PlannedSession, place: int, tokens: int) -> str:
    return make_text(b"%d.%d" % (session.owner, place), max(1, tokens) * _BYTES_PER_TOKEN).decode()
