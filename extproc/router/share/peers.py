"""What other gateways do with a pool, from their letters: counts for its book, picks for its strategy."""

# The rules:
#
# - A peer's pick counts like ours, with two differences: it pins no blocks, for the letter with its
#   end may be lost, and it is counted as that peer's, so that all of them can be removed at once.
# - A new sender is a stranger until it echoes a recent letter of ours: its letters have no effect
#   before that. They may have been recorded, before we started or while the sender lived, and be
#   replayed. Our name is drawn anew at each start, and an echo has to be younger than ten seconds,
#   see `delay`.
# - Blocks are useful however late they come. Counts, and prefill to be done, are taken only from a
#   peer whose letters come promptly, see `delay`; otherwise its requests count for nothing.
# - A peer that sent no letter for `SILENCE_S` is lost: its counts go. It may be dead or only cut
#   off, so the strategy gets the number of lost peers. A new peer takes the place of a lost one, as
#   when a gateway is restarted. It may come before the loss is noticed: a peer that came in after a
#   lost one's last letter, and still sends `SILENCE_S` after that letter, had taken its place
#   already.
# - Letters name endpoints by 64 bits. Counts of one that is not in our list are kept and shown when
#   it comes in; its blocks come with the next pick.

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from extproc.router.routing.pool import Pool, Snapshot
from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.base import PeerCounts
from extproc.router.share.delay import Delay, limit_s
from extproc.router.share.letters import (
    MAX_ECHOES,
    Echo,
    Ended,
    Heartbeat,
    Letter,
    Picked,
    Withdrawn,
    name_of,
)

SILENCE_S: Final = 3.0
# How long a rate of picks is averaged.
_RATE_S: Final = 5.0
MAX_PEERS: Final = 256
MAX_STRANGERS: Final = 64
_MOST_NEWS: Final = 65_536


# The rules of a ledger:
#
# - A peer numbers its picks and ends together: 1, 2, 3. A heartbeat has the truth after its news up
#   to some number. So the open requests are the newest heartbeat's, plus the news of higher
#   numbers, each once; the heartbeat includes those of lower numbers.
# - Without losses that is right after the highest number that came, whatever the order. The first
#   heartbeat after a loss corrects it.
# - Picks and ends both name their endpoint, so that an end whose pick was lost, or is late, takes
#   one away all the same. Between heartbeats that may be one too many: counts below zero are shown
#   as zero.
# - News from before the last heartbeat but one is ignored. So numbers are kept for two heartbeats
#   only; and at most `_MOST_NEWS`, since a peer may be faulty.


@dataclass(slots=True, eq=False)
class Ledger:
    """One peer's open requests by endpoint, from news that come in any order, with gaps, or twice."""

    # The last number in the newest heartbeat, and in the one before it.
    _through: int = 0
    _before: int = 0
    # By number, since `_before`: the endpoint of a pick, and its complement for an end. Plain
    # numbers: thousands of objects would burden the garbage collector.
    _recent: dict[int, int] = field(default_factory=dict)
    _open: dict[int, int] = field(
        default_factory=dict
    )  # below zero where ends came before their picks, or without

    def counts(self) -> dict[int, int]:
        return {endpoint: count for endpoint, count in self._open.items() if count > 0}

    def note(self, number: int, endpoint: int, step: int) -> int | None:
        """Takes a pick (1) or an end (-1); returns the change of the count, `None` for a repeated one."""
        if number <= self._before or number in self._recent or len(self._recent) >= _MOST_NEWS:
            return None
        self._recent[number] = endpoint if step > 0 else ~endpoint
        return self._add(endpoint, step) if number > self._through else 0

    def stand(self, number: int, counts: Mapping[int, int]) -> None:
        """Takes a heartbeat: what was open after the news up to `number`."""
        if number < self._through:
            return
        if number > self._through:
            self._before, self._through = self._through, number
        self._open = dict(counts)
        self._recent = {place: news for place, news in self._recent.items() if place > self._before}
        for place, news in self._recent.items():
            if place > number:
                self._add(*((news, 1) if news >= 0 else (~news, -1)))

    def _add(self, endpoint: int, step: int) -> int:
        before = self._open.get(endpoint, 0)
        self._open[endpoint] = after = before + step
        return step if min(before, after) >= 0 else 0


class _Peer:
    """One other gateway, from its first letter until it is lost. `is_counted`: its counts are in the book."""

    __slots__ = ("arrived_s", "delay", "is_counted", "ledger", "picks", "sent_us")

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.delay = Delay()
        self.is_counted = False
        self.picks = PeerPicks()
        self.arrived_s = 0.0
        self.sent_us = 0  # of the last letter, by its clock


