"""Makes workers: a process that has loaded everything, runs nothing, and forks one whenever it is asked.

A new process of Python takes a second and more to load the service, on a busy machine three; a fork of one
that has takes some milliseconds, and they share that memory. It is forked from the parent before that has a
loop or a thread.
"""

import asyncio
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.msgpack import decode, encode

from extproc.errors import ExtprocError

_MESSAGE_BYTES: Final = 256

Work = Callable[[socket.socket, socket.socket], int]
"""A worker's life, from its ends of two socket pairs (messages, connections) to its exit status."""


class _Begun(Struct, frozen=True, array_like=True, tag=1):
    """The process that was asked for as number `order` is there."""

    order: int
    pid: int


class _Ended(Struct, frozen=True, array_like=True, tag=2):
    """What it came to."""

    order: int
    status: int


class Child:
    """A worker that was asked for: its number as a process, once it is there, and its exit status to be."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Child {self.pid}>"

    def kill(self) -> None:
        """Ends it at once; nobody has waited for its process yet, so the number is its own."""
        if self.pid is not None and not self.ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self, status: int) -> None:
        if not self.ended.done():  # nobody may wait for it any more
            self.ended.set_result(status)


class ForkServer:
    """The parent's hand on it."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._orders = 0
        self._children: dict[int, Child] = {}
        self.gone = asyncio.Event()

    def watch(self) -> None:
        """Hears from it, on the running loop."""
        asyncio.get_running_loop().add_reader(self._requests, self._hear)

    def fork(self, messages: socket.socket, connections: socket.socket) -> Child:
        """Asks for a worker with these ends. Raises `OSError` where that cannot be sent now."""
        fds = [messages.fileno(), connections.fileno()]
        self._orders += 1
        child = self._children[self._orders] = Child()
        try:
            socket.send_fds(self._requests, [b"%d" % self._orders], fds)
        except ConnectionError:
            self._lose()
        except OSError:
            del self._children[self._orders]
            raise
        return child

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._requests)
        self._requests.close()

    def _hear(self) -> None:
        try:
            data = self._requests.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        match decode(data, type=_Begun | _Ended):
            case _Begun(order, pid):
                self._children[order].pid = pid
            case _Ended(order, status):
                self._children.pop(order).end(status)

    def _lose(self) -> None:
        """Nobody forks any more, and nobody tells how workers end."""
        asyncio.get_running_loop().remove_reader(self._requests)
        self.gone.set()
        for child in self._children.values():
            child.end(1)
        self._children.clear()


def start_fork_server(work: Work, clean: Callable[[], None] = lambda: None) -> socket.socket:
    """Forks it; to be called before there is a loop or a thread. Returns the socket to ask it by.

    When the parent is gone, killed or not, it is the fork server that can still `clean` up.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.collect()
    gc.freeze()  # what a collection leaves alone stays shared
    if os.fork() == 0:
        ours.close()
        _exit(lambda: _serve(theirs, work, clean))
    theirs.close()
    ours.setblocking(False)
    return ours


def _serve(requests: socket.socket, work: Work, clean: Callable[[], None]) -> int:
    """The fork server's own life, until the parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent tells workers when to end
    children: dict[int, int] = {}
    heard, told = socket.socketpair()
    for end in (heard, told):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests, heard], [], [])
        if heard in ready:
            heard.recv(4_096)
            _reap(requests, children)
        if requests in ready:
            data, fds = _receive(requests)
            if not data:
                clean()
                return 0
            pid = _fork(partial(_begin, work, (requests, heard, told), *fds))
            if pid is not None:
                children[pid] = int(data)
            _tell(requests, _Ended(int(data), 1) if pid is None else _Begun(int(data), pid))
            for fd in fds:
                os.close(fd)


def _fork(live: Callable[[], int]) -> int | None:
    """`None`: there is no memory for another process now, or there are too many; the others go on."""
    try:
        pid = os.fork()
    except OSError as error:
        sys.stderr.write(f"extproc: no process can be started: {error.strerror}\n")
        return None
    if pid == 0:
        _exit(live)
    return pid


def _tell(requests: socket.socket, news: _Begun | _Ended) -> None:
    with suppress(OSError):  # that the parent is gone is read
        requests.send(encode(news))


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """The next request; empty when the parent is gone, killed before it had read all that we said, too."""
    try:
        data, fds, *_ = socket.recv_fds(requests, _MESSAGE_BYTES, 2)
    except ConnectionResetError:
        return b"", []
    return data, fds


def _reap(requests: socket.socket, children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        _tell(requests, _Ended(children.pop(pid), os.waitstatus_to_exitcode(status)))


def _begin(work: Work, inherited: Sequence[socket.socket], messages: int, connections: int) -> int:
    for end in inherited:
        end.close()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()  # a terminal's Ctrl-C is the parent's to hear
    return work(socket.socket(fileno=messages), socket.socket(fileno=connections))


def _exit(live: Callable[[], int]) -> NoReturn:
    """Lives a forked process's life, and no more: what the parent would do at its end is not ours."""
    status = 1
    try:
        status = live()
    except ExtprocError as error:
        sys.stderr.write(f"extproc: {error}\n")
        status = 2
    except BaseException as error:  # noqa: BLE001  # the last resort: a fork must not go on as its parent
        sys.stderr.write(f"extproc: {type(error).__name__}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
