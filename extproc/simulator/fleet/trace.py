"""Traces of real traffic in Mooncake's format, replayed at their own times.

One JSON object per line: `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and
`hash_ids`, a name for each 512 tokens of the prompt and for its rest; equal names after equal names are equal
text. What a model answered has no name there, so no prompt is known to contain an earlier answer, and
who said what is unknown too: a prompt is one message of a user.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Final

import orjson
from xxhash import xxh3_64_hexdigest

from extproc.errors import SettingsError
from extproc.simulator.fleet.session import CHARS_PER_TOKEN, CommonText, PlannedSession, PlannedTurn

BLOCK_TOKENS: Final = 512
_ERROR: Final = 0.2


@dataclass(frozen=True, slots=True)
class Trace:
    """Sessions of one turn each, and when they start, in seconds from the first one on."""

    sessions: Sequence[PlannedSession]
    starts: Sequence[float]
    digest: str

    def rps(self, speed: float = 1.0) -> float:
        """Requests per second; infinite where all start at once."""
        return len(self.starts) * speed / self.starts[-1] if self.starts[-1] else float("inf")


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
    names: dict[tuple[int, int], int] = {}
    sessions = [_plan(owner, request, names) for owner, request in enumerate(requests)]
    first_s = requests[0].at_s
    return Trace(sessions, [request.at_s - first_s for request in requests], xxh3_64_hexdigest(content))


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
            yield _read(orjson.loads(line))
        except (KeyError, TypeError, ValueError) as fault:
            raise SettingsError(f"{path}:{number}: {fault!r}") from None


def _read(row: Mapping[str, object]) -> _Request:
    tokens, answer, blocks = (row[name] for name in ("input_length", "output_length", "hash_ids"))
    if not isinstance(tokens, int) or not isinstance(answer, int) or not isinstance(blocks, list):
        raise TypeError("lengths are integers, hash_ids is a list")
    if tokens < 1 or len(blocks) > -(-tokens // BLOCK_TOKENS):
        raise ValueError(f"{len(blocks)} blocks of {BLOCK_TOKENS} tokens for {tokens} tokens")
    at_s = float(str(row["timestamp"])) / 1000
    # Who asked for nothing got a token all the same: there is no request without one.
    return _Request(at_s, tokens, max(1, answer), [int(block) for block in blocks])


def _plan(owner: int, request: _Request, names: dict[tuple[int, int], int]) -> PlannedSession:
    heads: list[CommonText] = []
    parent, left, chars = 0, request.prompt_tokens, CHARS_PER_TOKEN
    for block in request.blocks:
        parent = names.setdefault((parent, block), len(names) + 1)
        if not heads:
            # What begins alike has as many characters per token, whoever asks.
            rng = Random(f"characters {parent}")  # noqa: S311  # no secret
            chars *= rng.uniform(1 - _ERROR, 1 + _ERROR)
        heads.append(CommonText(parent, min(left, BLOCK_TOKENS), chars))
        left -= heads[-1].tokens
    turn = PlannedTurn(request.prompt_tokens, request.output_tokens)
    return PlannedSession(owner, (turn,), tuple(heads), "user", is_replayed=True, chars_per_token=chars)
