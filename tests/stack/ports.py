"""Ports for servers under test."""

import os
import random
import socket

# Below Linux's range for outgoing connections (32768 up), so that no client of a test takes one meanwhile.
# Each of the (two) processes that test has its own: what one found free, the other does not take.
_EACH = 10_000
_FIRST = 12_000 + _EACH * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2)


def free_ports(count: int) -> range:
    """Returns `count` neighbouring ports of 127.0.0.1 that nobody listens on."""
    rng = random.SystemRandom()
    while True:
        first = rng.randrange(_FIRST, _FIRST + _EACH - count)
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
