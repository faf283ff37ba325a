"""Header blocks: what a call's headers say (RFC 9113 §8.1 to 8.3, gRPC over HTTP/2), and the few we write."""

from collections.abc import Mapping
from re import compile as compile_pattern
from typing import Final, TypeVar
from urllib.parse import quote

from hpack import Decoder, HPACKDecodingError, HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import table_entry_size
from msgspec import Struct
from msgspec.structs import replace

from extproc.grpc_server.calls import Status

# The headers that come before a call's first message: `:status: 200` is entry 8 of the static
# table; `content-type` is 31, its value a literal without indexing (RFC 7541 §6.2.2). Nothing that
# we write is ever indexed, so our encoder has no state.
RESPONSE_BLOCK: Final = b"\x88\x0f\x10\x10application/grpc"
# The first block after a peer made its table smaller must say that ours is (RFC 7541 §4.2).
TABLE_OF_NOTHING: Final = b"\x20"

# A block starts with two changes of the table's size at most (RFC 7541 §4.2): what it was made
# smaller to, and what it is. 16,384 of them, a byte each, would take hpack 35 ms.
_THREE_UPDATES: Final = compile_pattern(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*+[\x00-\x7f]){3}")

# Fields of one HTTP/1.1 connection, which HTTP/2 has not (§8.2.2).
_CONNECTION_FIELDS: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
_REQUEST_FIELDS: Final = frozenset({":method", ":scheme", ":path", ":authority"})
# §8.2.1: lower-case names without control characters or spaces; values without NUL, CR, LF and
# without white space at their ends.
_NAME: Final = compile_pattern(r":?[!-9;-@\[-~]+")
_VALUE: Final = compile_pattern(r"(?:[^\x00\r\n \t](?:[^\x00\r\n]*[^\x00\r\n \t])?)?")
_TIMEOUT: Final = compile_pattern(r"(\d{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

# Characters of a status message that need no escape: printable ASCII without the percent sign.
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

# A proxy has few kinds of calls, each of a few hundred bytes; a peer that has more shall not fill
# our memory.
_CACHED_BLOCKS: Final = 32
_CACHED_BYTES: Final = 1_024

# What a proxy that traces says anew with each call, one behind the other: fields that go into no
# table, their names Huffman-coded literals (RFC 7541 §6.2.2), as an encoder writes them that has
# none.
_TRACE: Final = {
    "traceparent": bytes.fromhex("00 88 4d83216b1d85a93f"),
    "tracestate": bytes.fromhex("00 87 4d83215091a4bf"),
}
_PARENT: Final = _TRACE["traceparent"]
# Digits of the longest content-length that can be meant.
_LONGEST_LENGTH: Final = 18
# The longest string whose length is a single byte (RFC 7541 §5.1).
_SHORT: Final = 126

Fields = list[tuple[str, str]]
K = TypeVar("K")
V = TypeVar("V")


class MalformedRequest(Exception):  # the RFC's word (§8.1.1)
    """A header block that decodes but is no request."""


class TooManySizes(
    HPACKDecodingError
):  # as any other fault of a block, but with a reason of its own
    """A header block that changes the table's size more than twice."""


class Head(Struct, frozen=True):
    """What a call's headers say.

    `refusal` is the HTTP status for a request that is no gRPC call, 0 if it is one. `timeout_s` is
    the client's own limit, `encoding` the compression it names, `content_length` how much DATA it
    announces.
    """

    path: str
    metadata: Mapping[str, str]
    refusal: int = 0
    timeout_s: float | None = None
    encoding: str = "identity"
    content_length: int | None = None


class HeaderCut(Struct, frozen=True):
    """A block cut at its trace's fields: the bytes before and behind them, and their values as coded."""

    front: bytes
    back: bytes
    values: dict[str, bytes]

    @property
    def key(self) -> tuple[bytes, bytes, int]:
        return self.front, self.back, len(self.values)


class Form(Struct, frozen=True):
    """The head of blocks that differ in a trace's values alone; these may have `room` bytes."""

    head: Head
    room: int


class HeadReader:
    """Reads header blocks by HPACK, each in its turn: one left out would spoil the table.

    A proxy's blocks are byte-identical from its second call on, so heads are cached by their bytes.
    A cached head is right only while the dynamic table is unchanged; a block that changes the
    table, by an entry or by a new size, empties the cache.

    Blocks of a proxy that traces differ in the trace's ids. Where there is no table, which is what
    our SETTINGS say, a field means the same wherever it stands: so the ids are cut out, the rest is
    cached as a form, and a call costs the decoding of its ids. The cut was checked when the form
    was cached: the bytes before it were whole fields by themselves, so any decoder stops at the
    same place. `hpack` decodes every other block, and every faulty one, as a whole.
    """

    def __init__(self, limit_bytes: int) -> None:
        # Bytes of blocks that had to be decoded; the connection resets it each turn.
        self.decoded_bytes = 0
        self._decoder = Decoder(limit_bytes)
        self._heads: dict[bytes, Head] = {}
        self._forms: dict[tuple[bytes, bytes, int], Form] = {}

    def read(self, block: bytes) -> Head:
        """Returns the head of a call.

        Raises hpack's `HPACKError` where the connection's table is lost, `MalformedRequest` where
        only this request is.
        """
        head = self._heads.get(block)
        if head is not None:
            return head
        cut = cut_trace(block)
        head = self._fill(cut) if cut is not None else None
        return head if head is not None else self._learn(block, cut)

    def _fill(self, cut: HeaderCut) -> Head | None:
        """The head of a cached form with these values; None if the block has to be decoded as a whole."""
        form = self._forms.get(cut.key)
        if form is None:
            return None
        self.decoded_bytes += sum(map(len, cut.values.values()))
        try:
            values = {name: _read_string(value) for name, value in cut.values.items()}
        except HPACKError:
            return None
        if sum(map(len, values.values())) > form.room or not all(
            map(_VALUE.fullmatch, values.values())
        ):
            return None
        return replace(form.head, metadata={**form.head.metadata, **values})

    def _learn(self, block: bytes, cut: HeaderCut | None) -> Head:
        fields, is_lasting = self._decode(block)
        head = read_head(fields)
        if is_lasting and len(block) <= _CACHED_BYTES:
            form = self._form_of(head, fields, cut) if cut is not None else None
            if cut is not None and form is not None:
                _add(self._forms, cut.key, form)
            else:
                _add(self._heads, block, head)
        return head

    def _form_of(self, head: Head, fields: Fields, cut: HeaderCut) -> Form | None:
        """The form of a block that was just read; None unless it was cut between its fields."""
        decoder = self._decoder
        names = [name for name, _ in fields]
        if decoder.header_table.maxsize or any(names.count(name) != 1 for name in cut.values):
            return None
        self.decoded_bytes += len(cut.front)
        try:
            decoder.decode(cut.front, raw=True)
        except HPACKError:
            return None
        used = sum(
            table_entry_size(
                name.encode("latin-1"), b"" if name in cut.values else value.encode("latin-1")
            )
            for name, value in fields
        )
        return Form(head, decoder.max_header_list_size - used)

    def read_trailers(self, block: bytes) -> bool:
        """Reads trailers; whether they are well formed (§8.1). Their values are not used."""
        fields, _ = self._decode(block)
        try:
            for name, value in fields:
                _check_field(name, value)
        except MalformedRequest:
            return False
        return not any(name.startswith(":") for name, _ in fields)

    def pass_over(self, block: bytes) -> None:
        """Reads a block whose stream is gone: it may change the table all the same (§5.1, closed)."""
        self._decode(block)

    def _decode(self, block: bytes) -> tuple[Fields, bool]:
        """Returns the fields, and whether the same bytes will mean the same again."""
        if _THREE_UPDATES.match(block):
            raise TooManySizes
        self.decoded_bytes += len(block)
        table = self._decoder.header_table
        entries, size = table.dynamic_entries, table.maxsize
        count, newest = len(entries), entries[0] if entries else None
        fields = self._decoder.decode(block, raw=True)
        # Entries are added in front and dropped at the back: any change shows in the count, the
        # newest entry or the size. Compared by identity, for an equal entry may be added again.
        is_lasting = (
            len(entries) == count
            and (entries[0] if entries else None) is newest
            and table.maxsize == size
        )
        if not is_lasting:
            self._heads.clear()
            self._forms.clear()
        return [
            (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
            for name, value in fields
        ], (is_lasting)


def cut_trace(block: bytes) -> HeaderCut | None:
    """Cuts out the values of a trace's fields, where they seem to be; `HeadReader` checks the cut."""
    start = end = block.find(_PARENT)
    if start < 0:
        return None
    values = {}
    for name, mark in _TRACE.items():
        if block.startswith(mark, end):
            place = end + len(mark)
            size = block[place] & 0x7F if place < len(block) else 0
            end = place + 1 + size
            if size > _SHORT or end > len(block):
                return None
            values[name] = block[place:end]
    return HeaderCut(block[:start], block[end:], values)


def read_head(fields: Fields) -> Head:
    """Reads a request's fields as a gRPC call's. Raises `MalformedRequest` (RFC 9113 §8.1.1)."""
    pseudo: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in fields:
        _check_field(name, value)
        if name.startswith(":"):
            if metadata or name in pseudo or name not in _REQUEST_FIELDS:
                raise MalformedRequest("a pseudo-header out of place")
            pseudo[name] = value
        else:
            metadata[name] = f"{metadata[name]},{value}" if name in metadata else value
    if not (pseudo.get(":method") and pseudo.get(":scheme") and pseudo.get(":path")):
        raise MalformedRequest("a request without method, scheme or path")
    return Head(
        pseudo[":path"],
        metadata,
        _refusal(pseudo[":method"], metadata.get("content-type", "")),
        _timeout_s(metadata.get("grpc-timeout")),
        metadata.get("grpc-encoding", "identity"),
        _content_length(metadata.get("content-length")),
    )


def _content_length(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_LENGTH):
        raise MalformedRequest("a content-length that is no number")
    return int(text)


def trailers_block(status: Status, details: str = "", *, is_alone: bool = False) -> bytes:
    """The end of a call; `is_alone`: nothing was sent before it ("Trailers-Only")."""
    block = (RESPONSE_BLOCK if is_alone else b"") + _literal(b"grpc-status", b"%d" % status)
    # Percent-encoded: space and printable ASCII but for the percent sign stay (gRPC,
    # "Status-Message").
    return (
        block + _literal(b"grpc-message", quote(details, safe=_PLAIN).encode())
        if details
        else block
    )


def encodings_block() -> bytes:
    """What comes with a refusal to read a compressed message: the encoding that is read ("identity")."""
    return _literal(b"grpc-accept-encoding", b"identity")


def refusal_block(status: int) -> bytes:
    """An answer to a request that is no gRPC call, without a body."""
    return _literal(b":status", b"%d" % status)


def _add(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= _CACHED_BLOCKS:
        cache.clear()
    cache[key] = value


def _read_string(string: bytes) -> str:
    """The text of a string literal behind its length of one byte (RFC 7541 §5.2). Raises `HPACKError`."""
    text = decode_huffman(string[1:]) if string[0] & 0x80 else string[1:]
    return text.decode("latin-1")


def _check_field(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise MalformedRequest("a field of forbidden characters")
    if name in _CONNECTION_FIELDS or (name == "te" and value.lower() != "trailers"):
        raise MalformedRequest("a field of HTTP/1.1 connections")


def _refusal(method: str, content_type: str) -> int:
    """By "Requests" of gRPC over HTTP/2: POST only; another content type gets 415."""
    if method != "POST":
        return 405
    is_grpc = content_type == "application/grpc" or content_type.startswith(
        ("application/grpc+", "application/grpc;")
    )
    return 0 if is_grpc else 415


def _timeout_s(text: str | None) -> float | None:
    """`grpc-timeout`: up to eight digits and a unit. What is none is no limit."""
    match = _TIMEOUT.fullmatch(text) if text else None
    return int(match[1]) * _SECONDS[match[2]] if match else None


def _literal(name: bytes, value: bytes) -> bytes:
    """A field whose name and value are literals, never put into the table (RFC 7541 §6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    """A string literal without Huffman coding (RFC 7541 §5.2); shorter than 127 bytes or cut to that."""
    return bytes((min(len(text), 126),)) + text[:126]
