"""Prepared datasets that are kept: what was asked once is not made again, and a later run asks the same.

A newer version of the tool, or another machine, may draw other prompts of the same seed: what is kept is
what counts.
"""

import gzip
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from extproc.bench.datasets.conversation import Conversation
from extproc.bench.datasets.prepared import decode_prepared, encode_prepared
from extproc.errors import SettingsError


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
