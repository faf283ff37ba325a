"""The short text fields of a `multipart/form-data` body (RFC 7578), such as the model of an audio request.

Files are stepped over, neither copied nor decoded. Fields stand before the files or behind them, so
of a large body only both ends are looked at.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw

from extproc.errors import PromptError
from extproc.router.routing.prompt.json_reader import Object

# vLLM's transcription form has about 25 fields.
MAX_PARTS: Final = 100
MAX_HEAD_BYTES: Final = 4_096
MAX_VALUE_BYTES: Final = 4_096
END_BYTES: Final = 512 * 1024

_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_NAME: Final = re.compile(
    rb'^content-disposition:[^\r\n]*?;\s*name=(?:"([^"\r\n]*)"|([^\s;"]+))',
    re.IGNORECASE | re.MULTILINE,
)
_FILE: Final = re.compile(
    rb"^content-disposition:[^\r\n]*?;\s*filename\*?=", re.IGNORECASE | re.MULTILINE
)


def is_form(content_type: str) -> bool:
    return content_type.strip().lower().startswith("multipart/form-data")


def open_form(content_type: str, body: bytes | bytearray | memoryview) -> Object:
    """Returns the form's text fields; of fields with one name the last one counts.

    Looks at `MAX_PARTS` parts at most, at each end of a body over twice `END_BYTES`, and leaves out
    files and values over `MAX_VALUE_BYTES`. A body that breaks off gives what came. Raises
    `PromptError` without a boundary, or if it never occurs.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise PromptError("the form's content type names no boundary")
    delimiter = b"--" + (boundary[1] or boundary[2]).encode(errors="replace")
    ends = (body,) if len(body) <= 2 * END_BYTES else (body[:END_BYTES], body[-END_BYTES:])
    pieces = [bytes(end) for end in ends if delimiter in bytes(end)]
    if not pieces:
        raise PromptError("the form has no part")
    found = (
        _field(piece, start, end)
        for piece in pieces
        for start, end in islice(_spans(delimiter, piece), MAX_PARTS)
    )
    fields = filter(None, found)
    return Object({name: Raw(msgspec.json.encode(value)) for name, value in fields})


def _spans(delimiter: bytes, data: bytes) -> Iterator[tuple[int, int]]:
    """Yields where each part that ends lies, from behind its delimiter to the next one."""
    start = data.find(delimiter) + len(delimiter)
    while (end := data.find(delimiter, start)) >= 0:
        yield start, end
        start = end + len(delimiter)


def _field(data: bytes, start: int, end: int) -> tuple[str, str] | None:
    head_end = data.find(b"\r\n\r\n", start, min(end, start + MAX_HEAD_BYTES))
    if head_end < 0 or end - head_end > MAX_VALUE_BYTES:
        return None
    head = data[start:head_end]
    name = _NAME.search(head)
    if name is None or _FILE.search(head):
        return None
    value = data[head_end + 4 : end].removesuffix(b"\r\n")
    return (name[1] or name[2] or b"").decode(errors="replace"), value.decode(errors="replace")
