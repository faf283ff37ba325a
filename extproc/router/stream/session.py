"""One ext_proc stream as a pure state machine: events in, replies out. No socket, no clock, no protobuf.

Whatever comes in whatever order, a session never raises, decides at most once, and releases once.
"""

# The rules, and whose they are.
#
# Envoy's (`ext_proc.proto` and "External Processing" in its documentation; measured on 1.36 to
# 1.40):
# - Every message gets one reply of its own kind, in the messages' order. A reply too many or out of
#   order fails the stream, and with it the request unless the filter fails open.
# - The filter's `request_body_mode`, sent with the first message, says how a body comes. What we
#   do:
#
#   | mode                        | at the headers | a message of the body      | once it is routed      |
#   | --------------------------- | -------------- | -------------------------- | ---------------------- |
#   | BUFFERED, BUFFERED_PARTIAL, | go on          | the only one: route in     | go on, for each        |
#   |   or an unknown mode        |                | its reply                  |                        |
#   | NONE                        | route          | none comes                 |                        |
#   | STREAMED                    | route          | (comes after its headers   | go on, for each        |
#   |                             |                | are answered)              |                        |
#   | STREAMED, not waiting       | hold           | hold; at the last: route   | go on, for each        |
#   |                             |                | in the headers' reply, then|                        |
#   |                             |                | go on, for each held       |                        |
#   | FULL_DUPLEX_STREAMED,       | hold           | hold; at the last: route   | given back, in pieces  |
#   |   or no mode sent           |                | in the headers' reply, then|                        |
#   |                             |                | the body, in pieces        |                        |
#
#   Where the filter skips the headers, the body comes first, and the mode with it; the body's reply
#   then has what the headers' reply would have had. Any mode routes at the headers where no body
#   can change the decision, none comes, or it never ends (an upgrade to a websocket). To a
#   buffering Envoy the reply then says not to send the body.
# - FULL_DUPLEX_STREAMED alone: nothing is answered before the headers' reply; Envoy keeps no copy
#   of the body, so what we do not give back is lost; a piece holds at most 62,000 bytes; above
#   about 1 MB the end of the body can come twice, and the second time wants no reply; trailers end
#   a body, too.
# - BUFFERED with trailers ends the body without `end_of_stream`, BUFFERED_PARTIAL also where it cut
#   it.
# - In `observability_mode` the proxy goes on by itself: no answer, and `watching` follows the request
#   where its pool has a `shadow`.
#
# The Endpoint Picker Protocol's, 1.0.0: the body and the response's body are streamed in full
# duplex, unless the proxy sends other modes (agentgateway, NGINX Gateway Fabric and upstream's own
# tests send none); the subset may come with the headers or with the body; the response names the
# endpoint that answered; a refusal is an immediate response.
#
# NGINX Gateway Fabric's (`endpoint_picker.go`): no `:method` and no `:path`, so a request is taken
# for a POST, and the body's fields show which API it is; it reads the pick from the headers' reply
# and ignores the rest; it ends its side of the stream with the request, and never sends the
# response.
#
# agentgateway's (`ext_proc.rs`): the last message of a body is an empty one, also behind trailers,
# and it waits for the answer to that.
#
# Ours:
# - A request counts from its pick until its response has ended: end of stream in its headers or
#   body, or its trailers. Where a proxy sends none, until the stream is closed. A proxy that sent
#   neither its modes nor a response never will: its request counts for a while after the stream's
#   end (`leave`).
# - A client cannot command the picker: guarded headers are removed, but those that the operator
#   names. Three are read before: an objective, a fairness id and a time to live
#   (`routing.admission`).
# - A buffering proxy has no budget for the bodies in its memory: over HTTP/1.1 Envoy cannot even
#   say which request uses how much (measured: `reset_high_memory_stream` has no effect there). So a
#   body counts from its headers on, by the length they announce (`uploads`). A body without room is
#   routed at its headers, and the reply says not to send it: the proxy streams it to the endpoint,
#   by a route without retries, because for retries it would buffer the body all the same. A body
#   that others wait for is answered with a refusal, which Envoy takes at any time.
# - A request whose body has no room here is routed without its body. But where the body must be
#   given back it is refused: half a body must not reach an endpoint.
#
# - A pool may queue requests that it has no room for (`routing.queue`). The body of such a request
#   is read once; then the queue tries to route it whenever there may be room. Meanwhile the proxy
#   gets one message, how long it may take (`override_message_timeout`), and only if it sent its
#   modes: other proxies fail at a message that answers nothing. A request whose body still comes,
#   and has no room here, does not wait.
# - A response's body is never read. Where it would come although the request is buffered (Envoy AI
#   Gateway's annotation, one mode for both), the headers' reply says not to send it: that saves
#   half the messages or more, and a proxy streams the answer again instead of buffering it.
#
# Between its body and its endpoint a request can stop twice, in states of their own: READING, while a
# thread parses a long body, and WAITING, while the pool's queue holds it. How it goes on is then no
# code that waits to be called, but a value (`_Resume`): which message is answered, what is given
# back, whether the body has ended. Whatever ends a stop, `_finish` makes the replies of it, as it
# does for a request that never stops. So a stop changes when a request is answered, and not how.
#
# What was tried: turning FULL_DUPLEX_STREAMED off for the response by a mode override, which Envoy
# ignores (envoy#40340; measured on 1.40); answering the headers of a streamed body at once gives no
# affinity at all; BUFFERED without the request's headers does not work (Envoy picks its host first:
# 503); a list of pieces takes forty times the body's bytes where a client sends single bytes; a
# closure for what follows a stop, of which the table shows nothing.

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from extproc.errors import NoEndpoint, NoRoomForBody, Overloaded, PromptError, RequestError
from extproc.grpc_server.budget import Budget, unlimited
from extproc.router.routing.picker import Found, Picker, Query, RequestPlan
from extproc.router.routing.queue import QueueEnd
from extproc.router.routing.tickets import Tickets
from extproc.router.stream.answers import list_models, refuse
from extproc.router.stream.events import (
    NO_CONFIG,
    BodyMode,
    BodyRead,
    BodySkipped,
    BodyToRead,
    Buffer,
    Continue,
    ContinueHeadersOnly,
    Event,
    GiveWay,
    Observed,
    Phase,
    Piece,
    Queued,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    RetryQueued,
    Routed,
    StreamConfig,
)
from extproc.router.stream.held_body import NO_REQUEST, HeldBody, pieces
from extproc.router.stream.names import GUARDED, PLAIN_HEADERS, REQUEST_ID
from extproc.router.stream.placing import CountedPick, Wait
from extproc.router.stream.uploads import Uploads, unlimited_uploads
from extproc.router.stream.watching import WatchedRequest

