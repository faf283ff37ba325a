"""Arms: strategies and peers' rules with options, written as `NAME` or `NAME:option=value,option=value`."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from random import Random

from extproc.documents import parse_document, suggest_name
from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.simulator.peers.registry import PEERS, build_peer
from extproc.simulator.peers.signals import Scrape, scrape_nothing


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
    known = STRATEGIES.kinds[name].settings.model_fields.keys() - {"name"}
    if strange := sorted(options.keys() - known):
        raise SettingsError(
            f"{name} has no option {strange[0]}, but {', '.join(sorted(known)) or 'none'}"
        )
    return STRATEGIES.build(name, options, outside)
