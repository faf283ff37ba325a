"""Traces of real traffic in Mooncake's format, replayed at their own times.

One JSON object per line: `timestamp` in milliseconds, `input_length` and `output_length` in tokens,
and `hash_ids`, a name for each 512 tokens of the prompt and for its rest, or for as many as
`block_size` says; equal names after equal names are equal text. Who said what is unknown: a prompt
is one message of a user, or one behind each answer.
"""

# A model's answer has no name in a trace. Where blocks are small, a prompt that begins with all of an
# earlier one, and is longer by that one's answer, is taken for the next turn of the same chat: it
# contains the answer. One that leaves out what a model thought has no room for it. With blocks of
# 512 nobody could tell it from another question.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from extproc.errors import SettingsError
from extproc.simulator.fleet.session import PlannedSession, PlannedTurn, Transcript

BLOCK_TOKENS: Final = 512
_SMALL: Final = 64
_ENOUGH: Final = 0.9


@dataclass(frozen=True, slots=True)
class Trace:
    """Sessions of one turn each, in the order in which they start."""

    sessions: Sequence[PlannedSession]
    digest: str

    def rps(self, speed: float = 1.0) -> float:
        """Requests per second; infinite where all start at once."""
        last_s = self.sessions[-1].start_s
        return len(self.sessions) * speed / last_s if last_s else float("inf")


@lru_cache(maxsize=2)
def read_trace(path: str) -> Trace:
    """Reads a trace; raises `SettingsError` and names the line that cannot be read."""
    try:
        content = Path(path).read_bytes()
    except OSError as fault:
        raise SettingsError(f"{path}: {fault.strerror}") from None
    requests = sorted(_read_lines(path, content), key=lambda request: request.at_s)
    if not requests:
        raise SettingsError(f"{path}: no request in it")
    return Trace([*_plan(requests)], xxh3_64_hexdigest(content))


@dataclass(frozen=True, slots=True)
class _Request:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: list[int]
    size: int


def _read_lines(path: str, content: bytes) -> Iterator[_Request]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _read(msgspec.json.decode(line))
        except (KeyError, TypeError, ValueError, RecursionError) as fault:
            raise SettingsError(f"{path}:{number}: {fault!r}") from None


def _read(row: Mapping[str, object]) -> _Request:
    tokens, answer, blocks = (row[name] for name in ("input_length", "output_length", "hash_ids"))
    if not isinstance(tokens, int) or not isinstance(answer, int) or not isinstance(blocks, list):
        raise TypeError("lengths are integers, hash_ids is a list")
    size = int(str(row.get("block_size", BLOCK_TOKENS)))
    if tokens < 1 or size < 1 or len(blocks) > -(-tokens // size):
        raise ValueError(f"{len(blocks)} blocks of {size} tokens for {tokens} tokens")
    at_s = float(str(row["timestamp"])) / 1000
    if not isfinite(at_s):
        raise ValueError("timestamp is not finite")
    # A request for no token counts as one for one: there is none without output.
    return _Request(at_s, tokens, max(1, answer), [int(block) for block in blocks], size)


def _plan(requests: Sequence[_Request]) -> Iterator[PlannedSession]:
    answered: dict[tuple[int, int], tuple[Sequence[int], PlannedTurn]] = {}
    cuts = _find_cuts([request.blocks for request in requests])
    for owner, request in enumerate(requests):
        blocks, size = request.blocks, request.size
        # Prompts that begin alike have as many characters per token, whoever sends them; all of
        # one service have, since it counted them.
        family = f"trace {blocks[0]}" if blocks else f"request {owner}"
        family = "trace" if size <= _SMALL else family
        script = Transcript()
        for end in range(len(blocks), 0, -1):
            before, turn = answered.get((end, blocks[end - 1]), ((), None))
            if turn and [*before] == [*blocks[:end]]:
                script = _go_on(turn, request.prompt_tokens) or script
                if script.messages:
                    break
        at, role = script.tokens, "user"
        for end in sorted(cuts[owner] | {len(blocks)}):
            if (tokens := min(end * size, request.prompt_tokens) - at) > 0:
                name = f"{family}.{blocks[at // size]}"
                script, at, role = script.then(role, name, tokens), at + tokens, ""
        if at < request.prompt_tokens:
            left = request.prompt_tokens - at
            script = script.then(role, f"{family}.rest {owner}", left)
        turn = script.ask(f"{family}.answer {owner}", request.output_tokens)
        whole = request.prompt_tokens // size
        if size <= _SMALL and 0 < whole <= len(blocks):
            answered[whole, blocks[whole - 1]] = blocks[:whole], turn
        yield PlannedSession(owner, (turn,), request.at_s - requests[0].at_s)


def _go_on(turn: PlannedTurn, prompt_tokens: int) -> Transcript | None:
    """What a longer prompt begins with if it is the next turn; `None`: it has no room for the answer.

    An answer's length may be an estimate.
    """
    *said, answer = turn.messages
    tokens = min(answer.tokens, prompt_tokens - turn.prompt_tokens)
    if tokens < _ENOUGH * answer.tokens:
        return None
    return Transcript(0, (*said, replace(answer, tokens=tokens)))


def _find_cuts(paths: Sequence[list[int]]) -> list[set[int]]:
    """For each of the prompts, after how many blocks others part from it: between, its text is one."""
    cuts = [set[int]() for _ in paths]
    order = sorted(range(len(paths)), key=lambda place: paths[place])
    for line in (order, order[::-1]):
        shared = list[int]()  # with those before it in the line, the furthest first
        for before, place in pairwise(line):
            pairs = enumerate(zip(paths[before], paths[place], strict=False))
            shortest = min(len(paths[before]), len(paths[place]))
            common = next((at for at, (one, two) in pairs if one != two), shortest)
            shared = [*(one for one in shared if one < common), common]
            cuts[place].update(shared)
    return cuts
