"""Changes of the fleet while it runs: endpoints that come, go, slow down and forget; scenarios by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from extproc.errors import SettingsError


class Kind(StrEnum):
    """What happens to an endpoint."""

    JOIN = "join"  # comes, or comes back, with an empty cache
    DRAIN = "drain"  # finishes what it has and gets no new requests
    CRASH = "crash"  # loses its requests and its cache at once
    FLUSH = "flush"  # drops every cached block that is not in use
    SLOW = "slow"  # takes `amount` times as long for every step
    RESTART = "restart"  # drains for `amount` seconds, loses what is left, comes back with an empty cache


@dataclass(frozen=True, slots=True)
class FleetChange:
    """One change of one endpoint, numbered from 0. A number beyond the fleet joins it as a new one."""

    at_s: float
    kind: Kind
    endpoint: int
    amount: float = 1.0


def check_changes(changes: Iterable[FleetChange], endpoints: int) -> None:
    """Raises `SettingsError` for a change of an endpoint that is not there at its time."""
    present = set(range(endpoints))
    for change in sorted(changes, key=lambda change: change.at_s):
        if change.kind is Kind.JOIN:
            present.add(change.endpoint)
        elif change.endpoint not in present:
            raise SettingsError(
                f"{change.at_s:g}:{change.kind}:{change.endpoint}: there is no endpoint {change.endpoint} "
                f"then: {endpoints} are numbered from 0, others have to join first"
            )


def steps_of(changes: Iterable[FleetChange]) -> Iterator[FleetChange]:
    """Yields the changes one by one: a restart is a drain, then a crash and a return."""
    for change in changes:
        if change.kind is not Kind.RESTART:
            yield change
            continue
        back_at = change.at_s + change.amount
        yield FleetChange(change.at_s, Kind.DRAIN, change.endpoint)
        yield FleetChange(back_at, Kind.CRASH, change.endpoint)
        yield FleetChange(back_at, Kind.JOIN, change.endpoint)


DOWN_S: Final = 30.0

Scenario = Callable[[int, float, float], Sequence[FleetChange]]
"""Takes the number of endpoints and the two ends of the measured window, in seconds."""


def _plain(_endpoints: int, _start_s: float, _end_s: float) -> Sequence[FleetChange]:
    return ()


def _half_speed(_endpoints: int, _start_s: float, _end_s: float) -> Sequence[FleetChange]:
    """One endpoint takes twice as long for everything."""
    return (FleetChange(0.0, Kind.SLOW, 0, 2.0),)


def _two_slow(endpoints: int, _start_s: float, _end_s: float) -> Sequence[FleetChange]:
    """A quarter takes twice as long for everything."""
    return [FleetChange(0.0, Kind.SLOW, number, 2.0) for number in range(max(1, endpoints // 4))]


def _churn(endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
    """Each 45 s an endpoint restarts, and a quarter more joins in the middle."""
    times = range(int(start_s), int(end_s), 45)
    restarts = [
        FleetChange(at_s, Kind.RESTART, place % endpoints, DOWN_S) for place, at_s in enumerate(times)
    ]
    return [*restarts, *_join(endpoints, start_s, end_s)]


def _restart(endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
    """One endpoint after the other is drained, restarted, and back half a minute later."""
    return _one_by_one(Kind.RESTART, endpoints, start_s, end_s)


def _flush(endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
    """One endpoint after the other forgets what it had cached."""
    return _one_by_one(Kind.FLUSH, endpoints, start_s, end_s)


def _one_by_one(kind: Kind, endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
    step_s = (end_s - start_s) / endpoints
    return [FleetChange(start_s + number * step_s, kind, number, DOWN_S) for number in range(endpoints)]


def _join(endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
    """A quarter more endpoints join in the middle."""
    joining = range(endpoints, endpoints + max(1, endpoints // 4))
    return [FleetChange((start_s + end_s) / 2, Kind.JOIN, number) for number in joining]


def _crash(_endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
    """One endpoint crashes in the middle, and is back half a minute later."""
    at_s = (start_s + end_s) / 2
    return (FleetChange(at_s, Kind.CRASH, 0), FleetChange(at_s + DOWN_S, Kind.JOIN, 0))


SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        "plain": _plain,
        "half-speed": _half_speed,
        "two-slow": _two_slow,
        "churn": _churn,
        "restart": _restart,
        "flush": _flush,
        "join": _join,
        "crash": _crash,
    }
)
