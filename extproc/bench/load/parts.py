"""What workers note of requests, kept as it comes: a part for each, of one line of JSON for each request.

A request may come twice, with its tokens counted better: its last line counts. Whatever is measured is
measured of all records, read back from here.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from extproc.bench.record import Record

_SUFFIX: Final = ".jsonl"
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Record)


class RecordStore(Protocol):
    """Where the parts of a run are. Lines are appended whole, and raise `OSError` where they cannot be.

    A folder is one, such as that of a volume claim. Object storage would be another: an object for each
    `append`, named after the part and in its order, which `read` joins.
    """

    def append(self, part: str, lines: bytes) -> None: ...

    def list_parts(self) -> list[str]: ...

    def read(self, part: str) -> bytes: ...


class FolderStore:
    """A file for each part in a folder, which is made with the first line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, part: str, lines: bytes) -> None:
        self._folder.mkdir(exist_ok=True)
        with self._path(part).open("ab") as file:
            file.write(lines)

    def list_parts(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob(f"*{_SUFFIX}"))

    def read(self, part: str) -> bytes:
        """Returns all lines so far; none of a part that nobody has begun."""
        path = self._path(part)
        return path.read_bytes() if path.exists() else b""

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, part: str) -> Path:
        return self._folder / f"{part}{_SUFFIX}"


def name_part(number: int) -> str:
    """The part of a run's `number`-th worker."""
    return f"worker-{number}"


def encode_lines(records: Iterable[Record]) -> bytes:
    return b"".join(_ENCODER.encode(record) + b"\n" for record in records)


def decode_lines(text: bytes) -> list[Record]:
    """Reads one part; raises `ValueError`. Its last line may be half a line, as of who was killed."""
    *lines, last = text.splitlines() or [b""]
    records = [_DECODER.decode(line) for line in lines]
    with suppress(msgspec.DecodeError):
        records.append(_DECODER.decode(last))
    return records


def merge(parts: Iterable[Iterable[Record]]) -> list[Record]:
    """Puts parts together, in the order of `index`; of what comes twice the last counts."""
    found = {record.index: record for part in parts for record in part}
    return [found[index] for index in sorted(found)]


class Spool:
    """A file that load processes append to, read by who sends it on: whole lines, each once."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        path.touch()
        self.path, self.lines = path, 0
        self._most_bytes, self._at = most_bytes, 0

    def read_new(self) -> Iterator[bytes]:
        """Yields what is new, about `most_bytes` at a time; a longer line comes alone."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            while lines := file.read(self._most_bytes):
                lines += file.readline()
                if not lines.endswith(b"\n"):
                    # Somebody is still writing the last one.
                    lines = lines[: lines.rfind(b"\n") + 1]
                if not lines:
                    return
                self._at += len(lines)
                self.lines += lines.count(b"\n")
                yield lines
                file.seek(self._at)
