"""What endpoints say of themselves, as far as a strategy believes it. Pure.

- **Waiting** is old when it comes, and every gateway hears the same: taken at its word, it sends all of them
  to the same idle endpoint at once (simulated: with eight gateways three times the time to the first token).
  So it is smoothed, it speaks against an endpoint and never for one, and what nobody heard of counts as the
  mean of the others.
- **Hits** tell whether an index is right: an endpoint that finds far less than was foreseen, time after time,
  forgets earlier than we think, or is not what we think. Then what we know of it is dropped, and its cache
  presumed half as large, until what is foreseen is found again, time after time. Between the two limits
  nothing changes.
- **Tokens** counted over bytes sent make the bytes of a token; only where all of an endpoint's requests are
  ours.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from extproc.router.routing.vitals import Vitals

# Judged after so many tokens, in so many rounds. A round is some minutes of one endpoint's traffic.
_ROUND_TOKENS: Final = 20_000
_ROUNDS: Final = 3
# Shares of what was asked for. What is foreseen is wrong by some per cent where all is well.
_WRONG: Final = 0.25
_RIGHT: Final = 0.1
# The smallest that a cache is presumed to be: an eighth.
_LEAST: Final = 3

_SMOOTH: Final = 0.3
_NOBODY: Final = 0.05
_ROUND_REQUESTS: Final = 50
_FEWEST_BYTES, _MOST_BYTES = 1.5, 8.0
# Ours and theirs are counted at different moments.
_SAME: Final = 0.1


class Trust:
    """Whether an endpoint holds what it is believed to. `level` is how often its cache is presumed halved."""

    __slots__ = ("_foreseen", "_found", "_queried", "_rounds", "foreseen_rate", "found_rate", "level")

    def __init__(self) -> None:
        self.level = 0
        self.foreseen_rate = self.found_rate = 0.0
        self._queried = self._found = self._foreseen = 0.0
        self._rounds = 0  # so many right ones in a row, or wrong ones where it is negative

    @property
    def share(self) -> float:
        """How much of its cache it is presumed to have."""
        return 0.5**self.level

    def hear(self, queried: float, found: float, foreseen_rate: float | None) -> bool:
        """Takes tokens that were looked for and found, and the share that was foreseen; `None`: nothing was.

        Says whether what is known of the endpoint had better be dropped.
        """
        if foreseen_rate is None or queried <= 0:
            return False
        self._queried += queried
        self._found += found
        self._foreseen += foreseen_rate * queried
        if self._queried < _ROUND_TOKENS:
            return False
        self.foreseen_rate, self.found_rate = self._foreseen / self._queried, self._found / self._queried
        self._queried = self._found = self._foreseen = 0.0
        return self._judge(self.foreseen_rate - self.found_rate)

    def _judge(self, missing: float) -> bool:
        if missing > _WRONG:
            self._rounds = min(self._rounds, 0) - 1
        elif missing < _RIGHT:
            self._rounds = max(self._rounds, 0) + 1
        else:
            self._rounds = 0
        if abs(self._rounds) < _ROUNDS:
            return False
        is_wrong, self._rounds = self._rounds < 0, 0
        self.level = min(self.level + 1, _LEAST) if is_wrong else max(self.level - 1, 0)
        return is_wrong


class Sent(Struct):
    """What was sent to an endpoint: requests, their bytes, and how many of these it was believed to hold."""

    requests: int = 0
    size: float = 0.0
    cached: float = 0.0


class News(Struct, frozen=True):
    """What one look at an endpoint says beside its load.

    `is_lost`: what it held is gone, or had better be taken for gone. `bytes_per_token` is `None` where
    nothing new is known of it; `prefill` is a sample of (uncached tokens, milliseconds) per request.
    """

    is_lost: bool = False
    bytes_per_token: float | None = None
    prefill: tuple[float, float] | None = None


class Sense:
    """One endpoint, as it tells of itself time after time."""

    __slots__ = (
        "_heard",
        "_sized",
        "_was_sent",
        "_was_sized",
        "kv_tokens",
        "sent",
        "trust",
        "vitals",
        "waiting",
    )

    def __init__(self) -> None:
        self.sent = Sent()
        self.trust = Trust()
        self.vitals: Vitals | None = None
        self.waiting: float | None = None
        self.kv_tokens: int | None = None
        self._heard = self._sized = Vitals()
        self._was_sent = self._was_sized = Sent()

    def miss(self) -> None:
        """It does not answer: how much waits there is not known."""
        self.vitals = self.waiting = None

    def hear(self, vitals: Vitals) -> News:
        before, is_first = self._heard, self._heard == Vitals()
        self.vitals = self._heard = vitals
        self.kv_tokens = vitals.kv_tokens or self.kv_tokens
        smoothed = vitals.waiting if self.waiting is None else self.waiting
        waiting = smoothed + _SMOOTH * (vitals.waiting - smoothed)
        self.waiting = waiting if waiting > _NOBODY else 0.0
        if is_first or not vitals.is_after(before):
            self._begin(vitals)
            return News(is_lost=not is_first)
        return News(self._judge(before, vitals), self._size(vitals), _prefill(before, vitals))

    def _begin(self, vitals: Vitals) -> None:
        self._sized = vitals
        self._was_sent, self._was_sized = _copy(self.sent), _copy(self.sent)

    def _judge(self, before: Vitals, vitals: Vitals) -> bool:
        size, cached = self.sent.size - self._was_sent.size, self.sent.cached - self._was_sent.cached
        self._was_sent = _copy(self.sent)
        queried = vitals.queried_tokens - before.queried_tokens
        return self.trust.hear(
            queried, vitals.hit_tokens - before.hit_tokens, cached / size if size else None
        )

    def _size(self, vitals: Vitals) -> float | None:
        """The bytes of a token, where it has read what we sent and nothing else."""
        requests = vitals.prefills - self._sized.prefills
        tokens = vitals.prompt_tokens - self._sized.prompt_tokens
        sent, size = self.sent.requests - self._was_sized.requests, self.sent.size - self._was_sized.size
        if min(requests, sent) < _ROUND_REQUESTS:
            return None
        self._sized, self._was_sized = vitals, _copy(self.sent)
        is_ours = abs(requests - sent) <= _SAME * sent
        return min(max(size / tokens, _FEWEST_BYTES), _MOST_BYTES) if is_ours and tokens else None


def _copy(sent: Sent) -> Sent:
    return Sent(sent.requests, sent.size, sent.cached)


def _prefill(before: Vitals, vitals: Vitals) -> tuple[float, float] | None:
    requests = vitals.prefills - before.prefills
    if requests < 1:
        return None
    queried, found = vitals.queried_tokens - before.queried_tokens, vitals.hit_tokens - before.hit_tokens
    return max(0.0, queried - found) / requests, (vitals.prefill_s - before.prefill_s) * 1000 / requests


def reasons_to_leave(
    waiting: Mapping[str, float | None],
    in_flight: Mapping[str, int],
    running: Mapping[str, float],
    gateways: float,
) -> dict[str, float]:
    """How many requests wait at each endpoint that we do not know of; those without any are left out.

    With several gateways, the others' part of those that wait. Alone, those far beyond our own: what
    `running` and `waiting` say together may be a second old.
    """
    foreign = {
        name: _foreign(count, running.get(name, 0.0), in_flight.get(name, 0), gateways)
        for name, count in waiting.items()
        if count is not None
    }
    if not any(foreign.values()):
        return {}
    mean = sum(foreign.values()) / len(foreign)
    told = {name: foreign.get(name, mean) for name in waiting}
    return {name: count for name, count in told.items() if count}


def _foreign(waiting: float, running: float, ours: int, gateways: float) -> float:
    if gateways > 1:
        return waiting * (1 - 1 / gateways)
    total = running + waiting
    return min(waiting, total - ours) if total > 2 * ours + 8 else 0.0
