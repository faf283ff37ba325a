"""How a load process is doing: its event loop's lag, what is in flight, and news for who watches."""

import asyncio
from collections import Counter
from collections.abc import Callable

from extproc.bench.load.generator import LoadGenerator
from extproc.bench.processors.client import Clock
from extproc.bench.result import LoopSample, Snapshot

_SAMPLE_S = 0.02
_NEWS_S = 0.5


class Watch:
    """Samples the loop and tells `publish` what is new; both stop when their task is cancelled."""

    def __init__(self, generator: LoadGenerator, clock: Clock) -> None:
        self.samples: list[LoopSample] = []
        self._generator, self._clock = generator, clock
        self._told = 0
        self._unfinished: list[int] = []
        self._failures: Counter[str] = Counter()

    async def sample(self) -> None:
        """Sleeps again and again; what a sleep lasts too long is the event loop's lag."""
        while True:
            due_s = self._clock() + _SAMPLE_S
            await asyncio.sleep(_SAMPLE_S)
            now_s = self._clock()
            lag_s = max(0.0, now_s - due_s)
            self.samples.append(LoopSample(now_s, lag_s, self._generator.cap.in_flight))

    async def publish(self, tell: Callable[[Snapshot], None]) -> None:
        while True:
            await asyncio.sleep(_NEWS_S)
            tell(self.snapshot())

    def snapshot(self) -> Snapshot:
        """Returns totals, and the latencies of requests that ended since the last snapshot."""
        records = self._generator.records
        fresh = [*self._unfinished, *range(self._told, len(records))]
        self._told = len(records)
        self._unfinished = [i for i in fresh if records[i].end_s is None]
        ended = [records[i] for i in fresh if records[i].end_s is not None]
        self._failures.update(record.failure for record in ended if record.failure)
        finished, in_flight = len(records) - len(self._unfinished), self._generator.cap.in_flight
        return Snapshot(
            at_s=self._clock(),
            sent=finished + in_flight,
            in_flight=in_flight,
            finished=finished,
            failures=dict(self._failures),
            ttft_s=tuple(r.first_token_s - r.intended_s for r in ended if r.first_token_s is not None),
            lag_s=tuple(lag for record in ended if (lag := record.lag_s) is not None),
        )
