"""Bodies of every size that Envoy treats in another way."""

from tests.stack.client import ask

KB, MB = 1_000, 1_000_000
SIZES = (0, 1, 61 * KB, 62 * KB + 1, MB, 10 * MB)


def body_of(size_bytes: int) -> bytes:
    """Returns a chat of exactly this size, or as many bytes that are none."""
    empty = len(ask(""))
    return ask("m" * (size_bytes - empty)) if size_bytes > empty else b"1" * size_bytes
