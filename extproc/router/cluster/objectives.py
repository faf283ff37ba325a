"""Priorities from the InferenceObjectives of an InferencePool, followed as they change.

The operator sets an objective's priority; a client may only name an objective. It counts for the
pool that its `poolRef` names, in its own namespace, and for no other. While the API server is away,
the last ones stay. Without the right to list them, or where the CRD is not installed, there are
none, and every request has priority 0: no fault of the pool's.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import msgspec

from extproc.router.cluster.backoff import Backoff
from extproc.router.cluster.kube_api import ObjectMeta, Resource, WatchLost
from extproc.router.cluster.listwatch import KubeAccess, ListWatch
from extproc.router.cluster.reason import describe_error

log = logging.getLogger(__name__)

# Upstream's, and llm-d's, which took the kind over: its objects go first where both have a name.
APIS: Final = ("inference.networking.x-k8s.io/v1alpha2", "llm-d.ai/v1alpha2")
_POOL_GROUPS: Final = frozenset(
    {"inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"}
)

# How often we look whether a missing CRD has been installed.
_UNKNOWN_S: Final = 300.0


class ObjectivesSink(Protocol):
    """Takes a pool's objectives. Calls come from the event loop and return at once."""

    def replace(self, priorities: Mapping[str, int]) -> None:
        """Takes the priorities of all objectives, by their names."""

    def restarted(self, why: str) -> None:
        """Counts, by a fixed word, why a list or a watch ended; it will be tried again."""


class _PoolRef(msgspec.Struct):
    name: str = ""
    group: str | None = None
    kind: str = "InferencePool"


class _Spec(msgspec.Struct, rename="camel"):
    pool_ref: _PoolRef = msgspec.field(default_factory=_PoolRef)
    priority: int | None = None


class InferenceObjective(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def priority(self) -> int:
        """An unset one is 0, as upstream says."""
        return self.spec.priority or 0

    def counts_for(self, pool: str) -> bool:
        """An omitted group is one of the pool's own."""
        ref = self.spec.pool_ref
        return (ref.name, ref.kind) == (pool, "InferencePool") and (
            ref.group or "llm-d.ai"
        ) in _POOL_GROUPS


class ObjectivesSource(msgspec.Struct, eq=False):
    """Passes on the priorities of one InferencePool's objectives, by their names, at each change of one."""

    _access: KubeAccess
    _namespace: str
    _pool: str
    _followers: "list[_Follower]" = msgspec.field(default_factory=list)

    @property
    def age_s(self) -> float | None:
        """Seconds since the objectives were last confirmed, by the group where that was longest ago.

        `None` before the first list, and where the CRD is not installed.
        """
        confirmed_s = [
            group.confirmed_s for group in self._followers if group.confirmed_s is not None
        ]
        return self._access.clock() - min(confirmed_s) if confirmed_s else None

    async def run(self, sink: ObjectivesSink) -> None:
        """Follows the objects of both groups until cancelled."""

        def changed() -> None:
            priorities: dict[str, int] = {}
            for group in self._followers:
                priorities |= group.priorities
            sink.replace(priorities)

        self._followers = [_Follower(self._access, api, self._pool, sink, changed) for api in APIS]
        async with asyncio.TaskGroup() as tasks:
            for follower in self._followers:
                tasks.create_task(follower.run(self._namespace))


@dataclass
class _Follower:
    """Follows the objectives of one API group; keeps the priorities of `pool`'s."""

    _access: KubeAccess
    _api: str
    _pool: str
    _sink: ObjectivesSink
    _on_change: Callable[[], None]
    _why: str = ""
    priorities: dict[str, int] = field(default_factory=dict)
    confirmed_s: float | None = None

    async def run(self, namespace: str) -> None:
        """Goes on whatever happens: a bug here must not end the pool."""
        resource = Resource(self._api, namespace, "inferenceobjectives", InferenceObjective)
        watch = ListWatch(replace(self._access, sleep=self._sleep), resource)
        backoff = Backoff(self._access.rng)
        while True:
            try:
                await watch.run(self)
            except Exception as error:  # noqa: BLE001  # whatever it raises
                log.error("objectives of pool %s: %s", self._pool, describe_error(error))  # noqa: TRY400  # one line
                self._sink.restarted("internal")
            await self._access.sleep(backoff.next_s())

    def listed(self, objects: Sequence[InferenceObjective]) -> None:
        self.confirmed()
        wanted = {one.metadata.name: one.priority for one in objects if one.counts_for(self._pool)}
        if wanted != self.priorities:
            self.priorities.clear()
            self.priorities.update(wanted)
            self._on_change()

    def put(self, object_: InferenceObjective) -> None:
        self.confirmed()
        if not object_.counts_for(self._pool):
            self.deleted(object_)
        elif self.priorities.get(object_.metadata.name) != object_.priority:
            self.priorities[object_.metadata.name] = object_.priority
            self._on_change()

    def deleted(self, object_: InferenceObjective) -> None:
        self.confirmed()
        if self.priorities.pop(object_.metadata.name, None) is not None:
            self._on_change()

    def confirmed(self) -> None:
        self._why = ""
        self.confirmed_s = self._access.clock()

    def lost(self, lost: WatchLost) -> None:
        """One line for each new kind of failure; that a cluster lacks the kind is none."""
        is_new, self._why = lost.why != self._why, lost.why
        if lost.why == "not_found":
            self.confirmed_s = None
            return
        self._sink.restarted(lost.why)
        if is_new and lost.reason is not None:
            log.warning(
                "objectives of pool %s (%s): %s: %s", self._pool, self._api, lost.why, lost.reason
            )

    async def _sleep(self, delay_s: float) -> None:
        await self._access.sleep(_UNKNOWN_S if self._why == "not_found" else delay_s)
