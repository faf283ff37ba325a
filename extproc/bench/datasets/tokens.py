"""Counting tokens here, after the run: beside the server's counts, or instead of missing ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from extproc.bench.datasets.conversation import Message
from extproc.bench.record import Record, TokenSource
from extproc.errors import SettingsError

Count = Callable[[str], int]


def load_tokenizer(path: Path) -> Count:
    """Returns a counter from a local `tokenizer.json`; needs the extra `tokenizers`."""
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  an optional extra
    except ImportError:
        raise SettingsError("target.tokenizer needs the extra `tokenizers`") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises bare exceptions
        raise SettingsError(f"{path}: not a tokenizer: {error}") from None

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def recount(records: Sequence[Record], asked: Sequence[tuple[Message, ...]], count: Count) -> None:
    """Replaces the estimates by a tokenizer's counts, and missing server counts with them.

    What a chat template adds is not in them: the mismatch to the server's input tokens shows it.
    """
    for record, messages in zip(records, asked, strict=True):
        record.estimated_input_tokens = sum(count(message.content) for message in messages)
        record.estimated_output_tokens = count(record.text)
        if record.token_source is TokenSource.ESTIMATE:
            record.token_source = TokenSource.TOKENIZER
            record.input_tokens = record.estimated_input_tokens
            record.output_tokens = record.estimated_output_tokens
