"""Ports for servers under test."""

import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

# Below Linux's range for outgoing connections (32768 up), so that no client of a test takes one
# meanwhile.
_SLICES: Final = range(12_000, 30_000, 500)
_OFFSETS: Final = range(22_000, 22_080, 8)


def free_ports(count: int) -> range:
    """Returns `count` neighbouring ports of 127.0.0.1 that nobody listens on, at most 499.

    They are of a slice that only this process uses, and come in turn: a port that was returned and
    is not bound yet is not returned again. Raises `OSError` if 36 processes have a slice each.
    """
    return _slice().take(count)


@contextmanager
def port_offset() -> Iterator[int]:
    """Yields a RUN_PORT_OFFSET for `make run`, whose ports are 8001 to 9901: nobody else's meanwhile."""
    owner, first = _bind_one(8_000 + offset for offset in _OFFSETS)
    with owner:
        yield first - 8_000


class _Slice:
    """500 ports. Their process has bound the first, for as long as it lives, and takes the others in turn."""

    def __init__(self) -> None:
        # In any order: whatever a run that was killed has left may still use its slice.
        self._owner, first = _bind_one(random.SystemRandom().sample(_SLICES, len(_SLICES)))
        self._ports = range(first + 1, first + _SLICES.step)
        self._next = 0

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


@cache
def _slice() -> _Slice:
    """The one of this process."""
    return _Slice()


def _bind_one(ports: Iterable[int]) -> tuple[socket.socket, int]:
    """Binds the first port that can be had."""
    for port in ports:
        taken = socket.socket()
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            taken.close()
        else:
            return taken, port
    raise OSError("none of the ports is free")


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
