"""Letters from each gateway to each, over TCP, without a broker. For a few: n gateways have n² lines."""

# Why like this:
#
# - A line is one way: the sender dials. So two gateways need not agree on which of two lines they
#   use, and a peer that does not read delays only its own letters.
# - TCP, not UDP: a long prompt's letter is larger than a packet, and fragments are dropped in many
#   networks; a flood fills its own line's buffers, not those in which everybody's datagrams wait;
#   and the line of a killed process closes at once.
# - No TLS: letters are sealed with the cluster's secret (`share.sealed`), which says who may write
#   and read them, as client certificates would, without an authority and certificates for each
#   replica.
# - A letter that cannot go out at once is dropped: by the time it could, newer news are due.
# - The list of peers has ourselves, too, since all replicas have the same. Where an incoming line
#   has both ends of one that we dialled, we dialled ourselves, and do not dial that address again.
#   Both ends: one port of ours may have lines to many.
# - A connection is trusted after its first valid letter. Until then it has little time, and one bad
#   letter ends it. There are few of these at a time: the host with most of them loses its oldest
#   for a new one.

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, cast

from extproc.errors import SettingsError
from extproc.grpc_server.budget import TokenBucket
from extproc.router.cluster.backoff import Backoff
from extproc.router.cluster.source import Source
from extproc.router.logs import ONCE_A_MINUTE
from extproc.router.routing.endpoint import Endpoint
from extproc.router.share.courier import LetterCounts, Receiver
from extproc.router.share.peers import MAX_PEERS
from extproc.router.share.sealed import MAX_BYTES

log = logging.getLogger(__name__)

_HEAD: Final = 4
# Unsent bytes for a peer that does not read, beside the kernel's buffers.
_PENDING_BYTES: Final = 262_144
# Most bytes that one line may receive: a thousand long prompts a second are 2 MB.
_BYTES_PER_S: Final = 8_388_608
_CONNECT_S: Final = 3.0
_UNANSWERED_MS: Final = 5_000
# A heartbeat comes every second.
_IDLE_S: Final = 10.0
_LIVED_S: Final = 5.0
# Where the network cuts a line and it is back within that time, no peer counts as lost.
_GRACE_S: Final = 1.0
_MOST_LINES: Final = 2 * MAX_PEERS
# Lines that have not brought a letter yet.
_MOST_STRANGERS: Final = 128

_End = tuple[str, int]
_Ends = tuple[_End, _End]
"""A line's two ends: the address that dialled, and the one that was dialled."""


class Mesh:
    """Listens on `listen` (`host:port`) and dials every address of `peers`."""

    def __init__(
        self,
        listen: str,
        peers: Source,
        letter_counts: LetterCounts,
        *,
        rng: Random,
        clock: Callable[[], float],
    ) -> None:
        self.listen = listen
        self._peers = peers
        self._letter_counts = letter_counts
        self._rng = rng
        self._clock = clock
        self._receiver: Receiver | None = None
        self._server: asyncio.Server | None = None
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self.lines: dict[str, _Outgoing] = {}
        self._own: set[str] = set()
        self._incoming: dict[_Incoming, None] = {}  # the oldest first

    async def open(self) -> None:
        host, _, port = self.listen.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Incoming(self, self._clock),
                host.strip("[]") or None,
                int(port),
                start_serving=False,
            )
        except OSError as error:
            raise SettingsError(
                f"share.mesh.listen: cannot listen on {self.listen}: {error.strerror}"
            ) from error

    async def run(self, receiver: Receiver) -> None:
        if self._server is None:
            await self.open()
        self._receiver = receiver
        assert self._server is not None  # noqa: S101  # as just opened
        await self._server.start_serving()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._peers.run(self))
                tasks.create_task(self._sweep())
        finally:
            # The lines stay until `close`: farewells go out after this.
            self._receiver = None

    async def close(self) -> None:
        for task in self._dialling.values():
            task.cancel()
        for line in self.lines.values():
            line.transport.close()
        for incoming in [*self._incoming]:
            incoming.end()
        if self._server is not None:
            self._server.close()

    def send(self, data: bytes) -> None:
        parcel = len(data).to_bytes(_HEAD) + data
        lines = self.lines.values()
        ready = [line.transport for line in lines if line.takes_more]
        for transport in ready:
            transport.write(parcel)
        self._letter_counts["sent"] += len(ready)
        self._letter_counts["unsent"] += len(lines) - len(ready)

    # A source's sink.

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        wanted = {endpoint.address for endpoint in endpoints}
        for address in self._dialling.keys() - wanted:
            self._dialling.pop(address).cancel()
        for address in wanted - self._dialling.keys() - self._own:
            if len(self._dialling) < MAX_PEERS:
                self._dialling[address] = asyncio.create_task(self._keep(address))

    def confirm(self) -> None:
        """The lines are there anyhow."""

    def restarted(self, why: str, reason: str | None = None) -> None:
        if reason is not None:
            log.warning(
                "the peers' addresses cannot be found (%s): %s", why, reason, extra=ONCE_A_MINUTE
            )

    def lacks(self, why: str, reason: str, has_list: bool = False) -> None:  # noqa: ARG002  # a sink's
        log.warning("there are no addresses of peers (%s): %s", why, reason, extra=ONCE_A_MINUTE)

    # Called by incoming lines.

    def join(self, line: "_Incoming") -> bool:
        """Whether it may stay."""
        strangers = [one for one in self._incoming if one.sender is None]
        if len(strangers) >= _MOST_STRANGERS:
            [(host, _)] = Counter(one.host for one in strangers).most_common(1)
            oldest = next(one for one in strangers if one.host == host)
            del self._incoming[oldest]
            oldest.end()
        if len(self._incoming) >= _MOST_LINES:
            return False
        self._incoming[line] = None
        return True

    def is_ours(self, ends: _Ends) -> bool:
        """Whether a line comes from ourselves; then its other end is never dialled again."""
        address = next((address for address, line in self.lines.items() if line.ends == ends), None)
        if address is None:
            return False
        self._own.add(address)
        if address in self._dialling:
            self._dialling.pop(address).cancel()
        return True

    def receive(self, data: bytes) -> int | None:
        return self._receiver.receive(data) if self._receiver is not None else None

    def leave(self, line: "_Incoming") -> None:
        self._incoming.pop(line, None)
        if line.sender is not None:
            asyncio.get_running_loop().call_later(_GRACE_S, self._lose, line.sender)

    def _lose(self, sender: int) -> None:
        if self._receiver is not None and all(line.sender != sender for line in self._incoming):
            self._receiver.lose(sender)

    async def _sweep(self) -> None:
        while True:
            looked_s = self._clock()
            await asyncio.sleep(_IDLE_S / 2)
            if self._clock() - looked_s > _IDLE_S:
                continue  # we hung ourselves, and what they said waits to be read
            for line in [*self._incoming]:
                if self._clock() - line.last_s > _IDLE_S:
                    line.end()

    async def _keep(self, address: str) -> None:
        """Has a line to one peer as long as it is in the list."""
        backoff = Backoff(self._rng, base_s=0.2, cap_s=5.0)
        while True:
            began_s = self._clock()
            try:
                await self._hold_line(address)
            except (OSError, TimeoutError):
                pass
            except Exception as error:  # noqa: BLE001  # the others' lines must not end with this one
                log.error("the line to %s: %s", address, type(error).__name__)  # noqa: TRY400
            if self._clock() - began_s > _LIVED_S:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _hold_line(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(_CONNECT_S):
            transport, outgoing = await asyncio.get_running_loop().create_connection(
                _Outgoing, host.strip("[]"), int(port)
            )
        ends = (
            _end(transport.get_extra_info("sockname")),
            _end(transport.get_extra_info("peername")),
        )
        outgoing.ends = ends
        transport.set_write_buffer_limits(_PENDING_BYTES)
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS
        )
        self.lines[address] = outgoing
        try:
            await outgoing.ended.wait()
        finally:
            del self.lines[address]
            transport.close()


