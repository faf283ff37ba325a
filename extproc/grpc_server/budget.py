"""What many share and none may use up: bytes in transit, streams of a listener, work in a second. Pure."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Budget:
    """Counts bytes in use, up to `limit_bytes`. Whoever takes some gives them back, however it ends."""

    limit_bytes: int
    used: int = 0

    def reserve(self, count: int, *, extra: int = 0) -> bool:
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


def unlimited() -> Budget:
    return Budget(1 << 62)


@dataclass(slots=True, eq=False)
class StreamPlaces:
    """Streams that the connections of one listener have open together: about `most`, twice that in any case.

    Beyond `most` a connection opens one if it has less than an equal share of them. So whoever
    fills the places takes none of those that a proxy with few streams needs.
    """

    most: int
    used: int = 0
    connections: int = 0

    def has_room(self, own: int) -> bool:
        """Whether a connection that has `own` streams may open another."""
        return self.used < self.most or own < self.most // max(1, self.connections)


class TokenBucket:
    """Fills by `per_s` up to `most`. Spending more than is left makes the next one wait."""

    __slots__ = ("_left", "_most", "_per_s", "_then_s")

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s = per_s
        self._most = most
        self._left = most
        self._then_s: float | None = None

    def wait_s(self, now: float) -> float:
        """Returns for how long nothing should be spent, seconds; 0: there is some left."""
        if self._then_s is not None and now > self._then_s:
            self._left = min(self._most, self._left + (now - self._then_s) * self._per_s)
        self._then_s = now
        return max(0.0, -self._left / self._per_s)

    def spend(self, amount: float) -> None:
        self._left -= amount
