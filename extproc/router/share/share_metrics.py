"""What operators see of the sharing: read when it is scraped."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extproc.router.share.courier import LetterCounts
from extproc.router.share.pool_share import Share
from extproc.router.telemetry import counters, gauges


class ShareCollector(Collector):
    """`shares` are those of all pools, by name."""

    def __init__(
        self, shares: Callable[[], Mapping[str, Share]], letter_counts: LetterCounts
    ) -> None:
        self._shares = shares
        self._letter_counts = letter_counts

    def collect(self) -> Iterator[Metric]:
        letters = counters(
            "extproc_share_letters", "Letters among gateways by what became of them.", "result"
        )
        for result, count in self._letter_counts.items():
            letters.add_metric([result], count)
        peers = gauges(
            "extproc_share_peers", "Other gateways that share a pool's picks.", "pool", "state"
        )
        delay = gauges(
            "extproc_share_delay_seconds", "How late the latest gateway's news are.", "pool"
        )
        fresh = gauges(
            "extproc_share_fresh", "1 while the counts of all active gateways are used.", "pool"
        )
        for pool, share in self._shares().items():
            now = share.peers.counts
            for state, count in (
                ("prompt", now.prompt),
                ("late", now.active - now.prompt),
                ("lost", now.lost),
            ):
                peers.add_metric([pool, state], count)
            delays = [late_s for late_s in share.peers.delays().values() if late_s is not None]
            if delays:
                delay.add_metric([pool], max(delays))
            fresh.add_metric([pool], float(0 < now.active == now.prompt))
        yield from (letters, peers, delay, fresh)


def describe_share(share: Share) -> dict[str, object]:
    """What `/pools` shows of a pool's part in the sharing."""
    now = share.peers.counts
    return {
        "me": f"{share.me:016x}",
        "heard": now.active,
        "prompt": now.prompt,
        "lost": now.lost,
        "peers": [
            {
                "name": f"{name:016x}",
                "delay_ms": None if late_s is None else round(1000 * late_s, 3),
            }
            for name, late_s in share.peers.delays().items()
        ],
    }
