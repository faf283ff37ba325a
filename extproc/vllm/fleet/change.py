"""Changes of the fleet while it runs: endpoints that come, go, and slow down."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.errors import SettingsError

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_PRESENCE: Final = re.compile(rf"{_NUMBER}:(join|drain|crash):(\d+)")
_SPEED: Final = re.compile(rf"{_NUMBER}:(slow):(\d+):{_NUMBER}")


class Kind(StrEnum):
    """What happens to an endpoint."""

    JOIN = "join"  # comes, or comes back, with an empty cache
    DRAIN = "drain"  # finishes what it has and gets no new requests
    CRASH = "crash"  # loses its requests and its cache at once
    SLOW = "slow"  # takes `factor` times as long for every step


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one endpoint, numbered from 0. A number beyond the fleet joins it as a new one."""

    at_s: float
    kind: Kind
    endpoint: int
    factor: float = 1.0


def parse_change(text: str) -> Change:
    """Reads `SECONDS:join|drain|crash:ENDPOINT` or `SECONDS:slow:ENDPOINT:FACTOR`; raises `SettingsError`."""
    found = _PRESENCE.fullmatch(text) or _SPEED.fullmatch(text)
    if not found:
        raise SettingsError(
            f"{text!r} is no change: write SECONDS:join|drain|crash:ENDPOINT or SECONDS:slow:ENDPOINT:FACTOR"
        )
    at_s, kind, endpoint, *factor = found.groups()
    return Change(float(at_s), Kind(kind), int(endpoint), *map(float, factor))
