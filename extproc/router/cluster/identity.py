"""Which endpoint is which: what a pod's ports are called, and each of them once. Pure."""

from collections.abc import Iterable

from extproc.router.routing.endpoint import Endpoint


def name_endpoint(namespace: str, pod: str, port: int, *, is_alone: bool) -> str:
    """Names the endpoint at `port` of a pod: `namespace/pod`, and `namespace/pod:port` if it has others.

    Several ports of one pod are ranks of one engine (data parallel), each with a cache of its own, so each
    has a place of its own on the ring. A port that is alone needs no number: the pod keeps its place
    whatever kind of source it is known from.
    """
    return f"{namespace}/{pod}" if is_alone else f"{namespace}/{pod}:{port}"


def keep_distinct(ranked: Iterable[Endpoint]) -> list[Endpoint]:
    """Returns each name once and each address once, the first of several, in the order of names."""
    kept: dict[str, Endpoint] = {}
    addresses: set[str] = set()
    for endpoint in ranked:
        if endpoint.name not in kept and endpoint.address not in addresses:
            kept[endpoint.name] = endpoint
            addresses.add(endpoint.address)
    return [kept[name] for name in sorted(kept)]
