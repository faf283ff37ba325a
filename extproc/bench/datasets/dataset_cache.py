"""Prepared datasets that are kept: what was asked once is not made again, and a later run asks the same.

A newer version of the tool, or another machine, may draw other prompts of the same seed: what is kept is
what counts.
"""

import gzip
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
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


def name_file(name: str) -> str:
    return f"{name}.jsonl.gz"


def zip_dataset(conversations: Sequence[Conversation]) -> bytes:
    """The file that is kept: the same bytes for the same dataset."""
    return gzip.compress(encode_prepared(conversations), mtime=0)


@dataclass(frozen=True, slots=True)
class DatasetCache:
    """Folders with datasets, named by what was asked. All are looked through; the last one keeps new ones."""

    folders: tuple[Path, ...]

    def find(self, name: str) -> tuple[Conversation, ...] | None:
        """Returns a dataset that is kept, `None` if none is; raises `SettingsError` for a broken one."""
        for folder in self.folders:
            path = folder / name_file(name)
            if path.exists():
                return tuple(decode_prepared(_unzip(path), str(path)))
        return None

    def keep(self, name: str, conversations: Sequence[Conversation]) -> None:
        """Writes a dataset in one step; raises `SettingsError`."""
        path = self.folders[-1] / name_file(name)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(zip_dataset(conversations))
            draft.replace(path)
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None


def _unzip(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise SettingsError(f"{path}: not a dataset that was kept: {error}") from None
