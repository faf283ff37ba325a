"""A run's sessions as a dataset for `extproc bench`: who asks what, when, and with which pauses.

The same load then meets real proxies and endpoints in real time. Prompts have the lengths of the
plan in tokens of four bytes, as a simulated endpoint counts them behind its chat template, and only
ASCII: what a router sees is four characters per token for all of them, however far off they were in
the run.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from extproc.simulator.fleet.fleet import FleetRun
from extproc.simulator.fleet.session import PlannedMessage, PlannedSession, make_text

_HEADER: Final = b'{"format":"extproc-dataset","version":1}'
_BYTES_PER_TOKEN: Final = 4
# What ChatML writes around a message, in tokens: `<|im_start|>user\n` before it, `<|im_end|>\n`
# behind it.
_FRAME: Final = 5 + 3
_ANSWER: Final = 6  # before an answer
_END: Final = 3  # behind one, before the next question


def export_run(run: FleetRun) -> bytes:
    """Returns a file that a bench spec reads as `dataset: {name: prepared}`, with `shape: trace`."""
    started = sorted((flight.due_at, flight.number) for flight in run.flights if not flight.turn)
    sessions = {flight.number: flight.session for flight in run.flights if not flight.turn}
    lines = (
        msgspec.json.encode({"turns": [*_turns(sessions[n])], "arrival_s": at_s})
        for at_s, n in started
    )
    return b"".join(line + b"\n" for line in (_HEADER, *lines))


def _turns(session: PlannedSession) -> Iterator[dict[str, Any]]:
    """The prompts have their planned lengths, but where a question is too short for what frames it.

    The next ones then make up for it.
    """
    before = used = 0
    for turn in session.turns:
        said: list[dict[str, str]] = []
        *earlier, asked = turn.messages[before:-1]
        for message in earlier:
            used += _say(said, message, message.tokens - _FRAME)
        used += (
            _say(said, asked, turn.prompt_tokens - used - _ANSWER - _FRAME * bool(asked.role))
            + _ANSWER
        )
        yield {"messages": said, "output_tokens": turn.output_tokens, "think_s": turn.think_s}
        used += turn.output_tokens + _END
        before = len(turn.messages)


def _say(said: list[dict[str, str]], message: PlannedMessage, tokens: int) -> int:
    """Adds a message with a text of so many tokens; returns how many it takes with its frame."""
    text = make_text(b"%x" % message.text, max(1, tokens) * _BYTES_PER_TOKEN).decode()
    if message.role:
        said.append({"role": message.role, "content": text})
    else:
        said[-1]["content"] += text
    return max(1, tokens) + _FRAME * bool(message.role)