_BUFFERED: Final = frozenset({None, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
# All sessions that are routed, or over, share this one.
_NOTHING: Final = HeldBody(0, unlimited(), unlimited_uploads())
_NO_PIECE: Final = Piece(Phase.REQUEST_BODY, b"", end_of_stream=False)


class _Resume(Struct, frozen=True):
    """How a request goes on, once its endpoint is known: the same now, or after a stop.

    `phase` is the message that the decision answers. Then `messages` of the body are answered, or
    `body` is given back, and `more` follows. `has_ended`: no more of the body comes.
    """

    phase: Phase
    query: Query
    body: bytes | bytearray = b""
    messages: int = 0
    more: Sequence[Reply] = ()
    has_ended: bool = False


# Of all sessions that are not about to be routed.
_NOTHING_TO_RESUME: Final = _Resume(Phase.REQUEST_HEADERS, Query("", "", {}))


class SessionOptions(Struct, frozen=True):
    """What all sessions of a service have in common.

    `new_request_id` makes an `x-request-id` for a request that came without one. `budget` counts
    bodies that we hold, `uploads` those that proxies buffer. `pass_headers` are guarded headers
    that go on to the endpoint. `reads_apart`: the driver parses long bodies; the session replies
    `BodyToRead`, and the next event must be a `BodyRead`. `tickets` find the pick by the number in
    the proxy's access log.
    """

    new_request_id: Callable[[], str]
    max_body_bytes: int = 33_554_432
    clear_route_cache: bool = False
    budget: Budget = field(default_factory=unlimited)
    uploads: Uploads = field(default_factory=unlimited_uploads)
    pass_headers: Collection[str] = ()
    reads_apart: bool = False
    tickets: Tickets | None = None


class Session:
    """One request's state. `close` ends it and may be called again; its pick is released once.

    `pool` is the operator's choice of a pool, from the stream's metadata. `request_id` is the
    proxy's `x-request-id`, empty before the headers or without one.
    """

    __slots__ = (
        "_config",
        "_counted",
        "_has_begun",
        "_held_body",
        "_options",
        "_picker",
        "_plan",
        "_pool",
        "_resume",
        "_state",
        "_wait",
        "_watched",
        "request_id",
    )

    def __init__(self, picker: Picker, options: SessionOptions, pool: str | None = None) -> None:
        self._picker = picker
        self._options = options
        self._pool = pool
        self._plan: RequestPlan | None = None
        self._held_body = HeldBody(options.max_body_bytes, options.budget, options.uploads)
        self._counted = CountedPick(options.tickets)
        self._state = _NEW
        self._config = NO_CONFIG
        self._has_begun = False
        self.request_id = ""
        # What READING and WAITING keep, and the place in the queue that WAITING has.
        self._resume = _NOTHING_TO_RESUME
        self._wait: Wait | None = None
        self._watched: WatchedRequest | None = None

    def __repr__(self) -> str:
        return f"<Session {self._state.name}>"

    @property
    def is_waiting(self) -> bool:
        return self._state is _WAITING

    def on(self, event: Event) -> list[Reply]:
        """Returns what to send back for `event`, in order; nothing more once the client is answered."""
        if self._state is _CLOSED:
            return []
        if self._watched is not None or isinstance(event, Observed):
            return self._watch(event)
        try:
            return self._replies(event)
        except RequestError as error:
            path = self._held_body.request.headers.get(":path", "")
            self._stop_waiting(QueueEnd.REFUSED)
            self.close()
            return [refuse(error, path)]

    def leave(self) -> CountedPick | None:
        """The proxy sends no more; returns the pick of a request whose response it never sends.

        The caller must release that pick; the session no longer does.
        """
        left = self._counted
        if left.has_response or left.pick is None or self._config is not NO_CONFIG:
            return None
        self._counted = CountedPick(None)
        return left

    def close(self) -> None:
        """Releases what the request held. For every end: served, aborted, failed, shut down."""
        self._state = _CLOSED
        self._stop_waiting(QueueEnd.ABORTED)
        if self._watched is not None:
            self._watched.close()
        self._forget()
        self._counted.release()

    def _replies(self, event: Event) -> list[Reply]:  # noqa: PLR0911  # one for each kind of event
        match event:
            case RequestHeaders():
                return self._state.headers(self, event)
            case RequestBody():
                return self._state.body(self, event)
            case RequestTrailers():
                return self._state.trailers(self)
            case BodySkipped():
                return self._state.skipped(self)
            case BodyRead():
                return self._state.read(self, event)
            case RetryQueued():
                return self._state.retry(self, event)
            case ResponseHeaders() | ResponseBody() | ResponseTrailers():
                return self._on_response(event)
            case GiveWay():
                raise NoRoomForBody("the request's body is late, and others need its room")
        return []

    def _learn(self, config: StreamConfig | None) -> None:
        """Takes the configuration from the first message; in later ones it is ignored."""
        if config is not None and not self._has_begun:
            self._config = config
        self._has_begun = True

    def _watch(self, event: Event) -> list[Reply]:
        """Follows a request that others route, if that is so from its beginning."""
        if self._watched is None:
            if self._state is not _NEW:
                return []
            self._watched = WatchedRequest(
                self._picker, self._held_body, self._pool, self._options.reads_apart
            )
        return [*self._watched.on(event.event if isinstance(event, Observed) else event)]

    # The response: the same in every state.

    def _on_response(self, event: ResponseHeaders | ResponseBody | ResponseTrailers) -> list[Reply]:
        if isinstance(event, ResponseTrailers):
            self._counted.release()
            return [Continue(Phase.RESPONSE_TRAILERS)]
        self._learn(event.config)
        replies: list[Reply] = [Continue(Phase.RESPONSE_BODY)]
        if isinstance(event, ResponseHeaders):
            replies = [self._counted.on_response(event)]
        elif self._config.response_body is BodyMode.FULL_DUPLEX_STREAMED:
            replies = [*pieces(event.data, Phase.RESPONSE_BODY, event.end_of_stream)]
        if event.end_of_stream:
            self._counted.release()
        return replies

    # Its headers.

    def _begin(self, event: RequestHeaders) -> list[Reply]:
        self._held_body.begin(event)
        self.request_id = event.headers.get(REQUEST_ID, "")
        self._learn(event.config)
        if "upgrade" in event.headers and event.headers.get(":method", "GET") != "GET":
            # Envoy takes its body for the websocket's, and the endpoint waits for it (envoy#47161).
            raise PromptError("a websocket begins with GET (RFC 6455, 4.1): leave out Upgrade")
        query = self._query(None)
        self._plan = plan = self._picker.plan(query)
        if plan.lists_models:
            self.close()
            return [list_models(self._picker.model_cards())]
        if self._is_decided_by_headers(plan):
            return self._decide_by_headers(query, plan)
        if self._config.request_body in _BUFFERED:
            upload = self._held_body.announce()
            if upload is None:
                return [replace(self._route_without_body(Phase.REQUEST_HEADERS), is_unread=True)]
            self._state = _BUFFERING
            mode = self._config.request_body
            sends_answers = self._config.response_body not in {None, BodyMode.NONE}
            if mode is not None and sends_answers:
                return [Buffer(ContinueHeadersOnly(mode), upload)]
            return [Buffer(Continue(Phase.REQUEST_HEADERS), upload)]
        self._state = _HOLDING
        return []

    def _is_decided_by_headers(self, plan: RequestPlan) -> bool:
        request = self._held_body.request
        if request.end_of_stream or "upgrade" in request.headers or not plan.needs_body:
            return True
        mode, is_waiting = self._config.request_body, not self._config.sends_body_without_waiting
        return mode is BodyMode.NONE or (mode is BodyMode.STREAMED and is_waiting)

    def _decide_by_headers(self, query: Query, plan: RequestPlan) -> list[Reply]:
        request = self._held_body.request
        is_body_on_its_way = not request.end_of_stream and (
            self._is_duplex or self._config.sends_body_without_waiting
        )
        if is_body_on_its_way and "upgrade" not in request.headers and plan.may_wait:
            # A request that waits keeps its body, too; so the body counts from its beginning.
            self._state = _HOLDING
            return []
        return self._route_or_queue(_Resume(Phase.REQUEST_HEADERS, query))

    def _go_on(self, _: RequestHeaders) -> list[Reply]:
        return [Continue(Phase.REQUEST_HEADERS)]

    # A body that came before any headers: the proxy skips those.

    def _begin_body(self, event: RequestBody) -> list[Reply]:
        self._learn(event.config)
        if not self._is_duplex:
            return self._decide(event)
        self._state = _HOLDING
        return self._hold(event)

    # A body that a proxy buffered.

    def _decide(self, event: RequestBody) -> list[Reply]:
        self._held_body.check(event)
        is_partial = not event.end_of_stream and self._config.request_body is not BodyMode.BUFFERED
        self._held_body.put(event.data)
        query = self._query(event.data, is_partial=is_partial)
        return self._read(_Resume(Phase.REQUEST_BODY, query, has_ended=event.end_of_stream))

    def _decide_without(self) -> list[Reply]:
        routed = self._route_without_body(Phase.REQUEST_BODY)
        self._state = _PAST_BODY
        return [routed]

    # A body that is held until it has ended.

    def _hold(self, event: RequestBody) -> list[Reply]:
        self._held_body.check(event)
        if not self._held_body.add(event.data):
            return [*self._stop_holding(_no_room()), *self._pass_on(event)]
        if not event.end_of_stream:
            return []
        return self._stop_holding(None, has_ended=True)

    def _stop_holding(
        self, fault: NoRoomForBody | None, *more: Reply, has_ended: bool = False
    ) -> list[Reply]:
        """Replies to all messages so far: the headers, then the body, then `more`."""
        held = self._held_body
        resume = _Resume(
            Phase.REQUEST_BODY if held.request is NO_REQUEST else Phase.REQUEST_HEADERS,
            self._query(None if fault else held.body, fault=fault),
            held.body if self._is_duplex else b"",
            held.messages,
            more,
            has_ended,
        )
        if fault is None:
            return self._read(resume)
        # The rest of the body still comes and has no room here: the request cannot wait.
        return self._finish(resume, self._find(resume.query))

    def _end_body(self) -> list[Reply]:
        return self._stop_holding(None, Continue(Phase.REQUEST_TRAILERS))

    # A long body, parsed by the driver in a thread: the loop serves other streams meanwhile.

    def _read(self, resume: _Resume) -> list[Reply]:
        query, plan = resume.query, self._plan
        if not (
            self._options.reads_apart and (plan or self._picker.plan(query)).reads_long(query.body)
        ):
            return self._route_or_queue(resume)
        self._resume, self._state = resume, _READING
        return [BodyToRead(self._picker, query, plan)]

    def _on_read(self, event: BodyRead) -> list[Reply]:
        if isinstance(event.found, RequestError):
            raise event.found
        return self._route_or_queue(self._resume, event.found)

    # A pool without room: the request waits, where the pool queues some.

    def _route_or_queue(self, resume: _Resume, found: Found | None = None) -> list[Reply]:
        """Routes the request at once, or else queues it; raises the refusal where it can do neither."""
        query = resume.query
        found = found or self._find(query)
        queue = found.pool.queue
        if queue is None:
            return self._finish(resume, found)
        lane = found.pool.lane(query.headers, found.adapter, query.subset)
        try:
            if not queue.precedes(lane):
                return self._finish(resume, found)
        except (NoEndpoint, Overloaded) as refusal:
            if not found.pool.may_pass(refusal):
                raise
        wait = Wait.enter(queue, lane, query, found)
        if wait is None:
            return self._finish(resume, found)  # says why not
        # What was found in the body stays. The body goes, unless it is given back.
        self._resume, self._state = replace(resume, query=replace(query, body=None)), _WAITING
        self._wait = wait
        if not self._is_duplex:
            self._held_body.drop()
        waiter = wait.waiter
        return [Queued(waiter, waiter.until_s - waiter.since_s, self._config is not NO_CONFIG)]

    def _retry(self, event: RetryQueued) -> list[Reply]:
        """Routes the request if there is room now, else stays; at the last retry raises the refusal."""
        wait = self._wait
        assert wait is not None  # noqa: S101  # as long as the session is WAITING
        try:
            replies = self._finish(self._resume, wait.found)
        except (NoEndpoint, Overloaded) as refusal:
            if wait.goes_on(refusal, is_last=event.is_last):
                return []
            raise
        self._stop_waiting(QueueEnd.SERVED)
        return replies

    def _stop_waiting(self, end: QueueEnd) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.end(end)

    def _do_without(self) -> list[Reply]:
        if self._is_duplex:
            raise _no_room()
        return [*self._stop_holding(_no_room()), Continue(Phase.REQUEST_BODY)]

    # Messages of a request that is routed.

    def _pass_on(self, event: RequestBody) -> list[Reply]:
        if event.end_of_stream:
            self._state = _PAST_BODY
        if self._is_duplex:
            return [*pieces(event.data, Phase.REQUEST_BODY, event.end_of_stream)]
        return [Continue(Phase.REQUEST_BODY)]

    def _miss(self) -> list[Reply]:
        if self._is_duplex:
            raise _no_room()
        return (
            self._miss_response() if self._counted.has_response else [Continue(Phase.REQUEST_BODY)]
        )

    def _miss_response(self) -> list[Reply]:
        if self._config.response_body is BodyMode.FULL_DUPLEX_STREAMED:
            raise _no_room()
        return [Continue(Phase.RESPONSE_BODY)]

    def _pass_end(self) -> list[Reply]:
        return [Continue(Phase.REQUEST_TRAILERS)]

    def _ignore(self, _: Event) -> list[Reply]:
        return []

    def _lose(self) -> list[Reply]:
        raise _no_room()

    @property
    def _is_duplex(self) -> bool:
        return self._config.request_body is BodyMode.FULL_DUPLEX_STREAMED

    # The decision, and the state it needs.

    def _query(
        self,
        body: bytes | bytearray | None,
        *,
        is_partial: bool = False,
        fault: NoRoomForBody | None = None,
    ) -> Query:
        headers, subset = self._held_body.request.headers, self._held_body.subset
        method, path = headers.get(":method", "POST"), headers.get(":path", "")
        return Query(method, path, headers, body, is_partial, subset, self._pool, fault)

    def _find(self, query: Query) -> Found:
        return self._picker.find(query, self._plan)

    def _finish(self, resume: _Resume, found: Found) -> list[Reply]:
        """Routes the request, and replies to all messages so far."""
        routed = self._route(resume.phase, resume.query, found)
        if resume.has_ended:
            self._state = _PAST_BODY
        if not self._is_duplex:
            return [routed, *[Continue(Phase.REQUEST_BODY)] * resume.messages, *resume.more]
        given_back = pieces(resume.body, Phase.REQUEST_BODY, resume.has_ended)
        if resume.phase is Phase.REQUEST_BODY:
            routed = replace(routed, piece=next(given_back, _NO_PIECE))
        return [routed, *given_back, *resume.more]

    def _route(self, phase: Phase, query: Query, found: Found) -> Routed:
        decision = self._picker.pick(query, found)
        self._counted.set_pick(decision.pick)
        request = self._held_body.request
        is_ahead_of_body = phase is Phase.REQUEST_HEADERS and not request.end_of_stream
        skip_body = is_ahead_of_body and self._config.request_body in _BUFFERED
        self._state = _ROUTED
        self._forget()
        return Routed(
            phase,
            decision,
            request_id=None if REQUEST_ID in request.headers else self._options.new_request_id(),
            remove_headers=[
                name
                for name in request.headers
                if name not in PLAIN_HEADERS  # told apart in a fifth of the time
                and name.startswith(GUARDED)
                and name not in self._options.pass_headers
            ],
            clear_route_cache=self._options.clear_route_cache,
            skip_body=skip_body,
            ticket=self._counted.ticket,
        )

    def _route_without_body(self, phase: Phase) -> Routed:
        query = self._query(None, fault=_no_room())
        return self._route(phase, query, self._find(query))

    def _forget(self) -> None:
        """Drops headers and body: an open stream may last for minutes after its decision."""
        if self._held_body is not _NOTHING:
            self._held_body.forget()
            self._held_body, self._resume, self._plan = _NOTHING, _NOTHING_TO_RESUME, None


class _State(NamedTuple):
    """What a session does with each part of the request, and with what ends a stop."""

    name: str
    headers: Callable[[Session, RequestHeaders], list[Reply]]
    body: Callable[[Session, RequestBody], list[Reply]]
    skipped: Callable[[Session], list[Reply]]
    trailers: Callable[[Session], list[Reply]]
    read: Callable[[Session, BodyRead], list[Reply]]
    retry: Callable[[Session, RetryQueued], list[Reply]]


# The table. A closed session never reaches it: the client is answered, or gone. Where `_NONE`
# stands, the event wants no reply and changes nothing.
_S = Session
_NONE = _S._ignore
# fmt: off
#                                headers    its body        no room for it      trailers      it is read   a retry
_NEW       = _State("new",       _S._begin, _S._begin_body, _S._lose,           _S._pass_end, _NONE,       _NONE)
_BUFFERING = _State("buffering", _S._go_on, _S._decide,     _S._decide_without, _S._pass_end, _NONE,       _NONE)
_HOLDING   = _State("holding",   _S._go_on, _S._hold,       _S._do_without,     _S._end_body, _NONE,       _NONE)
_READING   = _State("reading",   _S._go_on, _NONE,          _S._miss,           _S._pass_end, _S._on_read, _NONE)
_WAITING   = _State("waiting",   _S._go_on, _NONE,          _S._miss,           _S._pass_end, _NONE,       _S._retry)
_ROUTED    = _State("routed",    _S._go_on, _S._pass_on,    _S._miss,           _S._pass_end, _NONE,       _NONE)
_PAST_BODY = _State("past body", _S._go_on, _NONE,          _S._miss_response,  _S._pass_end, _NONE,       _NONE)
_CLOSED    = _State("closed",    _S._go_on, _NONE,          _S._lose,           _S._pass_end, _NONE,       _NONE)
# fmt: on


def _no_room() -> NoRoomForBody:
    return NoRoomForBody("there is no room for the request's body now")
