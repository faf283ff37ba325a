"""Sharing picks: what one request costs the gateway that picks it, and each of the others.

A request is a pick and an end. Eight gateways with 1,000 requests per second that post every 10 ms
have 1.25 of them in a letter. CPU time, not the clock's. Reference in the same run: the whole pick
by `prefix_cache`.
"""

import random
from collections.abc import Callable
from functools import partial
from itertools import cycle
from time import process_time_ns
from typing import Final

from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.base import Candidates, Choice, ClockAndRandom, Reading
from extproc.router.routing.strategies.prefix_cache.strategy import COLD, PrefixCache
from extproc.router.share.letters import Letter
from extproc.router.share.pool_share import Share
from extproc.router.share.sealed import Seal
from tests.benchmarks.bench_pick import chats, numbered_endpoints
from tests.benchmarks.report import Row, report, time_us

GATEWAYS: Final = 8
SECRET: Final = bytes(16)
# Bytes of a chat, and how many questions it has had answered: 832 tokens as in C, 16,000 as in G.
CHATS: Final = (("C", 3_300, 5), ("G", 64_000, 15))
CHATS_ASKED: Final = 64
PATH: Final = "/v1/chat/completions"


class _Nothing(Reading):
    """A request of which nothing was read."""

    def choose(self, candidates: Candidates, count: int) -> Choice:
        raise NotImplementedError


class SharingGateway:
    """One gateway's pool, what it shares, and its seal."""

    def __init__(self, me: int) -> None:
        self.now = 0.0
        outside = ClockAndRandom(random.Random(me), lambda: self.now)
        self.pool = Pool("llama", PrefixCache(outside, kv_tokens=1_000_000))
        self.pool.replace(numbered_endpoints(GATEWAYS))
        self.picker = Picker([Route(self.pool)])
        self.seal = Seal("cluster", SECRET, me)
        self.me = me


def gateway_pair() -> tuple[SharingGateway, Share, SharingGateway, Share]:
    """Two gateways whose letters come promptly."""
    one, other = SharingGateway(1), SharingGateway(2)
    mine, theirs = (Share(gateway.pool, gateway.me) for gateway in (one, other))
    for now in range(1, 5):
        for here, there in ((mine, theirs), (theirs, mine)):
            there.receive(here.heartbeat(now), now)
    assert theirs.peers.counts.prompt == 1
    one.now = other.now = 4.0
    return one, mine, other, theirs


def queries(size: int, turns: int) -> list[Query]:
    return [Query("POST", PATH, {}, body) for body in chats(size, turns, CHATS_ASKED)]


def picking(size: int, turns: int) -> Callable[[], None]:
    """A whole pick and its end, without sharing."""
    picker, asks = SharingGateway(1).picker, cycle(queries(size, turns))
    return lambda: picker.pick(next(asks)).pick.release()  # noqa: PLW0108  # another one each time


def telling(size: int, turns: int) -> Callable[[], None]:
    """What a pick and its end add for the sender: written, and sealed."""
    one, mine, _, _ = gateway_pair()
    picks = cycle([one.picker.pick(ask).pick for ask in queries(size, turns)])
    mine.letters(4.0)

    def once() -> None:
        pick = next(picks)
        mine.picked(pick)
        mine.ended(pick)
        for letter in mine.letters(4.0):
            one.seal.close(letter)

    return once


def told_of(size: int, turns: int) -> list[Letter]:
    """Letters about all chats again and again: each has one request."""
    one, mine, _, _ = gateway_pair()
    asks = cycle(queries(size, turns))
    letters: list[Letter] = []
    for _ in range(12_000):
        one.picker.pick(next(asks)).pick.release()
        letters += mine.letters(4.0)
    return letters


def hearing_picks(size: int, turns: int) -> Callable[[], None]:
    """A sealed letter opened and applied; a heartbeat's worth of numbers is kept, as it would be."""
    one, _, _, theirs = gateway_pair()
    sealed = iter([one.seal.close(letter) for letter in told_of(size, turns)])
    reader = Seal("cluster", SECRET, 2)

    return lambda: theirs.receive(reader.open(next(sealed)), 4.0)


def beating(count: int) -> Callable[[], None]:
    """A heartbeat of a pool with so many endpoints, half of them busy: written, sealed, opened, applied."""
    one, mine, _, theirs = gateway_pair()
    one.pool.replace(numbered_endpoints(count))
    for name in one.pool.snapshot.names[: count // 2]:
        mine.picked(Pick(one.pool, "", COLD, one.pool.snapshot.ready[name], (), _Nothing()))
    reader = Seal("cluster", SECRET, 2)

    return lambda: theirs.receive(reader.open(one.seal.close(mine.heartbeat(4.0))), 4.0)


def main() -> None:
    cpu_us = partial(time_us, clock_ns=process_time_ns)
    rows: list[Row] = []
    for name, size, turns in CHATS:
        told_us, heard_us = (
            cpu_us(telling(size, turns), 400),
            cpu_us(hearing_picks(size, turns), 400),
        )
        pairs = zip(told_us, heard_us, strict=True)
        each_us = [(told + (GATEWAYS - 1) * heard) / GATEWAYS for told, heard in pairs]
        length = len(Seal("cluster", SECRET, 1).close(told_of(size, turns)[0]))
        rows += [
            Row(f"{name}: pick and end, told to nobody", cpu_us(picking(size, turns), 200), "µs"),
            Row(f"{name}: told, in a sealed letter of {length} bytes", told_us, "µs"),
            Row(f"{name}: heard, in a letter of its own", heard_us, "µs"),
            Row(f"{name}: each of {GATEWAYS} gateways, for each request of all", each_us, "µs"),
        ]
    rows += [
        Row(f"heartbeat, {count} endpoints", cpu_us(beating(count), 100), "µs")
        for count in (8, 1_000)
    ]
    report("share", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
