"""Ports for servers under test."""

import random
import socket
from functools import cache
from typing import Final

# Below Linux's range for outgoing connections (32768 up), so that no client of a test takes one meanwhile.
_SLICES: Final = range(12_000, 32_000, 500)


def free_ports(count: int) -> range:
    """Returns `count` neighbouring ports of 127.0.0.1 that nobody listens on, at most 499.

    They are of a slice that only this process uses, and come in turn: a port that was returned and is not
    bound yet is not returned again. Raises `OSError` if 40 processes have a slice each.
    """
    return _Slice.of_this_process().take(count)


class _Slice:
    """500 ports. Their process has bound the first, for as long as it lives, and takes the others in turn."""

    def __init__(self, first: int) -> None:
        self._owner = _bind(first)
        self._ports = range(first + 1, first + _SLICES.step)
        self._next = 0

    @classmethod
    @cache
    def of_this_process(cls) -> "_Slice":
        # In any order: whatever a run that was killed has left may still use its slice.
        for first in random.SystemRandom().sample(_SLICES, len(_SLICES)):
            try:
                return cls(first)
            except OSError:
                continue
        raise OSError("no slice of ports is free")

    def take(self, count: int) -> range:
        for _ in self._ports:
            if self._next + count > len(self._ports):
                self._next = 0
            ports = self._ports[self._next : self._next + count]
            self._next += 1
            if all(map(_is_free, ports)):
                self._next += count - 1
                return ports
        raise OSError(f"no {count} neighbouring ports are free")


def _bind(port: int) -> socket.socket:
    taken = socket.socket()
    try:
        taken.bind(("127.0.0.1", port))
    except OSError:
        taken.close()
        raise
    return taken


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
