"""A client's frames, made from choices: mostly what clients send, sometimes what none would.

Knows just enough to be understood most of the time: which streams there are, what the header table
holds, what is missing of a message. Everything else is left to chance.
"""

from collections.abc import Callable
from typing import Final

from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from extproc.grpc_server import frames
from tests.grpc_server.header_blocks import string
from tests.slow.fuzz.choices import Choices

Field = tuple[bytes, bytes]

REQUEST: Final[tuple[Field, ...]] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/echo.Echo/Say"),
    (b":authority", b"echo"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
# What replaces a request's field, or is put somewhere among them. Good ones, and each way to be
# malformed.
OTHER_FIELDS: Final[tuple[Field, ...]] = (
    *(
        (b"grpc-timeout", b"5S"),
        (b"x-request-id", b"1"),
        (b"x-request-id", b"2"),
        (b"cookie", b"a=b"),
    ),
    *((b"content-type", b"application/grpc+proto"), (b"content-type", b"text/html")),
    *(
        (b":method", b"GET"),
        (b":method", b"CONNECT"),
        (b":method", b""),
        (b":path", b""),
        (b":path", b"/"),
    ),
    *((b":scheme", b""), (b":status", b"100"), (b":status", b"200"), (b":protocol", b"websocket")),
    *((b":", b"x"), (b"", b"x"), (b"host", b"echo"), (b"host", b"other"), (b"te", b"Trailers")),
    *((b"te", b"gzip"), (b"connection", b"close"), (b"upgrade", b"h2c"), (b"Upper", b"x")),
    *(
        (b"sp ace", b"x"),
        (b"x:y", b"x"),
        (b"\xe9", b"x"),
        (b"x-binary", b"\x01\xff"),
        (b"x-nul", b"\x00"),
    ),
    *((b"x-line", b"a\nb"), (b"x-space", b" x"), (b"x-tab", b"x\t"), (b"x-empty", b"")),
    *((b"x-long", b"l" * 300), (b"content-length", b"8"), (b"content-length", b"x")),
)
TRAILERS: Final[tuple[tuple[Field, ...], ...]] = (
    (),
    ((b"x-end", b"1"),),
    ((b":path", b"/"),),
    ((b"A", b""),),
)
TABLE_SIZES: Final = (0, 0, 40, 200, 4_096, 4_096, 4_097, 2**20)
INCREMENTS: Final = (0, 1, 1, 5, 20, 100, 70_000, 2**30, frames.MAX_WINDOW, 2**31 + 3)
SETTINGS: Final = (
    (frames.HEADER_TABLE_SIZE, (0, 100, 4_095, 4_096, 65_536)),
    (frames.ENABLE_PUSH, (0, 1, 2)),
    (frames.MAX_CONCURRENT_STREAMS, (0, 100)),
    (frames.INITIAL_WINDOW_SIZE, (0, 1, 6, 20, 30, 65_535, frames.MAX_WINDOW, 2**31)),
    (frames.MAX_FRAME_SIZE, (16_384, 16_383, 2**24 - 1, 2**24)),
    (frames.MAX_HEADER_LIST_SIZE, (0, 2**32 - 1)),
    (8, (0, 1)),
    (0x7777, (5,)),
)


class Blocks:
    """Encodes header blocks in every representation that HPACK has, one after the other."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._table = HeaderTable()
        self._sent: list[bytes] = []

    def request(self) -> bytes:
        """A block that came before, bytes for bytes, whatever it means by now; or a new one."""
        kind = self._choices.byte()
        if kind < 140 and self._sent:
            return self._choices.one_of(self._sent)
        if kind > 250:
            return self._choices.piece()
        # One is the rule, two are allowed, three are not (RFC 7541 §4.2).
        resizes = 0 if kind <= 225 else 1 if kind <= 240 else 2 if kind <= 247 else 3
        block = b"".join(self._resize() for _ in range(resizes))
        block += self.encode(REQUEST if kind < 190 else self._varied())
        self._sent.append(block)
        return block

    def encode(self, fields: tuple[Field, ...]) -> bytes:
        forms = self._choices.byte()
        return b"".join(
            self._field(field, forms >> place % 4 * 2 & 3) for place, field in enumerate(fields)
        )

    def _varied(self) -> tuple[Field, ...]:
        choices = self._choices
        fields = list(REQUEST)
        place, way = choices.byte() % len(fields), choices.byte()
        other = OTHER_FIELDS[way % len(OTHER_FIELDS)]
        match choices.byte() % 4:
            case 0:
                fields[place] = other
            case 1:
                del fields[place]
            case 2:
                fields.insert(place, other)
            case 3:
                fields.append(other)
        return tuple(fields)

    def _resize(self) -> bytes:
        size = self._choices.one_of(TABLE_SIZES)
        self._table.maxsize = size
        return _integer(size, 5, 0x20)

    def _field(self, field: Field, form: int) -> bytes:
        """Indexed if it can be; or a literal: to be indexed, even once more; or not; or never to be."""
        name, value = field
        found = self._table.search(name, value)
        if found and found[2] is not None and form == 0:
            return _integer(found[0], 7, 0x80)
        prefix, bits = ((0x40, 6), (0x40, 6), (0x00, 4), (0x10, 4))[form]
        index = found[0] if found else 0
        if bits == 6:
            self._table.add(name, value)
        is_huffman = form & 1 == 1
        written = b"" if index else string(name, is_huffman=is_huffman)
        return _integer(index, bits, prefix) + written + string(value, is_huffman=is_huffman)


class Http2Client:
    """Makes frames, one step of the conversation at a time."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._blocks = Blocks(choices)
        self._next_id = 1
        self._ids: list[int] = []
        self._owed: dict[int, bytes] = {}

    def frames(self) -> bytes:
        return self._choices.one_of(STEPS)(self)

    def start(self) -> bytes:
        """The preface, then SETTINGS; seldom something else."""
        way = self._choices.byte()
        if way < 230:
            return frames.PREFACE + frames.settings({})
        if way < 245:
            return frames.PREFACE + self.settings()
        if way < 250:
            return frames.PREFACE
        return self._choices.piece()

    def stream_id(self) -> int:
        """One of the last few; seldom one that is wrong in one way or another."""
        way = self._choices.byte()
        if way > 20 and self._ids:
            return self._ids[-1 - way % min(len(self._ids), 4)]
        return (1, 0, 2, self._next_id, self._next_id + 2, max(1, self._next_id - 4), 3, 2**31 - 1)[
            way % 8
        ]

    def request(self) -> bytes:
        way = self._choices.byte()
        if way > 245:
            return self._block(self.stream_id(), self._blocks.request())
        stream_id = self._next_id
        self._next_id += 4 if way > 235 else 2
        self._ids.append(stream_id)
        return self._block(stream_id, self._blocks.request())

    def trailers(self) -> bytes:
        block = self._blocks.encode(self._choices.one_of(TRAILERS))
        return self._block(self.stream_id(), block, end=self._choices.byte() < 220)

    def data(self) -> bytes:
        stream_id, way = self.stream_id(), self._choices.byte()
        flags = frames.END_STREAM if way & 7 == 7 else 0
        payload = self._payload(stream_id)
        if way >> 3 & 7 == 7:
            flags |= frames.PADDED
            payload = self._padded(payload)
        return frames.frame(frames.DATA, flags, stream_id, payload)

    def reset(self) -> bytes:
        return frames.rst_stream(self.stream_id(), frames.Code.CANCEL)

    def window_update(self) -> bytes:
        return frames.window_update(self.stream_id(), self._choices.one_of(INCREMENTS))

    def wider_connection(self) -> bytes:
        return frames.window_update(0, self._choices.one_of(INCREMENTS))

    def settings(self) -> bytes:
        values = {}
        for _ in range(1 + self._choices.byte() % 3):
            name, options = self._choices.one_of(SETTINGS)
            values[name] = self._choices.one_of(options)
        return frames.settings(values)

    def ping(self) -> bytes:
        payload = self._choices.one_of((b"extproc!", b"extproc?", b"12345678"))
        return frames.frame(frames.PING, self._choices.byte() % 2, 0, payload)

    def priority(self) -> bytes:
        stream_id = self.stream_id()
        depends_on = stream_id if self._choices.byte() > 200 else 0
        return frames.frame(frames.PRIORITY, 0, stream_id, depends_on.to_bytes(4, "big") + b"\x10")

    def goaway(self) -> bytes:
        return frames.goaway(0, frames.Code.NO_ERROR, "bye")

    def any_frame(self) -> bytes:
        """Any type, any flags, any length."""
        choices = self._choices
        stream_id = self.stream_id() if choices.flag() else 0
        return frames.frame(
            choices.byte() % 13, choices.byte(), stream_id, choices.take(choices.byte() % 16)
        )

    def changed_frame(self) -> bytes:
        """A frame as it should be, but for one byte."""
        made = bytearray(self._choices.one_of(REGULAR)(self))
        # Two high bytes of the length left out: too long is too long.
        made[2 + self._choices.byte() % (len(made) - 2)] ^= 1 << self._choices.byte() % 8
        return bytes(made)

    def anything(self) -> bytes:
        return self._choices.piece()

    def _block(self, stream_id: int, block: bytes, *, end: bool = False) -> bytes:
        way = self._choices.byte()
        flags = frames.END_STREAM if end or way & 15 == 15 else 0
        first, rest = block, []
        if way > 225:
            first, *rest = self._cut(block)
        if way >> 4 == 1:
            flags |= frames.HAS_PRIORITY
            first = b"\x00\x00\x00\x00\x10" + first
        if way >> 4 == 2:
            flags |= frames.PADDED
            first = self._padded(first)
        kinds = [frames.HEADERS] + [frames.CONTINUATION] * len(rest)
        all_flags = [flags] + [0] * len(rest)
        all_flags[-1] |= frames.END_HEADERS
        return b"".join(
            frames.frame(kind, flag, stream_id, part)
            for kind, flag, part in zip(kinds, all_flags, [first, *rest], strict=True)
        )

    def _cut(self, block: bytes) -> list[bytes]:
        count = 1 + self._choices.byte() % 4
        size = len(block) // count + 1
        return [block[place * size : (place + 1) * size] for place in range(count + 1)]

    def _padded(self, payload: bytes) -> bytes:
        """Up to 15 bytes of padding; or a length of padding that is wrong, or all there is."""
        way = self._choices.byte()
        if way < 200:
            return bytes((way % 16,)) + payload + bytes(way % 16)
        return bytes(((len(payload) + way % 4 - 1) & 0xFF,)) + payload

    def _payload(self, stream_id: int) -> bytes:
        way = self._choices.byte()
        owed = self._owed.pop(stream_id, b"")
        if way > 250:
            return self._choices.piece()
        if way > 247:
            return bytes(16_000)
        if not owed or way > 235:
            owed = self._messages(way)
        if way & 3 == 3:
            size = self._choices.byte() % (len(owed) + 1)
            self._owed[stream_id] = owed[size:]
            return owed[:size]
        return owed

    def _messages(self, way: int) -> bytes:
        message = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOP"[: way % 48]
        framed = len(message).to_bytes(5, "big") + message
        if way > 230:
            return (b"\x01" if way & 4 else b"") + framed + b"\x00\x00\x00\xff\xff"
        return framed * (1 + (way >> 2) % 3)


Step = Callable[[Http2Client], bytes]

REGULAR: Final[tuple[Step, ...]] = (
    *(Http2Client.request,) * 8,
    *(Http2Client.data,) * 10,
    *(
        Http2Client.trailers,
        Http2Client.trailers,
        Http2Client.reset,
        Http2Client.reset,
        Http2Client.goaway,
        Http2Client.priority,
    ),
    *(
        Http2Client.window_update,
        Http2Client.window_update,
        Http2Client.window_update,
        Http2Client.wider_connection,
    ),
    *(Http2Client.settings, Http2Client.settings, lambda _: frames.SETTINGS_ACK, Http2Client.ping),
)
STEPS: Final = (*REGULAR, Http2Client.any_frame, Http2Client.changed_frame, Http2Client.anything)


def _integer(number: int, bits: int, prefix: int) -> bytes:
    encoded = encode_integer(number, bits)
    encoded[0] |= prefix
    return bytes(encoded)
