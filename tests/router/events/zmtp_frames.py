"""What a publisher says in ZMTP, as bytes."""

from collections.abc import Iterator
from itertools import count

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"


def frame(body: bytes = b"", flags: int = 0) -> bytes:
    long = len(body) > 255
    return bytes((flags | 2 * long,)) + len(body).to_bytes(8 if long else 1) + body


def frames(*parts: bytes) -> bytes:
    return b"".join(frame(part, 1) for part in parts[:-1]) + frame(parts[-1])


def numbered(message: bytes) -> Iterator[bytes]:
    return (frames(b"kv", number.to_bytes(8), message) for number in count())
