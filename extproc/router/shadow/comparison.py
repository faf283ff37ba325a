"""Keeps two pictures of one pool from the same requests: as they went, and as another rule would send them."""

# How a request comes here, and when it is compared:
#
# - It is noted when it arrives, by its prompt's hashes alone. Who serves it is known later: at once
#   where we pick, with the response's headers where we only watch; its length when it has ended.
# - It is compared when all that came before it is compared, too, and it has ended. So the pictures
#   run behind the clock, by the longest answer, and know of each request all that they need. One
#   that is open longer than `_PATIENCE_S`, or with more than `_MOST_BYTES` behind it, is taken with
#   the length that it has so far.
#
# One comparison is of one direction. Where we only watch, what went is "as served", and "as picked"
# is told by the rule of `prefix_cache`. Where the pool routes, what went is "as picked", and least
# load is the other picture. The first request that we are asked to route ends the watching, and all
# begins anew. Endpoints may come and go: in both pictures a new one begins with an empty cache.

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from math import exp, inf, log
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from extproc.router.routing.pool import Pick, Pool, Snapshot
from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import (
    ClockAndRandom,
    EngineFigures,
    Reading,
    Withdrawal,
)
from extproc.router.shadow.picture import Picture, Placed

BATCH_S: Final = 600.0
# A week of batches, 200 kB.
MOST_BATCHES: Final = 1_008
_PATIENCE_S: Final = 600.0
# Of prompts that wait for an end, 12 MB of memory at most.
_MOST_BYTES: Final = 64 * 1024 * 1024
# What each one counts beside its prompt: 32,000 of the shortest may wait.
_EACH_BYTES: Final = 2_048
# Caches that are not full after so long need not be: then what they hold is all there is.
WARM_S: Final = 1_800.0
_FULL: Final = 0.9
# Each request calls twice, so a queue that one long answer held up is soon gone.
_AT_ONCE: Final = 4
# Whose endpoint only a log can tell.
_MOST_UNNAMED: Final = 1_000
# Of a request's id, and of an address.
_NAME_CHARS: Final = 64
# What is learnt of the engines changes slowly.
_FRESH_S: Final = 15.0
# Steps of a histogram: 5 % each.
_STEPS: Final = 20


class Side(Struct):
    """What one picture has of a batch: tokens found, seconds of prefill, waits for the first token.

    `busiest_s` is the part of the prefill that the busiest endpoint has.
    """

    found: float = 0.0
    work_s: float = 0.0
    busiest_s: float = 0.0
    first_s: float = 0.0
    p99_s: float = 0.0


class PictureBatch(Struct):
    """Ten minutes of requests: as they went, and by the other rule."""

    begun_s: float
    requests: int = 0
    prompt: float = 0.0  # tokens
    went: Side = field(default_factory=Side)
    other: Side = field(default_factory=Side)


class EngineCounts(Struct):
    """What the engines counted since the comparison is warm."""

    prompt: float = 0.0
    found: float = 0.0
    answers: float = 0.0
    first_s: float = 0.0


class WatchCounts(Struct):
    """Requests since the begin. Of the `watched` ones the proxy did not say who answered the `nameless`.

    `strangers` were answered by somebody who is no endpoint of the pool, the last at `stranger`.
    """

    watched: int = 0
    nameless: int = 0
    strangers: int = 0
    stranger: str = ""


class _Request(Struct, eq=False):
    """One prompt since its arrival; without an `endpoint` when it is over, nobody served it."""

    at_s: float
    chain: Chain
    endpoint: str = ""
    ended_s: float | None = None
    awaits_log: bool = False


class _Tally:
    """A side of the batch that is open: its sums, and what only its end tells."""

    def __init__(self) -> None:
        self.side = Side()
        self._work, self._waits = defaultdict[str, float](float), Counter[int]()

    def add(self, placed: Placed, at_s: float, bytes_per_token: float) -> None:
        side, first_s = self.side, placed.first_s - at_s
        side.found += placed.found / bytes_per_token
        side.work_s += placed.work_ms / 1000
        side.first_s += first_s
        self._work[placed.endpoint] += placed.work_ms / 1000
        self._waits[round(_STEPS * log(max(first_s, 1e-4)))] += 1
        side.busiest_s = max(side.busiest_s, self._work[placed.endpoint])

    def close(self) -> Side:
        left = self._waits.total() // 100
        for step in sorted(self._waits, reverse=True):
            self.side.p99_s = exp(step / _STEPS)
            left -= self._waits[step]
            if left < 0:
                break
        return self.side


