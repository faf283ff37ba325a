"""Published traces of real services: arrival times and lengths; the text is generated."""

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import xxhash
from pydantic import Field, field_validator

from extproc.bench.datasets.chats import Entry, read_rows, require_path
from extproc.bench.datasets.conversation import BYTES, ChatTurn, Conversation, Ruler, TurnMessage
from extproc.bench.spec.section import SpecSection
from extproc.bench.spec.traffic import Dataset
from extproc.errors import SettingsError

# Mooncake hashes blocks of 512 tokens (Mooncake trace format, FAST'25); a trace of ours says which.
_MOONCAKE_BLOCK = 512
_MOONCAKE_FIELDS = frozenset(
    {"timestamp", "input_length", "output_length", "hash_ids", "block_size"}
)


class TraceOptions(SpecSection):
    """`layout` where the file's name does not say: `.csv` is Azure's, else it is Mooncake's.

    `speed` above one replays faster. A trace's own sessions are not rebuilt: it holds no text.
    Text is written for every row: cut a long trace with `max-prompts`.
    """

    layout: Literal["azure", "mooncake"] | None = None
    speed: float = Field(default=1.0, gt=0)

    @field_validator("layout", mode="before")
    @classmethod
    def _refuse_removed(cls, value: object) -> object:
        if value == "burstgpt":
            raise ValueError("burstgpt was removed in 0.2: write its rows as those of `mooncake`")
        return value


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace; `block_ids` name its prompt's blocks of `block_size` where the trace has them."""

    at_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int | str, ...] = ()
    block_size: int = _MOONCAKE_BLOCK


def replay_trace(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads a trace and writes a prompt of its length for each row; equal block ids give equal text."""
    del need
    options = TraceOptions.model_validate(dataset.options)
    path = require_path(dataset, TraceOptions)
    seed = int(rng.integers(2**32))
    layout = options.layout or ("azure" if path.suffix == ".csv" else "mooncake")
    try:
        rows = sorted(_READERS[layout](path), key=lambda row: row.at_s)
    except (KeyError, ValueError, OSError) as error:
        raise SettingsError(f"{dataset.path}: not a trace of layout {layout}: {error}") from None
    rows = rows[: dataset.max_prompts]
    first_s = rows[0].at_s if rows else 0.0
    return [
        Conversation(
            (
                ChatTurn(
                    (TurnMessage("user", _write_prompt(row, number, seed, ruler)),),
                    row.output_tokens,
                ),
            ),
            arrival_s=(row.at_s - first_s) / options.speed,
        )
        for number, row in enumerate(rows)
    ]


def _read_azure(path: Path) -> Iterator[TraceRow]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            # Seven decimals of seconds in the published files; Python reads six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            seconds = (at.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001  only differences count
            yield TraceRow(seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _read_mooncake(path: Path) -> Iterator[TraceRow]:
    for number, row in enumerate(read_rows(path), start=1):
        if unread := sorted(row.keys() - _MOONCAKE_FIELDS):
            raise ValueError(
                f"row {number} has {', '.join(unread)}, which is not replayed: leave it out"
            )
        blocks, size = row.get("hash_ids") or [], int(_read_number(row, "input_length", number))
        if not isinstance(blocks, list) or not all(
            isinstance(block, int | str) for block in blocks
        ):
            raise ValueError(f"row {number}: hash_ids is no list of numbers or texts")
        block = int(_read_number({"block_size": _MOONCAKE_BLOCK, **row}, "block_size", number))
        if blocks and size > len(blocks) * block:
            raise ValueError(
                f"row {number}: input_length is above {block} tokens for each of hash_ids"
            )
        at_s = _read_number(row, "timestamp", number) / 1000
        tokens = int(_read_number(row, "output_length", number))
        yield TraceRow(at_s, size, tokens, tuple(blocks), block)


def _read_number(row: Entry, field: str, number: int) -> float:
    value = row.get(field)
    if not isinstance(value, int | float) or value < 0:
        raise ValueError(f"row {number}: {field} is no number from 0 on")
    return value


def _write_prompt(row: TraceRow, number: int, seed: int, ruler: Ruler) -> str:
    blocks = row.block_ids or (f"row {number}",)
    size = row.block_size if row.block_ids else row.input_tokens
    text = "".join(_write_block(block, size, seed, ruler) for block in blocks)
    return ruler.trim(text, max(1, row.input_tokens))


def _write_block(block: int | str, tokens: int, seed: int, ruler: Ruler) -> str:
    key = xxhash.xxh3_64_intdigest(str(block).encode(), seed)
    return ruler.write(tokens, np.random.default_rng(key))


_READERS: Mapping[str, Callable[[Path], Iterator[TraceRow]]] = MappingProxyType(
    {"azure": _read_azure, "mooncake": _read_mooncake}
)
