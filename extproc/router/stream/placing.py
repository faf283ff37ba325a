"""A session's place in its pool's queue (`Wait`), and its pick, counted to the response's end (`CountedPick`)."""

from dataclasses import dataclass

from msgspec import Struct

from extproc.errors import NoEndpoint, Overloaded
from extproc.router.routing.admission import objective_of, ttl_s
from extproc.router.routing.picker import Found, Query
from extproc.router.routing.pool import Pick
from extproc.router.routing.queue import Lane, Queue, QueueEnd, Waiter
from extproc.router.routing.tickets import Tickets
from extproc.router.stream.events import Continue, Phase, Reply, ResponseHeaders, Served


class Wait(Struct, frozen=True):
    """A request's place in `queue`, its pool's, and what the picker found in its body."""

    _queue: Queue
    waiter: Waiter
    found: Found

    @classmethod
    def enter(cls, queue: Queue, lane: Lane, query: Query, found: Found) -> "Wait | None":
        """Queues a request; `None` where the queue has no room for it."""
        waiter = Waiter(lane, len(query.body or b""))
        longest_s = queue.limits.longest_s(objective_of(query.headers), ttl_s(query.headers))
        return cls(queue, waiter, found) if queue.enter(waiter, longest_s) else None

    def goes_on(self, refusal: NoEndpoint | Overloaded, *, is_last: bool) -> bool:
        """Whether the request stays in the queue; where its time is over, `refusal` says so."""
        if is_last and self._queue.is_over(self.waiter):
            refusal.dropped = "rejected-ttl-expired"
        return not is_last and self.found.pool.may_pass(refusal)

    def end(self, end: QueueEnd) -> None:
        """Leaves the queue; may be called again."""
        self._queue.leave(self.waiter, end)


@dataclass(slots=True, eq=False)
class CountedPick:
    """One pick at most, released once. The proxy's access log names its ticket, `tickets` the pick.

    `prefill` is of another endpoint that computes the prompt; its work is done when the answer begins.
    """

    _tickets: Tickets | None
    pick: Pick | None = None
    prefill: Pick | None = None
    ticket: int = 0
    has_response: bool = False

    def set_pick(self, pick: Pick) -> None:
        self.pick, self.prefill = pick, pick.prefill
        self.ticket = 0 if self._tickets is None else self._tickets.give(pick)

    def on_response(self, event: ResponseHeaders) -> Reply:
        """Takes the response's headers; from now on the pick counts on the endpoint that answered."""
        reply: Reply = Continue(Phase.RESPONSE_HEADERS)
        pick = self.pick
        if pick is not None and not self.has_response:
            address = event.served or pick.endpoint.address
            is_elsewhere = address != pick.endpoint.address
            if is_elsewhere:
                self.pick = pick.pool.move(pick, address)
            if is_elsewhere or event.status:
                reply = Served(
                    pick.pool.name, address, event, is_elsewhere, self.ticket, pick.prefill
                )
        self.has_response = True
        self._end_prefill()
        return reply

    def release(self) -> None:
        pick, self.pick = self.pick, None
        self._end_prefill()
        if pick is not None:
            pick.release()
            if self._tickets is not None:
                self._tickets.end(self.ticket)

    def _end_prefill(self) -> None:
        if self.prefill is not None:
            self.prefill.release()
            self.prefill = None
