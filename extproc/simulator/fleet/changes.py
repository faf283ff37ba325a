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
    FOREIGN = "foreign"  # gets its part of the sessions that, `amount` of all, go past the gateways in turns
    RESTART = (
        "restart"  # drains for `amount` seconds, loses what is left, comes back with an empty cache
    )


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


def _slow(count: Callable[[int], int]) -> Scenario:
    """So many take twice as long for everything."""
    return lambda endpoints, _start_s, _end_s: [
        FleetChange(0.0, Kind.SLOW, number, 2.0) for number in range(count(endpoints))
    ]


def _churn(endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
    """Each 45 s an endpoint restarts, and a quarter more joins in the middle."""
    times = range(int(start_s), int(end_s), 45)
    restarts = [
        FleetChange(at_s, Kind.RESTART, place % endpoints, DOWN_S)
        for place, at_s in enumerate(times)
    ]
    return [*restarts, *_join(endpoints, start_s, end_s)]


def _one_by_one(kind: Kind) -> Scenario:
    """One endpoint after the other forgets what it had cached, or is drained and back half a minute later."""

    def plan(endpoints: int, start_s: float, end_s: float) -> Sequence[FleetChange]:
        step_s = (end_s - start_s) / endpoints
        return [
            FleetChange(start_s + number * step_s, kind, number, DOWN_S)
            for number in range(endpoints)
        ]

    return plan


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
        "plain": lambda _endpoints, _start_s, _end_s: (),
        "half-speed": _slow(lambda _endpoints: 1),
        "two-slow": _slow(lambda endpoints: max(1, endpoints // 4)),
        "churn": _churn,
        "restart": _one_by_one(Kind.RESTART),
        "flush": _one_by_one(Kind.FLUSH),
        "foreign": lambda _endpoints, _start_s, _end_s: [FleetChange(0.0, Kind.FOREIGN, 0, 0.3)],
        "join": _join,
        "crash": _crash,
    }
)
