"""Joins a burst of changes into one, and bridges moments in which all endpoints turn not ready."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from extproc.router.cluster.source import Sink, SourceFault
from extproc.router.routing.endpoint import Endpoint

log = logging.getLogger(__name__)

# Controllers that come back after an outage mark the pods of one node after the other.
_BURST_S: Final = 10.0


_NOT_READY: Final = SourceFault(
    "not_ready",
    "all endpoints turned not ready at once, and none is gone: those that were ready are still picked",
    has_list=True,
)


class EndpointView(Protocol):
    """What a source has read so far, as one list."""

    def endpoints(self) -> Sequence[Endpoint] | None:
        """Returns the whole list as it is now, `None` before the first one."""

    def unready(self) -> Sequence[Endpoint]:
        """Returns those that exist, do not terminate and are not ready: `endpoints` leaves them out."""
        return ()

    def missing(self) -> SourceFault | None:
        """Why there is no list; `None` where there is one, even an empty one."""
        return None

    def remarks(self) -> Mapping[str, str]:
        """Faults of single objects, by their names; each gets one line in the log."""
        return {}


class LastReady:
    """Keeps endpoints picked that were ready, when all turn not ready within ten seconds and none is gone.

    A control plane that was away for longer than the nodes' leases says so although all serve (as
    Envoy's panic routing assumes). A pool of one endpoint gets no such help. Those that do fail are
    cooled down.
    """

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self._seen_s: dict[str, float] = {}
        self._picked: set[str] = set()

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
            self._picked = set()
        elif before and len(recent) > 1 and recent <= there:
            self._picked = recent
        self._picked &= there
        return [
            replace(endpoint, is_ready=True)
            for endpoint in unready
            if endpoint.address in self._picked
        ]


class DebouncedSink:
    """Passes the list to `sink` `settle_s` after the first change of a burst, and not at each change.

    A pod that moves between two objects leaves the one before it enters the other, and must not
    count as gone meanwhile. Where the list is missing, the sink gets an empty one only if the last
    had endpoints: a Service that never existed is not an empty one, and readiness must say that
    there is no list.
    """

    def __init__(self, sink: Sink, knowledge: EndpointView, settle_s: float) -> None:
        self._sink = sink
        self.restarted = sink.restarted
        self._knowledge = knowledge
        self._settle_s = settle_s
        self._timer: asyncio.TimerHandle | None = None
        self._last_ready = LastReady()
        self._missing: SourceFault | None = None
        self._published: Sequence[Endpoint] | None = None
        self._remarks: Mapping[str, str] = {}

    def listed(self) -> None:
        """Passes on the first list at once, since it makes us ready; a later one is a change like others."""
        if self._published is not None:
            self.changed()
        else:
            self.publish()

    def changed(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._settle_s, self.publish)

    def publish(self) -> None:
        self.close()
        self._missing = self._knowledge.missing()
        endpoints = () if self._missing else self._knowledge.endpoints()
        if endpoints is None:
            return
        if self._missing is None:
            endpoints = self._panic(endpoints)
        if self._missing is None or (self._published and self._published != endpoints):
            self._published = endpoints
            self._sink.replace(endpoints)
        if self._missing:
            self._sink.lacks(*self._missing)
        else:
            self._remark()

    def _panic(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        now_s = asyncio.get_running_loop().time()
        picked = self._last_ready.choose(endpoints, self._knowledge.unready(), now_s)
        if not picked:
            return endpoints
        self._missing = _NOT_READY
        return sorted([*endpoints, *picked], key=lambda endpoint: endpoint.name)

    def confirm(self) -> None:
        missing = self._knowledge.missing() or self._missing
        if missing:
            self._sink.lacks(*missing)
        else:
            self._sink.confirm()

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
