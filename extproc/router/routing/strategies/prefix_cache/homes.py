"""Homes: where gateways that hear nothing of each other look for what another one of them put there. Pure."""

# The rules, found by simulation with four and eight gateways that share the requests at random:
#
# - A conversation has a home, by its first turn; so has what the operator puts before every conversation.
#   All gateways find the same ones, on a ring of endpoints.
# - A home is presumed to hold what it is home to only where we have not seen it ourselves. Who sent the last
#   turn knows where it went, and presuming otherwise sends back what was moved away for a reason.
# - Without a last turn there is nothing to presume. But the others will look for the conversation at its
#   home, so that its own part, once prefilled there, is not lost on them: it costs less there.
# - An instruction that nobody has seen may be a tenant's, and not the only one that a home would be full of.
#   So it decides alone, and the home of the question, which is another one each time, is not asked.
#
# How many gateways there are, conversations tell: with n of them, one turn in n follows one of our own. A
# client that stays with one gateway makes that gateway alone, which is the truth for our purpose. Whether the
# last turn was ours, the index cannot say: its blocks may be evicted, and a head that changes with each turn
# makes them others. So a conversation is also known by its first question, and by how many answers it had
# when we last saw it. Without that a single gateway near its capacity takes itself for several, looks for
# prompts at their homes, and drowns (simulated: 46 s to the first token instead of 13).
#
# Gateways that share their picks see with each other's eyes: what one of them did counts as our own. So they
# have no homes while all of them are heard, and need none: homes on top of that would only send away what
# was sent elsewhere for a reason. When some of them fall silent, turns tell within seconds, and homes are
# asked again.
#
# Conversations that began before are where they were then, which is not at home: who was seen with a third of
# one is presumed to have all of it, to its end. For all gateways saw it there, and each of them presumes the
# same (without it half as much time again to the first token). Not so of a conversation that began since: who
# was seen with it is known to one of them alone, and the others look at home, so that it would go to and fro.
#
# Tried, and taken out, since it gained less than a twentieth: homes from the first silence on, by how quick
# turns are; homes for instructions alone, from a loss on.

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.base import PeerCounts

# Each turn's weight in the share of those that followed our own.
_WEIGHT: Final = 0.02
# With a smaller share we are not alone. Turns of ours get lost, too: evicted, or sent before a restart.
_ALONE: Final = 0.7
_MOST: Final = 64.0
_GENERATION: Final = 50_000

# After a loss, what share of a conversation tells where it is; and after how long silence is noticed.
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
    """Returns the homes to ask for a prompt of which anybody has `reach` bytes as far as we have seen.

    `walk` yields endpoints by a key, the same for all gateways.
    """
    root = next(walk(chain.root), "") if chain.rooted > reach else ""
    presumed, own = {root: chain.rooted} if root else {}, ""
    if chain.answered > reach or not (chain.answered or presumed):
        own = next(walk(chain.home), "")
    if own and chain.answered:
        presumed[own] = chain.answered
    return Homes(presumed, own)


class GatewayCount:
    """How many gateways share the conversations, and know nothing of each other: as told, or as turns tell.

    Those that tell each other their picks are one in this. `gateways` counts each of them.
    """

    __slots__ = ("_configured", "_cut_s", "_is_cut", "_ours", "_peers", "_seen")

    def __init__(self, gateways: int | None = None) -> None:
        self._configured = gateways
        self._ours = 1.0
        self._seen = _Conversations()
        self._peers = PeerCounts()
        self._is_cut = False
        self._cut_s = 0.0  # when we were last cut off

    @property
    def is_alone(self) -> bool:
        return self.count == 1

    @property
    def count(self) -> float:
        """From 1 to 64."""
        if self._configured is not None:
            return max(1.0, self._configured / (1 + self._peers.active))
        return 1.0 if self._ours >= _ALONE else min(1 / self._ours, _MOST)

    @property
    def times(self) -> float:
        """How many times what we know to be in flight is in flight: late counts are not known."""
        late = (1 + self._peers.active) / (1 + self._peers.prompt)
        if self._configured is not None:
            return self.count * late
        # Turns that come before their news tell of who is late, too: not once more.
        return max(self.count, late)

    @property
    def misses(self) -> bool:
        """Whether some fell silent that told of their picks before, and may be picking still."""
        return self._peers.lost > 0

    def set_peers(self, peers: PeerCounts, now: float) -> None:
        """Takes which others tell of their picks."""
        was_cut = self._is_cut
        self._peers = peers
        # So many are not heard in time that we are not alone.
        self._is_cut = peers.untimely > (1 - _ALONE) * (1 + peers.active + peers.lost)
        if self._is_cut and not was_cut:
            self._cut_s = now

    def is_whole_at_one(self, chain: Chain, reach: int, since: float) -> bool:
        """Whether who was seen with so much of it, and not its home, has a conversation that began then."""
        was_heard = self._is_cut and since < self._cut_s - _NOTICED_S
        # Of what is shared with others, nobody has a conversation.
        return was_heard and chain.answered > reach > max(_SEEN * chain.answered, chain.rooted)

    def take(self, chain: Chain, reach: int) -> None:
        """Takes a prompt, and how much of it we have seen."""
        answers = self._seen.swap(chain.question, chain.answers)
        if chain.answered:
            is_ours = reach >= chain.answered or answers >= chain.answers - 1
            self._ours += _WEIGHT * (is_ours - self._ours)


class _Conversations:
    """How many answers each conversation had when last seen, by its first question; 100,000 at most.

    Two generations: when the young one is full, the old one is forgotten. About 100 bytes a conversation.
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
