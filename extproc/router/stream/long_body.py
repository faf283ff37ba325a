"""Finds a long body in the bytes of a `ProcessingRequest`, which saves a copy of it.

This module reads protobuf's wire format ("Encoding") only as proxies write it: a body is the first
field of its part. It leaves every other message to protobuf.
"""

from typing import Final, NamedTuple

LENGTH: Final = 2  # the wire type of what has a length
_VARINT: Final = 0
_MORE: Final = 0x80
# `request_body` and `response_body`; `HttpBody.body`.
_PARTS: Final = {4 << 3 | LENGTH: "request_body", 5 << 3 | LENGTH: "response_body"}
_BODY: Final = 1 << 3 | LENGTH
# Behind ten bytes no number goes on.
_VARINT_BYTES: Final = 10
# A proxy sends a few fields: each kind once.
_FIELDS: Final = 64


class Place(NamedTuple):
    """Where a body stands, in which part, and the message without it."""

    part: str
    start: int
    end: int
    rest: bytes


def find_body(message: bytes | bytearray) -> Place | None:
    """Where the one body of `message` stands; `None` where that cannot be said. O(what is not the body)."""
    at = 0
    try:
        for _ in range(_FIELDS):
            tag, behind_tag = _number(message, at)
            size, start = _number(message, behind_tag)
            if tag in _PARTS:
                return _in_part(message, at, start, start + size)
            if tag & 7 not in {_VARINT, LENGTH}:
                return None
            at = start + size if tag & 7 == LENGTH else start
    except IndexError:
        pass
    return None


def _in_part(message: bytes | bytearray, before: int, start: int, end: int) -> Place | None:
    tag, behind_tag = _number(message, start)
    size, first = _number(message, behind_tag)
    last = first + size
    if tag != _BODY or not last <= end <= len(message):
        return None
    part = bytes(message[last:end])
    rest = (
        bytes(message[:before])
        + bytes([message[before]])
        + varint(len(part))
        + part
        + message[end:]
    )
    return Place(_PARTS[message[before]], first, last, rest)


def _number(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """The number that starts here, and where it ends. Raises `IndexError` if it does not."""
    value = 0
    for place in range(_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & ~_MORE) << 7 * place
        if byte < _MORE:
            return value, at + place + 1
    raise IndexError


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    digits = []
    while value >= _MORE:
        digits.append(value & 0x7F | _MORE)
        value >>= 7
    return bytes([*digits, value])
