"""What other gateways do with a pool, as their letters tell: counts for its book, picks for its strategy."""

# The rules:
#
# - What a peer picked is what we picked, but for this: it pins nothing, for we may never hear of its end, and
#   it is counted as that peer's, so that all of it can be taken back at once.
# - Who is new is a stranger, until it echoes a letter of ours that is not old: nothing that it says before
#   is believed. It may all have been recorded, before we started or while it lived, and be played again;
#   our name is drawn anew at each start, and an echo has to be younger than ten seconds, see `delay`.
# - Blocks are worth knowing however late they come. Counts, and prefill to be done, are taken only of a peer
#   whose news come promptly, see `delay`; else its requests count for nothing, as if nobody had told.
# - A peer of which nothing came for `SILENCE_S` is lost: its counts go. Whether it is gone or only not heard,
#   nobody knows; how many of those there are the strategy is told. Another one that comes in takes the
#   place of one that was lost, as when a gateway is started again. It may come before that is noticed: who
#   came in after a lost one's last letter, and is heard `SILENCE_S` after it, was in its place already.
# - Endpoints are named by 64 bits. One that is not in our list, now, is counted in the dark: its counts show
#   when it comes in, and its blocks are told with the next pick.

from collections import OrderedDict
from collections.abc import Mapping
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
# - A peer numbers its picks and ends together: 1, 2, 3. A heartbeat has the truth after its news up to some
#   number. So what is open is the newest heartbeat's truth, and the news of higher numbers on top of it,
#   each once; of lower ones it knows already.
# - Without losses that is the truth after the highest number that came, whatever the order. What was lost is
#   healed by the first heartbeat that comes after it.
# - Picks and ends name their endpoint, both of them, so that an end whose pick was lost, or is late, takes
#   one away all the same. Between heartbeats that may be one too many: nothing is shown below zero.
# - A piece of news from before the last heartbeat but one is not looked at at all. So numbers need to be kept
#   for two heartbeats only; and for no more than `_MOST_NEWS`, since a peer may be mad.


