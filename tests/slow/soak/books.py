"""Four books of the same requests: the clients', the Envoys', the services', the endpoints'. Pure.

Each request has an id, and each book is held against the one before it, to the request. What is
missing somewhere must be missing by an outage that is known: a part was killed or stopped while the
request was with it.
"""

# The rules:
#
# - What a client sent is one line in one Envoy's log; none, if that Envoy was killed while the
#   request was with it or at most `UNWRITTEN_S` after its end: an Envoy writes its log every 50 ms.
#   What nobody listened for is no line, and wants that Envoy to be away.
# - Client and Envoy have the same status. An answer that breaks off, and a failure that is no
#   endpoint's own, want an Envoy or an endpoint that was away.
# - A line with a pick is one pick in the log of one of that gateway's services, of the same
#   endpoint. A line without wants a service that was away, a client that left, or `PATIENCE_S`
#   without an answer; so does a pick that its line does not name. One without a line wants the
#   Envoy to be killed.
# - What an endpoint answered is one entry in its own log, of the same status. No request is begun
#   twice. An entry without an end wants the endpoint to be killed; one without a line, the Envoy.
# - What a part has counted in its metrics is what it wrote in its log, when all is quiet. Of a life
#   that was ended, the count is from just before: the log has as much or more. What a worker
#   counted after its last scrape ends with it: what it logged from there on may be missing, and no
#   more.

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

UNWRITTEN_S: Final = 1.0
# `message_timeout` of the shipped configurations.
PATIENCE_S: Final = 3.0
# After so long an endpoint has noticed that nobody waits any more.
UNHEARD_S: Final = 1.0
_SHOWN: Final = 20


class End(StrEnum):
    """What a client saw."""

    WHOLE = "whole"
    BROKEN = "broken"
    LEFT = "left"
    UNHEARD = "unheard"
    """It left before it had sent anything."""
    REFUSED = "refused"
    """Nobody listened."""


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """A request as its client knows it. Times are of the day."""

    id: str
    gateway: int
    began_s: float
    ended_s: float
    end: End
    status: int = 0


@dataclass(frozen=True, slots=True)
class GatewayEntry:
    """A line of an Envoy's access log. Without a pick `picked` is empty."""

    id: str
    gateway: int
    began_s: float
    ended_s: float
    status: int
    details: str = "via_upstream"
    flags: str = ""
    picked: str = ""
    served_by: str = ""

    @property
    def is_left(self) -> bool:
        """Whether the client went away."""
        return bool({"DC", "DR", "DPE"} & set(self.flags.split(",")))

    @property
    def is_endpoints(self) -> bool:
        """Whether an endpoint's answer came to its end."""
        return self.details == "via_upstream"


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """A decision in a service's log: an endpoint's name, or empty for an answer of its own."""

    id: str
    gateway: int
    at_s: float
    endpoint: str


@dataclass(frozen=True, slots=True)
class EndpointEntry:
    """An entry of an endpoint's log. `ended_s` is `None` if it never ended, `status` if it was cancelled."""

    id: str
    endpoint: str
    began_s: float
    ended_s: float | None
    status: int | None


@dataclass(frozen=True, slots=True)
class Outage:
    """A part that was away: from before it was killed or stopped until it was seen to serve again.

    Or that the machine had no core for.
    """

    part: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Tally:
    """What a part's metrics counted in one life, whose log begins at byte `start`.

    `is_last`: when nobody asked any more; else before the end, and more may have come.
    """

    part: str
    start: int
    counted: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Books:
    asked: Sequence[ClientEntry]
    lines: Sequence[GatewayEntry]
    picked: Sequence[DecisionEntry]
    served: Sequence[EndpointEntry]
    outages: Sequence[Outage]


