"""Telling a burst of changes once."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from extproc.router.cluster.source import Sink
from extproc.router.routing.endpoint import Endpoint

log = logging.getLogger(__name__)

# Controllers that come back after an outage mark the pods of one node after the other.
_BURST_S: Final = 10.0


class Missing(NamedTuple):
    """What was asked for and is not there: a fixed word, and a line for operators.

    `has_list`: there is a list to go by all the same.
    """

    why: str
    reason: str
    has_list: bool = False


_NOT_READY: Final = Missing(
    "not_ready",
    "all endpoints turned not ready at once, and none is gone: those that were ready are still picked",
    has_list=True,
)


class Knowledge(Protocol):
    """What a source has heard so far, added up."""

    def endpoints(self) -> Sequence[Endpoint] | None:
        """Returns the whole list as it is now, `None` while it is not known."""

    def unready(self) -> Sequence[Endpoint]:
        """Returns those that are there, do not terminate and are not ready: they are in no list."""
        return ()

    def missing(self) -> Missing | None:
        """Why there is nothing to tell, as far as is known; an empty list misses nothing."""
        return None

    def remarks(self) -> Mapping[str, str]:
        """What is odd about parts of it, by their names; each worth one line in the log."""
        return {}


class LastReady:
    """Who is picked when every endpoint turns not ready within ten seconds and none is gone: who was ready.

    That is what a control plane says that was away for longer than the nodes' leases, while all serve (as
    Envoy's panic routing assumes). One endpoint alone is believed. Those that do fail are cooled down.
    """

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self._seen_s: dict[str, float] = {}
        self._kept: set[str] = set()

    def choose(
        self, endpoints: Sequence[Endpoint], unready: Sequence[Endpoint], now_s: float
    ) -> list[Endpoint]:
        """Returns which of `unready` are picked, as ready ones; none while any of `endpoints` is ready."""
        before = self._ready
        self._seen_s |= dict.fromkeys(before, now_s)
        recent = {address for address, seen_s in self._seen_s.items() if now_s - seen_s < _BURST_S}
        self._ready = {endpoint.address for endpoint in endpoints if endpoint.is_ready}
        there = {endpoint.address for endpoint in unready}
        if self._ready:
            self._seen_s = {address: self._seen_s[address] for address in recent}
            self._kept = set()
        elif before and len(recent) > 1 and recent <= there:
            self._kept = recent
        self._kept &= there
        return [replace(endpoint, is_ready=True) for endpoint in unready if endpoint.address in self._kept]


class DebouncedSink:
    """Tells `sink` what is known `settle_s` after the first change of a burst, and not each change.

    A pod that moves between two objects leaves the one before it enters the other, and must not be told
    as gone. Something that lacks is told as an empty list only where there was one with endpoints: a
    Service that was never there is not an empty one, and who asks is told that nothing is known.
    """

    def __init__(self, sink: Sink, knowledge: Knowledge, settle_s: float) -> None:
        self._sink = sink
        self._knowledge = knowledge
        self._settle_s = settle_s
        self._timer: asyncio.TimerHandle | None = None
        self._last_ready = LastReady()
        self._missing: Missing | None = None
        self._told: Sequence[Endpoint] | None = None
        self._remarks: Mapping[str, str] = {}

    def listed(self) -> None:
        """Tells the first list at once, since it makes us ready; a later one is a change like others."""
        if self._told is not None:
            self.changed()
        else:
            self.tell()

    def changed(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._settle_s, self.tell)

    def tell(self) -> None:
        self.close()
        self._missing = self._knowledge.missing()
        endpoints = () if self._missing else self._knowledge.endpoints()
        if endpoints is None:
            return
        if self._missing is None:
            endpoints = self._panic(endpoints)
        if self._missing is None or (self._told and self._told != endpoints):
            self._told = endpoints
            self._sink.replace(endpoints)
        if self._missing:
            self._sink.lacks(*self._missing)
        else:
            self._remark()

    def _panic(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        now_s = asyncio.get_running_loop().time()
        kept = self._last_ready.choose(endpoints, self._knowledge.unready(), now_s)
        if not kept:
            return endpoints
        self._missing = _NOT_READY
        return sorted([*endpoints, *kept], key=lambda endpoint: endpoint.name)

    def confirm(self) -> None:
        missing = self._knowledge.missing() or self._missing
        if missing:
            self._sink.lacks(*missing)
        else:
            self._sink.confirm()

    def restarted(self, why: str, reason: str | None) -> None:
        self._sink.restarted(why, reason)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remark(self) -> None:
        remarks = self._knowledge.remarks()
        for name in sorted(remarks):
            if remarks[name] != self._remarks.get(name):
                log.warning("%s %s", name, remarks[name])
        self._remarks = remarks
