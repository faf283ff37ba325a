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

# Mooncake hashes blocks of 512 tokens (Mooncake trace format, FAST'25).
_MOONCAKE_BLOCK = 512


class TraceOptions(SpecSection):
    """`speed` above one replays faster. A trace's own sessions are not rebuilt: it holds no text.

    Text is written for every row: cut a long trace with `max-prompts`.
    """

    layout: Literal["azure", "mooncake"]
    speed: float = Field(default=1.0, gt=0)

    @field_validator("layout", mode="before")
    @classmethod
    def _refuse_removed(cls, value: object) -> object:
        if value == "burstgpt":
            raise ValueError("burstgpt was removed in 0.2: write its rows as those of `mooncake`")
        return value


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace; `block_ids` name its prompt's blocks where the trace tells them."""

    at_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()


def replay_trace(
    dataset: Dataset, need: int, rng: np.random.Generator, *, ruler: Ruler = BYTES
) -> list[Conversation]:
    """Reads a trace and writes a prompt of its length for each row; equal block ids give equal text."""
    del need
    options = TraceOptions.model_validate(dataset.options)
    path = require_path(dataset, TraceOptions)
    seed = int(rng.integers(2**32))
    try:
        rows = sorted(_READERS[options.layout](path), key=lambda row: row.at_s)
    except (KeyError, ValueError, OSError) as error:
        raise SettingsError(f"{dataset.path}: not a trace of layout {options.layout}: {error!r}") from None
    rows = rows[: dataset.max_prompts]
    first_s = rows[0].at_s if rows else 0.0
    return [
        Conversation(
            (ChatTurn((TurnMessage("user", _write_prompt(row, number, seed, ruler)),), row.output_tokens),),
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
    for row in read_rows(path):
        blocks = row.get("hash_ids")
        yield TraceRow(
            _read_number(row, "timestamp") / 1000,
            int(_read_number(row, "input_length")),
            int(_read_number(row, "output_length")),
            tuple(blocks) if isinstance(blocks, list) else (),
        )


def _read_number(row: Entry, field: str) -> float:
    value = row[field]
    if not isinstance(value, int | float):
        raise ValueError(f"{field} is not a number")  # noqa: TRY004  one kind of fault per file
    return value


def _write_prompt(row: TraceRow, number: int, seed: int, ruler: Ruler) -> str:
    blocks = row.block_ids or (-1 - number,)
    size = _MOONCAKE_BLOCK if row.block_ids else row.input_tokens
    text = "".join(_write_block(block, size, seed, ruler) for block in blocks)
    return ruler.trim(text, max(1, row.input_tokens))


def _write_block(block: int, tokens: int, seed: int, ruler: Ruler) -> str:
    key = xxhash.xxh3_64_intdigest(block.to_bytes(9, "big", signed=True), seed)
    return ruler.write(tokens, np.random.default_rng(key))


_READERS: Mapping[str, Callable[[Path], Iterator[TraceRow]]] = MappingProxyType(
    {"azure": _read_azure, "mooncake": _read_mooncake}
)
