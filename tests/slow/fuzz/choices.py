"""Turns bytes into choices, so that any input of a fuzzer means something."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads from the front; behind the end everything is zero, false, first or empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def byte(self) -> int:
        return self.take(1)[0] if self else 0

    def flag(self) -> bool:
        return self.byte() % 2 == 1

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]

    def piece(self) -> bytes:
        """Up to 255 bytes."""
        return self.take(self.byte())

    def take(self, count: int) -> bytes:
        start = self._position
        self._position = min(len(self._data), start + count)
        return self._data[start : self._position]

    def rest(self) -> bytes:
        return self.take(len(self._data))
