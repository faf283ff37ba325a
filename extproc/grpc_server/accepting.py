"""Binds an address and accepts connections on it."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

log = logging.getLogger(__name__)

_BACKLOG: Final = 1_024
# In one turn of the loop: a connection that has to make room keeps its descriptor until the next
# turn.
_AT_ONCE: Final = 4
# Without a free descriptor there is nothing to do but wait for one.
_AGAIN_S: Final = 0.2


class Guest(Protocol):
    """A connection, with the address of its peer; idle while nothing is open on it."""

    @property
    def host(self) -> str: ...

    @property
    def is_idle(self) -> bool: ...


G = TypeVar("G", bound=Guest)


def find_oldest_idle(guests: Iterable[G]) -> G | None:
    """Returns the connection to close for a new one: the oldest idle one of the address with most.

    `guests` come oldest first. So a flood makes room for itself, and whoever shares no address with
    it stays.
    """
    by_host: dict[str, list[G]] = {}
    for guest in guests:
        by_host.setdefault(guest.host, []).append(guest)
    groups = sorted(by_host.values(), key=len, reverse=True)
    return next((guest for group in groups for guest in group if guest.is_idle), None)


class Acceptor:
    """Accepts on sockets that are bound, and gives each connection to `take`."""

    def __init__(
        self, sockets: Sequence[socket.socket], take: Callable[[socket.socket], None]
    ) -> None:
        self._sockets = sockets
        self._take = take
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def close(self) -> None:
        self._pause()
        if self._again is not None:
            self._again.cancel()
        unlink_sockets(self._sockets)
        for each in self._sockets:
            each.close()
        self._sockets = ()

    def _pause(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                log.error("no connection can be accepted: %s", error.strerror)  # noqa: TRY400
                self._pause()
                self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self.start)
                return
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._take(accepted)


def unlink_sockets(sockets: Iterable[socket.socket]) -> None:
    """Takes away the files of unix sockets, which closing leaves behind. To be called while they listen."""
    for each in sockets:
        if each.family == socket.AF_UNIX:
            Path(each.getsockname()).unlink(missing_ok=True)


async def bind(listen: str) -> list[socket.socket]:
    """Binds `host:port` or `unix:path`, and lets connections wait in the kernel's queue. Raises `OSError`."""
    if listen.startswith("unix:"):
        return [_bind_unix(listen.removeprefix("unix:"))]
    host, _, port = listen.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(
        host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(found):
            bound += _bind(family, address)
    except OSError:
        for each in bound:
            each.close()
        raise
    if not bound:
        raise OSError(errno.EAFNOSUPPORT, "no address family of this machine", listen)
    return bound


def _bind(family: socket.AddressFamily, address: tuple[object, ...]) -> list[socket.socket]:
    """Nothing where the machine has no such family."""
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return []
        raise
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return [_listen(listening, address)]


def _bind_unix(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        if Path(path).is_socket():
            Path(path).unlink()
    return _listen(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)


def _listen(listening: socket.socket, address: object) -> socket.socket:
    try:
        listening.setblocking(False)
        listening.bind(address)  # type: ignore[arg-type]  # of the socket's family
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
