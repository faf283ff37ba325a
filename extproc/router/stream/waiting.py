"""A request that is held until its pool has room: how it comes into the pool's queue, and how it leaves."""

from collections.abc import Callable

from msgspec.structs import replace

from extproc.errors import NoEndpoint, Overloaded
from extproc.router.routing.picker import Ask, Found
from extproc.router.routing.queue import End, Queue, Waiter
from extproc.router.stream.events import Reply

Route = Callable[[Ask, Found], list[Reply]]
"""Routes a request, and says what to answer; raises `NoEndpoint` or `Overloaded` where there is no room."""


class Wait:
    """One stay of a request in `queue`, its pool's."""

    __slots__ = ("_ask", "_found", "_queue", "_route", "waiter")

    def __init__(self, queue: Queue, waiter: Waiter, ask: Ask, found: Found, route: Route) -> None:
        self._queue = queue
        self.waiter = waiter
        # What was found in the body is kept, not the body.
        self._ask, self._found = replace(ask, body=None), found
        self._route = route

    def __repr__(self) -> str:
        return f"<Wait of {self.waiter!r}>"

    @property
    def wait_s(self) -> float:
        return self.waiter.until_s - self.waiter.since_s

    def again(self, *, is_last: bool) -> list[Reply]:
        """Routes the request, if there is room for it now; empty: not yet. The last time raises a refusal."""
        try:
            replies = self._route(self._ask, self._found)
        except (NoEndpoint, Overloaded) as refusal:
            if is_last or not self._found.pool.may_pass(refusal):
                raise
            return []
        self.end(End.SERVED)
        return replies

    def end(self, end: End) -> None:
        """Leaves the queue, as often as one likes."""
        self._queue.leave(self.waiter, end)


def seek(queue: Queue, ask: Ask, found: Found, route: Route) -> list[Reply] | Wait:
    """Routes a request at once, or holds it in `queue`, its pool's; raises where neither can be."""
    pool = found.pool
    lane = pool.lane(ask.headers, found.adapter, ask.subset)
    try:
        if not queue.precedes(lane):
            return route(ask, found)
    except (NoEndpoint, Overloaded) as refusal:
        if not pool.may_pass(refusal):
            raise
    waiter = Waiter(lane, len(ask.body or b""))
    if not queue.enter(waiter):
        return route(ask, found)  # says why not
    return Wait(queue, waiter, ask, found, route)
