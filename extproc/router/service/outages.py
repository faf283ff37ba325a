"""What operators read of sources that fail: one line a minute for each kind of failure, whatever they try."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _Outage:
    """What one pool's source has met since it last had a list."""

    start_s: float
    why: str
    reason: str
    tries: int = 0
    is_told: bool = False


class Outages:
    """The log of sources that fail and are heard again.

    A source tries again every second or so, and an API server that is away is away for all pools. So the
    first failure of a kind is told at once, and from then on all pools that it keeps from hearing are
    told together, once a minute. A pool that was told of is told of again when it is heard.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._outages: dict[str, _Outage] = {}
        self._told_s: dict[str, float] = {}

    def failed(self, pool: str, why: str, reason: str) -> None:
        outage = self._outages.setdefault(pool, _Outage(self._clock(), why, reason))
        outage.why, outage.reason = why, reason
        outage.tries += 1
        if self._clock() - self._told_s.get(why, float("-inf")) >= _EVERY_S:
            self._told_s[why] = self._clock()
            self._tell(why, reason)

    def ended(self, pool: str) -> None:
        """Notes that the pool's source has a list."""
        outage = self._outages.pop(pool, None)
        if outage and outage.is_told:
            log.info("pool %s is heard of again, after %.0f s", pool, self._clock() - outage.start_s)

    def forget(self, pool: str) -> None:
        self._outages.pop(pool, None)

    def _tell(self, why: str, reason: str) -> None:
        outages = {name: outage for name, outage in self._outages.items() if outage.why == why}
        longest_s = max(self._clock() - outage.start_s for outage in outages.values())
        tries = sum(outage.tries for outage in outages.values())
        for outage in outages.values():
            outage.is_told = True
        pools = "pool" if len(outages) == 1 else "pools"
        level = logging.ERROR if why == "internal" else logging.WARNING
        log.log(
            level,
            "%s %s: no word for %.0f s (%s, try %d), what is known stays: %s",
            pools,
            ", ".join(sorted(outages)),
            longest_s,
            why,
            tries,
            reason,
        )
