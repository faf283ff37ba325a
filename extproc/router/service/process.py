"""Limits of Python and the operating system: file descriptors, threads, memory.

File descriptors are shared out ahead: a flood on one port must leave the others theirs. A process
without a free descriptor cannot answer its health check, read its settings or reach the Kubernetes
API; so ports have fewer connections than there are descriptors.
"""

import ctypes
import resource
import sys
from dataclasses import dataclass
from typing import Final

# A thread that reads a long body lets the loop go on after this much; Python's own 5 ms would be
# felt.
SWITCH_S: Final = 0.0001
# Blocks from this size on are the kernel's: one that grows is moved by its pages, not by copying 31
# MB, and what is freed leaves the process. Without it glibc raises its own limit to the largest
# block it has freed.
BLOCK_BYTES: Final = 1_048_576
_M_MMAP_THRESHOLD: Final = -3  # malloc.h
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


def prepare_for_long_bodies() -> None:
    sys.setswitchinterval(SWITCH_S)
    # Only glibc has it; others keep large blocks apart by themselves.
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, BLOCK_BYTES)
