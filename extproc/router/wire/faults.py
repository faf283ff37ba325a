"""Faults of a peer that end a connection, and what of a frame shows them."""

from typing import Final

from extproc.router.wire.frames import Code

_METHODS: Final = frozenset({b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"PATCH"})


class Fault(Exception):  # the RFC calls it an error; here it is the peer's fault
    """Ends the connection (§5.4.1). Raised while bytes are read, and never beyond `Connection`."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def unpad(payload: bytes) -> bytes:
    """Takes the padding off (§6.1)."""
    if not payload or payload[0] >= len(payload):
        raise Fault(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def require_stream(stream_id: int) -> None:
    if not stream_id:
        raise Fault(Code.PROTOCOL_ERROR, "a stream's frame on the connection")


def require_connection(stream_id: int) -> None:
    if stream_id:
        raise Fault(Code.PROTOCOL_ERROR, "the connection's frame on a stream")


def require_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Fault(Code.FRAME_SIZE_ERROR, "a frame of a wrong length")


def what_else(data: bytes) -> str:
    """What speaks on our port, if it is not HTTP/2."""
    if data.startswith(b"\x16\x03"):
        return "TLS, where plain text is served"
    is_http = data.split(b" ", 1)[0] in _METHODS
    return "HTTP/1.1, where gRPC is served" if is_http else "no HTTP/2 preface"
