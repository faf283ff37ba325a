"""A worker's links to the others: a socket pair with each, for sealed letters and for news of requests."""

# - Packets of a socket pair keep their bounds and their order, and the kernel closes it with the process:
#   who was killed is gone at once, and so are its counts. A datagram socket with a name would have room for
#   ten letters (net.unix.max_dgram_qlen), and take any from whoever can open it.
# - What does not go out at once is dropped: heartbeats heal what letters tell, and the next failure what was
#   not heard of one.

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from msgspec import DecodeError
from msgspec.msgpack import Decoder, Encoder

from extproc.router.service.siblings import Gone, Newcomer, News
from extproc.router.share.courier import Carrier, Receiver, Tally
from extproc.router.share.sealed import MAX_BYTES

_LETTER: Final = b"L"
_NEWS: Final = b"N"
# Of one turn of the loop.
_AT_ONCE: Final = 32
_BUFFER_BYTES: Final = 1_048_576
_PACKET_BYTES: Final = 2 * MAX_BYTES
_PACKET_NEWS: Final = 64


class _Link:
    """The line to one other worker; `sender` is whom its letters are from."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self.end = end
        self.sender: int | None = None
        self.news: list[News] = []

    def send(self, kind: bytes, data: bytes) -> bool:
        try:
            self.end.sendmsg([kind, data])
        except OSError:
            return False  # full, or gone: the latter is read
        return True


class Links:
    """Carries letters to the other workers, and news. We are `lane` of `lanes`."""

    def __init__(self, lane: int, lanes: int, tally: Tally) -> None:
        self.lane = lane
        self.lanes = lanes
        self._tally = tally
        self._links: dict[int, _Link] = {}
        self._receiver: Receiver | None = None
        self._hear: Callable[[int, News], None] = lambda *_: None
        self._is_flushing = False
        self._encoder = Encoder()
        self._decoder = Decoder(list[News])

    def __repr__(self) -> str:
        return f"<Links of {self.lane} to {sorted(self._links)}>"

    def listen(self, hear: Callable[[int, News], None]) -> None:
        """Gives what is told to `hear`, with the number of who tells it."""
        self._hear = hear

    def add(self, lane: int, end: socket.socket) -> None:
        """Begins a link; one that was there is of a worker that is gone."""
        self._drop(lane)
        self._links[lane] = _Link(end)
        asyncio.get_running_loop().add_reader(end, self._read, lane)

    # What the service tells.

    def others(self) -> Collection[int]:
        return self._links.keys()

    def tell(self, news: News) -> None:
        for lane in self._links:
            self.tell_one(lane, news)

    def tell_one(self, lane: int, news: News) -> None:
        link = self._links.get(lane)
        if link is None:
            return
        link.news.append(news)
        if not self._is_flushing:
            # An access log tells of thirty requests at a time.
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def ask(self) -> None:
        """Asks the others what they know, as who has just begun."""
        self.tell(Newcomer())

    # What a courier asks of a carrier.

    async def open(self) -> None:
        """The parent has made what is needed."""

    async def run(self, receiver: Receiver) -> None:
        self._receiver = receiver
        await asyncio.Event().wait()

    def send(self, data: bytes) -> None:
        for link in self._links.values():
            self._tally.count("sent" if link.send(_LETTER, data) else "unsent")

    async def close(self) -> None:
        for lane in [*self._links]:
            self._drop(lane)

    def _flush(self) -> None:
        self._is_flushing = False
        for link in self._links.values():
            news, link.news = link.news, []
            for start in range(0, len(news), _PACKET_NEWS):
                link.send(_NEWS, self._encoder.encode(news[start : start + _PACKET_NEWS]))

    def _read(self, lane: int) -> None:
        link = self._links[lane]
        for _ in range(_AT_ONCE):
            try:
                data = link.end.recv(_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop(lane)
                return
            if data[:1] == _LETTER:
                self._take(link, data[1:])
            else:
                self._tell(lane, data[1:])

    def _take(self, link: _Link, letter: bytes) -> None:
        if self._receiver is not None:
            sender = self._receiver.take(letter)
            link.sender = link.sender if sender is None else sender

    def _tell(self, lane: int, data: bytes) -> None:
        with suppress(DecodeError):
            for news in self._decoder.decode(data):
                self._hear(lane, news)

    def _drop(self, lane: int) -> None:
        link = self._links.pop(lane, None)
        if link is None:
            return
        asyncio.get_running_loop().remove_reader(link.end)
        link.end.close()
        if self._receiver is not None and link.sender is not None:
            self._receiver.lose(link.sender)
        self._hear(lane, Gone())


class Both:
    """Two carriers as one: to the other workers, and to other gateways."""

    def __init__(self, near: Carrier, far: Carrier) -> None:
        self._carriers = (near, far)

    def __repr__(self) -> str:
        return f"<Both {self._carriers}>"

    async def open(self) -> None:
        for carrier in self._carriers:
            await carrier.open()

    async def run(self, receiver: Receiver) -> None:
        async with asyncio.TaskGroup() as tasks:
            for carrier in self._carriers:
                tasks.create_task(carrier.run(receiver))

    def send(self, data: bytes) -> None:
        for carrier in self._carriers:
            carrier.send(data)

    async def close(self) -> None:
        for carrier in self._carriers:
            await carrier.close()
