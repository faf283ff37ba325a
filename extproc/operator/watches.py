"""What the operator follows: a change of a Benchmark, or of what belongs to one, wakes that Benchmark.

The lists and watches are `router.cluster`'s. Each one's health is in a metric and in `/readyz`: a
Role without the verb, or an API server that is away, must not look like a cluster in which nothing
happens.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from extproc.operator.objects import APP, BENCHMARK_LABEL, Object
from extproc.operator.resource import API_VERSION, PLURAL
from extproc.operator.router import SWITCHED_LABEL
from extproc.operator.state import Key
from extproc.router.cluster.kube_api import ObjectMeta, Resource, WatchLost
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.listwatch import KubeAccess, ListWatch
from extproc.router.logs import ONCE_A_MINUTE

# A watch that ends now and then is no fault; one that fails for so long is.
_FAULT_AFTER_S: Final = 30.0

log = logging.getLogger(__name__)


def warn_of_outage(who: str, reason: str) -> None:
    """One line a minute for all that the API server does not answer."""
    log.warning("%s: %s", who, reason, extra=ONCE_A_MINUTE)


class ChangeHandler(Protocol):
    """Acts on changes of the followed objects."""

    def learn(self, key: Key, body: Object) -> None: ...

    def forget(self, key: Key) -> None: ...

    def wake(self, key: Key) -> None: ...

    @property
    def benchmarks(self) -> dict[Key, Object]: ...


@dataclass(slots=True)
class WatchHealth:
    """How one list and watch fares: whether it ever listed, and since when and why it fails."""

    resource: str
    clock: Callable[[], float] = time.monotonic
    has_listed: bool = False
    fault: str = ""
    since_s: float = 0.0

    @property
    def is_up(self) -> bool:
        is_failing = bool(self.fault) and self.clock() - self.since_s > _FAULT_AFTER_S
        return self.has_listed and not is_failing

    def describe(self) -> str:
        return f"{self.resource}: {self.fault or ('followed' if self.has_listed else 'not listed yet')}"

    def succeed(self, *, listed: bool = False) -> None:
        self.fault = ""
        self.has_listed = self.has_listed or listed

    def fail(self, lost: WatchLost) -> None:
        if lost.reason is None:
            return
        if not self.fault:
            self.since_s = self.clock()
        self.fault = lost.reason
        warn_of_outage(self.resource, lost.reason)


class _Metadata(ObjectMeta, rename="camel"):
    uid: str = ""
    generation: int = 1


class _Labelled(msgspec.Struct):
    metadata: ObjectMeta


class _Benchmark(msgspec.Struct):
    metadata: _Metadata
    spec: Any = None
    status: Any = None


T = TypeVar("T", _Labelled, _Benchmark)


class _WakeByLabel(Generic[T]):
    """Wakes the Benchmark that an object's label names."""

    def __init__(self, listeners: ChangeHandler, health: WatchHealth, label: str = "") -> None:
        self._listeners, self._health, self._label = listeners, health, label

    def listed(self, objects: Sequence[T]) -> None:
        self._health.succeed(listed=True)
        for each in objects:
            self.put(each)

    def put(self, object_: T) -> None:
        self._health.succeed()
        name = (object_.metadata.labels or {}).get(self._label)
        if name:
            self._listeners.wake((object_.metadata.namespace, name))

    def deleted(self, object_: T) -> None:
        self.put(object_)

    def confirmed(self) -> None:
        self._health.succeed()

    def lost(self, lost: WatchLost) -> None:
        self._health.fail(lost)


class _Benchmarks(_WakeByLabel[_Benchmark]):
    """Learns and forgets the Benchmarks of a namespace, or of all."""

    def __init__(self, listeners: ChangeHandler, health: WatchHealth, namespace: str) -> None:
        super().__init__(listeners, health)
        self._namespace = namespace

    def listed(self, objects: Sequence[_Benchmark]) -> None:
        there = {(each.metadata.namespace, each.metadata.name) for each in objects}
        for key in self._listeners.benchmarks.keys() - there:
            if self._namespace in ("", key[0]):
                self._listeners.forget(key)
        super().listed(objects)

    def put(self, object_: _Benchmark) -> None:
        self._health.succeed()
        key = object_.metadata.namespace, object_.metadata.name
        self._listeners.learn(key, msgspec.to_builtins(object_))

    def deleted(self, object_: _Benchmark) -> None:
        self._health.succeed()
        self._listeners.forget((object_.metadata.namespace, object_.metadata.name))


async def follow(
    clients: KubeClients,
    namespaces: Sequence[str],
    listeners: ChangeHandler,
    healths: list[WatchHealth],
) -> None:
    """Follows Benchmarks, their Jobs and Pods, and the ConfigMaps that they switch, until cancelled.

    Adds the health of each to `healths` at once.
    """
    access = KubeAccess(clients.open, Random())  # noqa: S311  # spreads retries
    async with asyncio.TaskGroup() as tasks:
        for namespace in namespaces or ("",):
            prefix = f"{namespace}/" if namespace else ""
            health = WatchHealth(f"{prefix}benchmarks")
            healths.append(health)
            resource = Resource(API_VERSION, namespace, PLURAL, _Benchmark)
            tasks.create_task(
                ListWatch(access, resource).run(_Benchmarks(listeners, health, namespace))
            )
            for api, plural, selector, label in (
                ("batch/v1", "jobs", f"app.kubernetes.io/name={APP}", BENCHMARK_LABEL),
                ("v1", "pods", f"app.kubernetes.io/name={APP}", BENCHMARK_LABEL),
                ("v1", "configmaps", SWITCHED_LABEL, SWITCHED_LABEL),
            ):
                health = WatchHealth(f"{prefix}{plural}")
                healths.append(health)
                owned = Resource(api, namespace, plural, _Labelled, selector)
                follower: _WakeByLabel[_Labelled] = _WakeByLabel(listeners, health, label)
                tasks.create_task(ListWatch(access, owned).run(follower))
