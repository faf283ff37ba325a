"""Letters: what a gateway sends to the others about one pool, its news and the clock that shows its delay."""

from typing import Annotated, Final

from msgspec import Meta, Struct
from xxhash import xxh3_64_intdigest

from extproc.router.routing.prompt.chain import BLOCK_BYTES, Chain

# Further blocks of a prompt are not sent: of 1,024 bytes each, these are four megabytes of text.
MAX_BLOCKS: Final = 4_096
# A letter is full with so many blocks, or so many news: it has 128 KiB at most, which a datagram
# takes.
LETTER_BLOCKS: Final = 7_168
LETTER_NEWS: Final = 512
# Beyond that the least busy endpoints are left out.
MAX_ENDPOINTS: Final = 8_192
MAX_ECHOES: Final = 256

_MAX_NUMBER: Final = 1 << 62

Name = Annotated[int, Meta(ge=0)]
"""A peer, a pool or an endpoint: 64 bits that are the same for all gateways, or at random."""
Number = Annotated[int, Meta(ge=1, le=_MAX_NUMBER)]
"""Counts a peer's picks and ends together, from 1 on."""
Moment = Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]
"""Microseconds by the clock of whoever says it; only differences mean anything."""

_Bytes = Annotated[int, Meta(ge=0, le=1 << 40)]
_Length = Annotated[int, Meta(ge=1, le=1 << 20)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Place = Annotated[int, Meta(ge=0, lt=MAX_BLOCKS)]


class Picked(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A request went to an endpoint, where `missing` bytes of it have to be prefilled.

    `hashes` are the prompt's blocks, all of them: what an earlier letter said may have been lost.
    `odd` has the lengths of those, by place, that have not just `BLOCK_BYTES`. So it is what an
    index needs.
    """

    number: Number
    endpoint: Name
    missing: _Bytes = 0
    # A tuple of numbers costs the garbage collector nothing; there are thousands of these.
    hashes: Annotated[tuple[Name, ...], Meta(max_length=MAX_BLOCKS)] = ()
    odd: Annotated[dict[_Place, _Length], Meta(max_length=MAX_BLOCKS)] = {}

    def bytes_between(self, start: int, stop: int) -> int:
        if stop == start + 1:
            return self.odd.get(start, BLOCK_BYTES)
        odd = [length - BLOCK_BYTES for place, length in self.odd.items() if start <= place < stop]
        return (stop - start) * BLOCK_BYTES + sum(odd)


class Ended(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The request of `pick` has left its endpoint."""

    number: Number
    endpoint: Name
    pick: Number


class Heartbeat(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A heartbeat: what the peer has open on each endpoint after its news up to `number`; else nothing."""

    number: Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]
    open: Annotated[dict[Name, _Count], Meta(max_length=MAX_ENDPOINTS)]


class Goodbye(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The peer goes, and nobody need wait for it."""


class Withdrawn(Struct, frozen=True, array_like=True, tag=5, gc=False):
    """A prompt that was picked left nothing there beyond its first `had` blocks: it was never read."""

    endpoint: Name
    had: Annotated[int, Meta(ge=0, le=MAX_BLOCKS)]
    hashes: Annotated[tuple[Name, ...], Meta(max_length=MAX_BLOCKS)]


News = Picked | Ended | Heartbeat | Goodbye | Withdrawn


class Echo(Struct, frozen=True, array_like=True, gc=False):
    """Returns to `peer` the time, by its clock, of its last letter that came, and how long ago that came."""

    peer: Name
    sent_us: Moment
    waited_us: Moment


class Letter(Struct, frozen=True, array_like=True):
    """The news of `peer` about a pool, with the time by its own clock."""

    peer: Name
    pool: Name
    sent_us: Moment
    news: Annotated[list[News], Meta(max_length=LETTER_NEWS)] = []
    echoes: Annotated[list[Echo], Meta(max_length=MAX_ECHOES)] = []


def pick_news(number: int, endpoint: int, missing: int, chain: Chain | None) -> Picked:
    """Describes a pick; `chain` is the prompt as the endpoint's cache will have it, `None`: not looked up."""
    if chain is None:
        return Picked(number, endpoint, missing)
    hashes, odd, start = tuple(chain.hashes[:MAX_BLOCKS]), {}, 0
    for place, end in enumerate(chain.ends[:MAX_BLOCKS]):
        if end - start != BLOCK_BYTES:
            odd[place] = end - start
        start = end
    return Picked(number, endpoint, missing, hashes, odd)


def withdrawal_news(endpoint: int, chain: Chain, had: int) -> Withdrawn:
    return Withdrawn(endpoint, min(had, MAX_BLOCKS), tuple(chain.hashes[:MAX_BLOCKS]))


def name_of(text: str) -> int:
    """Returns 64 bits that are the same for all gateways; they go sealed, see `sealed`."""
    return xxh3_64_intdigest(text.encode(errors="surrogatepass"))
