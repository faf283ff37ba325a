"""Homes: endpoints where gateways that share no picks expect the prompts of other gateways. Pure."""

# The rules, found by simulation with four and eight gateways that share the requests at random:
#
# - A conversation has a home, by its first turn; so has the system prompt that the operator puts
#   before every conversation. All gateways find the same homes, on a ring of endpoints.
# - A home is presumed to hold its conversation only where we have not seen that ourselves. The
#   gateway that sent the last turn has its endpoint in the index, and must not send the
#   conversation back home.
# - A first turn is nowhere yet, so nothing is presumed. But the others will look for the
#   conversation at its home, so a prefill there is of use to them: it costs nothing there.
# - A system prompt that no gateway has seen may be one tenant's, among many with the same home. So
#   it decides alone, and the home of the question, which differs each time, plays no part.
#
# The number of gateways is estimated from conversations: with n gateways, one turn in n follows one
# of our own. Where clients stay with one gateway, it counts as alone, which is right for our
# purpose. The index cannot say whether the last turn was ours: its blocks may be evicted, and a
# head that changes with each turn gives new blocks. So we also remember a conversation by its first
# question, with the number of its answers when we last saw it. Without that a single gateway near
# its capacity takes itself for several, sends prompts to their homes, and is overloaded (simulated:
# 46 s to the first token instead of 13).
#
# Gateways that share their picks see each other's prompts as their own. So they need no homes while
# all their letters come: homes would only move conversations away from where they are. When some
# fall silent, turns show it within seconds, and homes count again.
#
# Conversations that began before the silence are where they were then, not at home: an endpoint
# that was seen with a third of one is presumed to have all of it. All gateways saw it there, and
# presume the same (without that rule, half as much time again to the first token). Not so for a
# conversation that began since: only one gateway has seen it, the others look at its home, and it
# would go to and fro.
#
# Tried, and taken out, since it gained less than a twentieth: homes from the first silence on, by
# how quick turns are; homes for instructions alone, from a loss on.

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.base import PeerCounts

# Each turn's weight in the share of those that followed our own.
_WEIGHT: Final = 0.02
# Below this share we are not alone. It is less than 1: our own turns may be evicted, or older than
# a restart.
_ALONE: Final = 0.7
_MAX_GATEWAYS: Final = 64.0
_GENERATION: Final = 50_000

# After a loss, the share of a conversation that shows where it is; and after how long silence is
# noticed.
_SEEN: Final = 0.3
_NOTICED_S: Final = 0.5


class Homes(Struct, frozen=True):
    """By name, how many bytes of a prompt are `presumed` there; `own` is the conversation's, or empty."""

    presumed: Mapping[str, int] = {}
    own: str = ""

    @property
    def names(self) -> list[str]:
        return [*self.presumed, self.own] if self.own else [*self.presumed]


NO_HOMES: Final = Homes()


def find_homes(chain: Chain, reach: int, walk: Callable[[int], Iterator[str]]) -> Homes:
    """Returns the homes of a prompt of which some endpoint has `reach` bytes, by our own index.

    `walk` yields endpoints by a key, the same for all gateways.
    """
    root = next(walk(chain.root), "") if chain.root_bytes > reach else ""
    presumed, own = {root: chain.root_bytes} if root else {}, ""
    if chain.answered_bytes > reach or not (chain.answered_bytes or presumed):
        own = next(walk(chain.home), "")
    if own and chain.answered_bytes:
        presumed[own] = chain.answered_bytes
    return Homes(presumed, own)


class GatewayCount:
    """How many gateways route the conversations without sharing picks: configured, or estimated from turns.

    Gateways that share their picks count as one here; `gateways` counts each of them. `is_cut`: so
    many of these fell silent that homes count again.
    """

    __slots__ = ("_configured", "_cut_s", "_ours", "_peers", "_seen", "is_cut")

    def __init__(self, gateways: int | None = None) -> None:
        self._configured = gateways
        self._ours = 1.0
        self._seen = _Conversations()
        self._peers = PeerCounts()
        self.is_cut = False
        self._cut_s = 0.0  # when we were last cut off

    @property
    def is_alone(self) -> bool:
        return self.count == 1

    @property
    def count(self) -> float:
        """From 1 to 64."""
        if self._configured is not None:
            return max(1.0, self._configured / (1 + self._peers.active))
        return 1.0 if self._ours >= _ALONE else min(1 / self._ours, _MAX_GATEWAYS)

    @property
    def times(self) -> float:
        """By how much to multiply the requests in flight that we count: late peers' are not in it."""
        late = (1 + self._peers.active) / (1 + self._peers.prompt)
        if self._configured is not None:
            return self.count * late
        # The turns' estimate includes late peers, so the two are not multiplied.
        return max(self.count, late)

    @property
    def misses(self) -> bool:
        """Whether some peers fell silent, and may be picking still."""
        return self._peers.lost > 0

    def set_peers(self, peers: PeerCounts, now: float) -> None:
        """Takes how many peers share their picks."""
        was_cut = self.is_cut
        self._peers = peers
        # Too many peers are late or lost to count as alone.
        self.is_cut = peers.untimely > (1 - _ALONE) * (1 + peers.active + peers.lost)
        if self.is_cut and not was_cut:
            self._cut_s = now

    def is_whole_at_one(self, chain: Chain, reach: int, since: float) -> bool:
        """Whether an endpoint with `reach` bytes, not its home, has all of a conversation from `since`."""
        was_active = self.is_cut and since < self._cut_s - _NOTICED_S
        # A shared system prompt is no sign of a conversation.
        return was_active and chain.answered_bytes > reach > max(
            _SEEN * chain.answered_bytes, chain.root_bytes
        )

    def note_turn(self, chain: Chain, reach: int) -> None:
        """Notes a prompt, and how much of it we have seen."""
        before, answered = self._seen.swap(chain.question, chain.answers), chain.answered_bytes
        if answered:
            is_ours = reach >= answered or before >= chain.answers - 1
            self._ours += _WEIGHT * (is_ours - self._ours)


class _Conversations:
    """How many answers each conversation had when last seen, by its first question; 100,000 at most.

    Two generations: when the young one is full, the old one is forgotten. About 100 bytes a
    conversation.
    """

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def swap(self, question: int, answers: int) -> int:
        """Notes `answers`, and returns how many there were before; -1 for a conversation never seen."""
        before = self._young.get(question, self._old.get(question, -1))
        self._young[question] = answers
        if len(self._young) >= _GENERATION:
            self._young, self._old = {}, self._young
        return before
