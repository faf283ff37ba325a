"""File descriptors, shared out ahead: a flood on one port must leave the others theirs.

A process without a free descriptor cannot answer its health check, read its settings or reach the
Kubernetes API; so ports have fewer connections than there are descriptors.
"""

import resource
from dataclasses import dataclass
from typing import Final

# Files, watches, the loop itself: two dozen, and connections of our own.
_OWN: Final = 32
_ADMIN: Final = 64
_GRPC: Final = 1_024
# A hard limit may be a billion, and some libraries walk through all of them.
_ENOUGH: Final = 65_536


@dataclass(frozen=True, slots=True)
class Shares:
    """Connections at a time: of the gRPC port, of the admin port."""

    grpc: int
    admin: int


def share(descriptors: int) -> Shares:
    """A quarter stays ours, and what is left is the ports', most of it the gRPC port's."""
    left = max(0, descriptors - max(_OWN, descriptors // 4))
    admin = max(2, min(_ADMIN, left // 4))
    return Shares(grpc=max(2, min(_GRPC, left - admin)), admin=admin)


def raise_limit() -> int:
    """Takes as many descriptors as the process may have; returns how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
