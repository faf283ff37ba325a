"""A run on disk while it goes: a line for its facts, one for each request that ended, one for its end.

What a run leaves behind however it ends: killed, it lacks the last half second and its own end.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from extproc.bench.record import (
    ClientStats,
    EndpointScrape,
    FleetSample,
    PartStats,
    Record,
    RunInfo,
    RunResult,
    Window,
)
from extproc.bench.spec.tree import Spec
from extproc.errors import ExtprocError

_FORMAT = "extproc-run/1"
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Record)


class JournalError(ExtprocError):
    """A file is not what a run writes while it goes."""


class _Facts(msgspec.Struct):
    """What is known before the first request."""

    format: str
    spec: dict[str, Any]
    model: str
    started_at: datetime
    window: Window
    schedule_s: tuple[float, ...]
    offered_rps: float | None
    prompts: int | None
    parts: tuple[PartStats, ...] = ()


class _End(msgspec.Struct):
    """What is known after the last one."""

    duration_s: float
    window: Window
    clients: tuple[ClientStats, ...]
    scrapes: tuple[EndpointScrape, ...]
    interrupted_s: float | None
    fleet: tuple[FleetSample, ...] = ()


class Journal:
    """Appends requests; several processes may do so at once. A full disk ends it, not the run."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def note(self, records: Iterable[Record]) -> None:
        # One write for all: lines of other processes come before or after, never between.
        with suppress(OSError):
            os.write(self._file, encode_lines(records))

    def close(self) -> None:
        os.close(self._file)


def encode_lines(records: Iterable[Record]) -> bytes:
    return b"".join(_ENCODER.encode(record) + b"\n" for record in records)


def decode_lines(text: bytes) -> tuple[list[Record], int]:
    """Reads requests; returns them and how many lines end half-way, as of a process that was killed.

    Another process may have written its next line right behind such a half.
    """
    records, cut = [], 0
    for line in text.splitlines():
        try:
            records.append(_DECODER.decode(line))
        except msgspec.DecodeError:
            cut += 1
    return records, cut


def open_journal(path: Path, info: RunInfo) -> None:
    """Begins the file anew with the facts of a run; it is never there without them."""
    spec = info.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    own = {name: getattr(info, name) for name in _Facts.__struct_fields__[2:]}
    facts = _Facts(_FORMAT, spec, **own)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(msgspec.json.encode(facts) + b"\n")
    draft.replace(path)


def close_journal(path: Path, info: RunInfo) -> None:
    """Adds the end of a run."""
    end = _End(**{name: getattr(info, name) for name in _End.__struct_fields__})
    with path.open("ab") as file:
        file.write(msgspec.json.encode(end) + b"\n")


def read_journal(path: Path) -> RunResult:
    """Rebuilds a run; one without its end was killed. A request may come twice: its last line counts.

    Raises `JournalError`.
    """
    try:
        data = path.read_bytes()
        if not data:
            raise JournalError(f"{path}: empty: nothing was written of this run")
        head, _, text = data.partition(b"\n")
        facts = msgspec.json.decode(head, type=_Facts)
        body, _, last = text.removesuffix(b"\n").rpartition(b"\n")
        end = msgspec.json.decode(last, type=_End) if last.startswith(b'{"duration_s"') else None
        lines, cut = decode_lines(text if end is None else body)
        found = {record.index: record for record in lines}
        records = [found[index] for index in sorted(found)]
    except (OSError, ValueError) as error:
        raise JournalError(f"{path}: not the record of a run: {error}") from None
    if facts.format != _FORMAT:
        raise JournalError(
            f"{path}: its format is {facts.format!r}; this version reads {_FORMAT!r}"
        )
    known = {name: getattr(facts, name) for name in _Facts.__struct_fields__[2:]}
    info = RunInfo(spec=Spec.model_validate(facts.spec), cut_lines=cut, **known)
    return RunResult(_finish(info, end, records), tuple(records))


def _finish(info: RunInfo, end: _End | None, records: Sequence[Record]) -> RunInfo:
    if end is not None:
        cut_s = end.interrupted_s
        lost = None if cut_s is None else f"interrupted after {cut_s:.1f} s"
        parts = tuple(replace(part, lost=lost) for part in info.parts)
        return replace(info, **msgspec.structs.asdict(end), parts=parts)
    last_s = find_end(records)
    parts = tuple(
        replace(part, lost=part.lost or f"killed after {last_s:.1f} s") for part in info.parts
    )
    return replace(
        info, duration_s=last_s, window=clip(info.window, last_s), interrupted_s=last_s, parts=parts
    )


def find_end(records: Iterable[Record]) -> float:
    """When the last request ended, those cut off included."""
    return max((record.end_s for record in records if record.end_s is not None), default=0.0)


def clip(window: Window, end_s: float) -> Window:
    """The part of a window that a run which ended early has reached."""
    return Window(window.start_s, max(window.start_s, min(window.end_s, end_s)))
