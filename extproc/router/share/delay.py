"""How late a peer's letters come, and whether their counts are used. Pure: times come in."""

# The rules:
#
# - Clocks of two machines differ by an unknown offset. A letter that echoes one of ours gives a
#   round trip, without the time that ours waited there; half of it is taken as the way here, which
#   gives the offset. Of all round trips of a minute or two the shortest is used: its half has the
#   smallest error. From then on every letter gives a delay.
# - One late letter proves little: delays are smoothed over some ten letters.
# - Old counts make gateways herd: all of them send to the endpoint that was idle, which is worse
#   than no counts. So a peer's counts are used while its delay is within a limit, and used again
#   once it is within three quarters of it; its blocks are useful whenever they come.
# - The limit is the time in which an endpoint gets about one request of eight, found by simulating
#   five workloads; and never less than 20 ms.
# - The same limit bounds how long news wait here to go out together, since a letter costs more than
#   its news: three quarters of it, which leaves the rest for the way. But blocks must go out soon
#   even with few picks: the next turn of a conversation may come to another gateway.

from dataclasses import dataclass
from typing import Final

# The shortest limit.
PROMPT_S: Final = 0.02
# The share of the time between two picks of an endpoint.
_SHARE: Final = 0.125
_SLOWEST_S: Final = 0.5
_WAIT: Final = 0.75
_LONGEST_WAIT_S: Final = 0.05

_SMOOTH: Final = 0.2
_BELIEVED_S: Final = 60.0
# An echo of an older letter may be a recording, and proves nothing.
_LONGEST_ROUND_S: Final = 10.0
_AGAIN: Final = 0.75


def limit_s(picks_per_s: float, endpoints: int) -> float:
    """Returns how late counts may come, by a pool's picks per second through all gateways together."""
    if not picks_per_s:
        return _SLOWEST_S
    return min(max(PROMPT_S, _SHARE * endpoints / picks_per_s), _SLOWEST_S)


def wait_s(limit_s: float) -> float:
    """Returns how long news wait at most, to go out together."""
    return min(_WAIT * limit_s, _LONGEST_WAIT_S)


@dataclass(slots=True, eq=False)
class Delay:
    """One peer's delay, measured by its letters."""

    is_prompt: bool = False
    _ahead_s: float | None = None  # their clock less ours
    # The shortest round trip of this minute and of the one before, each with the offset it gave.
    _newer: tuple[float, float] | None = None
    _older: tuple[float, float] | None = None
    _turned_s: float = 0.0
    _smoothed_s: float | None = None

    @property
    def has_echoed(self) -> bool:
        """Whether the peer echoed a recent letter of ours."""
        return self._ahead_s is not None

    @property
    def seconds(self) -> float | None:
        """`None` before the first round trip."""
        return self._smoothed_s

    def echo(self, sent_s: float, now: float, round_s: float) -> None:
        """Takes a letter that ends a round trip of `round_s`, sent at `sent_s` by the peer's clock."""
        if now - self._turned_s > _BELIEVED_S and self._newer is not None:
            self._older, self._newer, self._turned_s = self._newer, None, now
        if 0 <= round_s <= _LONGEST_ROUND_S and (self._newer is None or round_s < self._newer[0]):
            self._newer = (round_s, sent_s + round_s / 2 - now)
            self._ahead_s = min(self._newer, self._older or self._newer)[1]

    def measure(self, sent_s: float, now: float, limit_s: float) -> None:
        """Takes a letter sent at `sent_s` by the peer's clock."""
        if self._ahead_s is None:
            return
        late_s = max(0.0, now + self._ahead_s - sent_s)
        before = late_s if self._smoothed_s is None else self._smoothed_s
        self._smoothed_s = before + _SMOOTH * (late_s - before)
        self.is_prompt = self._smoothed_s <= (limit_s if self.is_prompt else _AGAIN * limit_s)
