"""One operator at a time: a Lease of coordination.k8s.io, held by renewing it.

As client-go's leader election does it: nobody compares clocks. A Lease has run out when its record has not
changed for its duration by the watch of who waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from extproc.operator.calls import ApiRefusal, KubeCalls, opening
from extproc.operator.objects import Object
from extproc.router.cluster.kube_api import WatchLost
from extproc.router.cluster.kubeclient import KubeClients

NAME: Final = "extproc-operator"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds: how long a Lease holds without being renewed, and how often it is renewed."""

    duration_s: int = 15
    renew_s: float = 5.0


class Sight:
    """What is known of a Lease: its record, and since when it has been that. Pure."""

    def __init__(self) -> None:
        self._record: object = None
        self._since_s = 0.0

    def look(self, lease: Object | None, me: str, now_s: float, terms: Terms) -> bool:
        """Whether `me` may hold the Lease now: it does, nobody does, or who did has not been heard of."""
        spec: dict[str, Any] = {} if lease is None else lease.get("spec", {})
        record = spec.get("holderIdentity"), spec.get("renewTime")
        if record != self._record:
            self._record, self._since_s = record, now_s
        holder = spec.get("holderIdentity")
        return not holder or holder == me or now_s - self._since_s > terms.duration_s


def write_lease(lease: Object | None, namespace: str, holder: str, terms: Terms, at: datetime) -> Object:
    """The Lease as `holder` would have it; an empty one gives it up."""
    metadata = {"name": NAME, "namespace": namespace} if lease is None else lease["metadata"]
    renewed = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": terms.duration_s,
            "renewTime": renewed,
        },
    }


class Leadership:
    """Keeps `is_leading` true as long as the Lease is ours."""

    def __init__(
        self,
        clients: KubeClients,
        namespace: str,
        me: str,
        *,
        is_leading: asyncio.Event,
        now: Callable[[], datetime],
        terms: Terms,
    ) -> None:
        self._clients, self._namespace, self._me = clients, namespace, me
        self._is_leading, self._now, self._terms = is_leading, now, terms
        self._sight = Sight()

    async def run(self) -> None:
        """Holds or waits for the Lease, for ever; gives it up when cancelled."""
        clock = asyncio.get_running_loop().time
        # An answer that comes later is no renewal: by then somebody else may have begun to act.
        renewed_s, held_s = clock(), self._terms.duration_s * 2 / 3
        try:
            while True:
                # Who waits for it counts from when it sees the renewal, which is not before we asked for it.
                asked_s = clock()
                until_s = held_s + (renewed_s if self._is_leading.is_set() else asked_s)
                try:
                    async with asyncio.timeout_at(until_s):
                        is_ours = await self._take(asked_s)
                    renewed_s, wait_s = asked_s, self._terms.renew_s
                except (ApiRefusal, WatchLost, TimeoutError) as error:
                    log.warning("lease: %s", str(error) or "no answer")
                    # Until it has run out nobody else has it.
                    is_ours = self._is_leading.is_set() and clock() - renewed_s < held_s
                    wait_s = self._terms.renew_s / 5
                self._lead(is_ours=is_ours)
                await asyncio.sleep(wait_s)
        finally:
            if self._is_leading.is_set():
                self._lead(is_ours=False)
                with suppress(ApiRefusal, WatchLost):
                    await self._give_up()

    def _lead(self, *, is_ours: bool) -> None:
        if is_ours and not self._is_leading.is_set():
            log.info("leading as %s", self._me)
            self._is_leading.set()
        elif not is_ours and self._is_leading.is_set():
            log.info("no longer leading")
            self._is_leading.clear()

    async def _take(self, now_s: float) -> bool:
        async with opening(self._clients) as calls:
            lease = await calls.get("Lease", self._namespace, NAME)
            if not self._sight.look(lease, self._me, now_s, self._terms):
                return False
            wanted = write_lease(lease, self._namespace, self._me, self._terms, self._now())
            try:
                await (calls.create(wanted) if lease is None else calls.replace(wanted))
            except ApiRefusal as refusal:
                if refusal.status == 409:
                    return False
                raise
            return True

    async def _give_up(self) -> None:
        async with opening(self._clients) as calls:
            lease = await self._find(calls)
            if lease is not None:
                await calls.replace(write_lease(lease, self._namespace, "", self._terms, self._now()))

    async def _find(self, calls: KubeCalls) -> Object | None:
        lease = await calls.get("Lease", self._namespace, NAME)
        is_ours = lease is not None and lease.get("spec", {}).get("holderIdentity") == self._me
        return lease if is_ours else None
