"""A request that others route, and that a proxy only shows us (`observability_mode`): who served it, and when."""

# Envoy sends the request's headers and its body in pieces, then the response's headers, and closes the
# stream some time after the exchange has ended. It waits for nothing and ignores every answer, so
# nothing here may matter to the client: whatever is wrong or has no room is left alone.

from dataclasses import dataclass
from typing import Final

from extproc.errors import RequestError
from extproc.router.routing.endpoint import canonical_location
from extproc.router.routing.picker import Found, Picker, Query, RequestPlan
from extproc.router.routing.pool import Pick
from extproc.router.routing.strategies.base import Reason
from extproc.router.stream.events import (
    BodyRead,
    BodySkipped,
    BodyToRead,
    Event,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
)
from extproc.router.stream.held_body import HeldBody
from extproc.router.stream.names import REQUEST_ID

_SHOWN: Final = Reason("shown", "a proxy showed us that the request went there")
_FAILED: Final = 400


@dataclass(slots=True, eq=False)
class WatchedRequest:
    """One request, from its headers until the stream ends; `pool` is the operator's choice of a pool.

    `reads_apart`: the driver parses long bodies, as for requests that we route.
    """

    _picker: Picker
    _body: HeldBody
    _pool: str | None
    _reads_apart: bool
    _plan: RequestPlan | None = None
    _found: Found | None = None
    _pick: Pick | None = None
    _request_id: str = ""

    def on(self, event: Event) -> list[BodyToRead]:
        """Takes what the proxy shows; a long body that has come whole is to be read by the caller."""
        try:
            match event:
                case RequestHeaders():
                    self._begin(event)
                case RequestBody() if self._plan is not None:
                    return self._hold(event)
                case BodyRead():
                    self._arrive(event.found)
                case BodySkipped():
                    self._give_up()
                case ResponseHeaders():
                    self._serve(event)
        except RequestError:
            self._give_up()
        return []

    def close(self) -> None:
        self._give_up()
        found, pick, self._found, self._pick = self._found, self._pick, None, None
        if pick is not None:
            pick.release()
        elif found is not None and found.pool.watcher is not None:
            found.pool.watcher.left(found.reading)

    def _begin(self, event: RequestHeaders) -> None:
        headers = event.headers
        query = Query(
            headers.get(":method", "POST"), headers.get(":path", ""), headers, pool=self._pool
        )
        is_watched = any(route.pool.watcher is not None for route in self._picker.routes.values())
        plan = self._picker.plan(query) if is_watched else None
        if plan is not None and plan.reads_body and not event.end_of_stream:
            self._body.begin(event)
            self._plan, self._request_id = plan, headers.get(REQUEST_ID, "")

    def _hold(self, event: RequestBody) -> list[BodyToRead]:
        self._body.check(event)
        if not self._body.add(event.data):
            self._give_up()
            return []
        if not event.end_of_stream:
            return []
        headers = self._body.request.headers
        method, path = headers.get(":method", "POST"), headers.get(":path", "")
        query = Query(method, path, headers, self._body.body, pool=self._pool)
        if self._reads_apart and self._plan is not None and self._plan.reads_long(query.body):
            return [BodyToRead(self._picker, query, self._plan)]
        self._arrive(self._picker.find(query, self._plan))
        return []

    def _arrive(self, found: Found | RequestError) -> None:
        self._give_up()
        # Of a second request in the stream nobody would be told that it ended.
        is_first = self._found is None
        if isinstance(found, Found) and found.pool.watcher is not None and is_first:
            self._found = found
            found.pool.watcher.arrived(found.reading)

    def _serve(self, event: ResponseHeaders) -> None:
        """The answer begins. Of a failure nothing was read."""
        found = self._found
        if found is None or found.pool.watcher is None or self._pick is not None:
            return
        pool, address = found.pool, event.served or ""
        names = pool.snapshot.by_location.get(canonical_location(address)) if address else None
        if event.status >= _FAILED:
            self.close()
        elif not names:
            found.pool.watcher.nameless(found.reading, address, self._request_id)
        else:
            endpoint, reading = pool.snapshot.ready[names[0]], found.reading
            self._pick = Pick(pool, "", _SHOWN, endpoint, (), reading, is_shown=True)
            self._pick.acquire()

    def _give_up(self) -> None:
        """Drops the body: it was read, or never will be."""
        self._plan = None
        self._body.forget()