class Ledger:
    """What one peer has open, endpoint by endpoint, as its news tell: in any order, with gaps, or twice."""

    __slots__ = ("_before", "_heard", "_open", "_through")

    def __init__(self) -> None:
        self._through = self._before = 0  # what the newest heartbeat counts in, and the one before it
        # By number, since `_before`: where a pick went, and of an end the endpoint's complement. Plain
        # numbers, since there are thousands, which would be the garbage collector's work.
        self._heard: dict[int, int] = {}
        self._open: dict[int, int] = {}  # below zero where ends came before their picks, or without

    def counts(self) -> dict[int, int]:
        return {endpoint: count for endpoint, count in self._open.items() if count > 0}

    def note(self, number: int, endpoint: int, step: int) -> int | None:
        """Takes a pick (1) or an end (-1); returns by how much the count changes, `None`: it is no news."""
        heard = self._heard
        if number <= self._before or number in heard or len(heard) >= _MOST_NEWS:
            return None
        heard[number] = endpoint if step > 0 else ~endpoint
        return self._add(endpoint, step) if number > self._through else 0

    def stand(self, number: int, counts: Mapping[int, int]) -> None:
        """Takes a heartbeat: what was open after the news up to `number`."""
        if number < self._through:
            return
        if number > self._through:
            self._before, self._through = self._through, number
        self._open = dict(counts)
        self._heard = {place: heard for place, heard in self._heard.items() if place > self._before}
        for place, heard in self._heard.items():
            if place > number:
                self._add(*((heard, 1) if heard >= 0 else (~heard, -1)))

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
    """The other gateways of one pool. `me` is our own name among them, drawn at random at the start."""

    def __init__(self, pool: Pool, me: int) -> None:
        self._pool = pool
        self._me = me
        self._peers: dict[int, _Peer] = {}
        self._strangers: OrderedDict[int, _Peer] = OrderedDict()
        self._counts: dict[int, int] = {}  # by endpoint, of all that are counted
        self._stirred: set[int] = set()  # whose counts are others than the book's
        self._names: dict[int, str] = {}
        self._snapshot: Snapshot | None = None
        self._most = 0  # that were heard at one time, and did not leave
        self._rises: dict[int, float] = {}  # whose coming raised it, and when
        self._missed: list[float] = []  # when lost ones were last heard whose places somebody may have
        self._heard_picks = 0
        self._per_s, self._rated_s = 0.0, 0.0
        self.limit_s = limit_s(0.0, 0)

    @property
    def counts(self) -> PeerCounts:
        heard = len(self._peers)
        prompt = sum(peer.is_counted for peer in self._peers.values())
        return PeerCounts(heard, prompt, max(0, self._most - heard))

    def delays(self) -> Mapping[int, float | None]:
        """How late each one's news are, seconds; `None` where nobody knows yet."""
        return {name: peer.delay.seconds for name, peer in self._peers.items()}

    def hear(self, letter: Letter, now: float) -> None:
        """Takes a letter about this pool; our own are left alone."""
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
                    self._hear_pick(peer, news)
                case Ended():
                    self._hear_end(peer, news)
                case Heartbeat():
                    self._stand(peer, news)
                case Withdrawn():
                    self._hear_withdrawn(news)
                case _:
                    self._most -= 1
                    self._drop(letter.peer)
                    break
        self._show()

    def check(self, now: float, picks: int) -> None:
        """Drops who is silent. To be called now and then; `picks` are our own since the last time."""
        self._follow()
        for name in [name for name, peer in self._peers.items() if now - peer.arrived_s > SILENCE_S]:
            self._miss(name)
        self._replace_missed()
        self._show()
        for name in [name for name, peer in self._strangers.items() if now - peer.arrived_s > SILENCE_S]:
            del self._strangers[name]
        passed_s = now - self._rated_s
        if passed_s > 0:
            weight = min(1.0, passed_s / _RATE_S)
            self._per_s += weight * ((picks + self._heard_picks) / passed_s - self._per_s)
            self._rated_s, self._heard_picks = now, 0
        self.limit_s = limit_s(self._per_s, len(self._names))
        # The strategy may be another one than a moment ago.
        self._tell()

    def lose(self, name: int) -> None:
        """Drops one whose connection is gone, before it has been silent for long."""
        if name in self._peers:
            self._miss(name)
            self._show()

    def echoes(self, now: float) -> list[Echo]:
        """What a heartbeat of ours tells the others for their round trips."""
        return [
            Echo(name, peer.sent_us, max(0, int((now - peer.arrived_s) * 1e6)))
            for name, peer in [*self._peers.items(), *self._strangers.items()][:MAX_ECHOES]
        ]

    def _stranger(self, name: int) -> _Peer:
        """Returns one of whom nothing is believed yet; the oldest of too many are forgotten."""
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
        self._tell()
        return True

    def _read_echoes(self, peer: _Peer, letter: Letter, now: float) -> None:
        for echo in letter.echoes:
            if echo.peer == self._me:
                peer.delay.echo(letter.sent_us / 1e6, now, now - (echo.sent_us + echo.held_us) / 1e6)

    def _time(self, peer: _Peer, letter: Letter, now: float) -> None:
        peer.delay.hear(letter.sent_us / 1e6, now, self.limit_s)
        if peer.delay.is_prompt != peer.is_counted:
            peer.is_counted = peer.delay.is_prompt
            sign = 1 if peer.is_counted else -1
            for endpoint, count in peer.ledger.counts().items():
                self._add(endpoint, sign * count)
            self._tell()

    def _hear_pick(self, peer: _Peer, news: Picked) -> None:
        step = peer.ledger.note(news.number, news.endpoint, 1)
        if step is None:
            return
        self._heard_picks += 1
        if step and peer.is_counted:
            self._add(news.endpoint, step)
        name = self._names.get(news.endpoint)
        if not news.hashes or name is None:
            return
        peer.picks.put(news)
        if self._pool.shares_picks is not None:
            missing = news.missing if peer.is_counted else None
            self._pool.shares_picks.apply_peer_pick(name, news, missing)

    def _hear_end(self, peer: _Peer, news: Ended) -> None:
        step = peer.ledger.note(news.number, news.endpoint, -1)
        if step is None:
            return
        if step and peer.is_counted:
            self._add(news.endpoint, step)
        pick = peer.picks.take(news.pick)
        name = self._names.get(pick.endpoint) if pick is not None else None
        if pick is not None and name is not None and self._pool.shares_picks is not None:
            self._pool.shares_picks.apply_peer_end(name, pick)

    def _hear_withdrawn(self, news: Withdrawn) -> None:
        name, hashes, strategy = self._names.get(news.endpoint), news.hashes, self._pool.shares_picks
        if name is not None and hashes and strategy is not None:
            # How long its blocks are, is known where they are known.
            ends = range(1, len(hashes) + 1)
            strategy.apply_peer_withdrawal(name, Chain(hashes, ends, ends, 0, hashes[0], 0), news.had)

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
        """Drops one who is lost."""
        self._missed.append(self._peers[name].arrived_s)
        self._drop(name)

    def _replace_missed(self) -> None:
        """Finds who had taken the places of lost ones before they were missed: those are not lost."""
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
        self._tell()

    def _add(self, endpoint: int, step: int) -> None:
        count = self._counts.get(endpoint, 0) + step
        if count:
            self._counts[endpoint] = count
        else:
            del self._counts[endpoint]
        self._stirred.add(endpoint)

    def _show(self) -> None:
        """Brings the book up to date, once for all that a letter says."""
        for endpoint in self._stirred:
            name = self._names.get(endpoint)
            if name is not None:
                self._pool.book.hear(name, self._counts.get(endpoint, 0))
        self._stirred.clear()

    def _follow(self) -> None:
        """Shows the counts of endpoints that came in, and no more those of who went."""
        snapshot = self._pool.snapshot
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        names = {name_of(name): name for name in snapshot.names}
        for endpoint, name in self._names.items():
            if endpoint not in names:
                self._pool.book.hear(name, 0)
        for endpoint, name in names.items():
            self._pool.book.hear(name, self._counts.get(endpoint, 0))
        self._names = names

    def _tell(self) -> None:
        if self._pool.shares_picks is not None:
            self._pool.shares_picks.set_peers(self.counts)


MAX_PICKS: Final = 2_048
# Of all prompts together; each takes some 40 bytes. A long prompt has some hundred of them.
MAX_PICK_BLOCKS: Final = 131_072


class PeerPicks:
    """The newest ones, so many and of so many blocks: of a peer that says no ends nothing grows on and on."""

    __slots__ = ("_blocks", "_picks")

    def __init__(self) -> None:
        self._picks: OrderedDict[int, Picked] = OrderedDict()
        self._blocks = 0

    def __len__(self) -> int:
        return len(self._picks)

    def put(self, pick: Picked) -> None:
        self.take(pick.number)
        self._picks[pick.number] = pick
        self._blocks += len(pick.hashes)
        while len(self._picks) > MAX_PICKS or self._blocks > MAX_PICK_BLOCKS:
            self._blocks -= len(self._picks.popitem(last=False)[1].hashes)

    def take(self, number: int) -> Picked | None:
        """Returns a request's pick, which is not kept any more; `None` where it is not kept."""
        pick = self._picks.pop(number, None)
        if pick is not None:
            self._blocks -= len(pick.hashes)
        return pick
