"""Scenarios: what happens to a fleet while it is measured, by name."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from extproc.simulator.fleet.change import Change, Kind

DOWN_S: Final = 30.0

Scenario = Callable[[int, float, float], Sequence[Change]]
"""Takes the number of endpoints and the two ends of the measured window, in seconds."""


def _plain(_endpoints: int, _start_s: float, _end_s: float) -> Sequence[Change]:
    return ()


def _half_speed(_endpoints: int, _start_s: float, _end_s: float) -> Sequence[Change]:
    """One endpoint takes twice as long for everything."""
    return (Change(0.0, Kind.SLOW, 0, 2.0),)


def _restart(endpoints: int, start_s: float, end_s: float) -> Sequence[Change]:
    """One endpoint after the other is drained, restarted, and back half a minute later."""
    return _one_by_one(Kind.RESTART, endpoints, start_s, end_s)


def _flush(endpoints: int, start_s: float, end_s: float) -> Sequence[Change]:
    """One endpoint after the other forgets what it had cached."""
    return _one_by_one(Kind.FLUSH, endpoints, start_s, end_s)


def _one_by_one(kind: Kind, endpoints: int, start_s: float, end_s: float) -> Sequence[Change]:
    step_s = (end_s - start_s) / endpoints
    return [Change(start_s + number * step_s, kind, number, DOWN_S) for number in range(endpoints)]


def _join(endpoints: int, start_s: float, end_s: float) -> Sequence[Change]:
    """A quarter more endpoints join in the middle."""
    joining = range(endpoints, endpoints + max(1, endpoints // 4))
    return [Change((start_s + end_s) / 2, Kind.JOIN, number) for number in joining]


def _crash(_endpoints: int, start_s: float, end_s: float) -> Sequence[Change]:
    """One endpoint crashes in the middle, and is back half a minute later."""
    at_s = (start_s + end_s) / 2
    return (Change(at_s, Kind.CRASH, 0), Change(at_s + DOWN_S, Kind.JOIN, 0))


SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        "plain": _plain,
        "half-speed": _half_speed,
        "restart": _restart,
        "flush": _flush,
        "join": _join,
        "crash": _crash,
    }
)
