"""Where a pool's sampled prompts part that begin alike, and what that costs. Pure; what is told has no text."""

# The heads are sorted, so each stands beside those that it shares most with, and every place where
# prompts part is one between two neighbours. It is a fault where much of the rest is equal again:
# it would have been found in a cache, had it stood before what differs.
#
# Two conversations part at what their users say, and that is as it should be. So what is equal behind
# a user's turn counts only where that turn itself goes on alike. A conversation's next turn and a retry
# do not part at all: the one is the begin of the other.

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from extproc.router.lint.heads import HeadSample, PromptHead
from extproc.router.lint.kinds import PartingKind, common_bytes, differ, equal_bytes, turn_end
from extproc.router.routing.pool import Pick
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.prompt.turns import TOKEN_BYTES
from extproc.router.routing.strategies.base import Reading

# A rest that is equal for less is not worth a word.
LEAST_TOKENS: Final = 256
# Fewer prompts than these may be chance.
LEAST_PROMPTS: Final = 4
_LEAST_SHARE: Final = 0.05
# Of what is no token, so much tells one way from another.
_WAY: Final = 8
# A page asks each second, and the sample changes slowly.
_FRESH_S: Final = 60.0
# Of the rest of a user's turn.
_ALIKE: Final = 0.8
# Of the rest of any turn: retrieved documents have less in common, by chance.
_MUCH: Final = 0.5

_PLACES: Final = MappingProxyType(
    {"tools": "tools", "documents": "documents", "system": "system", "developer": "system"}
)

NAMES: Final = MappingProxyType(
    {
        PartingKind.TIME: "a time of day",
        PartingKind.DATE: "a date",
        PartingKind.UUID: "a UUID",
        PartingKind.HEX: "hexadecimal digits",
        PartingKind.ID: "an id",
        PartingKind.NUMBER: "a number",
        PartingKind.KEY_ORDER: "JSON whose keys have another order",
        PartingKind.ORDER: "the same lines or tools in another order",
        PartingKind.WHITE_SPACE: "white space",
        PartingKind.INSERTED: "a block that some have and others have not",
        PartingKind.MEDIUM: "a picture or another medium",
        PartingKind.OTHER: "something that differs",
    }
)
_SORTED: Final = "Write it in the same order each time."
_ADVICE: Final = MappingProxyType(
    {
        PartingKind.KEY_ORDER: "Write JSON with sorted keys.",
        PartingKind.ORDER: _SORTED,
        PartingKind.WHITE_SPACE: "Write it the same way each time.",
        PartingKind.INSERTED: "Move it to the end, or let all have it.",
    }
)


class Parting(Struct, frozen=True):
    """One place where sampled prompts part. It says kinds, places and counts, and nothing of a prompt's text.

    `place` is `tools`, `documents`, `system`, `prompt` (without roles) or `message`, then the
    `message`th behind the system's. `byte` counts from that text's begin. `prompts` of all `sampled`
    come to this place, and behind it `tokens` a prompt are equal again, on average.
    """

    kind: PartingKind
    place: str
    message: int
    byte: int
    prompts: int
    sampled: int
    tokens: int

    @property
    def where(self) -> str:
        places = {"system": "the system message", "message": f"message {self.message}"}
        return f"byte {self.byte:,} of {places.get(self.place, f'the {self.place}')}"

    @property
    def advice(self) -> str:
        return _ADVICE.get(self.kind, "Move it behind what is the same in all.")

    @property
    def finding(self) -> str:
        share = f"{self.prompts / self.sampled:.0%} of {self.sampled} sampled prompts part"
        return (
            f"{share} at {self.where}, at {NAMES[self.kind]}; {self.tokens:,} tokens a request "
            f"would follow that are the same"
        )

    @property
    def sentence(self) -> str:
        return f"{self.finding}. {self.advice}"


class PoolPartings(Struct, frozen=True):
    """What the sampled prompts of a pool part at, the most costly first."""

    pool: str
    sampled: int
    partings: Sequence[Parting] = ()

    @property
    def lines(self) -> list[str]:
        """A sentence for each parting, or one that there is none."""
        none = f"no early place where they part, in {self.sampled} sampled prompts."
        return [parting.sentence for parting in self.partings] or [none]


class Split(Struct, frozen=True):
    """Two neighbours, by their places in the list, and where they part.

    `at` counts from the prompt's begin. `ways` is how the two go on: the begin of each, with what differs.
    """

    left: int
    right: int
    at: int
    ways: tuple[bytes, bytes]
    kind: PartingKind
    place: tuple[str, int]
    byte: int
    equal_bytes: int