class Peers:
    """The other gateways of one pool. `me` is our own name, drawn at random at the start."""

    def __init__(self, pool: Pool, me: int) -> None:
        self._pool = pool
        self._me = me
        self._peers: dict[int, _Peer] = {}
        self._strangers: OrderedDict[int, _Peer] = OrderedDict()
        self._counts: dict[int, int] = {}  # by endpoint, the sum of all peers that are counted
        self._stirred: set[int] = set()  # endpoints whose counts differ from the book's
        self._names: dict[int, str] = {}
        self._snapshot: Snapshot | None = None
        self._most = 0  # most peers at one time, less those that said goodbye
        self._rises: dict[int, float] = {}  # peers whose coming raised it, and when
        self._missed: list[
            float
        ] = []  # last letters of lost peers whose places new ones may have taken
        self._peer_picks = 0
        self._per_s, self._rated_s = 0.0, 0.0
        self.limit_s = limit_s(0.0, 0)

    @property
    def counts(self) -> PeerCounts:
        active = len(self._peers)
        prompt = sum(peer.is_counted for peer in self._peers.values())
        return PeerCounts(active, prompt, max(0, self._most - active))

    def delays(self) -> Mapping[int, float | None]:
        """How late each peer's letters come, seconds; `None` before the first echo."""
        return {name: peer.delay.seconds for name, peer in self._peers.items()}

    def receive(self, letter: Letter, now: float) -> None:
        """Takes a letter about this pool; ignores our own."""
        if letter.peer == self._me:
            return
        peer = self._peers.get(letter.peer) or self._stranger(letter.peer)
        if letter.sent_us >= peer.sent_us:
            peer.sent_us, peer.arrived_s = letter.sent_us, now
        self._read_echoes(peer, letter, now)
        if letter.peer not in self._peers and not self._believe(letter.peer, peer):
            return
        self._follow()
        self._time(peer, letter, now)
        for news in letter.news:
            match news:
                case Picked():
                    self._apply_pick(peer, news)
                case Ended():
                    self._apply_end(peer, news)
                case Heartbeat():
                    self._stand(peer, news)
                case Withdrawn():
                    self._apply_withdrawn(news)
                case _:
                    self._most -= 1
                    self._drop(letter.peer)
                    break
        self._show()

    def check(self, now: float, picks: int) -> None:
        """Drops silent peers. `picks`: how many of ours there were since the last call."""
        self._follow()
        for name in [
            name for name, peer in self._peers.items() if now - peer.arrived_s > SILENCE_S
        ]:
            self._miss(name)
        self._replace_missed()
        self._show()
        for name in [
            name for name, peer in self._strangers.items() if now - peer.arrived_s > SILENCE_S
        ]:
            del self._strangers[name]
        passed_s = now - self._rated_s
        if passed_s > 0:
            weight = min(1.0, passed_s / _RATE_S)
            self._per_s += weight * ((picks + self._peer_picks) / passed_s - self._per_s)
            self._rated_s, self._peer_picks = now, 0
        self.limit_s = limit_s(self._per_s, len(self._names))
        # A reload may have installed a new strategy.
        self._update_strategy()

    def lose(self, name: int) -> None:
        """Drops a peer whose connection is gone, before `SILENCE_S`."""
        if name in self._peers:
            self._miss(name)
            self._show()

    def echoes(self, now: float) -> list[Echo]:
        """The echoes of our heartbeat, by which the others measure their round trips."""
        return [
            Echo(name, peer.sent_us, max(0, int((now - peer.arrived_s) * 1e6)))
            for name, peer in [*self._peers.items(), *self._strangers.items()][:MAX_ECHOES]
        ]

    def _stranger(self, name: int) -> _Peer:
        """Returns a sender that has not echoed us yet; of too many, the oldest is forgotten."""
        peer = self._strangers.get(name)
        if peer is None:
            peer = self._strangers[name] = _Peer()
            if len(self._strangers) > MAX_STRANGERS:
                self._strangers.popitem(last=False)
        return peer

    def _believe(self, name: int, peer: _Peer) -> bool:
        """Whether a stranger is a peer from now on."""
        if not peer.delay.has_echoed or len(self._peers) == MAX_PEERS:
            return False
        self._peers[name] = self._strangers.pop(name)
        if len(self._peers) > self._most:
            self._most = len(self._peers)
            self._rises[name] = peer.arrived_s
        self._update_strategy()
        return True

    def _read_echoes(self, peer: _Peer, letter: Letter, now: float) -> None:
        for echo in letter.echoes:
            if echo.peer == self._me:
                peer.delay.echo(
                    letter.sent_us / 1e6, now, now - (echo.sent_us + echo.waited_us) / 1e6
                )

    def _time(self, peer: _Peer, letter: Letter, now: float) -> None:
        peer.delay.measure(letter.sent_us / 1e6, now, self.limit_s)
        if peer.delay.is_prompt != peer.is_counted:
            peer.is_counted = peer.delay.is_prompt
            sign = 1 if peer.is_counted else -1
            for endpoint, count in peer.ledger.counts().items():
                self._add(endpoint, sign * count)
            self._update_strategy()

    def _apply_pick(self, peer: _Peer, news: Picked) -> None:
        step = peer.ledger.note(news.number, news.endpoint, 1)
        if step is None:
            return
        self._peer_picks += 1
        if step and peer.is_counted:
            self._add(news.endpoint, step)
        name = self._names.get(news.endpoint)
        if not news.hashes or name is None:
            return
        peer.picks.put(news)
        if self._pool.strategy.sharing is not None:
            missing = news.missing if peer.is_counted else None
            self._pool.strategy.sharing.apply_peer_pick(name, news, missing)

    def _apply_end(self, peer: _Peer, news: Ended) -> None:
        step = peer.ledger.note(news.number, news.endpoint, -1)
        if step is None:
            return
        if step and peer.is_counted:
            self._add(news.endpoint, step)
        pick = peer.picks.pop(news.pick)
        name = self._names.get(pick.endpoint) if pick is not None else None
        if pick is not None and name is not None and self._pool.strategy.sharing is not None:
            # What came too late to count did not add to a backlog.
            missing = pick.missing if peer.is_counted else 0
            self._pool.strategy.sharing.apply_peer_end(name, pick, missing)

    def _apply_withdrawn(self, news: Withdrawn) -> None:
        name, hashes, strategy = (
            self._names.get(news.endpoint),
            news.hashes,
            self._pool.strategy.sharing,
        )
        if name is not None and hashes and strategy is not None:
            # The index has the blocks' lengths, so any do here.
            ends = range(1, len(hashes) + 1)
            strategy.apply_peer_withdrawal(
                name, Chain(hashes, ends, ends, 0, hashes[0], 0), news.had
            )

    def _stand(self, peer: _Peer, news: Heartbeat) -> None:
        before = peer.ledger.counts()
        peer.ledger.stand(news.number, news.open)
        if peer.is_counted:
            after = peer.ledger.counts()
            for endpoint in {**before, **after}:
                step = after.get(endpoint, 0) - before.get(endpoint, 0)
                if step:
                    self._add(endpoint, step)

    def _miss(self, name: int) -> None:
        """Drops a lost peer."""
        self._missed.append(self._peers[name].arrived_s)
        self._drop(name)

    def _replace_missed(self) -> None:
        """Finds peers that had taken the places of lost ones before the loss was noticed."""
        for name, rise_s in list(self._rises.items()):
            latest_s = self._peers[name].arrived_s - SILENCE_S
            place = next((at_s for at_s in self._missed if at_s < rise_s and at_s < latest_s), None)
            if place is not None:
                self._missed.remove(place)
                del self._rises[name]
                self._most -= 1
        last_s = max(self._rises.values(), default=0.0)
        self._missed = [at_s for at_s in self._missed if at_s < last_s]

    def _drop(self, name: int) -> None:
        peer = self._peers.pop(name)
        self._rises.pop(name, None)
        if peer.is_counted:
            for endpoint, count in peer.ledger.counts().items():
                self._add(endpoint, -count)
        self._update_strategy()

    def _add(self, endpoint: int, step: int) -> None:
        count = self._counts.get(endpoint, 0) + step
        if count:
            self._counts[endpoint] = count
        else:
            del self._counts[endpoint]
        self._stirred.add(endpoint)

    def _show(self) -> None:
        """Brings the book up to date, once for a whole letter."""
        for endpoint in self._stirred:
            name = self._names.get(endpoint)
            if name is not None:
                self._pool.book.set_peer_count(name, self._counts.get(endpoint, 0))
        self._stirred.clear()

    def _follow(self) -> None:
        """Shows the counts of endpoints that came in, and removes those of endpoints that went."""
        snapshot = self._pool.snapshot
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        names = {name_of(name): name for name in snapshot.names}
        for endpoint, name in self._names.items():
            if endpoint not in names:
                self._pool.book.set_peer_count(name, 0)
        for endpoint, name in names.items():
            self._pool.book.set_peer_count(name, self._counts.get(endpoint, 0))
        self._names = names

    def _update_strategy(self) -> None:
        if self._pool.strategy.sharing is not None:
            self._pool.strategy.sharing.set_peers(self.counts)


MAX_PICKS: Final = 2_048
# Blocks of all prompts together, some 40 bytes each. A long prompt has about a hundred.
MAX_PICK_BLOCKS: Final = 131_072


class PeerPicks:
    """One peer's newest picks, bounded in number and blocks: a peer may never send the ends."""

    __slots__ = ("_blocks", "_picks")

    def __init__(self) -> None:
        self._picks: OrderedDict[int, Picked] = OrderedDict()
        self._blocks = 0

    def __len__(self) -> int:
        return len(self._picks)

    def put(self, pick: Picked) -> None:
        self.pop(pick.number)
        self._picks[pick.number] = pick
        self._blocks += len(pick.hashes)
        while len(self._picks) > MAX_PICKS or self._blocks > MAX_PICK_BLOCKS:
            self._blocks -= len(self._picks.popitem(last=False)[1].hashes)

    def pop(self, number: int) -> Picked | None:
        """Removes and returns a request's pick; `None` where there is none."""
        pick = self._picks.pop(number, None)
        if pick is not None:
            self._blocks -= len(pick.hashes)
        return pick
