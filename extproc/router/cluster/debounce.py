"""Telling a burst of changes once."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from extproc.router.cluster.source import Sink
from extproc.router.routing.endpoint import Endpoint

log = logging.getLogger(__name__)


class Missing(NamedTuple):
    """What was asked for and is not there: a fixed word, and a line for operators."""

    why: str
    reason: str


class Knowledge(Protocol):
    """What a source has heard so far, added up."""

    def endpoints(self) -> Sequence[Endpoint] | None:
        """Returns the whole list as it is now, `None` while it is not known."""

    def missing(self) -> Missing | None:
        """Why there is nothing to tell, as far as is known; an empty list misses nothing."""

    def remarks(self) -> Mapping[str, str]:
        """What is odd about parts of it, by their names; each worth one line in the log."""


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
        self._has_list = False
        self._has_endpoints = False
        self._remarks: Mapping[str, str] = {}

    def listed(self) -> None:
        """Tells the first list at once, since it makes us ready; a later one is a change like others."""
        if self._has_list:
            self.changed()
        else:
            self.tell()

    def changed(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._settle_s, self.tell)

    def tell(self) -> None:
        self.close()
        missing = self._knowledge.missing()
        endpoints = () if missing else self._knowledge.endpoints()
        if endpoints is None:
            return
        if missing is None or self._has_endpoints:
            self._has_list, self._has_endpoints = True, bool(endpoints)
            self._sink.replace(endpoints)
        if missing:
            self._sink.lacks(*missing)
        else:
            self._remark()

    def confirm(self) -> None:
        missing = self._knowledge.missing()
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
