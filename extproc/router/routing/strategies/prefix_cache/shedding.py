"""When to refuse new conversations: when the ones that go on outgrow the caches."""

# The rule, and why.
#
# While conversations go on, their contexts have to stay in the caches from turn to turn. Beyond some load
# they do not: what is missing is computed again, answers come later, conversations last longer, more of them
# are open at a time, and each new one evicts what another is about to ask for. Hits fall to nothing, whatever
# the strategy, and stay there (simulated): the endpoints are as busy as before, and answer a fraction.
#
# The first sign is how much of its earlier turns a conversation still finds. Each request with earlier turns
# shows that when it comes; here it is averaged over some fifty of them. From `_FEW` of it down a part
# of the new conversations is refused, at `_NONE` all of them, and those that go on keep what they have. A new
# one costs the others most and itself least: nobody waits for its next word yet.
#
# - New is who has no earlier turn, and of whose prompt less than half is cached: where a long system prompt
#   is shared, or a document, a new conversation brings little, and is let in.
# - Turns that other gateways answered look like evicted ones. So this is for a gateway that is alone, or
#   hears of all picks; while some of the others are silent, nothing is refused.
# - Nothing is refused while the caches are not full: who has just been started finds nothing, either.
# - A part, not all or none: all at once would empty the endpoints, and let too many in a moment later.

from typing import Final

_FEW: Final = 0.9
_NONE: Final = 0.6
_RARELY: Final = 0.02


class Shedding:
    """What share of earlier turns is still in some cache."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found = 1.0

    def __repr__(self) -> str:
        return f"<Shedding: {self.found:.2f} of earlier turns found>"

    def take(self, answered: int, reach: int) -> None:
        """Takes how many bytes of earlier turns a request has, and how many of it are in some cache."""
        self.found += _RARELY * (min(1.0, reach / answered) - self.found)

    @property
    def refused(self) -> float:
        """The share of new conversations that had better not begin now."""
        return min(1.0, max(0.0, (_FEW - self.found) / (_FEW - _NONE)))
