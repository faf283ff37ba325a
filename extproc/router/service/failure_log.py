"""The log lines about sources that fail: one a minute for each kind of failure, however often they try."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _Failure:
    """How one pool's source has failed since it last had a list."""

    start_s: float
    why: str
    reason: str
    tries: int = 0
    is_logged: bool = False


class FailureLog:
    """Logs which sources fail, and when they work again.

    A source tries again every second or so, and an API server that is away is away for all pools. So the
    first failure of a kind is logged at once. After that one line a minute names all pools that it affects.
    A pool that was named gets one more line when its source works again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, _Failure] = {}
        self._logged_s: dict[str, float] = {}

    def failed(self, pool: str, why: str, reason: str) -> None:
        failure = self._failures.setdefault(pool, _Failure(self._clock(), why, reason))
        failure.why, failure.reason = why, reason
        failure.tries += 1
        if self._clock() - self._logged_s.get(why, float("-inf")) >= _EVERY_S:
            self._logged_s[why] = self._clock()
            self._log(why, reason)

    def ended(self, pool: str) -> None:
        """Notes that the pool's source has a list."""
        failure = self._failures.pop(pool, None)
        if failure and failure.is_logged:
            log.info("pool %s is heard of again, after %.0f s", pool, self._clock() - failure.start_s)

    def forget(self, pool: str) -> None:
        self._failures.pop(pool, None)

    def _log(self, why: str, reason: str) -> None:
        failures = {name: failure for name, failure in self._failures.items() if failure.why == why}
        longest_s = max(self._clock() - failure.start_s for failure in failures.values())
        tries = sum(failure.tries for failure in failures.values())
        for failure in failures.values():
            failure.is_logged = True
        pools = "pool" if len(failures) == 1 else "pools"
        level = logging.ERROR if why == "internal" else logging.WARNING
        log.log(
            level,
            "%s %s: no word for %.0f s (%s, try %d), what is known stays: %s",
            pools,
            ", ".join(sorted(failures)),
            longest_s,
            why,
            tries,
            reason,
        )
