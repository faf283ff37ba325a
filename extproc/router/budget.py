"""One budget of bytes for the whole process: what requests in transit may hold at once."""


class Budget:
    """Counts bytes held, up to `limit_bytes`. Whoever takes some gives them back, however it ends."""

    __slots__ = ("limit_bytes", "used")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0

    def __repr__(self) -> str:
        return f"<Budget {self.used} of {self.limit_bytes} bytes>"

    def take(self, count: int, *, extra: int = 0) -> bool:
        """Takes `count` bytes if that many are left, or missing by no more than `extra`; whether so."""
        if self.used + count > self.limit_bytes + extra:
            return False
        self.used += count
        return True

    def hold(self, count: int) -> None:
        """Takes `count` bytes that must be had, over the limit or not: what is left to others shrinks."""
        self.used += count

    def give(self, count: int) -> None:
        self.used -= count
