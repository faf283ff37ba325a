"""How a session waits for its pool's room (`Wait`), and counts its pick to the response's end (`Counted`)."""

from collections.abc import Callable

from msgspec.structs import replace

from extproc.errors import NoEndpoint, Overloaded
from extproc.router.routing.admission import objective_of, ttl_s
from extproc.router.routing.picker import Found, Query
from extproc.router.routing.pool import Pick
from extproc.router.routing.queue import Queue, QueueEnd, Waiter
from extproc.router.routing.tickets import Tickets
from extproc.router.stream.events import Continue, Phase, Reply, ResponseHeaders, Served

Route = Callable[[Query, Found], list[Reply]]
"""Routes a request and returns the replies; raises `NoEndpoint` or `Overloaded` where there is no room."""


class Wait:
    """A request that waits in `queue`, its pool's."""

    __slots__ = ("_found", "_query", "_queue", "_route", "waiter")

    def __init__(
        self, queue: Queue, waiter: Waiter, query: Query, found: Found, route: Route
    ) -> None:
        self._queue = queue
        self.waiter = waiter
        # What the picker found in the body stays, the body goes.
        self._query, self._found = replace(query, body=None), found
        self._route = route

    @property
    def wait_s(self) -> float:
        return self.waiter.until_s - self.waiter.since_s

    def again(self, *, is_last: bool) -> list[Reply]:
        """Routes the request if there is room now, else returns no reply; `is_last` raises the refusal."""
        try:
            replies = self._route(self._query, self._found)
        except (NoEndpoint, Overloaded) as refusal:
            if not is_last and self._found.pool.may_pass(refusal):
                return []
            if is_last and self._queue.is_over(self.waiter):
                refusal.dropped = "rejected-ttl-expired"
            raise
        self.end(QueueEnd.SERVED)
        return replies

    def end(self, end: QueueEnd) -> None:
        """Leaves the queue; may be called again."""
        self._queue.leave(self.waiter, end)


def seek(queue: Queue, query: Query, found: Found, route: Route) -> list[Reply] | Wait:
    """Routes a request at once, or holds it in `queue`, its pool's; raises where it can do neither."""
    pool = found.pool
    lane = pool.lane(query.headers, found.adapter, query.subset)
    try:
        if not queue.precedes(lane):
            return route(query, found)
    except (NoEndpoint, Overloaded) as refusal:
        if not pool.may_pass(refusal):
            raise
    waiter = Waiter(lane, len(query.body or b""))
    if not queue.enter(
        waiter, queue.limits.longest_s(objective_of(query.headers), ttl_s(query.headers))
    ):
        return route(query, found)  # says why not
    return Wait(queue, waiter, query, found, route)


class Counted:
    """One pick at most, released once. The proxy's access log names its ticket, `tickets` the pick."""

    __slots__ = ("_tickets", "has_response", "pick", "ticket")

    def __init__(self, tickets: Tickets | None) -> None:
        self._tickets = tickets
        self.pick: Pick | None = None
        self.ticket = 0
        self.has_response = False

    def set_pick(self, pick: Pick) -> None:
        self.pick = pick
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
                reply = Served(pick.pool.name, address, event, is_elsewhere, self.ticket)
        self.has_response = True
        return reply

    def release(self) -> None:
        pick, self.pick = self.pick, None
        if pick is not None:
            pick.release()
            if self._tickets is not None:
                self._tickets.end(self.ticket)
