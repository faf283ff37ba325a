"""How a fleet took a changing load: missed seconds, reaction, recovery, endpoint-seconds.

The benchmark measures a real fleet by these rules, the simulator a virtual one. Times are seconds
of the run.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

GOOD_SHARE = 0.95  # a second is missed if fewer of the requests due in it were good

# A count that changes: from when on it was how many, in order. The first one holds from the start.
Steps = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Rise:
    """More load from `start_s` on; until `until_s`, where the load rises again, it can be recovered from."""

    name: str
    start_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Response:
    """Seconds from a rise until more endpoints were ready, if ever, and until the last missed second ended.

    `recovery_s` is `None` if seconds were still missed when the load changed again, or without
    limits.
    """

    name: str
    reaction_s: float | None
    recovery_s: float | None


def find_missed_seconds(judged: Iterable[tuple[float, bool]]) -> list[int]:
    """The seconds in which too few requests were good, of when each was due and whether it was good."""
    goods: dict[int, list[bool]] = {}
    for due_s, is_good in judged:
        goods.setdefault(math.floor(due_s), []).append(is_good)
    return sorted(second for second, good in goods.items() if sum(good) < GOOD_SHARE * len(good))


def add_up_over(steps: Steps, start_s: float, end_s: float) -> float:
    """The count times seconds from `start_s` to `end_s`: what was there for how long."""
    edges = [start_s, *(at_s for at_s, _ in steps[1:]), end_s]
    clipped = (min(max(at_s, start_s), end_s) for at_s in edges)
    spans = zip(steps, pairwise(clipped), strict=True)
    return sum(count * (until_s - from_s) for (_, count), (from_s, until_s) in spans)


def respond(rise: Rise, ready: Steps, missed: Sequence[int] | None) -> Response:
    """What became of a rise; `ready` counts endpoints, `missed` is `None` without limits."""
    before = [count for at_s, count in ready if at_s <= rise.start_s]
    more = (
        at_s - rise.start_s
        for at_s, count in ready
        if before and rise.start_s < at_s < rise.until_s and count > before[-1]
    )
    return Response(rise.name, next(more, None), None if missed is None else _recover(rise, missed))


def _recover(rise: Rise, missed: Sequence[int]) -> float | None:
    own = [second for second in missed if math.floor(rise.start_s) <= second < rise.until_s]
    if not own:
        return 0.0
    return None if own[-1] + 1 >= rise.until_s else own[-1] + 1 - rise.start_s
