"""How long to wait before trying again."""

from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class Backoff:
    """Exponential back-off with full jitter: uniform between nothing and a doubling bound.

    The bound starts at `base_s` and stops at `cap_s`. Full jitter spreads the clients of a server
    that comes back better than any fixed part would (AWS Architecture Blog, "Exponential Backoff
    And Jitter", 2015). For its first `early_tries` the bound also stops at `early_cap_s`: an outage
    that is young is most likely a restart, and must not cost many times what it lasted.
    """

    rng: Random
    base_s: float = field(default=0.5, kw_only=True)
    cap_s: float = field(default=30.0, kw_only=True)
    early_cap_s: float = field(default=30.0, kw_only=True)
    early_tries: int = field(default=0, kw_only=True)
    _bound_s: float = field(init=False)
    _tries: int = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def next_s(self) -> float:
        """Returns the next delay in seconds; each call doubles the bound of the one after."""
        delay_s = self.rng.uniform(0, self._bound_s)
        self._tries += 1
        cap_s = self.early_cap_s if self._tries < self.early_tries else self.cap_s
        self._bound_s = min(cap_s, 2 * self._bound_s)
        return delay_s

    def reset(self) -> None:
        self._bound_s, self._tries = self.base_s, 0
