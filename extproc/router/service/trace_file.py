"""The file of a pool's trace, written in a thread. A full disk or a bad path costs rows, and no request."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_EACH_S: Final = 1.0
# What may wait for a slow disk; more is left out.
_MOST_BYTES: Final = 4 * 1024 * 1024
# An outage writes one line a minute.
_SILENT_S: Final = 60.0


class TraceFile:
    """Takes rows on the loop and writes them to `path`; the file before is kept as `path`.1."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._waiting: list[bytes | None] = []  # `None`: a new file begins
        self._bytes = 0
        self.rows = {"written": 0, "lost": 0}
        self._quiet_until_s = 0.0

    def write_row(self, row: bytes) -> None:
        if self._bytes + len(row) <= _MOST_BYTES:
            self._waiting.append(row)
            self._bytes += len(row)
        else:
            self.lose_row()

    def lose_row(self) -> None:
        self.rows["lost"] += 1

    def begin(self) -> None:
        self._waiting.append(None)

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(_EACH_S)
                await self._write_all()
        finally:
            self._write(self._take())

    async def _write_all(self) -> None:
        taken = self._take()
        written = await asyncio.to_thread(self._write, taken)
        self.rows["written"] += written
        self.rows["lost"] += len(taken) - taken.count(None) - written

    def _take(self) -> list[bytes | None]:
        rows, self._waiting, self._bytes = self._waiting, [], 0
        return rows

    def _write(self, rows: Sequence[bytes | None]) -> int:
        """Returns how many rows are in a file now."""
        written = 0
        try:
            while None in rows:
                place = rows.index(None)
                written += self._append(rows[:place])
                if self._path.is_file():  # never a device, or a folder
                    self._path.replace(f"{self._path}.1")
                rows = rows[place + 1 :]
            written += self._append(rows)
        except OSError as fault:
            if None in rows:  # else a file would go on, past its limit, with names by another key
                self._waiting.insert(0, None)
            if self._clock() >= self._quiet_until_s:
                self._quiet_until_s = self._clock() + _SILENT_S
                log.warning("%s: the trace is not written: %s", self._path, fault.strerror or fault)
        return written

    def _append(self, rows: Sequence[bytes | None]) -> int:
        if not rows:
            return 0
        # A pipe that nobody reads would hold the thread for ever, and with it our end.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        number = os.open(self._path, flags, 0o600)
        with os.fdopen(number, "ab", buffering=0) as file:
            before, written = file.tell(), b"".join(filter(None, rows))
            if file.write(written) != len(
                written
            ):  # the disk is full: half a row would spoil the file
                file.truncate(before)
                raise OSError(28, "no space left on the device")
        return len(rows)
