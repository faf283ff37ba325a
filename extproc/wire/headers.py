"""Header blocks: what a call's headers say (RFC 9113 §8.1 to 8.3, gRPC over HTTP/2), and the few we write."""

from collections.abc import Mapping
from re import compile as compile_pattern
from typing import Final
from urllib.parse import quote

from hpack import Decoder, HPACKDecodingError
from msgspec import Struct

from extproc.wire.calls import Status

# `:status: 200` is entry 8 of the static table; `content-type` is 31, its value a literal without
# indexing (RFC 7541 §6.2.2). Nothing that we write is ever indexed, so our encoder has no state.
_OK: Final = b"\x88\x0f\x10\x10application/grpc"
# The first block after a peer made its table smaller must say that ours is (RFC 7541 §4.2).
TABLE_OF_NOTHING: Final = b"\x20"

# A block starts with two changes of the table's size at most (RFC 7541 §4.2): what it was made smaller to,
# and what it is. 16,384 of them, a byte each, would take hpack 35 ms.
_THREE_UPDATES: Final = compile_pattern(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*+[\x00-\x7f]){3}")

# Fields of one HTTP/1.1 connection, which HTTP/2 has not (§8.2.2).
_CONNECTION_FIELDS: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
_REQUEST_FIELDS: Final = frozenset({":method", ":scheme", ":path", ":authority"})
# §8.2.1: lower-case names without control characters or spaces; values without NUL, CR, LF and without
# white space at their ends.
_NAME: Final = compile_pattern(r":?[!-9;-@\[-~]+")
_VALUE: Final = compile_pattern(r"(?:[^\x00\r\n \t](?:[^\x00\r\n]*[^\x00\r\n \t])?)?")
_TIMEOUT: Final = compile_pattern(r"(\d{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

# What a status message may hold as it is: printable ASCII without the percent sign.
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

# A proxy has few kinds of calls, each of a few hundred bytes; a peer that has more shall not fill our memory.
_KEPT_BLOCKS: Final = 32
_KEPT_BYTES: Final = 1_024


class MalformedRequest(Exception):  # the RFC's word (§8.1.1)
    """A header block that decodes but is no request."""


class TooManySizes(HPACKDecodingError):  # as any other fault of a block, but with a reason of its own
    """A header block that changes the table's size more than twice."""


class Head(Struct, frozen=True):
    """What a call's headers say.

    `refusal` is the HTTP status for a request that is no gRPC call, 0 if it is one. `timeout_s` is the
    client's own limit, `encoding` the compression it names.
    """

    path: str
    metadata: Mapping[str, str]
    refusal: int = 0
    timeout_s: float | None = None
    encoding: str = "identity"


class HeadReader:
    """Reads header blocks by HPACK, each in its turn: one left out would spoil the table.

    A proxy's blocks are byte-identical from its second call on, so heads are kept by their bytes. A kept
    head is right only as long as the dynamic table is what it was; any block that changes it, by an entry
    or by a new size, empties the cache.
    """

    def __init__(self, limit_bytes: int) -> None:
        # Of blocks that had to be decoded; whoever looks at it may set it back.
        self.decoded_bytes = 0
        self._decoder = Decoder(limit_bytes)
        self._kept: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Returns the head of a call.

        Raises hpack's `HPACKError` where the connection's table is lost, `MalformedRequest` where only this
        request is.
        """
        head = self._kept.get(block)
        if head is None:
            fields, is_lasting = self._decode(block)
            head = read_head(fields)
            if is_lasting and len(block) <= _KEPT_BYTES:
                if len(self._kept) >= _KEPT_BLOCKS:
                    self._kept.clear()
                self._kept[block] = head
        return head

    def read_trailers(self, block: bytes) -> bool:
        """Takes trailers in; whether they are well formed (§8.1). What they say is nobody's business."""
        fields, _ = self._decode(block)
        try:
            for name, value in fields:
                _check_field(name, value)
        except MalformedRequest:
            return False
        return not any(name.startswith(":") for name, _ in fields)

    def pass_over(self, block: bytes) -> None:
        """Takes a block in whose stream is gone: the table needs it all the same (§5.1, closed)."""
        self._decode(block)

    def _decode(self, block: bytes) -> tuple[list[tuple[str, str]], bool]:
        """Returns the fields, and whether the same bytes will mean the same again."""
        if _THREE_UPDATES.match(block):
            raise TooManySizes
        self.decoded_bytes += len(block)
        table = self._decoder.header_table
        entries, size = table.dynamic_entries, table.maxsize
        count, newest = len(entries), entries[0] if entries else None
        fields = self._decoder.decode(block, raw=True)
        # An entry comes in first and leaves last: the number, the newest and the size tell of any change.
        # By identity, for an entry may come again.
        is_lasting = (
            len(entries) == count and (entries[0] if entries else None) is newest and table.maxsize == size
        )
        if not is_lasting:
            self._kept.clear()
        return [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in fields], (
            is_lasting
        )


def read_head(fields: list[tuple[str, str]]) -> Head:
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
    )


def response_block() -> bytes:
    """The headers that come before a call's first message."""
    return _OK


def trailers_block(status: Status, details: str = "", *, is_alone: bool = False) -> bytes:
    """The end of a call; `is_alone`: nothing was sent before it ("Trailers-Only")."""
    block = (_OK if is_alone else b"") + _literal(b"grpc-status", b"%d" % status)
    # Percent-encoded: space and printable ASCII but for the percent sign stay (gRPC, "Status-Message").
    return block + _literal(b"grpc-message", quote(details, safe=_PLAIN).encode()) if details else block


def encodings_block() -> bytes:
    """What comes with a refusal to read a compressed message: the encoding that is read ("identity")."""
    return _literal(b"grpc-accept-encoding", b"identity")


def refusal_block(status: int) -> bytes:
    """An answer to a request that is no gRPC call, without a body."""
    return _literal(b":status", b"%d" % status)


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
