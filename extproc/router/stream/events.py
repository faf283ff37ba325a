"""A proxy's messages and our replies: the ext_proc protocol as plain values.

Built by the codec and trusted everywhere else. No protobuf, no gRPC, no clock here. Structs,
because a request makes a dozen of them and a frozen dataclass takes eight times as long to make.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from msgspec import Struct

from extproc.errors import RequestError
from extproc.router.routing.picker import Decision, Found, Picker, Query, RequestPlan
from extproc.router.routing.pool import Pick
from extproc.router.routing.queue import Waiter
from extproc.router.stream.uploads import Upload


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode` of the ext_proc API."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


class StreamConfig(Struct, frozen=True):
    """How the proxy's filter runs; the first message of a stream has it (`protocol_config`).

    `None` stands for a mode that this version does not have.
    """

    request_body: BodyMode | None = None
    response_body: BodyMode | None = None
    sends_body_without_waiting: bool = False


# For a first message without a configuration: the modes that the Endpoint Picker Protocol 1.0.0
# requires.
NO_CONFIG: Final = StreamConfig(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)


class RequestHeaders(Struct, frozen=True):
    """Lower-case names; of a header that comes twice, the last value counts."""

    headers: Mapping[str, str]
    end_of_stream: bool = False
    subset: Sequence[str] | None = None
    config: StreamConfig | None = None


class RequestBody(Struct, frozen=True):
    data: bytes | bytearray
    end_of_stream: bool = True
    subset: Sequence[str] | None = None
    config: StreamConfig | None = None


class BodySkipped(Struct, frozen=True):
    """A message was dropped because there was no room for it; by its size, it had a body."""


class BodyRead(Struct, frozen=True):
    """The driver's answer to a `BodyToRead`: what the picker found, or its error."""

    found: Found | RequestError


class RetryQueued(Struct, frozen=True):
    """The driver's event when the queue retries a request: there may be room for it.

    `is_last`: its time is over, so it is answered now, with an endpoint or a refusal.
    """

    is_last: bool = False


class GiveWay(Struct, frozen=True):
    """The driver's event when an upload is late and others need its room."""


class RequestTrailers(Struct, frozen=True):
    pass


class ResponseHeaders(Struct, frozen=True):
    """`served` is the `ip:port` that answered, where the gateway sends it (EPP 1.0.0).

    `status` is 0 where the gateway sends none. `is_upstreams`: an endpoint wrote this answer, for
    certain; otherwise it may be the proxy's own.
    """

    served: str | None = None
    end_of_stream: bool = False
    status: int = 0
    retry_after: str | None = None
    is_upstreams: bool = False
    config: StreamConfig | None = None


class ResponseBody(Struct, frozen=True):
    data: bytes | bytearray
    end_of_stream: bool = False
    config: StreamConfig | None = None


class ResponseTrailers(Struct, frozen=True):
    pass


class Observed(Struct, frozen=True):
    """A message in observability mode: the proxy goes on, and takes no answer."""

    event: "Event"


Event = (
    Observed
    | RequestHeaders
    | RequestBody
    | BodySkipped
    | BodyRead
    | RetryQueued
    | GiveWay
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
)


class Phase(IntEnum):
    """Which message a reply answers: the field number of `ProcessingResponse.response`."""

    REQUEST_HEADERS = 1
    RESPONSE_HEADERS = 2
    REQUEST_BODY = 3
    RESPONSE_BODY = 4
    REQUEST_TRAILERS = 5
    RESPONSE_TRAILERS = 6


class Continue(Struct, frozen=True):
    phase: Phase


class ContinueHeadersOnly(Struct, frozen=True):
    """Go on with the request's headers; send its body as before, but only the headers of the response."""

    request_body: BodyMode


class Buffer(Struct, frozen=True):
    """Go on with the request's headers, as `reply` says; meanwhile the proxy buffers the body.

    The driver sets the upload's `give_way`, which is a `GiveWay` to this session.
    """

    reply: Continue | ContinueHeadersOnly
    upload: Upload


class BodyToRead(Struct, frozen=True):
    """Nothing to send yet: the body is long, and the driver calls `find` in a thread."""

    picker: Picker
    query: Query
    plan: RequestPlan | None

    def find(self) -> Found:
        return self.picker.find(self.query, self.plan)


class Queued(Struct, frozen=True):
    """No endpoint yet: the request waits for `wait_s` at most, and `waiter` says when to try it again.

    `can_wait_longer`: the proxy understands `override_message_timeout`.
    """

    waiter: Waiter
    wait_s: float
    can_wait_longer: bool


class Served(Struct, frozen=True):
    """Go on with the response; `response` is what the gateway sent of it (EPP 1.0.0).

    `pool` is the name of the pick's pool, `address` the endpoint that answered. `is_elsewhere`: not
    the pick. `ticket` is the pick's number, 0 if it has none. `prefill` names who computed the prompt.
    """

    pool: str
    address: str
    response: ResponseHeaders
    is_elsewhere: bool = False
    ticket: int = 0
    prefill: Pick | None = None


class Piece(Struct, frozen=True):
    """A part of a body given back unchanged, in FULL_DUPLEX_STREAMED mode."""

    phase: Phase
    data: bytes | memoryview
    end_of_stream: bool


class Routed(Struct, frozen=True):
    """Go on, to the picked endpoint: headers set and removed, and the pick as dynamic metadata.

    `piece` is the first one of a body given back, where there are no headers to answer. `ticket` is
    the number by which an access log names the request, 0 without one. `is_unread`: the proxy must
    not buffer the body, and looks for a route that does not either.
    """

    phase: Phase
    decision: Decision
    request_id: str | None = None
    remove_headers: Sequence[str] = ()
    clear_route_cache: bool = False
    skip_body: bool = False
    piece: Piece | None = None
    ticket: int = 0
    is_unread: bool = False


class Answer(Struct, frozen=True):
    """An answer of our own to the client, JSON; ends the exchange.

    `outcome` is a metric label, and so is `pool`: the one that refused, empty if none was chosen.
    """

    status: int
    body: bytes
    outcome: str
    headers: Mapping[str, str] = {}
    pool: str = ""


Reply = (
    Continue | ContinueHeadersOnly | Buffer | BodyToRead | Queued | Served | Routed | Piece | Answer
)
