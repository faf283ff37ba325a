"""Counting tokens by a local tokenizer: for prompts of a length, and after a run beside the server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from extproc.bench.datasets.conversation import BYTES, Ruler, TurnMessage
from extproc.bench.record import Record, TokenSource
from extproc.bench.spec.tree import Target
from extproc.errors import MissingExtra, SettingsError


class TokenRuler:
    """Counts by a local `tokenizer.json`; synthetic words are a token or more each."""

    def __init__(self, path: Path) -> None:
        self.name = f"the tokenizer {path}"
        self._tokenizer = _load(path)

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def trim(self, text: str, tokens: int) -> str:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        kept = tokens
        # A head is cut into other tokens than the whole, now and then into one more.
        while len(offsets) > kept > 0:
            head = text[: offsets[kept - 1][1]]
            if self.count(head) <= tokens:
                return head
            kept -= 1
        return text if kept else ""

    def write(self, tokens: int, rng: np.random.Generator) -> str:
        return self.trim(BYTES.write(tokens, rng), tokens)


def read_ruler(target: Target) -> Ruler:
    """Returns what tokens are counted by: the target's tokenizer if it has one, else the estimate."""
    return BYTES if target.tokenizer is None else TokenRuler(target.tokenizer)


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  an optional extra
    except ImportError:
        raise MissingExtra("target.tokenizer", "tokenizers") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises bare exceptions
        raise SettingsError(f"target.tokenizer: {path}: not a tokenizer: {error}") from None


def recount(
    records: Sequence[Record], prompts: Sequence[tuple[TurnMessage, ...]], ruler: Ruler
) -> None:
    """Replaces the estimates by a tokenizer's counts, and missing server counts with them.

    What a chat template adds is not in them: the mismatch to the server's input tokens shows it.
    """
    for record, messages in zip(records, prompts, strict=True):
        record.estimated_input_tokens = sum(ruler.count(message.content) for message in messages)
        record.estimated_output_tokens = max(ruler.count(record.text), len(record.chunk_s))
        if record.token_source is TokenSource.ESTIMATE:
            record.token_source = TokenSource.TOKENIZER
            record.input_tokens = record.estimated_input_tokens
            record.output_tokens = record.estimated_output_tokens
