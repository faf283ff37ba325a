"""Baselines by name: what other projects do, each with where its rule comes from.

They are arms of a simulation and no strategies of the service: its settings do not have them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import Outside, Strategy
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.simulator.peers.gie import Gie
from extproc.simulator.peers.sglang import SglangCacheAware
from extproc.simulator.peers.signals import Scrape


@dataclass(frozen=True, slots=True)
class Peer:
    """A baseline: built from outside, what scrapes, and options; `after` whose rule; where it `deviates`."""

    name: str
    build: Callable[..., Strategy]
    after: str
    deviates: str


def _kubeai(outside: Outside, _scrape: Scrape, **options: object) -> Strategy:
    return PrefixHash(outside, load_floor=0, **options)  # type: ignore[arg-type]  # options are checked there


def _gie(outside: Outside, scrape: Scrape, *, scrape_s: float = 0.05, **options: object) -> Strategy:
    return Gie(outside, scrape(scrape_s), **options)  # type: ignore[arg-type]  # likewise


def _sglang(outside: Outside, _scrape: Scrape, **options: object) -> Strategy:
    return SglangCacheAware(outside, **options)  # type: ignore[arg-type]  # likewise


_ALL: Final = (
    Peer(
        "kubeai",
        _kubeai,
        "KubeAI 0.22.1, PrefixHash: bound 1.25, no floor, 100 characters of the first user message",
        "positions hash to other places (xxh3, a separator); a retry leaves out who refused",
    ),
    Peer(
        "gie",
        _gie,
        "Gateway API Inference Extension (2026), weighted: prefix 3, KV cache 2, queue 2, scraped each 50 ms",
        "the prompt is rendered our way; the index is written with the pick, there a moment later; its LRU "
        "is not tuned to the engine's cache (`lru_blocks`)",
    ),
    Peer(
        "sglang_cache_aware",
        _sglang,
        "SGLang router 0.2, cache_aware: threshold 0.3, unbalanced beyond 64 requests and 1.5 times",
        "no eviction of its tree, which begins at 67 million characters an endpoint",
    ),
)
PEERS: Final[Mapping[str, Peer]] = MappingProxyType({peer.name: peer for peer in _ALL})


def build_peer(name: str, options: Mapping[str, object], outside: Outside, scrape: Scrape) -> Strategy:
    """Raises `SettingsError` for an option that there is not."""
    try:
        return PEERS[name].build(outside, scrape, **options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name}: {error}") from None
