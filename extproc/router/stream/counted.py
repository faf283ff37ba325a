"""What a session counts: its pick, from when that is taken until the response has ended."""

from extproc.router.routing.pool import Pick
from extproc.router.routing.tickets import Tickets
from extproc.router.stream.events import Continue, Phase, Reply, ResponseHeaders, Served


class Counted:
    """One pick at most, released once. `tickets` find it again when the proxy's access log tells of it."""

    __slots__ = ("_pick", "_tickets", "has_response", "ticket")

    def __init__(self, tickets: Tickets | None) -> None:
        self._tickets = tickets
        self._pick: Pick | None = None
        self.ticket = 0
        self.has_response = False

    def __repr__(self) -> str:
        return f"<Counted {self._pick!r}>"

    def take(self, pick: Pick) -> None:
        """Counts a pick that was taken."""
        self._pick = pick
        self.ticket = 0 if self._tickets is None else self._tickets.give(pick)

    def hear(self, event: ResponseHeaders) -> Reply:
        """Takes what a gateway tells of the response first; the pick counts where it was answered."""
        reply: Reply = Continue(Phase.RESPONSE_HEADERS)
        pick = self._pick
        if pick is not None and not self.has_response:
            address = event.served or pick.endpoint.address
            is_elsewhere = address != pick.endpoint.address
            if is_elsewhere:
                self._pick = pick.pool.move(pick, address)
            if is_elsewhere or event.status:
                reply = Served(pick.pool.name, address, event, is_elsewhere, self.ticket)
        self.has_response = True
        return reply

    def leave(self) -> Pick | None:
        """Gives up the pick: whoever takes it must release it."""
        pick, self._pick = self._pick, None
        self._end_ticket()
        return pick

    def release(self) -> None:
        """Releases the pick, as often as one likes."""
        pick, self._pick = self._pick, None
        if pick is not None:
            pick.release()
            self._end_ticket()

    def _end_ticket(self) -> None:
        if self.ticket and self._tickets is not None:
            self._tickets.end(self.ticket)