class _Outgoing(asyncio.Protocol):
    """A line to a peer. Nothing comes back on it. `takes_more`: less than the limit waits to go out."""

    transport: asyncio.Transport
    ends: _Ends

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.takes_more = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.takes_more = True

    def pause_writing(self) -> None:
        self.takes_more = False

    def resume_writing(self) -> None:
        self.takes_more = True

    def data_received(self, _: bytes) -> None:
        self.transport.abort()  # not a peer

    def connection_lost(self, _: Exception | None) -> None:
        self.takes_more = False
        self.ended.set()


class _Incoming(asyncio.Protocol):
    """A line from a peer: letters, each behind its length in four bytes."""

    def __init__(self, mesh: Mesh, clock: Callable[[], float]) -> None:
        self.sender: int | None = None
        self.last_s = clock()  # of its last bytes, while they are letters
        self._mesh = mesh
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._ends: _Ends = (("", 0), ("", 0))
        self._buffer = bytearray()
        self._bucket = TokenBucket(_BYTES_PER_S, _BYTES_PER_S)

    @property
    def host(self) -> str:
        return self._ends[0][0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer is None:  # it is gone already
            self.end()
            return
        self._ends = (_end(peer), _end(transport.get_extra_info("sockname")))
        if not self._mesh.join(self):
            self.end()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._mesh.leave(self)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.sender is None and self._mesh.is_ours(self._ends):
            self.end()
            return
        now = self._clock()
        if not self._take_letters(data, now):
            log.warning("a line from %s is closed: it brings no letters of this cluster", self.host)
            self.end()
            return
        self._bucket.spend(len(data))
        wait_s = self._bucket.wait_s(now)
        if wait_s and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(wait_s, self._resume)

    def _take_letters(self, data: bytes, now: float) -> bool:
        """Whether all that are here were a peer's, the same one always."""
        buffer, start = self._buffer, 0
        if buffer:
            buffer += data
            data = bytes(buffer)
        while len(data) - start >= _HEAD:
            end = start + _HEAD + int.from_bytes(data[start : start + _HEAD])
            if end - start - _HEAD > MAX_BYTES:
                return False
            if end > len(data):
                break
            sender = self._mesh.receive(data[start + _HEAD : end])
            if sender is None or self.sender not in {None, sender}:
                return False
            self.sender, self.last_s, start = sender, now, end
        buffer[:] = data[start:]
        return True

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()


def _end(address: Sequence[object]) -> _End:
    return (str(address[0]).removeprefix("::ffff:"), cast("int", address[1]))