@dataclass(slots=True)
class Balance:
    """What agrees and what is excused, counted; what is neither, told."""

    counts: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def is_even(self) -> bool:
        return not self.faults

    def settle(self, what: str, subject: object, *, excuse: bool) -> None:
        """Notes something that is missing: excused, or a fault."""
        if excuse:
            self.excused[what] += 1
        else:
            self.faults.append(f"{what}: {subject}")

    def shown(self) -> Sequence[str]:
        more = len(self.faults) - _SHOWN
        return [*self.faults[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def envoy(gateway: int) -> str:
    """What a gateway's Envoy is called in outages."""
    return f"envoy {gateway}"


def service_name(gateway: int) -> str:
    return f"service {gateway}"


_Entry = TypeVar("_Entry", ClientEntry, GatewayEntry, DecisionEntry, EndpointEntry)


def compare_counts(tally: Tally, logged: int) -> str:
    """Returns what is wrong with a count beside the `told` entries of the log from there on, or nothing."""
    least = logged if tally.is_last else 0
    if least <= tally.counted <= logged:
        return ""
    return f"{tally.part} counted {tally.counted}, its log has {logged}"


def reconcile(books: Books) -> Balance:
    return _Clerk(books).compare()


class _Clerk:
    def __init__(self, books: Books) -> None:
        self._books = books
        self._balance = Balance()
        self._outages = defaultdict[str, list[Outage]](list)
        for outage in books.outages:
            self._outages[outage.part].append(outage)
        self._asked = self._only(books.asked, "asked twice")
        self._lines = self._only(books.lines, "two lines of an Envoy")
        self._picked = self._only(books.picked, "picked twice")
        self._served = self._only(books.served, "begun twice at endpoints")

    def compare(self) -> Balance:
        books, counts = self._books, self._balance.counts
        for name in ("asked", "lines", "picked", "served"):
            counts[name] = len(getattr(books, name))
        for asked in self._asked.values():
            counts[f"clients: {asked.end}"] += 1
            self._compare_line(asked)
        for line in self._lines.values():
            if line.id not in self._asked:
                self._balance.settle("a line of no client", line, excuse=False)
            self._compare_pick(line)
            self._compare_answer(line)
        self._compare_orphans()
        return self._balance

    def _only(self, entries: Iterable[_Entry], twice: str) -> dict[str, _Entry]:
        only: dict[str, _Entry] = {}
        for entry in entries:
            if entry.id in only:
                self._balance.settle(twice, entry, excuse=False)
            only[entry.id] = entry
        return only

    def _was_away(
        self, parts: Iterable[str], began_s: float, ended_s: float, margin_s: float = 0.0
    ) -> bool:
        """Whether one of them was away at any time from `began_s` to `ended_s`, which `margin_s` follows."""
        return any(
            outage.from_s <= ended_s + margin_s and began_s <= outage.until_s
            for part in parts
            for outage in self._outages.get(part, ())
        )

    def _endpoints(self) -> Iterator[str]:
        return (part for part in self._outages if not part.startswith(("envoy", "service")))

    def _compare_line(self, asked: ClientEntry) -> None:
        """Clients against Envoys."""
        line = self._lines.get(asked.id)
        span = (asked.began_s, asked.ended_s)
        is_cut = self._was_away([envoy(asked.gateway)], *span)
        if line is None:
            is_lost = self._was_away([envoy(asked.gateway)], *span, UNWRITTEN_S)
            excuse = asked.end is End.UNHEARD or is_lost
            self._balance.settle(f"no line of what was {asked.end}", asked, excuse=excuse)
            return
        if line.gateway != asked.gateway:
            self._balance.settle("a line of another gateway", (asked, line), excuse=False)
        match asked.end:
            case End.REFUSED | End.UNHEARD:
                self._balance.settle(
                    f"a line of what was {asked.end}", (asked, line), excuse=is_cut
                )
            case End.BROKEN:
                is_torn = self._was_away(self._endpoints(), *span)
                self._balance.settle("an answer broke off", (asked, line), excuse=is_cut or is_torn)
            case End.WHOLE:
                self._compare_whole(asked, line)
            case End.LEFT:
                pass  # before the answer or behind its last byte: Envoy may log either

    def _compare_whole(self, asked: ClientEntry, line: GatewayEntry) -> None:
        if line.status != asked.status:
            self._balance.settle(
                "client and Envoy tell different statuses", (asked, line), excuse=False
            )
        elif not line.is_endpoints:
            is_away = self._was_away(self._endpoints(), asked.began_s, asked.ended_s)
            self._balance.settle(
                f"Envoy's own answer, {line.status}", (asked, line), excuse=is_away
            )

    def _compare_pick(self, line: GatewayEntry) -> None:
        """Envoys against services."""
        picked = self._picked.get(line.id)
        if line.picked and picked is None:
            self._balance.settle("a pick that no service tells of", line, excuse=False)
        elif line.picked and picked is not None:
            if (picked.endpoint, picked.gateway) != (line.picked, line.gateway):
                self._balance.settle("a pick that was another one", (line, picked), excuse=False)
        else:
            what = "passed by the service" if picked is None else "a pick that Envoy did not have"
            self._balance.settle(what, line, excuse=self._is_passed_by(line))

    def _is_passed_by(self, line: GatewayEntry) -> bool:
        is_late = line.ended_s - line.began_s >= PATIENCE_S
        return (
            line.is_left
            or is_late
            or self._was_away([service_name(line.gateway)], line.began_s, line.ended_s)
        )

    def _compare_answer(self, line: GatewayEntry) -> None:
        """Envoys against endpoints."""
        served = self._served.get(line.id)
        if served is None:
            excuse = line.is_left or not line.is_endpoints
            if not excuse:
                self._balance.settle("an answer that no endpoint gave", line, excuse=False)
            return
        if line.is_endpoints and not line.is_left:
            if served.endpoint != line.served_by:
                self._balance.settle("an answer of another endpoint", (line, served), excuse=False)
            elif served.status is None:
                excuse = self._was_killed(served)
                self._balance.settle(
                    "an answer that its endpoint did not end", (line, served), excuse=excuse
                )
            elif served.status != line.status:
                self._balance.settle("statuses differ behind Envoy", (line, served), excuse=False)

    def _was_killed(self, served: EndpointEntry) -> bool:
        """Whether the endpoint was killed while somebody still waited for this answer."""
        waiting = self._lines.get(served.id) or self._asked.get(served.id)
        if waiting is None:
            return False
        return self._was_away([served.endpoint], served.began_s, waiting.ended_s, UNHEARD_S)

    def _compare_orphans(self) -> None:
        """What no Envoy logged, and what never ended."""
        for picked in self._picked.values():
            if picked.id not in self._lines:
                self._settle_orphan("a pick without a line", picked.id, picked)
        for served in self._served.values():
            if served.id not in self._lines:
                self._settle_orphan("an endpoint's entry without a line", served.id, served)
            if served.ended_s is None:
                self._balance.settle(
                    "an endpoint's entry without an end", served, excuse=self._was_killed(served)
                )

    def _settle_orphan(self, what: str, request: str, subject: object) -> None:
        asked = self._asked.get(request)
        excuse = asked is not None and self._was_away(
            [envoy(asked.gateway)], asked.began_s, asked.ended_s, UNWRITTEN_S
        )
        self._balance.settle(what, subject, excuse=excuse)