def find_partings(
    heads: Sequence[PromptHead], least_prompts: int = LEAST_PROMPTS
) -> list[tuple[Parting, Split]]:
    """The places that cost something, the most costly first, each with one pair that parts there.

    Some milliseconds for 64 heads; half a second at the very most.
    """
    texts = [head.written()[0] for head in heads]
    groups = defaultdict[tuple[tuple[str, int], PartingKind], list[Split]](list)
    for split in _splits(heads):
        if split.equal_bytes >= LEAST_TOKENS * TOKEN_BYTES:
            groups[split.place, split.kind].append(split)
    found = list[tuple[Parting, Split]]()
    for (place, kind), splits in groups.items():
        ways = {(heads[one.left].salt, way) for one in splits for way in one.ways}
        prompts = sum(
            any(salt == head.salt and text.startswith(way) for salt, way in ways)
            for head, text in zip(heads, texts, strict=True)
        )
        if prompts >= max(least_prompts, _LEAST_SHARE * len(heads)):
            byte = Counter(one.byte for one in splits).most_common(1)[0][0]
            tokens = sum(one.equal_bytes for one in splits) // len(splits) // TOKEN_BYTES
            found.append((Parting(kind, *place, byte, prompts, len(heads), tokens), splits[0]))
    return sorted(found, key=lambda pair: -pair[0].prompts * pair[0].tokens)


def _splits(heads: Sequence[PromptHead]) -> Iterator[Split]:
    written = [head.written() for head in heads]
    order = sorted(range(len(heads)), key=lambda place: (heads[place].salt, written[place][0]))
    for one, two in pairwise(order):
        (left, starts), (right, _) = written[one], written[two]
        at = common_bytes(left, right)
        if heads[one].salt != heads[two].salt or at == min(len(left), len(right)):
            continue
        turn = max(0, sum(start <= at for start in starts) - 1)
        if at < starts[turn] or at >= turn_end(left, starts[turn]) + 1:
            turn = min(turn + 1, len(starts) - 1)  # the roles differ
        begin = min(starts[turn], len(left))
        difference = differ(left, right, max(at, begin), begin)
        more = _WAY * (difference.kind is PartingKind.OTHER)
        equal = _worth(heads[one].turns[turn].role, left, right, difference)
        yield Split(
            one,
            two,
            difference.start,
            (left[: difference.left + more], right[: difference.right + more]),
            difference.kind,
            _place(heads[one], turn),
            difference.start - begin,
            equal,
        )


def _worth(
    role: str, left: bytes, right: bytes, difference: tuple[PartingKind, int, int, int]
) -> int:
    """How many bytes are equal again behind what differs."""
    kind, start, at, beside = difference
    ends = turn_end(left, at), turn_end(right, beside)
    if kind is PartingKind.ORDER:
        return ends[0] - start + equal_bytes(left, right, *ends)
    moved = (at - start) * (kind is PartingKind.KEY_ORDER)
    own = equal_bytes(left[: ends[0]], right[: ends[1]], at, beside)
    rest = max(ends[0] - at, ends[1] - beside)
    is_alike = own >= _ALIKE * rest and kind is not PartingKind.OTHER
    goes_on = role not in {"", "user"} or is_alike
    return moved + own * (own >= _MUCH * rest) + goes_on * equal_bytes(left, right, *ends)


def _place(head: PromptHead, turn: int) -> tuple[str, int]:
    role = head.turns[turn].role
    before = next(
        (place for place, one in enumerate(head.turns) if one.role not in _PLACES), len(head.turns)
    )
    if turn < before:
        return _PLACES[role], 0
    return ("prompt", 0) if not role and not turn else ("message", turn - before + 1)


class PoolLint:
    """The sample of one pool, and what its prompts part at. Any thread may ask."""

    def __init__(self, pool: str, clock: Callable[[], float]) -> None:
        self._pool, self._clock = pool, clock
        self.sample = HeadSample(clock)
        self._told: tuple[float, PoolPartings] | None = None

    def see(self, prompt: Prompt, _reading: Reading) -> None:
        self.sample.see(prompt)

    def ended(self, _pick: Pick) -> None:
        """Of no use here."""

    def tell(self) -> PoolPartings:
        """What was found, at most a minute ago. Takes some milliseconds; half a second at the very most."""
        now_s, told = self._clock(), self._told
        if told is None or now_s >= told[0] + _FRESH_S:
            heads = self.sample.heads()
            partings = [parting for parting, _ in find_partings(heads)]
            self._told = told = now_s, PoolPartings(self._pool, len(heads), partings)
        return told[1]
