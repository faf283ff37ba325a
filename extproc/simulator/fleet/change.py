"""Changes of the fleet while it runs: endpoints that come, go, slow down, and forget."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.errors import SettingsError

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_PRESENCE: Final = re.compile(rf"{_NUMBER}:(join|drain|crash|flush):(\d+)")
_MEASURED: Final = re.compile(rf"{_NUMBER}:(slow|restart):(\d+):{_NUMBER}")
SYNTAX: Final = (
    "SECONDS:join|drain|crash|flush:ENDPOINT, SECONDS:slow:ENDPOINT:FACTOR or SECONDS:restart:ENDPOINT:DOWN_S"
)


class Kind(StrEnum):
    """What happens to an endpoint."""

    JOIN = "join"  # comes, or comes back, with an empty cache
    DRAIN = "drain"  # finishes what it has and gets no new requests
    CRASH = "crash"  # loses its requests and its cache at once
    FLUSH = "flush"  # drops every cached block that is not in use
    SLOW = "slow"  # takes `amount` times as long for every step
    RESTART = "restart"  # drains for `amount` seconds, loses what is left, comes back with an empty cache


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one endpoint, numbered from 0. A number beyond the fleet joins it as a new one."""

    at_s: float
    kind: Kind
    endpoint: int
    amount: float = 1.0


def parse_change(text: str) -> Change:
    """Reads what `SYNTAX` says; raises `SettingsError`."""
    found = _PRESENCE.fullmatch(text) or _MEASURED.fullmatch(text)
    if not found:
        raise SettingsError(f"{text!r} is no change: write {SYNTAX}")
    at_s, kind, endpoint, *amount = found.groups()
    change = Change(float(at_s), Kind(kind), int(endpoint), *map(float, amount))
    if change.kind is Kind.SLOW and not change.amount:
        raise SettingsError(f"{text!r}: a step cannot take no time")
    return change


def check_changes(changes: Iterable[Change], endpoints: int) -> None:
    """Raises `SettingsError` for a change of an endpoint that is not there at its time."""
    known = set(range(endpoints))
    for change in sorted(changes, key=lambda change: change.at_s):
        if change.kind is Kind.JOIN:
            known.add(change.endpoint)
        elif change.endpoint not in known:
            raise SettingsError(
                f"{change.at_s:g}:{change.kind}:{change.endpoint}: there is no endpoint {change.endpoint} "
                f"then: {endpoints} are numbered from 0, others have to join first"
            )


def steps_of(changes: Iterable[Change]) -> Iterator[Change]:
    """Yields the changes one by one: a restart is a drain, then a crash and a return."""
    for change in changes:
        if change.kind is not Kind.RESTART:
            yield change
            continue
        back_at = change.at_s + change.amount
        yield Change(change.at_s, Kind.DRAIN, change.endpoint)
        yield Change(back_at, Kind.CRASH, change.endpoint)
        yield Change(back_at, Kind.JOIN, change.endpoint)
