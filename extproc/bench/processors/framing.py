"""Cutting a response into events, each with the time when its last byte arrived.

Bytes are stamped on arrival and read later; these functions are pure and see the whole response.
"""

from collections.abc import Iterable, Iterator

Read = tuple[float, bytes]
"""Bytes of a response and the time they arrived."""

DONE = b"[DONE]"


def cut_sse(reads: Iterable[Read]) -> Iterator[Read]:
    """Yields the data of each server-sent event; comments and other fields are dropped.

    Lines end in LF or CRLF. An event that the response ends within is not one (WHATWG HTML §9.2.6).
    """
    rest = b""
    data: list[bytes] = []
    for at_s, chunk in reads:
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield at_s, b"\n".join(data)
                data = []
