"""Objects of the Kubernetes API followed: list once, then watch for ever. Knows no kind of object.

The loops follow kopf's. What fails is tried again after a back-off, from the version that was
reached, or with a new list where the server refuses that version. The last list stays in force
meanwhile.

Lists and watches back off apart: a list that worked says nothing of watches, and a server that
lists but refuses every watch (a Role without the verb) must not get both four times a second. A
list that worked resets the one, a watch that lived the other. Both are eager for the first half
minute: an API server that restarts refuses connections for a second, then answers 403 until it has
loaded its Roles, and then it is back.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from extproc.router.cluster.backoff import Backoff
from extproc.router.cluster.kube_api import (
    KubeApi,
    KubeObject,
    OpenClient,
    Patience,
    Resource,
    T,
    WatchLost,
)

_LIVED_S: Final = 30.0

T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)


@dataclass(frozen=True, slots=True)
class KubeAccess:
    """How an API server is reached, and with what time and chance it is tried again."""

    open_client: OpenClient
    rng: Random
    patience: Patience = field(default_factory=Patience)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Follower(Protocol[T_contra]):
    """Takes the changes of a resource's objects. Calls come from the event loop and return at once."""

    def listed(self, objects: Sequence[T_contra]) -> None:
        """Takes a fresh list: an object that is not in it is gone."""

    def put(self, object_: T_contra) -> None:
        """Takes an object that was added or modified."""

    def deleted(self, object_: T_contra) -> None:
        """Forgets a deleted object, if it is there."""

    def confirmed(self) -> None:
        """Notes that nothing has changed."""

    def lost(self, lost: WatchLost) -> None:
        """Takes the reason why a list or a watch ended; it will be tried again."""


class ListWatch(Generic[T]):
    def __init__(self, access: KubeAccess, resource: Resource[T]) -> None:
        self._access = access
        self._resource = resource
        self._lists = Backoff(access.rng, early_cap_s=2.0, early_tries=30)
        self._watches = Backoff(access.rng, early_cap_s=2.0, early_tries=30)
        self._backoff = self._lists
        self._version: str | None = None
        self._may_list_at_once = True

    async def run(self, follower: Follower[T]) -> None:
        """Follows until cancelled. May be run again after it raised."""
        self._version = None
        while True:
            lost = await self._connect(follower)
            follower.lost(lost)
            await self._access.sleep(self._pause_s(lost))

    async def _connect(self, follower: Follower[T]) -> WatchLost:
        """Follows the objects over one connection; returns why it ended."""
        self._backoff = self._lists if self._version is None else self._watches
        # A server that takes the watch again is there, and our last list is still true.
        on_accept = (lambda: None) if self._version is None else follower.confirmed
        try:
            async with await self._access.open_client() as client:
                api = KubeApi(client, self._resource, self._access.patience)
                if self._version is None:
                    version, objects = await api.list()
                    follower.listed(objects)
                    self._version = version
                    self._lists.reset()
                self._backoff = self._watches
                await self._watch(api, self._version, follower, on_accept)
        except WatchLost as lost:
            if lost.why == "silent":
                self._live()
            if not lost.keeps_version:
                self._version = None
            return lost
        return WatchLost("closed", "the server ended the watch", keeps_version=True)

    def _pause_s(self, lost: WatchLost) -> float:
        if lost.why == "expired" and self._may_list_at_once:
            # The version is too old. A second time, without any event in between, the server is at
            # fault.
            self._may_list_at_once = False
            return 0.0
        if lost.retry_after_s is not None:
            return lost.retry_after_s * self._access.rng.uniform(1.0, 1.25)
        return self._backoff.next_s()

    async def _watch(
        self, api: KubeApi[T], version: str, follower: Follower[T], on_accept: Callable[[], None]
    ) -> None:
        start_s = self._access.clock()
        # Jittered, so that the routers that an API server's restart brought together do not stay
        # together.
        timeout_s = self._access.rng.randint(240, 300)
        async with aclosing(api.watch(version, timeout_s, on_accept)) as events:
            async for kind, object_ in events:
                self._version = object_.metadata.resource_version
                match kind:
                    case "ADDED" | "MODIFIED":
                        follower.put(object_)
                    case "DELETED":
                        follower.deleted(object_)
                    case "BOOKMARK":
                        follower.confirmed()
                self._live()
        # Back off from a server that ends every watch at once. A watch that was silent for long is
        # fine, and its end says that nothing changed.
        if self._access.clock() - start_s > _LIVED_S:
            self._live()
            follower.confirmed()

    def _live(self) -> None:
        self._watches.reset()
        self._may_list_at_once = True
