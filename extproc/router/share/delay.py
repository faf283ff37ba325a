"""How old a peer's news are when they come, and whether they may count. Pure: times come in."""

# The rules:
#
# - Clocks of two machines have nothing to do with each other. A letter that echoes one of ours tells a round
#   trip, without the time that it lay there; half of it is taken for the way here, and so the letter tells
#   what their clock shows now. Of all round trips of a minute or two the shortest is believed: its half is
#   wrong by the least. From then on every letter tells its own delay.
# - One late letter says nothing: delays are smoothed over some ten letters.
# - Counts that are old make gateways herd: all of them send to the endpoint that was idle, which is worse
#   than not to know. So a peer's counts are used while its delay is within a limit, and used again
#   when it has been within three quarters of it; its blocks are worth knowing as long as they come at all.
# - How old is too old? As long as about one request of eight comes to an endpoint meanwhile, simulated with
#   five workloads; and 20 ms always do.
# - The same limit tells how long news may lie here until they go out together, since letters cost more than
#   what is in them: for three quarters of it, which leaves the rest for the way. But blocks are wanted soon
#   however little is picked: the next turn of a conversation may come to another gateway.

from typing import Final

# What counts within any limit.
PROMPT_S: Final = 0.02
# The share of the time between two picks of an endpoint.
_SHARE: Final = 0.125
_SLOWEST_S: Final = 0.5
_WAIT: Final = 0.75
_LONGEST_WAIT_S: Final = 0.05

_SMOOTH: Final = 0.2
_BELIEVED_S: Final = 60.0
# An echo of what was sent longer ago may have been recorded, and says nothing of now.
_LONGEST_ROUND_S: Final = 10.0
_AGAIN: Final = 0.75


def limit_s(picks_per_s: float, endpoints: int) -> float:
    """Returns how late counts may come in a pool with so many picks per second, all gateways together."""
    if not picks_per_s:
        return _SLOWEST_S
    return min(max(PROMPT_S, _SHARE * endpoints / picks_per_s), _SLOWEST_S)


def wait_s(limit_s: float) -> float:
    """Returns how long news wait for others to go out with, at most."""
    return min(_WAIT * limit_s, _LONGEST_WAIT_S)


class Delay:
    """One peer's delay, as its letters tell."""

    __slots__ = ("_ahead_s", "_newer", "_older", "_smoothed_s", "_turned_s", "is_prompt")

    def __init__(self) -> None:
        self.is_prompt = False
        self._ahead_s: float | None = None  # of our clock is theirs by so much
        # The shortest round trip of this minute and of the one before, and what it tells of their clock.
        self._newer: tuple[float, float] | None = None
        self._older: tuple[float, float] | None = None
        self._turned_s = 0.0
        self._smoothed_s: float | None = None

    @property
    def has_echoed(self) -> bool:
        """Whether it answered a letter of ours that was not old."""
        return self._ahead_s is not None

    @property
    def seconds(self) -> float | None:
        """`None` before a round trip was seen."""
        return self._smoothed_s

    def echo(self, sent_s: float, now: float, round_s: float) -> None:
        """Takes a letter that they sent at `sent_s` by their clock, at the end of such a round trip."""
        if now - self._turned_s > _BELIEVED_S and self._newer is not None:
            self._older, self._newer, self._turned_s = self._newer, None, now
        if 0 <= round_s <= _LONGEST_ROUND_S and (self._newer is None or round_s < self._newer[0]):
            self._newer = (round_s, sent_s + round_s / 2 - now)
            self._ahead_s = min(self._newer, self._older or self._newer)[1]

    def hear(self, sent_s: float, now: float, limit_s: float) -> None:
        """Takes a letter that they sent at `sent_s` by their clock."""
        if self._ahead_s is None:
            return
        late_s = max(0.0, now + self._ahead_s - sent_s)
        before = late_s if self._smoothed_s is None else self._smoothed_s
        self._smoothed_s = before + _SMOOTH * (late_s - before)
        self.is_prompt = self._smoothed_s <= (limit_s if self.is_prompt else _AGAIN * limit_s)
