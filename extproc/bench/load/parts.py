"""A run in parts: n machines offer one schedule from one instant, and their journals become one result.

Every part builds the same schedule from the same seed and offers its share of it; nobody leads.
Clocks are NTP's business: a part notes how far its own is from the server's `Date`, which shows
errors above a second.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import aiohttp

from extproc.bench.load.driver import Agree, LoadError
from extproc.bench.load.journal import JournalError, clip, read_journal
from extproc.bench.record import PartStats, Record, RunResult
from extproc.errors import SettingsError

# By then every load process must know the start.
_LEAD_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Part:
    """The share `number` (from 0) of `count` equal ones; the run begins at `start_at`, seconds since 1970."""

    number: int
    count: int
    start_at: float

    def __str__(self) -> str:
        return f"part {self.number} of {self.count}"

    @property
    def journal(self) -> str:
        return f"run.part-{self.number}-of-{self.count}.jsonl"

    def agree(self, stop: asyncio.Event) -> Agree:
        """Returns what waits for the start; raises `LoadError` if it is over already, or `stop` is set."""

        async def wait() -> float:
            late_s = time.time() - self.start_at
            if late_s > 0:
                raise LoadError(
                    f"{self} was ready {late_s:.1f} s after --start-at: give it more time"
                )
            try:
                async with asyncio.timeout(max(0.0, -late_s - _LEAD_S)):
                    await stop.wait()
            except TimeoutError:
                return time.monotonic() + self.start_at - time.time()
            raise LoadError(f"{self} was interrupted before the start")

        return wait


def parse_part(text: str, start_at: str | None) -> Part:
    """Reads `i/n`, i from 0, and a time as RFC 3339 or unix seconds; raises `SettingsError`."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise SettingsError(f"--part {text}: give i/n with i from 0 to n-1")
    if start_at is None:
        raise SettingsError("--part: give --start-at, too, so that all parts begin together")
    return Part(int(number), int(count), _parse_time(start_at))


def _parse_time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"--start-at {text}: give RFC 3339 or seconds since 1970") from None
    if at.tzinfo is None:
        raise SettingsError(f"--start-at {text}: give its time zone, such as Z")
    return at.timestamp()


async def find_clock_offset(base_url: str) -> float | None:
    """By how much this clock is ahead of the server's, to half a second; `None` without a `Date` header."""
    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            sent_s = time.time()
            async with session.get(f"{base_url}/v1/models") as answer:
                server_s = parsedate_to_datetime(answer.headers["date"]).timestamp()
            # The header has whole seconds: the server's time was half a second later on average.
            return (sent_s + time.time()) / 2 - server_s - 0.5
    except (aiohttp.ClientError, TimeoutError, OSError, LookupError, ValueError, TypeError):
        return None


def list_journals(paths: Sequence[Path]) -> list[Path]:
    """The journals of one run: of a folder its parts, else the one of a whole run."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            parts = sorted(path.glob("run.part-*-of-*.jsonl"))
            found += parts or [path / "run.jsonl"]
        else:
            found.append(path)
    return found


def read_run(paths: Sequence[Path]) -> RunResult:
    """Reads a run from its journal, or from those of its parts; raises `JournalError`."""
    runs = [(str(path), read_journal(path)) for path in list_journals(paths)]
    if len(runs) == 1 and not runs[0][1].info.parts:
        return runs[0][1]
    return merge_parts(runs)


def merge_parts(runs: Sequence[tuple[str, RunResult]]) -> RunResult:
    """Puts the parts of a run together; what is missing or does not fit is in `parts`, for the verdict.

    Raises `JournalError` for what is no part of the same run.
    """
    (first_name, first), *_ = runs
    for name, each in runs:
        if not each.info.parts:
            raise JournalError(f"{name}: a whole run, no part of one (bench run --part)")
        facts = [(i.spec, i.model, i.schedule_s, i.parts[0].count) for i in (each.info, first.info)]
        if facts[0] != facts[1]:
            raise JournalError(
                f"{first_name}, {name}: parts of different runs (spec, model or schedule differ)"
            )
    infos = [each.info for _, each in runs]
    parts = [
        replace(info.parts[0], records=len(each.records))
        for info, (_, each) in zip(infos, runs, strict=True)
    ]
    there = {part.number for part in parts}
    count = parts[0].count
    parts += [PartStats(i, count, lost="it has no journal") for i in range(count) if i not in there]
    records: dict[int, Record] = {
        record.index: record for _, each in runs for record in each.records
    }
    cuts = [info.interrupted_s for info in infos if info.interrupted_s is not None]
    window = replace(first.info.window, end_s=max(info.window.end_s for info in infos))
    whole = next((info for info in infos if info.interrupted_s is None), first.info)
    merged = replace(
        whole,
        started_at=min(info.started_at for info in infos),
        duration_s=max(info.duration_s for info in infos),
        window=clip(window, min(cuts)) if cuts else window,
        clients=tuple(client for info in infos for client in info.clients),
        interrupted_s=min(cuts) if cuts else None,
        parts=tuple(sorted(parts, key=lambda part: part.number)),
    )
    return RunResult(merged, tuple(records[index] for index in sorted(records)))
