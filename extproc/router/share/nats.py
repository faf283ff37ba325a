"""Letters over a NATS server, for many gateways: each sends once, and the server brings it to all others."""

# - Core NATS, no JetStream: old news are of no use.
# - A letter is put into a short queue and a task of its own publishes: what the client library
#   waits for, nobody else does. A full queue, and no connection, drop the letter.
# - The client library connects again by itself, but gives up for good where the server refuses it,
#   be it for the moment in which a password changes. Then we begin anew.
# - The library's parser keeps a message of any length, and a line without end, and reads all that has
#   come in one turn of the loop. `BoundedParser` ends such a connection, and reads in pieces.
# - The seal stays: other users of the server must not pass for gateways.

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import thread_time
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError
from nats.errors import ProtocolError as NatsProtocolError
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from extproc.grpc_server.budget import TokenBucket
from extproc.router.cluster.restarting import is_cancelled
from extproc.router.share.courier import LetterCounts, Receiver
from extproc.router.share.sealed import MAX_BYTES

log = logging.getLogger(__name__)

_QUEUED: Final = 64
_PENDING_LETTERS: Final = 1_024
_PENDING_BYTES: Final = 64 * MAX_BYTES
# What a server lets a client send, if its configuration says nothing else (`max_payload`).
_MESSAGE_BYTES: Final = 1_048_576
# INFO names all servers of a cluster.
_LINE_BYTES: Final = 65_536
# What is read in one turn, 100 of the shortest messages, and seconds of our time in a second, and
# at once: what comes faster waits at the server.
_PIECE_BYTES: Final = 2_048
_WORK: Final = 0.2
_BURST_S: Final = 0.1
_AGAIN_S: Final = 1
_CLOSE_S: Final = 1.0
_CANCEL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """Where servers are (`nats://host:port`, `tls://…`), and how we show who we are."""

    servers: Sequence[str]
    credentials: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


class BoundedParser(Parser):
    """The library's, for a server that need not be trusted with our memory or our time."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._work = TokenBucket(_WORK, _BURST_S)

    async def parse(self, data: bytes = b"") -> None:
        """Raises the library's `ProtocolError`, upon which it connects again."""
        for at in range(0, len(data), _PIECE_BYTES):
            began_s = thread_time()
            try:
                await super().parse(data[at : at + _PIECE_BYTES])
            except (ValueError, TypeError, AttributeError, RecursionError):
                # Of these the library stops reading, and connects again only when its pings fail.
                self.reset()
                raise NatsProtocolError from None
            is_message = self.state == AWAITING_MSG_PAYLOAD
            if self.needed > _MESSAGE_BYTES if is_message else len(self.buf) > _LINE_BYTES:
                self.reset()
                raise NatsProtocolError
            self._work.spend(thread_time() - began_s)
            await asyncio.sleep(self._work.wait_s(asyncio.get_running_loop().time()))


class Nats:
    """Publishes to one subject, and receives what others publish there."""

    def __init__(self, access: NatsAccess, cluster: str, letter_counts: LetterCounts) -> None:
        self._access = access
        self._subject = "extproc.share." + cluster.replace(".", "_")
        self._letter_counts = letter_counts
        self._client = _build_client()
        self._queue: deque[bytes] = deque()
        self._filled = asyncio.Event()

    async def open(self) -> None:
        """Nothing of this machine is needed; that a server is there is not waited for."""

    async def run(self, receiver: Receiver) -> None:
        while not is_cancelled():  # after each call of the library, which may swallow that we are
            try:
                await self._serve(receiver)
            except Exception as error:  # noqa: BLE001  # the library's own, and those of what it is made of
                log.warning("no connection to NATS: %s", type(error).__name__)
            await self._hang_up()
            self._client = _build_client()
            await asyncio.sleep(_AGAIN_S)

    async def _serve(self, receiver: Receiver) -> None:
        """Connects, and publishes until the library gives up."""
        closed = asyncio.Event()
        await _until_done(self._connect(receiver, closed))
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self._publish_all())
            await closed.wait()
            publishing.cancel()

    async def _publish_all(self) -> None:
        while not is_cancelled():
            if self._queue:
                await self._publish()
            else:
                self._filled.clear()
                await self._filled.wait()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S) as limit:
                while self._queue and not limit.expired():
                    await self._publish()
                if self._client.is_connected and not limit.expired():
                    await self._client.flush()
        except (Error, OSError, TimeoutError):
            pass
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        """Does not wait for a server that hangs: the library would, until all that it was sent is read."""
        with suppress(Error, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._client.close()

    def send(self, data: bytes) -> None:
        is_open = self._client.is_connected and len(self._queue) < _QUEUED
        self._letter_counts["sent" if is_open else "unsent"] += 1
        if is_open:
            self._queue.append(data)
            self._filled.set()

    async def _connect(self, receiver: Receiver, closed: asyncio.Event) -> None:
        async def on_message(message: Msg) -> None:
            receiver.receive(message.data)

        async def fail(error: Exception) -> None:
            if isinstance(error, SlowConsumerError):
                self._letter_counts["flood"] += 1
            else:
                log.warning("NATS: %s", type(error).__name__)

        async def end() -> None:
            closed.set()

        access = self._access
        await self._client.connect(
            list(access.servers),
            name="extproc",
            error_cb=fail,
            closed_cb=end,
            no_echo=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_AGAIN_S,
            ping_interval=5,
            pending_size=_PENDING_BYTES,
            user=access.user,
            password=access.password,
            user_credentials=access.credentials,
            tls=access.tls,
        )
        await self._client.subscribe(
            self._subject,
            cb=on_message,
            pending_msgs_limit=_PENDING_LETTERS,
            pending_bytes_limit=_PENDING_BYTES,
        )

    async def _publish(self) -> None:
        data = self._queue.popleft()
        try:
            await self._client.publish(self._subject, data)
        except (Error, OSError) as error:
            log.warning("a letter is not sent: %s", type(error).__name__)


def _build_client() -> Client:
    client = Client()
    client._ps = BoundedParser(client)  # noqa: SLF001  # the library takes no parser
    return client


async def _until_done(routine: Coroutine[None, None, None]) -> None:
    """Awaits a routine that may swallow that it is cancelled: then it is cancelled until it ends.

    A client whose password is refused swallows it, and tries again.
    """
    task = asyncio.create_task(routine)
    try:
        await asyncio.wait([task])
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_S)
    task.result()
