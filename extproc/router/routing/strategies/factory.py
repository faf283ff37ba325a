"""Strategies by name: the one place that knows all of them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from extproc.errors import SettingsError
from extproc.router.routing.strategies.balanced import LeastLoad, RandomChoice, RoundRobin
from extproc.router.routing.strategies.base import Outside, Strategy
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.routing.strategies.prefix_hash import PrefixHash

STRATEGIES: Final[Mapping[str, Callable[..., Strategy]]] = MappingProxyType(
    {kind.name: kind for kind in (RoundRobin, RandomChoice, LeastLoad, PrefixHash, PrefixCache)}
)


def build_strategy(name: str, options: Mapping[str, object], outside: Outside) -> Strategy:
    """Builds the strategy called `name`; `options` are its settings by their names in a configuration.

    Raises `SettingsError` for a name or an option that there is not.
    """
    if name not in STRATEGIES:
        raise SettingsError(f"{name!r} is no strategy: choose from {', '.join(STRATEGIES)}")
    try:
        return STRATEGIES[name](outside, **options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name}: {error}") from None
