"""Workers with a queue each of one pool, and the words between them: late, lost, out of order."""

from collections.abc import Collection
from dataclasses import dataclass, field

from extproc.router.budget import Budget
from extproc.router.routing.order import Order, Room, Word
from extproc.router.routing.queue import End, Lane, Limits, Queue, Waiter
from tests.router.routing.test_routing_queue import Clock

# No word is longer on its way, and of one link no more are lost in a row.
SLOWEST_S = 0.1
MOST_LOST = 2
# So late everybody knows what there was to know.
SETTLED_S = 1.0


@dataclass(frozen=True)
class Request:
    number: int
    priority: int
    came_s: float


@dataclass
class Links:
    """Words on their way, each with the moment that it was sent at."""

    clock: Clock
    words: dict[tuple[int, int], list[tuple[float, Word]]] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    sent: int = 0

    def send(self, start: int, stop: int, word: Word) -> None:
        self.sent += 1
        self.words.setdefault((start, stop), []).append((self.clock.now_s, word))


class Worker:
    """One queue with its order. What it has in flight is all that its admission knows of."""

    def __init__(self, lane: int, links: Links, limit: int | None) -> None:
        self.lane = lane
        self.links = links
        self.limit = limit
        self.is_hung = self.is_over = False
        self.hung_s = 0.0
        self.open: list[Request] = []
        self.let_in: list[tuple[float, Request]] = []
        self.held: dict[int, Request] = {}
        self.order = Order("llama", self, self.room, later=self.later)
        limits = Limits(wait_s=1e6, requests=10_000)
        self.queue = Queue(limits, Budget(1), clock=links.clock, later=self.later, order=self.order)

    def others(self) -> Collection[int]:
        return self.links.alive - {self.lane}

    def tell(self, word: Word) -> None:
        for lane in sorted(self.others()):
            self.tell_one(lane, word)

    def tell_one(self, lane: int, word: Word) -> None:
        self.links.send(self.lane, lane, word)

    def later(self, delay_s: float, action: object) -> None:
        def act() -> None:
            if not (self.is_hung or self.is_over):
                assert callable(action)
                action()

        self.links.clock.later(delay_s, act)

    def room(self) -> Room | None:
        ours = len(self.open)
        return None if self.limit is None else Room(self.limit, self.limit, ours, ours)

    def has_room(self) -> bool:
        return self.limit is None or len(self.open) < self.limit

    def come(self, request: Request) -> None:
        lane = Lane(request.priority)
        if not self.queue.precedes(lane) and self.has_room():
            self.go(request)
            return
        waiter = Waiter(lane)
        assert self.queue.enter(waiter)
        self.held[request.number] = request
        waiter.ask = lambda _: self.ask(waiter, request)

    def ask(self, waiter: Waiter, request: Request) -> None:
        if self.has_room():
            self.go(request)
            del self.held[request.number]
            self.queue.leave(waiter, End.SERVED)

    def go(self, request: Request) -> None:
        self.queue.went()
        self.open.append(request)
        self.let_in.append((self.links.clock.now_s, request))

    def end(self) -> None:
        self.open.pop(0)
        self.queue.stir()


class Town:
    """So many workers of one pool."""

    def __init__(self, count: int, limit: int | None) -> None:
        self.clock = Clock()
        self.links = Links(self.clock, alive={*range(count)})
        self.limit = limit
        self.workers = [Worker(lane, self.links, limit) for lane in range(count)]
        self.came = 0
        for lane in range(count):
            self.meet(lane)
        self.calm(0.001)

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lane in self.links.alive]

    @property
    def awake(self) -> list[Worker]:
        return [worker for worker in self.living if not worker.is_hung]

    @property
    def total(self) -> int:
        return sum(len(worker.open) for worker in self.living)

    @property
    def held(self) -> list[Request]:
        return [request for worker in self.awake for request in worker.held.values()]

    def come(self, lane: int, priority: int = 0) -> Request:
        self.came += 1
        request = Request(self.came, priority, self.clock.now_s)
        self.workers[lane].come(request)
        return request

    def deliver(self, start: int, stop: int, place: int = 0) -> None:
        words = self.links.words.get((start, stop), [])
        if place >= len(words) or self.workers[stop].is_hung:
            return
        _, word = words.pop(place)
        self.workers[stop].order.hear(start, word)

    def deliver_all(self, older_s: float = 0.0) -> None:
        """Brings what has been on its way for so long, in its order."""
        for (start, stop), words in [*self.links.words.items()]:
            while words and not self.workers[stop].is_hung and words[0][0] <= self.clock.now_s - older_s:
                self.deliver(start, stop)

    def pass_by(self, seconds: float, late_s: float = SLOWEST_S) -> None:
        """Lets time pass; no word is later than so."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.deliver_all(late_s)
            self.clock.pass_by(min(0.01, until_s - self.clock.now_s))

    def calm(self, seconds: float = 0.05) -> None:
        """Until everybody has heard all, as on an idle machine."""
        self.pass_by(seconds, 0.0)
        self.deliver_all()
        self.clock.pass_by()

    def meet(self, lane: int) -> None:
        """A worker has begun, and says so."""
        for other in self.awake:
            if other.lane != lane:
                other.order.meet(lane)

    def kill(self, lane: int) -> None:
        """The kernel closes its links."""
        self.workers[lane].is_over = True
        self.links.alive.discard(lane)
        for pair in [pair for pair in self.links.words if lane in pair]:
            del self.links.words[pair]
        for worker in self.awake:
            worker.order.lose(lane)

    def revive(self, lane: int) -> None:
        self.workers[lane] = Worker(lane, self.links, self.limit)
        self.links.alive.add(lane)


def served(town: Town) -> list[Request]:
    entries = [entry for worker in town.workers for entry in worker.let_in]
    return [request for _, request in sorted(entries, key=lambda entry: entry[0])]
