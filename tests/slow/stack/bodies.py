"""Bodies of every size that Envoy treats in another way."""

from collections.abc import Mapping
from typing import Final

from tests.stack.client import ask

KB, MB = 1_000, 1_000_000
SIZES: Final[Mapping[str, int]] = {
    "0 B": 0,
    "1 B": 1,
    "61 KB": 61 * KB,
    "62 KB + 1": 62 * KB + 1,
    "1 MB": MB,
    "10 MB": 10 * MB,
}


def body_of(size_bytes: int) -> bytes:
    """Returns a chat of exactly this size, or as many bytes that are none."""
    empty = len(ask(""))
    return ask("m" * (size_bytes - empty)) if size_bytes > empty else b"1" * size_bytes
