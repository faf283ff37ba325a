"""Traces of real traffic in Mooncake's format, replayed at their own times.

One JSON object per line: `timestamp` in milliseconds, `input_length` and `output_length` in tokens,
and `hash_ids`, a name for each 512 tokens of the prompt and for its rest; equal names after equal
names are equal text. A model's answer has no name there, so no prompt can be seen to contain an
earlier answer, and who said what is unknown too: a prompt is one message of a user.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from extproc.errors import SettingsError
from extproc.simulator.fleet.session import PlannedSession, Transcript

BLOCK_TOKENS: Final = 512


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
    first_s = requests[0].at_s
    sessions = [_plan(owner, request, first_s) for owner, request in enumerate(requests)]
    return Trace(sessions, xxh3_64_hexdigest(content))


@dataclass(frozen=True, slots=True)
class _Request:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int]


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
    if tokens < 1 or len(blocks) > -(-tokens // BLOCK_TOKENS):
        raise ValueError(f"{len(blocks)} blocks of {BLOCK_TOKENS} tokens for {tokens} tokens")
    at_s = float(str(row["timestamp"])) / 1000
    # A request for no token counts as one for one: there is none without output.
    return _Request(at_s, tokens, max(1, answer), [int(block) for block in blocks])


def _plan(owner: int, request: _Request, first_s: float) -> PlannedSession:
    # Prompts that begin alike have as many characters per token, whoever sends them.
    family = f"trace {request.blocks[0]}" if request.blocks else f"request {owner}"
    script, left = Transcript(), request.prompt_tokens
    for block in request.blocks:
        tokens = min(left, BLOCK_TOKENS)
        script = script.then("" if script.messages else "user", f"{family}.{block}", tokens)
        left -= tokens
    if left:
        script = script.then("" if script.messages else "user", f"{family}.rest {owner}", left)
    turn = script.ask(f"{family}.answer {owner}", request.output_tokens)
    return PlannedSession(owner, (turn,), request.at_s - first_s)