class PoolShadow:
    """Two pictures of one pool, and what they differ by, in batches of ten minutes.

    `options` are those of the engines, as `prefix_cache` takes them. `late_s`: the proxy tells of a
    watched request's end so much later. All times are the clock's.
    """

    def __init__(
        self, pool: Pool, outside: ClockAndRandom, options: Mapping[str, Any], late_s: float
    ) -> None:
        self._pool, self._clock, self._rng = pool, outside.clock, outside.rng
        self._options, self._late_s = options, late_s
        self.begin(is_watching=True)

    @property
    def pool(self) -> str:
        return self._pool.name

    @property
    def has_requests(self) -> bool:
        return bool(self._queue) or self._figures is not None

    @property
    def open_batch(self) -> PictureBatch:
        """The one that has not ended; percentiles come with its end."""
        went, other = (tally.side for tally in self._tallies)
        return replace(self._batch, went=went, other=other)

    @property
    def endpoints(self) -> int:
        return len(self._pool.snapshot.names)

    def begin(self, *, is_watching: bool) -> None:
        """Forgets everything and begins anew: to watch what others route, or to follow our own picks."""
        self.is_watching, self.since_s = is_watching, self._clock()
        self.warm_s: float | None = None
        self.seen, self.measured, self.batches = (
            WatchCounts(),
            EngineCounts(),
            deque[PictureBatch](maxlen=MOST_BATCHES),
        )
        self._went = Picture(self._rng, self._options)
        self._other = Picture(self._rng, self._options, by_load=not is_watching)
        self._batch, self._tallies = PictureBatch(self.since_s), (_Tally(), _Tally())
        self._figures: EngineFigures | None = None
        self._snapshot: Snapshot | None = None
        self._fresh_s = self._picked_s = -inf
        self._queue, self._queued_bytes = deque[_Request](), 0
        self._open: dict[Reading, _Request] = {}
        self._unnamed: dict[str, _Request] = {}
        self.has_log = False
        self._signals: dict[str, EndpointSignals] = {}

    # What the pool's requests tell.

    def arrived(self, reading: Reading) -> None:
        """A watched request has come whole; somebody else routes it."""
        if not self.is_watching:
            if self._clock() - self._picked_s < BATCH_S:
                return  # one proxy of several still watches
            self.begin(is_watching=True)
        self.seen.watched += 1
        self._note(reading)

    def picked(self, pick: Pick) -> None:
        """A request is its endpoint's: a watched one, whose response began, or one that we route."""
        request = self._open.get(pick.reading)
        if request is None and not pick.is_shown:
            self._picked_s = self._clock()
            if self.is_watching:
                self.begin(is_watching=False)
            request = self._note(pick.reading)
        if request is not None:
            request.endpoint = pick.endpoint.name

    def ended(self, pick: Pick) -> None:
        self.left(pick.reading)

    def left(self, reading: Reading) -> None:
        """A request is over; nobody served it if nobody was said to."""
        request = self._open.pop(reading, None)
        # A log comes some time after the end, if there is one.
        if request is not None and not request.awaits_log:
            now_s = self._clock() - self._late_s * self.is_watching
            request.ended_s = max(now_s, request.at_s)
            self.settle()

    def nameless(self, reading: Reading, address: str, request_id: str) -> None:
        """The response to a watched request began: the proxy named a stranger, or nobody; a log may."""
        request = self._open.get(reading)
        if address:
            self._note_stranger(address)
        elif request is not None:
            self.seen.nameless += 1
            if 0 < len(request_id) <= _NAME_CHARS:
                request.awaits_log = self.has_log
                self._unnamed[request_id] = request
            if len(self._unnamed) > _MOST_UNNAMED:
                del self._unnamed[next(iter(self._unnamed))]

    def logged(self, request_id: str, address: str, duration_s: float) -> None:
        """A proxy's access log says who served a request, and how long it took."""
        request = self._unnamed.pop(request_id, None)
        if request is None:
            return
        self.has_log = True
        self.seen.nameless -= 1
        names = self._pool.snapshot.by_location.get(address, ())
        if names:
            request.endpoint = names[0]
        else:
            self._note_stranger(address)
        request.ended_s = request.at_s + duration_s
        self.settle()

    def _note_stranger(self, address: str) -> None:
        self.seen.strangers += 1
        # It is shown to an operator, and whoever reaches the port can send any text.
        self.seen.stranger = ascii(address[:_NAME_CHARS])[1:-1]

    def withdrawn(self, _: Withdrawal) -> None:
        """Of no use here: both pictures have it."""

    def apply_signals(self, endpoint: str, signals: EndpointSignals) -> None:
        """Adds what an engine counted since its last metrics."""
        before, self._signals[endpoint] = self._signals.get(endpoint), signals
        if before is None or not signals.is_after(before) or self.warm_s is None:
            return
        self.measured.prompt += signals.queried_tokens - before.queried_tokens
        self.measured.found += signals.hit_tokens - before.hit_tokens
        self.measured.answers += signals.first_tokens - before.first_tokens
        self.measured.first_s += signals.first_token_s - before.first_token_s

    def _note(self, reading: Reading) -> _Request | None:
        chain, _ = reading.content()
        if chain is None or not chain.size:
            return None
        request = _Request(self._clock(), chain)
        self._open[reading] = request
        self._queue.append(request)
        self._queued_bytes += chain.size + _EACH_BYTES
        self.settle()
        return request

    # The comparison.

    def settle(self) -> None:
        """Compares the first requests of which all is known; a few, since others wait for the loop."""
        queue, now_s = self._queue, self._clock()
        for _ in range(_AT_ONCE):
            is_due = queue and (
                queue[0].ended_s is not None
                or queue[0].at_s < now_s - _PATIENCE_S
                or self._queued_bytes > _MOST_BYTES
            )
            if not is_due:
                break
            request = queue.popleft()
            self._queued_bytes -= request.chain.size + _EACH_BYTES
            if request.endpoint in self._pool.snapshot.ready:
                self._compare(request, now_s if request.ended_s is None else request.ended_s)

    def _compare(self, request: _Request, ended_s: float) -> None:
        at_s, chain, figures = request.at_s, request.chain, self._learn(request.at_s)
        if figures is None:
            return
        went = self._went.place(at_s, chain, request.endpoint)
        ended_s = max(ended_s, went.first_s)
        self._went.end(went, ended_s)
        other = self._other.place(at_s, chain)
        self._other.end(other, other.first_s + ended_s - went.first_s)
        if not self._is_warm(at_s):
            return
        if at_s >= self._batch.begun_s + BATCH_S:
            self._close_batch(at_s)
        self._batch.requests += 1
        self._batch.prompt += chain.size / figures.bytes_per_token
        for tally, placed in zip(self._tallies, (went, other), strict=True):
            tally.add(placed, at_s, figures.bytes_per_token)

    def _close_batch(self, at_s: float) -> None:
        """Ends the batch where it ends by the clock. Those without a request are left out."""
        batch = self._batch
        batch.went, batch.other = (tally.close() for tally in self._tallies)
        self.batches.append(batch)
        passed = (at_s - batch.begun_s) // BATCH_S
        self._batch, self._tallies = (
            PictureBatch(batch.begun_s + passed * BATCH_S),
            (_Tally(), _Tally()),
        )

    def _learn(self, at_s: float) -> EngineFigures | None:
        """Hands over what was learnt of the engines, now and then."""
        snapshot, signals = self._pool.snapshot, self._pool.strategy.signals
        if signals is not None and (at_s >= self._fresh_s or snapshot is not self._snapshot):
            self._figures, self._snapshot = signals.figures(), snapshot
            self._fresh_s = at_s + _FRESH_S
            for picture in (self._went, self._other):
                picture.follow(snapshot, self._figures)
        return self._figures

    def _is_warm(self, at_s: float) -> bool:
        if self.warm_s is None:
            is_full = min(self._went.fill, self._other.fill) >= _FULL
            if not is_full and at_s < self.since_s + WARM_S:
                return False
            self.warm_s, self._batch = at_s, PictureBatch(at_s)
        return True
