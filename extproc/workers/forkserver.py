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
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.msgpack import decode, encode

from extproc.errors import ExtprocError

_MESSAGE_BYTES: Final = 256

Work = Callable[[socket.socket, socket.socket], int]
"""A worker's life, from its ends of two socket pairs (messages, connections) to its exit status."""


class _Ended(Struct, frozen=True, array_like=True):
    """What the process that was asked for as number `order` came to."""

    order: int
    status: int


class ForkServer:
    """The parent's hand on it."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._orders = 0
        self._ends: dict[int, asyncio.Future[int]] = {}
        self.gone = asyncio.Event()

    def watch(self) -> None:
        """Hears from it, on the running loop."""
        asyncio.get_running_loop().add_reader(self._requests, self._hear)

    def fork(self, messages: socket.socket, connections: socket.socket) -> asyncio.Future[int]:
        """Asks for a worker with these ends; returns its exit status to be."""
        self._orders += 1
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ends[self._orders] = end
        fds = [messages.fileno(), connections.fileno()]
        try:
            socket.send_fds(self._requests, [b"%d" % self._orders], fds)
        except OSError:
            self._lose()
        return end

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
        ended = decode(data, type=_Ended)
        self._ends.pop(ended.order).set_result(ended.status)

    def _lose(self) -> None:
        """Nobody forks any more, and nobody tells how workers end."""
        asyncio.get_running_loop().remove_reader(self._requests)
        self.gone.set()
        for end in self._ends.values():
            end.set_result(1)
        self._ends.clear()


def start_fork_server(work: Work) -> socket.socket:
    """Forks it; to be called before there is a loop or a thread. Returns the socket to ask it by."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.collect()
    gc.freeze()  # what a collection leaves alone stays shared
    if os.fork() == 0:
        ours.close()
        _exit(lambda: _serve(theirs, work))
    theirs.close()
    ours.setblocking(False)
    return ours


def _serve(requests: socket.socket, work: Work) -> int:
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
                return 0
            pid = os.fork()
            if pid == 0:
                for end in (requests, heard, told):
                    end.close()
                _exit(partial(_begin, work, *fds))
            children[pid] = int(data)
            for fd in fds:
                os.close(fd)


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
        ended = _Ended(children.pop(pid), os.waitstatus_to_exitcode(status))
        try:
            requests.send(encode(ended))
        except OSError:
            return


def _begin(work: Work, messages: int, connections: int) -> int:
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
