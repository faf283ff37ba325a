"""A pool whose prompts other endpoints may compute, on one clock with them."""

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.prefill_stage import NOBODY_STREAMS, PrefillStage, Transfer
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.router.routing.fleet import Fleet

QUICK = Transfer(overhead_ms=10, gbit_per_s=1_000)


class StagedFleet(Fleet):
    """Endpoints `a`, `b`, … answer; those of `prefill` only compute."""

    def __init__(self, names: str = "ab", prefill: str = "pq", transfer: Transfer = QUICK) -> None:
        super().__init__(names)
        self.helpers = Pool("llama-prefill", PrefixCache(self.outside, rule=NOBODY_STREAMS))
        self.helpers.replace([Endpoint(name, f"10.1.0.{ord(name)}:80") for name in prefill])
        self.pool.prefill = PrefillStage(self.helpers, transfer, self.pool)

    def stream(self, name: str, count: int) -> None:
        """Has so many answers stream from an endpoint, whose prompts are long computed."""
        self.pool.book.set_peer_count(name, count)

    def queue_up(self, name: str, ms: float) -> None:
        """Has so much prefill wait at a prefill endpoint."""
        assert isinstance(self.helpers.strategy, PrefixCache)
        self.helpers.strategy.backlogs.add(name, ms, self.clock())
