"""Readers of bytes that others send, and the count of uploads: what must hold for any input."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from msgspec.msgpack import encode
from nats.errors import ProtocolError as NatsProtocolError

from extproc.errors import ProtocolError
from extproc.grpc_server.budget import Budget
from extproc.router.events.kv_log import read_events
from extproc.router.events.zmtp import Sign, ZmtpConnection
from extproc.router.share.nats import BoundedParser
from extproc.router.stream.uploads import Upload, Uploads
from tests.slow.fuzz.choices import Choices

OPENING = (
    b"\xff" + bytes(8) + b"\x7f\x03" + bytes(1) + b"NULL".ljust(52, b"\0") + b"\x04\x06\x05READY"
)
# A command and the longest frame head, beyond a message.
_BESIDE_BYTES = 1_024 + 9
_LIMIT_BYTES = 32 << 20


def check_zmtp(data: bytes) -> None:
    """Bytes mean the same whole and one by one; what is kept has a limit."""
    choices = Choices(data)
    build = partial(ZmtpConnection, "SUB" if choices.flag() else "DEALER", choices.byte())
    stream = OPENING * choices.flag() + choices.rest()
    whole, apart = (_read_zmtp(build(), each) for each in ([stream], map(bytes, zip(stream))))

    assert whole == apart


def _read_zmtp(connection: ZmtpConnection, pieces: Iterable[bytes]) -> tuple[list[object], bytes]:
    found: list[object] = []
    try:
        for piece in pieces:
            connection.feed(piece)
            while (event := connection.next_event()) is not Sign.NEEDS_BYTES:
                found.append(event)
            assert connection.kept_bytes <= 255 + _BESIDE_BYTES
    except ProtocolError as error:
        found.append(str(error))
    return found, bytes(connection.to_send)


def check_events(data: bytes) -> str:
    """Events mean the same in a short message, which a decoder finds, and in a long one, which is walked."""
    choices = Choices(data)
    events = b"\xdc" + bytes((0, choices.byte() % 8)) + choices.rest()
    short, long = (
        [*read_events(b"\x93" + encode(1.5) + events + tail)]
        for tail in (b"\xc0", b"\xc6" + (140_000).to_bytes(4) + bytes(140_000))
    )
    is_read = [None not in each for each in (short, long)]
    if all(is_read):
        assert [*map(encode, chain(*short))] == [*map(encode, chain(*long))]  # type: ignore[arg-type]
    elif is_read[0]:
        # It knows the decoder's extensions, and a walk none; or the events are not where they seem.
        assert any(0xC7 <= byte <= 0xC9 or 0xD4 <= byte <= 0xD8 for byte in events)
    return f"{['refused', 'read'][is_read[0]]}, {['refused', 'read'][is_read[1]]}"


def check_uploads(data: bytes) -> None:
    """The budget is the sum of what is counted, never far over its limit, and empty in the end."""
    choices, now, budget = Choices(data), [0.0], Budget(_LIMIT_BYTES)
    uploads, live = Uploads(budget, lambda: now[0]), list[Upload]()
    while choices:
        match choices.byte() % 4:
            case 0:
                upload = uploads.announce(choices.byte() << 17)
                if upload is not None:
                    upload.give_way = partial(live.remove, upload)
                    live.append(upload)
            case 1 if live:
                upload = choices.one_of(live)
                uploads.arrive(upload, upload.size * choices.byte() // 255)
            case 2 if live:
                upload = live.pop(choices.byte() % len(live))
                for _ in range(2):
                    uploads.end(upload)
            case _:
                now[0] += choices.byte() / 100
        assert budget.used == sum(each.size for each in live) <= _LIMIT_BYTES * 3 // 2
    for upload in live:
        uploads.end(upload)
    assert budget.used == 0


class DeafClient:
    """What the library's parser calls."""

    async def _process_info(self, info: dict[str, Any]) -> None:
        info.get("connect_urls")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def take(*_: object) -> None: ...

        return take


def check_nats(data: bytes) -> None:
    """Any bytes of a server are read, or end the connection by the one error upon which it is made anew."""
    choices = Choices(data)
    parser = BoundedParser(DeafClient())  # type: ignore[arg-type]  # as said

    async def read() -> None:
        while choices:
            await parser.parse(choices.piece())
            assert len(parser.buf) <= 65_536 + 1_048_576

    with suppress(NatsProtocolError):
        asyncio.run(read())
