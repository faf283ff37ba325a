"""A worker's side of what is watched: sources that say what the parent's say."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_fields

from extproc.router.cluster.objectives import ObjectivesSink
from extproc.router.cluster.source import Sink, Source
from extproc.router.routing.endpoint import Endpoint, join_address
from extproc.router.service.outages import Outages
from extproc.router.service.wiring import Priorities
from extproc.router.settings.endpoints import InferencePoolSettings
from extproc.router.settings.tree import PoolSettings
from extproc.router.workers.feeds import endpoints_key, objectives_key
from extproc.router.workers.messages import (
    Confirmed,
    Forgotten,
    Lacking,
    Listed,
    Prioritised,
    Restarted,
    Told,
)


class Fed:
    """What the parent has told, by source. What comes before its pool is there is kept for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listed: dict[str, tuple[Listed, float]] = {}  # each with when it was true
        self._faults: dict[str, Restarted | Lacking] = {}
        self._prioritised: dict[str, tuple[Prioritised, float]] = {}
        self._sinks: dict[str, Sink] = {}
        self._objectives_sinks: dict[str, ObjectivesSink] = {}

    def __repr__(self) -> str:
        return f"<Fed {len(self._listed)} lists>"

    # What pools ask for.

    def endpoints(self, settings: PoolSettings) -> Source:
        return _FedSource(self, endpoints_key(settings))

    def objectives(self, pool: str, settings: InferencePoolSettings) -> Priorities:
        return _FedPriorities(self, objectives_key(pool, settings))

    def source(self, key: str) -> Source:
        return _FedSource(self, key)

    def join(self, key: str, sink: Sink) -> None:
        self._sinks[key] = sink
        if key in self._listed:
            told, then_s = self._listed[key]
            _pass(replace_fields(told, age_s=self._clock() - then_s), sink)
        if key in self._faults:
            _pass(self._faults[key], sink)

    def leave(self, key: str, sink: Sink) -> None:
        if self._sinks.get(key) is sink:
            del self._sinks[key]

    def join_objectives(self, key: str, sink: ObjectivesSink) -> None:
        self._objectives_sinks[key] = sink
        if key in self._prioritised:
            sink.replace(self._prioritised[key][0].priorities)

    def leave_objectives(self, key: str, sink: ObjectivesSink) -> None:
        if self._objectives_sinks.get(key) is sink:
            del self._objectives_sinks[key]

    def age_s(self, key: str) -> float | None:
        told, then_s = self._prioritised.get(key, (None, 0.0))
        return None if told is None or told.age_s is None else told.age_s + self._clock() - then_s

    # What the parent says.

    def take(self, told: Told) -> None:
        match told:
            case Prioritised():
                self._prioritise(told)
                return
            case Forgotten(key):
                self._listed.pop(key, None)
                self._faults.pop(key, None)
                self._prioritised.pop(key, None)
                return
            case Listed():
                self._listed[told.key] = (told, self._clock() - told.age_s)
                self._faults.pop(told.key, None)
            case Confirmed():
                self._confirm(told.key)
            case Restarted(reason=None):
                pass  # a watch that ended in its time
            case Restarted() | Lacking():
                self._faults[told.key] = told
        if told.key in self._sinks:
            _pass(told, self._sinks[told.key])

    def _confirm(self, key: str) -> None:
        self._faults.pop(key, None)
        if key in self._listed:
            self._listed[key] = (self._listed[key][0], self._clock())

    def _prioritise(self, told: Prioritised) -> None:
        before, _ = self._prioritised.get(told.key, (None, 0.0))
        self._prioritised[told.key] = (told, self._clock())
        if told.key in self._objectives_sinks and (before is None or before.priorities != told.priorities):
            self._objectives_sinks[told.key].replace(told.priorities)


def _pass(told: Listed | Confirmed | Restarted | Lacking, sink: Sink) -> None:
    match told:
        case Listed():
            sink.replace(told.endpoints)
            if told.age_s:
                sink.confirm(told.age_s)
        case Confirmed():
            sink.confirm()
        case Restarted():
            sink.restarted(told.why, told.reason)
        case Lacking():
            sink.lacks(told.why, told.reason)


class _FedSource:
    def __init__(self, fed: Fed, key: str) -> None:
        self._fed = fed
        self._key = key

    def __repr__(self) -> str:
        return f"<FedSource {self._key}>"

    async def run(self, sink: Sink) -> None:
        self._fed.join(self._key, sink)
        try:
            await asyncio.Event().wait()
        finally:
            self._fed.leave(self._key, sink)


class _FedPriorities:
    def __init__(self, fed: Fed, key: str) -> None:
        self._fed = fed
        self._key = key

    @property
    def age_s(self) -> float | None:
        return self._fed.age_s(self._key)

    async def run(self, sink: ObjectivesSink) -> None:
        self._fed.join_objectives(self._key, sink)
        try:
            await asyncio.Event().wait()
        finally:
            self._fed.leave_objectives(self._key, sink)


class Unsaid(Outages):
    """The parent says it, once for all."""

    def failed(self, pool: str, why: str, reason: str) -> None:
        pass


class Consecutive:
    """A source's endpoints at `count` ports each, from their own on: where the workers of gateways listen."""

    def __init__(self, source: Source, count: int) -> None:
        self._source = source
        self._count = count

    def __repr__(self) -> str:
        return f"<Consecutive {self._count} of {self._source!r}>"

    async def run(self, sink: Sink) -> None:
        await self._source.run(_ConsecutiveSink(sink, self._count))


class _ConsecutiveSink:
    def __init__(self, sink: Sink, count: int) -> None:
        self._sink = sink
        self._count = count
        self.confirm = sink.confirm
        self.restarted = sink.restarted
        self.lacks = sink.lacks

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        self._sink.replace([one for endpoint in endpoints for one in self._all(endpoint)])

    def _all(self, endpoint: Endpoint) -> list[Endpoint]:
        ports = range(endpoint.port, min(endpoint.port + self._count, 65_536))
        addresses = [join_address(endpoint.ip, port) for port in ports]
        return [
            replace(endpoint, name=f"{endpoint.name} {port}", address=address)
            for port, address in zip(ports, addresses, strict=True)
        ]
