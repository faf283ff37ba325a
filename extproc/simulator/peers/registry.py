"""Baselines by name: what other projects do. docs/why/simulator.md says whose, and what is different.

They are arms of a simulation and no strategies of the service: its settings do not have them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.simulator.peers.pickers import (
    AibrixPrefixCache,
    Dynamo,
    Gie,
    LlmdExact,
    LlmdSticky,
    Oracle,
)
from extproc.simulator.peers.sglang import SglangCacheAware
from extproc.simulator.peers.signals import Scrape

Build = Callable[..., Strategy]


def _gie(
    outside: ClockAndRandom, scrape: Scrape, *, scrape_s: float = 0.05, **options: object
) -> Strategy:
    if scrape_s <= 0:
        raise ValueError(f"scrape_s: {scrape_s} is no time to wait")
    return Gie(outside, scrape(scrape_s), **options)  # type: ignore[arg-type]  # options are checked there


def _blind(build: Build) -> Build:
    return lambda outside, _scrape, **options: build(outside, **options)


def _exact(build: Build) -> Build:
    return lambda outside, scrape, **options: build(outside, scrape(0.0), **options)


PEERS: Final[Mapping[str, Build]] = MappingProxyType(
    {
        "kubeai": _blind(partial(PrefixHash, load_floor=0)),
        "gie": _gie,
        "llmd_exact": _exact(LlmdExact),
        "llmd_sticky": _exact(LlmdSticky),
        "sglang_cache_aware": _blind(SglangCacheAware),
        "aibrix": _blind(AibrixPrefixCache),
        "dynamo": _exact(Dynamo),
        "oracle": _exact(Oracle),
    }
)


def build_peer(
    name: str, options: Mapping[str, object], outside: ClockAndRandom, scrape: Scrape
) -> Strategy:
    """Raises `SettingsError` for an option that there is not."""
    try:
        return PEERS[name](outside, scrape, **options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name}: {error}") from None
