"""Which worker gets the next connection, and which one lets one go. Pure."""

# The rules:
#
# - A proxy's thread sends all its requests over one connection, so what is to be shared out are connections
#   that bring requests. Health checks, xDS and the like are connections, too, and weigh next to nothing: they
#   decide only where all else is equal.
# - One that has not asked for anything yet counts as if it will bring requests. So do those that were handed
#   on and of which a worker has not told yet: a proxy's threads connect within the same millisecond.
# - Who was killed comes back to nothing, for the proxies have connected to the others at once. So one of the
#   others lets a connection go, in peace: the proxy opens its next requests on another one. One at a time,
#   and only once all that was handed on has come.

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct


class Held(Struct, frozen=True, tag=True):
    """A worker tells of its connections: how many it `received` in its life, and what those it has bring."""

    received: int = 0
    carrying: int = 0
    unknown: int = 0
    others: int = 0


@dataclass(slots=True)
class Seat:
    """What the parent knows of a worker that lives."""

    is_ready: bool = False
    handed: int = 0
    held: Held = field(default_factory=Held)

    @property
    def unheard(self) -> int:
        """Connections of which nobody knows yet what they bring."""
        return self.handed - self.held.received + self.held.unknown

    @property
    def weight(self) -> int:
        return self.held.carrying + self.unheard


def choose(seats: Mapping[int, Seat]) -> int | None:
    """Returns who gets the next connection: of those that can route, who has the fewest; `None`: nobody."""
    if not seats:
        return None
    return min(seats, key=lambda lane: _rank(seats[lane], lane))


def _rank(seat: Seat, lane: int) -> tuple[bool, int, int, int]:
    return (not seat.is_ready, seat.weight, seat.held.others, lane)


def crowded(seats: Mapping[int, Seat]) -> int | None:
    """Returns who should let a connection go, since somebody else has two fewer; `None`: nobody."""
    ready = {lane: seat for lane, seat in seats.items() if seat.is_ready}
    if not ready or any(seat.handed != seat.held.received for seat in ready.values()):
        return None
    most = max(ready, key=lambda lane: ready[lane].held.carrying)
    least = min(seat.weight for seat in ready.values())
    return most if ready[most].held.carrying >= least + 2 else None
