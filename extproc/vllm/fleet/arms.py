"""Arms: strategies with options, written as `NAME` or `NAME:option=value,option=value`."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from random import Random

from extproc.documents import parse_document
from extproc.errors import SettingsError
from extproc.routing.strategies.base import Outside
from extproc.routing.strategies.factory import build_strategy


@dataclass(frozen=True, slots=True)
class Arm:
    """A strategy and its options, as an operator would configure them; `text` is how it was asked for."""

    text: str
    strategy: str
    options: Mapping[str, object]


def parse_arm(text: str) -> Arm:
    """Reads an arm; values are YAML, so that `key=[prompt_head]` is a list. Raises `SettingsError`."""
    name, _, written = text.partition(":")
    try:
        options = parse_document("{" + written.replace("=", ": ") + "}", "arm").tree
    except SettingsError:
        raise SettingsError(f"{text!r} is no arm: write NAME:option=value,option=value") from None
    if not all(isfinite(value) for value in options.values() if isinstance(value, float)):
        raise SettingsError(f"{text!r}: there is a value that is no number to count with")
    arm = Arm(text, name.strip(), options)
    build_strategy(arm.strategy, arm.options, Outside(Random(0), float))  # noqa: S311  # says what is wrong
    return arm
