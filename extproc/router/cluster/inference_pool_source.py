"""A pool's endpoints from an InferencePool: the pods that it selects, at all of its ports.

Two watches depend on one another. The pool's says which pods are meant; the pods' begins anew when
the selector changes, and the old endpoints stay until the new list is there. When there is no such
pool, the endpoints are gone, too: somebody deleted it, and its pods may be another's tomorrow.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from extproc.router.cluster.debounce import DebouncedSink
from extproc.router.cluster.kube_api import ObjectMeta, Resource, WatchLost
from extproc.router.cluster.listwatch import KubeAccess, ListWatch
from extproc.router.cluster.pods import Pod, PodBook
from extproc.router.cluster.slices import AddressFamily
from extproc.router.cluster.source import Sink, SourceFault
from extproc.router.routing.endpoint import Endpoint

# Fields as in the reference of `inference.networking.k8s.io/v1` (Gateway API Inference Extension
# 1.0).
V1: Final = "inference.networking.k8s.io/v1"


class Selector(Struct, rename="camel"):
    match_labels: dict[str, str] | None = None


class TargetPort(Struct):
    number: int = 0


class PoolSpec(Struct, rename="camel"):
    selector: Selector | None = None
    target_ports: list[TargetPort] | None = None


class InferencePool(Struct):
    metadata: ObjectMeta
    spec: PoolSpec | None = None

    @property
    def terms(self) -> "PoolTerms":
        spec = self.spec or PoolSpec()
        labels = (spec.selector or Selector()).match_labels or {}
        ports = tuple(dict.fromkeys(port.number for port in spec.target_ports or ()))
        # As the API's `labelSelector` has them.
        return PoolTerms(",".join(f"{key}={labels[key]}" for key in sorted(labels)), ports)


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """What an InferencePool selects: the pods of a label selector, each at all of these ports."""

    selector: str
    ports: tuple[int, ...]

    @property
    def fault(self) -> tuple[str, str] | None:
        """Why there can be no endpoints: a fixed word, and the rest of a sentence about the pool."""
        if not self.selector:
            # An empty selector would be every pod of the namespace, ours too.
            return "no_selector", "has no labels in its selector"
        return None if self.ports else ("no_port", "has no target port")


class InferencePoolSource(Struct, frozen=True):
    """Finds the endpoints of one InferencePool. Passes changes on `settle_s` after the first of them.

    `family` is the preferred one of a dual-stack pod's addresses. With `prefills` they are the pods that
    compute prompts, by their labels, else those that answer. The label `match_label` has their revision.
    """

    access: KubeAccess
    namespace: str
    name: str
    family: AddressFamily = "IPv4"
    settle_s: float = 0.1
    prefills: bool = False
    match_label: str = ""

    async def run(self, sink: Sink) -> None:
        # A list of one: what a Role that names the pool lets us see.
        only = f"metadata.name={self.name}"
        resource = Resource(
            V1, self.namespace, "inferencepools", InferencePool, field_selector=only
        )
        async with asyncio.TaskGroup() as tasks:
            follower = _PoolFollower(self, tasks, sink)
            try:
                await ListWatch(self.access, resource).run(follower)
            finally:
                follower.sink.close()


class _PoolFollower:
    """Follows one pool, a list of one or of none, and its pods; adds up what they say.

    `_pods` are the pods that are followed now, `_listed` those whose list the sink has: the same,
    but while a new selector's pods are being listed.
    """

    def __init__(self, pool: InferencePoolSource, tasks: asyncio.TaskGroup, sink: Sink) -> None:
        self._pool = pool
        self._name = f"InferencePool {pool.namespace}/{pool.name}"
        self.sink = DebouncedSink(sink, self, pool.settle_s)
        self._fault: SourceFault | None = None
        self._is_failing = False
        self._pods: _Pods | None = None
        self._listed: _Pods | None = None
        self._tasks = tasks
        self._following: asyncio.Task[None] | None = None

    def listed(self, objects: Sequence[InferencePool]) -> None:
        if objects:
            self.put(objects[0])
        else:
            self._lack("no_pool", f"there is no {self._name}")

    def put(self, object_: InferencePool) -> None:
        terms = object_.terms
        if terms.fault is not None:
            why, what = terms.fault
            self._lack(why, f"{self._name} {what}")
        else:
            self._fault, self._is_failing = None, False
            self._follow_pods(terms)

    def deleted(self, _: InferencePool) -> None:
        self._lack("no_pool", f"there is no {self._name}")

    def confirmed(self) -> None:
        self._is_failing = False
        if self.missing():
            self.sink.confirm()

    def lost(self, lost: WatchLost) -> None:
        if lost.why == "not_found":
            self._lack("no_crd", "the API server has no InferencePools: are their CRDs installed?")
        else:
            self._is_failing = lost.reason is not None
            self.restarted(lost)

    def _lack(self, why: str, reason: str) -> None:
        """There can be no endpoints: the pods are followed no more."""
        self._fault, self._is_failing = SourceFault(why, reason), False
        self._stop_following()
        self._pods = self._listed = None
        self.sink.changed()

    def _follow_pods(self, terms: PoolTerms) -> None:
        if self._pods is None or self._pods.selector != terms.selector:
            self._pods = _Pods(self, terms, self._pool)
            resource = Resource(
                "v1", self._pool.namespace, "pods", Pod, label_selector=terms.selector
            )
            self._stop_following()
            self._following = self._tasks.create_task(
                ListWatch(self._pool.access, resource).run(self._pods)
            )
        else:
            self._pods.use_ports(terms.ports)
        if self._pods is self._listed:
            # The ports may be others.
            self.sink.changed()

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    def pods_listed(self, pods: "_Pods") -> None:
        if pods is self._pods:
            self._listed = pods
            self.sink.listed()

    def pods_changed(self, pods: "_Pods") -> None:
        if pods is self._listed:
            self.sink.changed()

    def pods_confirmed(self, pods: "_Pods") -> None:
        """Confirms the list, if these are still the pods that the pool selects and its watch works."""
        if pods is self._listed and not self._is_failing:
            self.sink.confirm()

    def restarted(self, lost: WatchLost) -> None:
        self.sink.restarted(lost.why, lost.reason)

    def missing(self) -> SourceFault | None:
        return self._fault

    def endpoints(self) -> list[Endpoint] | None:
        return None if self._listed is None else self._listed.book.endpoints()

    def unready(self) -> list[Endpoint]:
        return [] if self._listed is None else self._listed.book.unready()

    def remarks(self) -> Mapping[str, str]:
        faults = self._listed.book.faults if self._listed else {}
        return {f"Pod {self._pool.namespace}/{name}": fault for name, fault in faults.items()}


class _Pods:
    def __init__(
        self, follower: _PoolFollower, terms: PoolTerms, pool: InferencePoolSource
    ) -> None:
        self._follower = follower
        self.selector = terms.selector
        self._ports = terms.ports
        self.book = PodBook(
            terms.ports,
            family=pool.family,
            prefills=pool.prefills,
            match_label=pool.match_label,
        )

    def use_ports(self, ports: tuple[int, ...]) -> None:
        if ports != self._ports:
            self._ports = ports
            self.book.use_ports(ports)

    def listed(self, objects: Sequence[Pod]) -> None:
        self.book.replace(objects)
        self._follower.pods_listed(self)

    def put(self, object_: Pod) -> None:
        self.book.put(object_)
        self._follower.pods_changed(self)

    def deleted(self, object_: Pod) -> None:
        self.book.delete(object_)
        self._follower.pods_changed(self)

    def confirmed(self) -> None:
        self._follower.pods_confirmed(self)

    def lost(self, lost: WatchLost) -> None:
        self._follower.restarted(lost)
