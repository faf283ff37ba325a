"""How long to wait before trying again."""

from random import Random


class Backoff:
    """Exponential back-off with full jitter: uniform between nothing and a doubling bound.

    The bound starts at `base_s` and stops at `cap_s`. Full jitter spreads the clients of a server that
    comes back better than any fixed part would (AWS Architecture Blog, "Exponential Backoff And
    Jitter", 2015). For its first `early_tries` the bound also stops at `early_cap_s`: an outage that is
    young is most likely a restart, and must not cost many times what it lasted.
    """

    def __init__(
        self,
        rng: Random,
        *,
        base_s: float = 0.5,
        cap_s: float = 30.0,
        early_cap_s: float = 30.0,
        early_tries: int = 0,
    ) -> None:
        self._rng = rng
        self._base_s = base_s
        self._cap_s = cap_s
        self._early_cap_s = early_cap_s
        self._early_tries = early_tries
        self._bound_s = base_s
        self._tries = 0

    def next_s(self) -> float:
        """Returns the next delay in seconds; each call doubles the bound of the one after."""
        delay_s = self._rng.uniform(0, self._bound_s)
        self._tries += 1
        cap_s = self._early_cap_s if self._tries < self._early_tries else self._cap_s
        self._bound_s = min(cap_s, 2 * self._bound_s)
        return delay_s

    def reset(self) -> None:
        self._bound_s = self._base_s
        self._tries = 0
