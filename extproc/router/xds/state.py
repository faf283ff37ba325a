"""One Envoy's side of the discovery protocol: what it wants, what it has, what it is owed.

State of the world, after Envoy's "xDS REST and gRPC protocol": no socket, no clock, no asyncio.
Requests go in, the next response comes out, always of the newest resources. At most one response
per type is unanswered, so a client that is slow to read holds one message and misses only what is
out of date.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Final

from extproc.router.xds.requests import Request, WireResponse
from extproc.router.xds.resources import ASSIGNMENTS, CLUSTERS, Catalog, XdsResource, version_of

# Clusters first: Envoy would drop endpoints of a cluster that it has not got yet.
_ORDER: Final = (CLUSTERS, ASSIGNMENTS)
_WILDCARD: Final = "*"


@dataclass(slots=True)
class Subscription:
    """One type on one stream. `sent` maps names to versions; a resource not in it is still to be sent."""

    names: frozenset[str] = frozenset()
    nonce: str = ""
    is_answered: bool = True
    sent: dict[str, str] = field(default_factory=dict)


class Subscriber:
    """One stream of one Envoy."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._subscriptions: dict[str, Subscription] = {}
        self._nonces = count(1)

    def on(self, request: Request) -> bool:
        """Takes a request in; whether it counts: its fault, if any, is one of our last response.

        Ignores a request about a type that we do not serve, and one about a response before the
        last: the client will acknowledge the last one, too.
        """
        if request.type_url not in _ORDER:
            return False
        subscription = self._subscriptions.setdefault(request.type_url, Subscription())
        if request.nonce != subscription.nonce:
            return False
        subscription.is_answered = True
        subscription.names = frozenset(request.names)
        if request.type_url == ASSIGNMENTS:
            # A name that is dropped and requested again later is sent again.
            still_wanted = subscription.sent.keys() & subscription.names
            subscription.sent = {name: subscription.sent[name] for name in still_wanted}
        return True

    def next(self) -> WireResponse | None:
        """Returns the next response to send and counts it as sent; `None` if nothing is owed now."""
        for type_url in _ORDER:
            subscription = self._subscriptions.get(type_url)
            if subscription and subscription.is_answered:
                wanted = self._wanted(type_url, subscription.names)
                owed = _owed(type_url, wanted, subscription.sent)
                if owed:
                    return self._send(type_url, subscription, owed, version_of(wanted))
        return None

    def _wanted(self, type_url: str, names: frozenset[str]) -> dict[str, XdsResource]:
        resources = self._catalog[type_url]
        # A request for clusters without names means all clusters; endpoints are always requested by
        # name.
        if type_url == CLUSTERS and (not names or _WILDCARD in names):
            return dict(resources)
        return {name: resources[name] for name in names & resources.keys()}

    def _send(
        self, type_url: str, subscription: Subscription, owed: dict[str, XdsResource], version: str
    ) -> WireResponse:
        if type_url == CLUSTERS:
            subscription.sent.clear()
            # A cluster that is new or changed waits for its endpoints again.
            self._subscriptions.get(ASSIGNMENTS, Subscription()).sent.clear()
        subscription.sent |= {name: resource.version for name, resource in owed.items()}
        subscription.nonce = str(next(self._nonces))
        subscription.is_answered = False
        bodies = [owed[name].body for name in sorted(owed)]
        return WireResponse(
            version_info=version, resources=bodies, type_url=type_url, nonce=subscription.nonce
        )


def _owed(
    type_url: str, wanted: dict[str, XdsResource], sent: dict[str, str]
) -> dict[str, XdsResource]:
    changed = {
        name: resource for name, resource in wanted.items() if resource.version != sent.get(name)
    }
    if type_url == ASSIGNMENTS:
        return changed
    # Clusters are sent all or not at all, since Envoy deletes one that is left out. An empty set is
    # never sent: an Envoy with old endpoints serves better than one with none.
    return wanted if changed or sent.keys() - wanted.keys() else {}
