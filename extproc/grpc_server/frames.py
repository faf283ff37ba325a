"""HTTP/2 frames as bytes (RFC 9113 §4 and §6): numbers, the frames that we write, and the peer's faults."""

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # §3.4

# A frame's header: 24 bits of length, 8 of type, 8 of flags, one reserved, 31 of stream (§4.1).
HEADER_BYTES: Final = 9
# The largest payload that we accept and that any peer accepts (§4.2).
MAX_FRAME_BYTES: Final = 16_384
MAX_WINDOW: Final = 2**31 - 1
# A peer's window before its SETTINGS (§6.9.2).
DEFAULT_WINDOW: Final = 65_535
# The dynamic table that a decoder keeps before it says anything else (§6.5.2).
DEFAULT_TABLE_BYTES: Final = 4_096

# Types (§6), as plain numbers: they index a table on the hot path.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# Flags.
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

# Settings (§6.5.2).
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

SETTING: Final = Struct(">HI")
_WORD: Final = Struct(">I")
_TWO_WORDS: Final = Struct(">II")


class Code(IntEnum):
    """Error codes (§7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    head = len(payload) << 48 | kind << 40 | flags << 32 | stream_id
    return head.to_bytes(HEADER_BYTES, "big") + payload


def message_frame(stream_id: int, message: bytes) -> bytes:
    """One gRPC message, uncompressed, in one DATA frame. Its 14 bytes of framing are made in one step."""
    size = len(message)
    return ((size + 5) << 88 | stream_id << 40 | size).to_bytes(14, "big") + message


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def rst_stream(stream_id: int, code: Code) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_id: int, code: Code, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last_id, code) + reason.encode())


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0, b"")


_METHODS: Final = frozenset(
    {b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"PATCH"}
)


class PeerFault(Exception):  # the RFC calls it an error; here it is the peer's fault
    """Ends the connection (§5.4.1). Raised while bytes are read, and never beyond `Connection`."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def unpad(payload: bytes) -> bytes:
    """Takes the padding off (§6.1)."""
    if not payload or payload[0] >= len(payload):
        raise PeerFault(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def require_stream(stream_id: int) -> None:
    if not stream_id:
        raise PeerFault(Code.PROTOCOL_ERROR, "a stream's frame on the connection")


def require_connection(stream_id: int) -> None:
    if stream_id:
        raise PeerFault(Code.PROTOCOL_ERROR, "the connection's frame on a stream")


def require_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise PeerFault(Code.FRAME_SIZE_ERROR, "a frame of a wrong length")


def what_else(data: bytes) -> str:
    """What speaks on our port, if it is not HTTP/2."""
    if data.startswith(b"\x16\x03"):
        return "TLS, where plain text is served"
    is_http = data.split(b" ", 1)[0] in _METHODS
    return "HTTP/1.1, where gRPC is served" if is_http else "no HTTP/2 preface"
