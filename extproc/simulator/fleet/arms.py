"""Arms: strategies and peers' rules with options, written as `NAME` or `NAME:option=value,option=value`.

An arm of `prefix_cache` may also give the rule another constant, or take a term out: `prefix_cache:evicted=0`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from random import Random

import msgspec

from extproc.documents import parse_document, suggest_name
from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.router.routing.strategies.prefix_cache.rule import Rule
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.simulator.peers.registry import PEERS, build_peer
from extproc.simulator.peers.signals import Scrape, scrape_nothing

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class FleetArm:
    """A strategy and its options, as an operator would configure them; `text`: as on the command line.

    Or a peer's rule, which no operator of ours can configure.
    """

    text: str
    strategy: str
    options: Mapping[str, object]


def parse_arm(text: str) -> FleetArm:
    """Reads an arm; values are YAML, so that `key=[prompt_head]` is a list. Raises `SettingsError`."""
    name, _, written = text.partition(":")
    try:
        options = parse_document("{" + written.replace("=", ": ") + "}", "arm").tree
    except SettingsError:
        raise SettingsError(f"{text!r} is no arm: write NAME:option=value,option=value") from None
    if not all(isfinite(value) for value in options.values() if isinstance(value, float)):
        raise SettingsError(f"{text!r}: there is a value that is no number to count with")
    arm = FleetArm(text, name.strip(), options)
    build_arm(arm.strategy, arm.options, ClockAndRandom(Random(0), float), scrape_nothing)  # noqa: S311  # says what is wrong
    return arm


def build_arm(
    name: str, options: Mapping[str, object], outside: ClockAndRandom, scrape: Scrape
) -> Strategy:
    """Builds a strategy or a peer; raises `SettingsError` for a name or an option that there is not."""
    if name in PEERS:
        return build_peer(name, options, outside, scrape)
    if name not in STRATEGIES.kinds:
        names = [*STRATEGIES.kinds, *PEERS]
        raise SettingsError(
            f"{name!r} is no strategy: choose from {', '.join(names)}{suggest_name(name, names)}"
        )
    constants = {key: options[key] for key in constants_of(name) if key in options}
    options = {key: value for key, value in options.items() if key not in constants}
    known = STRATEGIES.kinds[name].settings.model_fields.keys() - {"name"}
    if strange := sorted(options.keys() - known):
        raise SettingsError(
            f"{name} has no option {strange[0]}, but {', '.join(sorted(known)) or 'none'}"
            f"{suggest_name(strange[0], [*known, *constants_of(name)])}"
        )
    if not constants:
        return STRATEGIES.build(name, options, outside)
    try:
        rule = msgspec.convert(constants, Rule, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name}: {error}") from None
    return STRATEGIES.build(name, {**options, "rule": rule}, outside)


def constants_of(name: str) -> Sequence[str]:
    """The names of a rule's constants that an arm may change."""
    return Rule.__struct_fields__ if name == PrefixCache.name else ()
