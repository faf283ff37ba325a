"""One page: the load, what went wrong on purpose, whether all adds up, memory, logs; the verdict."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.slow.soak.books import Balance, Outage
from tests.slow.soak.slope import find_slope
from tests.slow.soak.watch import Life

# A leak of 100 bytes with each of 20 requests a second is 7 MB an hour.
LIMIT_MB_PER_H: Final = 12.0
# A shorter half says nothing of hours: caches are still being filled.
JUDGED_S: Final = 300.0
# Connections that are kept: between Envoys, services, endpoints and the broker.
MORE_DESCRIPTORS: Final = 16
_LISTED: Final = 15
_NUMBERS: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")


@dataclass(slots=True)
class Findings:
    """All that a run left behind."""

    about: str
    seconds: float
    half_s: float
    """The time of day when its second half began."""
    balance: Balance
    counts: Sequence[str]
    """Counts of metrics that their logs do not bear out."""
    compared: int
    in_flight: Mapping[str, float]
    steps: Counter[str]
    outages: Sequence[Outage]
    starved: Sequence[Outage]
    """When the machine had no core for a service: counted as its outages, too."""
    lives: Sequence[Life]
    unexpected: Sequence[str]
    faults: Sequence[str] = field(default_factory=list)

    def followed(self) -> list[Life]:
        """Those whose memory was seen all through the second half."""
        end_s = max((life.samples[-1].at_s for life in self.lives), default=0.0)
        slack_s = 0.1 * (end_s - self.half_s)
        return [
            life
            for life in self.lives
            if life.samples[0].at_s <= self.half_s and life.samples[-1].at_s >= end_s - slack_s
        ]

    def second_half(self, life: Life) -> list[tuple[float, float]]:
        return [point for point in life.memory if point[0] >= self.half_s]

    def growing(self) -> Iterator[str]:
        if self.seconds / 2 < JUDGED_S:
            return
        for life in self.followed():
            slope = find_slope(self.second_half(life))
            if slope.exceeds(LIMIT_MB_PER_H):
                yield f"{life.name} grows by {slope} MB/h"

    def leaking(self) -> Iterator[str]:
        first = {life.name: life.samples[0].descriptors for life in reversed(self.lives)}
        last = {life.name: life.samples[-1].descriptors for life in self.lives}
        for name, count in last.items():
            if count > first[name] + MORE_DESCRIPTORS:
                yield f"{name} has {count} descriptors, {first[name]} at the start"

    def reasons(self) -> list[str]:
        """Why the run is not good; empty if it is."""
        balance = self.balance
        return [
            *(
                [f"{len(balance.faults)} entries of the books do not agree"]
                if not balance.is_even
                else []
            ),
            *self.counts,
            *(f"in flight: {name} {count:g}" for name, count in self.in_flight.items() if count),
            *self.growing(),
            *self.leaking(),
            *([f"{len(self.unexpected)} unexpected lines in logs"] if self.unexpected else []),
            *self.faults,
        ]


def format_report(findings: Findings) -> str:
    reasons = findings.reasons()
    verdict = (
        ["Verdict: good"] if not reasons else ["Verdict: FAILED", *(f"  {why}" for why in reasons)]
    )
    parts = [_books, _wrong, _processes, _logs]
    return "\n".join([*(line for part in parts for line in part(findings)), *verdict])


def _books(findings: Findings) -> Iterator[str]:
    counts, balance = findings.balance.counts, findings.balance
    yield f"Soak: {findings.about}; {findings.seconds / 60:.1f} min, {counts['asked']} requests"
    yield ""
    ends = ", ".join(
        f"{name[9:]} {count}" for name, count in counts.items() if name.startswith("clients: ")
    )
    yield f"Clients {counts['asked']}: {ends}"
    yield f"Envoys {counts['lines']}, services {counts['picked']}, endpoints {counts['served']}"
    yield "Missing, and why it may be:"
    yield from (f"  {count:6} {what}" for what, count in sorted(balance.excused.items()))
    yield f"Neither agreed nor excused: {len(balance.faults)}"
    yield from (f"  {fault}" for fault in balance.shown())
    yield f"Counts of metrics held against logs: {findings.compared}, wrong {len(findings.counts)}"
    left = sum(findings.in_flight.values())
    yield f"In flight at the end, by {len(findings.in_flight)} counts: {left:g}"


def _wrong(findings: Findings) -> Iterator[str]:
    yield ""
    yield "On purpose: " + ", ".join(
        f"{name} {count}" for name, count in sorted(findings.steps.items())
    )
    yield f"Away, s: {_sum(findings.outages)}"
    if findings.starved:
        yield f"Starved by the machine, s: {_sum(findings.starved)}"


def _sum(outages: Sequence[Outage]) -> str:
    away: Counter[str] = Counter()
    for outage in outages:
        away[outage.part] += round(outage.until_s - outage.from_s)
    return ", ".join(f"{part} {seconds}" for part, seconds in sorted(away.items()))


def _processes(findings: Findings) -> Iterator[str]:
    yield ""
    yield "Memory in the second half, MB; slope in MB/h ± two standard errors; descriptors first → last"
    for life in findings.followed():
        half = findings.second_half(life)
        if half:
            slope = find_slope(half)
            first, last = life.samples[0], life.samples[-1]
            figures = f"{half[0][1]:7.1f} → {half[-1][1]:7.1f}  {slope!s:>16}"
            yield f"  {life.name:18} {figures}   {first.descriptors:4} → {last.descriptors}"
    if findings.seconds / 2 < JUDGED_S:
        yield f"  too short to judge slopes: that takes {JUDGED_S / 30:.0f} min"


def _logs(findings: Findings) -> Iterator[str]:
    yield ""
    yield f"Unexpected lines in logs: {len(findings.unexpected)}"
    kinds = Counter(_NUMBERS.sub("#", line) for line in findings.unexpected)
    yield from (f"  {count:6} {line}" for line, count in kinds.most_common(_LISTED))
    yield ""
