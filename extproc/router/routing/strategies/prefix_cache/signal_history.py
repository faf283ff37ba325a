"""One endpoint's metrics over time, and how far a strategy may trust them. Pure.

- **Waiting** is old when it comes, and every gateway reads the same: taken at its word, it sends
  all of them to the same idle endpoint at once (simulated: with eight gateways three times the time
  to the first token). So it is smoothed, and it can only raise an endpoint's cost. An endpoint
  without metrics counts as the mean of the others.
- **Hits** show whether the index is right: an endpoint that repeatedly finds far less than was
  predicted evicts earlier than we think. Then its part of the index is dropped, and its cache is
  presumed half as large, until the predictions hold again. Between the two limits nothing changes.
- **Tokens** counted over bytes sent make the bytes of a token; only where all of an endpoint's
  requests are ours.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from extproc.router.routing.signals import EndpointSignals

# Judged after so many tokens, in so many rounds. A round is some minutes of one endpoint's traffic.
_ROUND_TOKENS: Final = 20_000
_ROUNDS: Final = 3
# Shares of the queried tokens. Predictions are wrong by some per cent where all is well.
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
    """Whether an endpoint holds what the index says. `level` is how often its presumed size was halved."""

    __slots__ = (
        "_found",
        "_predicted",
        "_queried",
        "_rounds",
        "level",
        "measured_rate",
        "predicted_rate",
    )

    def __init__(self) -> None:
        self.level = 0
        self.predicted_rate = self.measured_rate = 0.0
        self._queried = self._found = self._predicted = 0.0
        self._rounds = 0  # so many right ones in a row, or wrong ones where it is negative

    @property
    def share(self) -> float:
        """How much of its cache it is presumed to have."""
        return 0.5**self.level

    def take(self, queried: float, found: float, predicted_rate: float | None) -> bool:
        """Takes tokens queried and found, and the share that was predicted; `None`: nothing was.

        Returns whether the endpoint's part of the index should be dropped.
        """
        if predicted_rate is None or queried <= 0:
            return False
        self._queried += queried
        self._found += found
        self._predicted += predicted_rate * queried
        if self._queried < _ROUND_TOKENS:
            return False
        self.predicted_rate, self.measured_rate = (
            self._predicted / self._queried,
            self._found / self._queried,
        )
        self._queried = self._found = self._predicted = 0.0
        return self._judge(self.predicted_rate - self.measured_rate)

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


class SentTotals(Struct):
    """What was sent to an endpoint: requests, their bytes, and how many of these it should have cached."""

    requests: int = 0
    size: float = 0.0
    cached: float = 0.0


class SignalChange(Struct, frozen=True):
    """What new metrics of an endpoint mean, beside its load.

    `is_lost`: its cache is empty, or the index is too wrong to keep. `bytes_per_token` is `None`
    where there is no new figure; `prefill` is a sample of (uncached tokens, milliseconds) per
    request.
    """

    is_lost: bool = False
    bytes_per_token: float | None = None
    prefill: tuple[float, float] | None = None


class SignalHistory:
    """The metrics of one endpoint over time. `waiting` is smoothed; `None` without a figure.

    `is_emptied`: that its cache was, was heard elsewhere since the last metrics came.
    """

    __slots__ = (
        "_last",
        "_sized",
        "_was_sent",
        "_was_sized",
        "is_emptied",
        "kv_tokens",
        "sent",
        "signals",
        "trust",
        "waiting",
    )

    def __init__(self) -> None:
        self.sent = SentTotals()
        self.trust = Trust()
        self.signals: EndpointSignals | None = None
        self.waiting: float | None = None
        self.is_emptied = False
        self.kv_tokens: int | None = None
        self._last = self._sized = EndpointSignals()
        self._was_sent = self._was_sized = SentTotals()

    def miss(self) -> None:
        """It gave no metrics: there is no figure of how many requests wait there."""
        self.signals = self.waiting = None

    def take(self, signals: EndpointSignals) -> SignalChange:
        before, is_first = self._last, self._last == EndpointSignals()
        is_known, self.is_emptied = self.is_emptied, False
        self.signals = self._last = signals
        self.kv_tokens = signals.kv_tokens or self.kv_tokens
        smoothed = signals.waiting if self.waiting is None else self.waiting
        waiting = smoothed + _SMOOTH * (signals.waiting - smoothed)
        self.waiting = waiting if waiting > _NOBODY else 0.0
        if is_first or not signals.is_after(before):
            self._sized = signals
            self._was_sent, self._was_sized = _copy(self.sent), _copy(self.sent)
            return SignalChange(is_lost=not (is_first or is_known))
        return SignalChange(
            self._judge(before, signals), self._size(signals), _prefill(before, signals)
        )

    def _judge(self, before: EndpointSignals, signals: EndpointSignals) -> bool:
        size, cached = (
            self.sent.size - self._was_sent.size,
            self.sent.cached - self._was_sent.cached,
        )
        self._was_sent = _copy(self.sent)
        queried = signals.queried_tokens - before.queried_tokens
        return self.trust.take(
            queried, signals.hit_tokens - before.hit_tokens, cached / size if size else None
        )

    def _size(self, signals: EndpointSignals) -> float | None:
        """The bytes of a token, where it has read what we sent and nothing else."""
        requests = signals.prefills - self._sized.prefills
        tokens = signals.prompt_tokens - self._sized.prompt_tokens
        sent, size = (
            self.sent.requests - self._was_sized.requests,
            self.sent.size - self._was_sized.size,
        )
        if min(requests, sent) < _ROUND_REQUESTS:
            return None
        self._sized, self._was_sized = signals, _copy(self.sent)
        is_ours = abs(requests - sent) <= _SAME * sent
        return min(max(size / tokens, _FEWEST_BYTES), _MOST_BYTES) if is_ours and tokens else None


def _copy(sent: SentTotals) -> SentTotals:
    return SentTotals(sent.requests, sent.size, sent.cached)


def _prefill(before: EndpointSignals, signals: EndpointSignals) -> tuple[float, float] | None:
    requests = signals.prefills - before.prefills
    if requests < 1:
        return None
    queried, found = (
        signals.queried_tokens - before.queried_tokens,
        signals.hit_tokens - before.hit_tokens,
    )
    return max(0.0, queried - found) / requests, (
        signals.prefill_s - before.prefill_s
    ) * 1000 / requests


def foreign_requests(
    waiting: Mapping[str, float | None],
    in_flight: Mapping[str, int],
    running: Mapping[str, float],
    gateways: float,
) -> dict[str, float]:
    """How many requests wait at each endpoint that we did not send; endpoints without any are left out.

    With several gateways, the others' part of those that wait. Alone, those far beyond our own:
    what `running` and `waiting` say together may be a second old.
    """
    foreign = {
        name: _foreign(count, running.get(name, 0.0), in_flight.get(name, 0), gateways)
        for name, count in waiting.items()
        if count is not None
    }
    if not any(foreign.values()):
        return {}
    mean = sum(foreign.values()) / len(foreign)
    counts = {name: foreign.get(name, mean) for name in waiting}
    return {name: count for name, count in counts.items() if count}


def _foreign(waiting: float, running: float, ours: int, gateways: float) -> float:
    if gateways > 1:
        return waiting * (1 - 1 / gateways)
    total = running + waiting
    return min(waiting, total - ours) if total > 2 * ours + 8 else 0.0
