"""The order among several queues of one pool: whose request goes in next. Pure: words come in and go out.

Why. Workers of one service hold requests in a queue each, and hear of each other's picks up to 50 ms late. So
nobody was first: whoever had an end in its hands let in its own. And a burst that met three free places got
three of them from each worker.

The rules, for `workers` on one machine, whose clocks are one clock:

- **Words.** A worker tells the others who waits with it (the first `FIRSTS`, each by its *place*: priority,
  then since when) and how many requests it has in flight. Both in one word: who goes in leaves the first
  and comes into the second, and no other worker can see it in neither. An end is told at once while
  others wait, all else within `_LAZY_S`.
- **Known** is a request that all others have heard of: they say in their own words which of ours they heard.
- **By right.** A known request goes in when there is room for it and for all who stand before it. The others
  keep that place free for it, so nobody has to be asked: as many go in at once as there are places, at
  whichever workers, each in its place.
- **By part.** Whom the others do not know of yet, as who comes just now, goes in at once as well: within its
  worker's part of the room that nobody waits for. What went in counts against the part until all others have
  heard of it. The part is one at least, or a pool with less room than workers would make everybody wait.
  Who is beyond it waits for the others' answers; and so that in a pool with room nobody comes so far, they
  are asked as soon as half of it is used.
- **The bound.** So no more than the limit and one for each other worker go in, however late words are.
  Where requests keep waiting it is the limit: then all are known before it is their turn. Who goes before
  others by its priority may go into the headroom (`admission`) if it is the first of all.
- **Liveness.** Nobody waits for one who says nothing: a worker that was asked `_PATIENCE` times in a second
  and gave no answer is left out until it speaks. One that was killed is left out at once (`lose`). While
  requests wait, words are said every `_BEAT_S`, changed or not, and each heals what was lost before. What a
  worker that is left out had in flight counts no more: nobody knows what became of it.
- **Whose.** Requests that only some endpoints may take (an adapter, a subset) have their own room, which is
  not counted here; each worker lets them in as it did. So it does with whose time is over: it is asked a last
  time. Between machines there is no common clock, and the way is longer than the wait: gateways that share
  their picks keep an order each.

It is the escrow method (O'Neil 1986) where nobody waits, and a ticket queue where somebody does. What was
weighed: one worker that keeps the queue of all, or a right to let in that goes round, needs an heir when it
is lost, and a way there and back for every request of a pool with room. To let in the first of all heads
alone, which needs no heir, is a chain of words: one request for each of them.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection
from typing import Annotated, Final, NamedTuple, Protocol

from msgspec import Meta, Struct

FIRSTS: Final = 32
_BEAT_S: Final = 0.1
# Beats, not seconds: who was not let run itself for a while has answers that it did not read yet.
_PATIENCE: Final = 10
# Words of one moment go out together: an end and who takes its place, or a burst.
_GATHER_S: Final = 0.001
# What nobody waits for is told all the same: who has come must be known when its turn comes, and for what has
# ended nobody shall wait.
_LAZY_S: Final = 0.02
_MOST_UNHEARD: Final = 1_024

Place = tuple[int, int]
"""Where a request stands: its priority, negated, and since when in microseconds. The lowest goes first."""

Later = Callable[[float, Callable[[], None]], object]


class Word(Struct, frozen=True, tag=True):
    """What a worker tells of a pool; its words are numbered from 1 on.

    `heard` has the number of the last word that came of each other worker. `asks`: answer at once.
    """

    pool: str
    number: int
    heard: dict[int, int]
    in_flight: int
    held: int
    firsts: Annotated[tuple[Place, ...], Meta(max_length=FIRSTS)]
    asks: bool


class Room(NamedTuple):
    """A pool as this worker sees it; in flight are `total`, of which `ours` are its own.

    Up to `ceiling` go those who may go before others.
    """

    limit: int
    ceiling: int
    total: int
    ours: int


class Line(NamedTuple):
    """Who waits here for any endpoint of the pool: how many, and the first of them."""

    held: int
    firsts: tuple[Place, ...]


class Crew(Protocol):
    """The way to the other workers; we are number `lane`. What cannot go out at once is dropped."""

    @property
    def lane(self) -> int: ...

    def others(self) -> Collection[int]:
        """Those that there are now."""
        ...

    def tell(self, word: Word) -> None: ...

    def tell_one(self, lane: int, word: Word) -> None: ...


class _Other:
    """Another worker, as its last word tells."""

    __slots__ = ("firsts", "heard", "held", "in_flight", "missed", "number", "owes")

    def __init__(self) -> None:
        self.number = self.heard = 0  # of its words, and of ours that it heard
        self.in_flight = self.held = 0
        self.firsts: list[Place] = []
        self.owes, self.missed = False, 0  # an answer, for so many beats

    def take(self, word: Word, me: int) -> None:
        self.number, self.in_flight, self.held = word.number, word.in_flight, word.held
        self.firsts = [*word.firsts]
        self.heard = max(self.heard, word.heard.get(me, 0))
        self.missed = 0

    def before(self, place: Place, *, goes_first: bool) -> int:
        """How many of its requests stand before `place`; `goes_first`: the same place is before it, too.

        Those beyond the first do if all of the first do: that is not known.
        """
        low, micros = place
        count = bisect_left(self.firsts, (low, micros + goes_first))
        return self.held if count == len(self.firsts) else count


class _Told(NamedTuple):
    """A word of ours that some have not heard yet: what they know from it on."""

    number: int
    went: int
    firsts: frozenset[Place]


class Order:
    """One worker's view of all queues of a pool. `room` tells of the pool; `None`: it has no limit.

    `line` and `on_word` are the queue's: who waits there, and that it may be another one's turn.
    """

    def __init__(
        self,
        pool: str,
        crew: Crew,
        room: Callable[[], Room | None],
        *,
        later: Later,
    ) -> None:
        self.line: Callable[[], Line] = lambda: Line(0, ())
        self.on_word: Callable[[], None] = lambda: None
        self._pool, self._crew, self._room = pool, crew, room
        self._later = later
        self._others: dict[int, _Other] = {}
        self._held_elsewhere = 0
        self._number = self._asked = 0
        self._told: deque[_Told] = deque(maxlen=_MOST_UNHEARD)
        # How many of ours went in, and who waits here: what all others have heard of.
        self._went = self._known_went = 0
        self._known = frozenset[Place]()
        self._spare = 0  # so many more may go in before it has to be thought about again
        self._said: tuple[Line, int] = (Line(0, ()), 0)  # to all
        self._is_planned = self._is_lazily_planned = self._is_beating = False

    def __repr__(self) -> str:
        unheard, elsewhere = self._went - self._known_went, self._held_elsewhere
        return f"<Order of {self._pool}: {unheard} unheard, {elsewhere} held elsewhere>"

    def lets(self, place: Place, before: int = 0) -> bool:
        """Whether a request may go in now, if admission lets it; `before` it stand so many of our own."""
        if self._spare > 0 and not before:
            return True
        room = self._room()
        others = self._living() if room is not None else {}
        if room is None or not others:
            return True
        total = max(room.total, room.ours + sum(other.in_flight for other in others.values()))
        free = room.limit - total
        for lane, other in others.items():
            before += other.before(place, goes_first=lane < self._crew.lane)
        if before >= free and (before or total >= room.ceiling):
            return False
        return place in self._known or self._has_part(others.values(), free)

    def went(self) -> None:
        """Hears that a request went in, whether it waited or not."""
        self._went += 1
        self._spare -= 1
        self._plan(quickly=self._held_elsewhere > 0)

    def change(self) -> None:
        """Hears that others wait here than before."""
        self._plan(quickly=False)

    def stir(self) -> None:
        """Hears that there may be fewer in flight."""
        if not self._held_elsewhere:
            self._plan(quickly=False)
        elif self._in_flight() != self._said[1]:
            self._plan(quickly=True)

    def hear(self, lane: int, word: Word) -> None:
        """Takes another worker's word; one that is older than its last is left alone."""
        other = self._others.setdefault(lane, _Other())
        if word.number <= other.number:
            return
        other.take(word, self._crew.lane)
        other.owes = other.heard < self._asked
        if word.asks:
            self._crew.tell_one(lane, self._word(asks=False))
        self._look()

    def meet(self, lane: int) -> None:
        """Hears that another worker begins: it is told how things are, and asked."""
        if self._room() is not None:
            self._crew.tell_one(lane, self._word(asks=True))

    def lose(self, lane: int) -> None:
        """Hears that a worker is gone; another one may take its number."""
        if self._others.pop(lane, None) is not None:
            self._look()

    def _look(self) -> None:
        self._held_elsewhere = sum(other.held for other in self._others.values())
        self._spare = 0
        self._settle()
        self.on_word()

    def _has_part(self, others: Collection[_Other], free: int) -> bool:
        """Whether one more is within our part of what nobody waits for."""
        used, workers = self._went - self._known_went, len(others) + 1
        is_met = all(other.number for other in others)
        awaited = sum(other.held for other in others) + len(self._known.intersection(self.line().firsts))
        whole = free - awaited + used if is_met else 0
        self._spare = whole // (2 * workers) - used
        if self._spare <= 0:
            self._plan(quickly=True)
        return used == 0 or (used + 1) * workers <= whole

    def _living(self) -> dict[int, _Other]:
        """The others, but for those that owe an answer for too long."""
        living = {}
        for lane in self._crew.others():
            other = self._others.get(lane)
            if other is None:
                other = self._others[lane] = _Other()
            if other.missed < _PATIENCE:
                living[lane] = other
        return living

    def _settle(self) -> None:
        """Finds what all others know."""
        heard = min((other.heard for other in self._living().values()), default=self._number)
        while self._told and self._told[0].number <= heard:
            told = self._told.popleft()
            self._known, self._known_went = told.firsts, told.went

    def _in_flight(self) -> int:
        room = self._room()
        return 0 if room is None else room.ours

    def _plan(self, *, quickly: bool) -> None:
        if quickly and not self._is_planned:
            self._is_planned = True
            self._later(_GATHER_S, self._say)
        elif not (quickly or self._is_planned or self._is_lazily_planned):
            self._is_lazily_planned = True
            self._later(_LAZY_S, self._say_lazily)

    def _say_lazily(self) -> None:
        self._is_lazily_planned = False
        if self._went != self._known_went or (self.line(), self._in_flight()) != self._said:
            self._say()

    def _say(self) -> None:
        self._is_planned = False
        self._settle()
        if self._room() is None or not self._others:
            return
        word = self._word(asks=self.line().held > 0 or self._went != self._known_went)
        self._said = (Line(word.held, word.firsts), word.in_flight)
        if word.asks:
            self._asked = word.number
            for other in self._others.values():
                other.owes = True
            self._beat_soon()
        self._crew.tell(word)

    def _beat_soon(self) -> None:
        if not self._is_beating:
            self._is_beating = True
            self._later(_BEAT_S, self._beat)

    def _beat(self) -> None:
        """Says again what somebody may not have heard."""
        self._is_beating = False
        for other in self._others.values():
            other.missed += other.owes
        self._look()
        if self.line().held or any(other.owes for other in self._living().values()):
            self._say()

    def _word(self, *, asks: bool) -> Word:
        """Our next word; whether to one or to all, its number says what who has heard it knows."""
        line = self.line()
        self._number += 1
        self._told.append(_Told(self._number, self._went, frozenset(line.firsts)))
        heard = {lane: other.number for lane, other in self._others.items()}
        return Word(self._pool, self._number, heard, self._in_flight(), line.held, line.firsts, asks)
