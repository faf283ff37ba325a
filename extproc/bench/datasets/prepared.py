"""The preprocessor's own file: JSON lines, a header and one conversation per line."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from extproc.bench.datasets.conversation import Conversation
from extproc.bench.datasets.source import require_path
from extproc.bench.spec.traffic import Dataset
from extproc.errors import SettingsError

_HEADER = b'{"format":"extproc-dataset","version":1}'


def write_prepared(path: Path, conversations: Sequence[Conversation]) -> None:
    """Writes the file as one piece."""
    path.write_bytes(encode_prepared(conversations))


def encode_prepared(conversations: Sequence[Conversation]) -> bytes:
    return b"\n".join([_HEADER, *map(msgspec.json.encode, conversations), b""])


def read_prepared(dataset: Dataset, need: int, rng: np.random.Generator) -> list[Conversation]:
    """Reads what `write_prepared` wrote; raises `SettingsError` with the line at fault."""
    del need, rng
    path = require_path(dataset)
    return decode_prepared(path.read_bytes(), str(path))


def decode_prepared(data: bytes, where: str) -> list[Conversation]:
    """Reads the bytes of a file; raises `SettingsError` with the line at fault."""
    decoder = msgspec.json.Decoder(Conversation)
    header, *lines = data.splitlines() or [b""]
    if header != _HEADER:
        raise SettingsError(f"{where}: not a dataset file of this version")
    conversations = []
    for number, line in enumerate(lines, start=2):
        try:
            conversations.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise SettingsError(f"{where}: line {number}: {error}") from None
    return conversations
