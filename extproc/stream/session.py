"""One ext_proc stream as a pure state machine: events in, replies out.

The rules are Envoy's: one reply per message, in the messages' order; but in FULL_DUPLEX_STREAMED mode
the request's headers are answered only when its body has ended, and the body is then given back in
pieces. Whatever comes in whatever order, a session never raises and decides at most once.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Final

from extproc.errors import BodyTooLarge, RequestError
from extproc.routing.picker import Ask, Picker
from extproc.routing.pool import Pick, Pool
from extproc.stream.answers import list_models, refuse
from extproc.stream.events import (
    Answer,
    BodyMode,
    Continue,
    Event,
    Phase,
    Piece,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    Routed,
)
from extproc.stream.names import CONTROL_HEADERS, REQUEST_ID

# Envoy refuses larger pieces of a body in FULL_DUPLEX_STREAMED mode.
PIECE_BYTES: Final = 62_000

_BUFFERED: Final = frozenset({None, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})


class _State(Enum):
    WAITING = auto()  # for headers or, once they are acknowledged, for the buffered body
    HOLDING = auto()  # back the reply to the headers until the streamed body has ended
    ROUTED = auto()
    ANSWERED = auto()


class Session:
    """One request's state. `close` ends it, as often as one likes; its pick is released once.

    `pool` is the operator's choice of a pool, told with the stream. `new_request_id` makes an
    `x-request-id` for a request that came without one.
    """

    def __init__(
        self,
        picker: Picker,
        *,
        new_request_id: Callable[[], str],
        max_body_bytes: int = 33_554_432,
        clear_route_cache: bool = False,
        pool: str | None = None,
    ) -> None:
        self._picker = picker
        self._new_request_id = new_request_id
        self._max_body_bytes = max_body_bytes
        self._clear_route_cache = clear_route_cache
        self._pool = pool
        self._state = _State.WAITING
        self._request = RequestHeaders({})
        self._subset: Sequence[str] | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._has_body_ended = False
        self._pick: Pick | None = None
        self.served_elsewhere: Pool | None = None

    def __repr__(self) -> str:
        return f"<Session {self._state.name.lower()}>"

    def on(self, event: Event) -> list[Reply]:
        """Returns what to send back for `event`, in order; nothing more once the client is answered."""
        if self._state is _State.ANSWERED:
            return []
        try:
            return self._replies(event)
        except RequestError as error:
            self._state = _State.ANSWERED
            return [refuse(error)]

    def close(self) -> None:
        """Releases what the request held. For every end: served, aborted, failed, shut down."""
        pick, self._pick = self._pick, None
        self._state = _State.ANSWERED
        if pick is not None:
            pick.release()

    def _replies(self, event: Event) -> list[Reply]:
        match event:
            case RequestHeaders():
                return self._on_request_headers(event)
            case RequestBody():
                return self._on_request_body(event)
            case RequestTrailers():
                return self._on_request_trailers()
            case ResponseHeaders():
                return self._on_response_headers(event)
            case ResponseBody():
                return _pass_on(event, Phase.RESPONSE_BODY, self._request.config.response_body)
        return [Continue(Phase.RESPONSE_TRAILERS)]

    def _on_request_headers(self, event: RequestHeaders) -> list[Reply]:
        if self._state is not _State.WAITING:
            return [Continue(Phase.REQUEST_HEADERS)]
        self._request, self._subset = event, event.subset
        ask = self._ask(None)
        if self._picker.answers_models(ask):
            self._state = _State.ANSWERED
            return [list_models(self._picker.model_names())]
        if self._is_decided_by_headers(ask):
            return [self._route(Phase.REQUEST_HEADERS, ask)]
        if event.config.request_body in _BUFFERED:
            return [Continue(Phase.REQUEST_HEADERS)]
        self._state = _State.HOLDING
        return []

    def _on_request_body(self, event: RequestBody) -> list[Reply]:
        if self._has_body_ended:
            # Above about 1 MB Envoy sends the end of a FULL_DUPLEX_STREAMED body twice.
            return []
        self._has_body_ended = event.end_of_stream
        if self._state is _State.ROUTED:
            return _pass_on(event, Phase.REQUEST_BODY, self._request.config.request_body)
        self._collect(event)
        if self._state is _State.WAITING:
            return [self._route(Phase.REQUEST_BODY, self._ask(event))]
        return self._stop_holding(event) if event.end_of_stream else []

    def _on_request_trailers(self) -> list[Reply]:
        replies: list[Reply] = []
        if self._state is _State.HOLDING:
            replies = self._stop_holding(RequestBody(b"", end_of_stream=False))
        return [*replies, Continue(Phase.REQUEST_TRAILERS)]

    def _on_response_headers(self, event: ResponseHeaders) -> list[Reply]:
        pick = self._pick
        if pick is not None and event.served not in {None, pick.endpoint.address}:
            self.served_elsewhere = pick.pool
            self._pick = pick.pool.move(pick, event.served or "")
        return [Continue(Phase.RESPONSE_HEADERS)]

    def _is_decided_by_headers(self, ask: Ask) -> bool:
        request = self._request
        if request.end_of_stream or "upgrade" in request.headers or not self._picker.needs_body(ask):
            return True
        match request.config.request_body:
            case BodyMode.NONE:
                return True
            case BodyMode.STREAMED:
                # Envoy sends no body before its headers are answered, unless it says so.
                return not request.config.sends_body_without_waiting
        return False

    def _collect(self, event: RequestBody) -> None:
        if event.subset is not None:
            self._subset = event.subset
        self._body.append(event.data)
        self._body_bytes += len(event.data)
        if self._body_bytes > self._max_body_bytes:
            self._body.clear()
            raise BodyTooLarge(f"the request is larger than {self._max_body_bytes} bytes")

    def _stop_holding(self, last: RequestBody) -> list[Reply]:
        messages, body = len(self._body), b"".join(self._body)
        routed = self._route(Phase.REQUEST_HEADERS, self._ask(last, body))
        if self._request.config.request_body is BodyMode.STREAMED:
            return [routed, *[Continue(Phase.REQUEST_BODY)] * messages]
        return [routed, *_pieces(body, Phase.REQUEST_BODY, last.end_of_stream)]

    def _ask(self, last: RequestBody | None, body: bytes | None = None) -> Ask:
        headers = self._request.headers
        if body is None and last is not None:
            body = b"".join(self._body)
        return Ask(
            method=headers.get(":method", ""),
            path=headers.get(":path", ""),
            headers=headers,
            body=body,
            is_partial=last is not None and not last.end_of_stream,
            subset=self._subset,
            pool=self._pool,
        )

    def _route(self, phase: Phase, ask: Ask) -> Routed:
        decision = self._picker.pick(ask)
        self._pick = decision.pick
        self._state = _State.ROUTED
        self._body.clear()
        headers = self._request.headers
        return Routed(
            phase,
            decision,
            request_id=None if REQUEST_ID in headers else self._new_request_id(),
            remove_headers=[name for name in CONTROL_HEADERS if name in headers],
            clear_route_cache=self._clear_route_cache,
            skip_body=self._can_skip_body(phase),
        )

    def _can_skip_body(self, phase: Phase) -> bool:
        request = self._request
        is_ahead_of_body = phase is Phase.REQUEST_HEADERS and not request.end_of_stream
        return is_ahead_of_body and request.config.request_body in _BUFFERED


def _pass_on(event: RequestBody | ResponseBody, phase: Phase, mode: BodyMode | None) -> list[Reply]:
    if mode is BodyMode.FULL_DUPLEX_STREAMED:
        return [*_pieces(event.data, phase, event.end_of_stream)]
    return [Continue(phase)]


def _pieces(data: bytes, phase: Phase, end_of_stream: bool) -> Iterator[Piece]:
    for start in range(0, len(data) or end_of_stream, PIECE_BYTES):
        end = start + PIECE_BYTES
        yield Piece(phase, data[start:end], end_of_stream and end >= len(data))
