"""A limit to how much may be spent in a second. Pure: times come in."""


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
