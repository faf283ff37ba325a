"""Ports for servers under test."""

import random
import socket

# Below Linux's range for outgoing connections (32768 up), so that no client of a test takes one meanwhile.
_FIRST, _LAST = 12_000, 32_000


def free_ports(count: int) -> range:
    """Returns `count` neighbouring ports of 127.0.0.1 that nobody listens on."""
    rng = random.SystemRandom()
    while True:
        first = rng.randrange(_FIRST, _LAST - count)
        ports = range(first, first + count)
        if all(_is_free(port) for port in ports):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
