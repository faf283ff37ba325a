"""Recorded conversations between a proxy and the service: what comes in, what must go out.

Run against the session itself and, encoded, over a socket.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.stream.events import (
    Answer,
    BodyMode,
    BodySkipped,
    BodyToRead,
    Continue,
    ContinueAndTell,
    Event,
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
    Routed,
    Served,
    StreamConfig,
)

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000")
BODY = orjson.dumps({"model": "llama", "messages": [{"role": "user", "content": "hello"}]})
MAX_BODY_BYTES = 200_000
FIRST_USER = "first_user_message"


def build_pool(
    name: str, addresses: Sequence[str], *keys: str, is_hashed: bool = True, limit: int | None = None
) -> Pool:
    kind, options = ("prefix_hash", {"key": keys}) if is_hashed else ("round_robin", {})
    strategy = STRATEGIES.build(kind, options, Outside(random.Random(0), lambda: 0.0))
    pool = Pool(name, strategy, max_in_flight=limit)
    pool.replace([Endpoint(f"{name}-{address}", address) for address in addresses])
    return pool


def one_pool(addresses: Sequence[str] = ADDRESSES, limit: int | None = None) -> Picker:
    return Picker([Route(build_pool("llama", addresses, "header:x-session", FIRST_USER, limit=limit))])


def two_pools() -> Picker:
    first = Route(build_pool("llama", ADDRESSES[:1], FIRST_USER), ("llama",))
    second = Route(build_pool("qwen", ADDRESSES[1:2], FIRST_USER), ("qwen-*",), frozenset({"sql-lora"}))
    return Picker([first, second])


def plain_pool() -> Picker:
    return Picker([Route(build_pool("llama", ADDRESSES, is_hashed=False))])


@dataclass(frozen=True, slots=True)
class Went:
    """Stands for a `Routed` reply: its phase, the pool, perhaps the address, and what it asks of Envoy."""

    phase: Phase
    pool: str = "llama"
    address: str | None = None
    skip_body: bool = False
    removed: tuple[str, ...] = ()
    request_id: str | None = "made"
    piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """Stands for an `Answer`: its status, its error code, and a piece of its message."""

    status: int
    code: str | None
    message: str = ""
    retry_after: str | None = None


Expected = Continue | ContinueAndTell | Piece | Went | Said


@dataclass(frozen=True, slots=True)
class Conversation:
    """`budget_bytes` limits what the session may hold of a body.

    `goes_unseen` says that the request still counts when the proxy has said its last word.
    """

    name: str
    turns: Sequence[tuple[Event, Sequence[Expected]]]
    picker: Picker = field(default_factory=one_pool)
    pool: str | None = None
    budget_bytes: int = 10_000_000
    goes_unseen: bool = False

    def __str__(self) -> str:
        return self.name


def summarize(reply: Reply) -> Expected:
    """What is fixed of a reply: not which of equal endpoints was picked."""
    match reply:
        case Routed():
            pick = reply.decision.pick
            return Went(
                reply.phase,
                pick.pool.name,
                pick.endpoint.address,
                reply.skip_body,
                tuple(reply.remove_headers),
                reply.request_id,
                reply.piece,
            )
        case Answer():
            error = orjson.loads(reply.body).get("error", {})
            retry_after = reply.headers.get("retry-after")
            return Said(reply.status, error.get("code"), error.get("message", ""), retry_after)
        case Served():
            return Continue(Phase.RESPONSE_HEADERS)
        case BodyToRead() | Queued():
            raise AssertionError("nothing that a proxy hears")
        case _:
            return reply


def agrees(expected: Expected, actual: Expected) -> bool:
    match expected, actual:
        case Went(address=None), Went():
            return expected == Went(
                actual.phase,
                actual.pool,
                None,
                actual.skip_body,
                actual.removed,
                actual.request_id,
                actual.piece,
            )
        case Said(), Said():
            is_same = (expected.status, expected.code, expected.retry_after) == (
                actual.status,
                actual.code,
                actual.retry_after,
            )
            return is_same and expected.message in actual.message
    return expected == actual


def headers(
    mode: BodyMode | None = BodyMode.BUFFERED,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    end: bool = False,
    subset: Sequence[str] | None = None,
    waits: bool = True,
    response: BodyMode | None = BodyMode.NONE,
    **more: str,
) -> RequestHeaders:
    fields = {":method": method, ":path": path, "content-type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return RequestHeaders(
        fields, end, subset, StreamConfig(mode, response, sends_body_without_waiting=not waits)
    )


H, B, T = Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.REQUEST_TRAILERS
RESPONSE = Phase.RESPONSE_HEADERS
GO_ON = Continue(H)
MODEL_LAST = b'{"prompt": "x", "model": "qwen-7b"}'
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


def _body(model: str) -> RequestBody:
    return RequestBody(orjson.dumps({"model": model, "prompt": "x"}))


CONVERSATIONS = [
    Conversation("buffered", [(headers(), [GO_ON]), (RequestBody(BODY), [Went(B)])]),
    Conversation(
        "buffered both ways: the answer is not wanted",
        [
            (headers(response=BodyMode.BUFFERED), [ContinueAndTell(BodyMode.BUFFERED)]),
            (RequestBody(BODY), [Went(B)]),
            (ResponseHeaders(), [Continue(Phase.RESPONSE_HEADERS)]),
            (ResponseBody(b"all the same", end_of_stream=True), [Continue(Phase.RESPONSE_BODY)]),
        ],
    ),
    Conversation("mode unknown", [(headers(None), [GO_ON]), (RequestBody(BODY), [Went(B)])]),
    Conversation("buffered, empty body", [(headers(), [GO_ON]), (RequestBody(b""), [Went(B)])]),
    Conversation("buffered, not JSON", [(headers(), [GO_ON]), (RequestBody(b"{"), [Went(B)])]),
    Conversation(
        "buffered, with trailers",
        [
            (headers(), [GO_ON]),
            (RequestBody(BODY, end_of_stream=False), [Went(B)]),
            (RequestTrailers(), [Continue(T)]),
        ],
    ),
    Conversation(
        "buffered partial, cut off",
        [
            (headers(BodyMode.BUFFERED_PARTIAL), [GO_ON]),
            (RequestBody(BODY[:-9], end_of_stream=False), [Went(B)]),
        ],
    ),
    Conversation("no body mode", [(headers(BodyMode.NONE), [Went(H)])]),
    Conversation("headers only", [(headers(method="GET", path="/v1/models", end=True), [Went(H)])]),
    Conversation("websocket", [(headers(method="GET", upgrade="websocket"), [Went(H, skip_body=True)])]),
    Conversation("upgrade of a POST", [(headers(upgrade="websocket"), [Went(H, skip_body=True)])]),
    Conversation("request id kept", [(headers(end=True, x_request_id="abc"), [Went(H, request_id=None)])]),
    Conversation(
        "session header decides, body skipped",
        [(headers(x_session="s-1"), [Went(H, skip_body=True)]), (RequestBody(BODY), [Continue(B)])],
    ),
    Conversation("round robin needs no body", [(headers(), [Went(H, skip_body=True)])], picker=plain_pool()),
    Conversation(
        "control headers removed",
        [
            (headers(x_gateway_destination_endpoint="6.6.6.6:1", x_extproc_pool="other"), [GO_ON]),
            (RequestBody(BODY), [Went(B, removed=("x-gateway-destination-endpoint", "x-extproc-pool"))]),
        ],
    ),
    Conversation(
        "streamed, decided before the body",
        [
            (headers(BodyMode.STREAMED), [Went(H)]),
            (RequestBody(b"a", end_of_stream=False), [Continue(B)]),
            (RequestBody(b"b"), [Continue(B)]),
        ],
    ),
    Conversation(
        "streamed, body sent without waiting",
        [
            (headers(BodyMode.STREAMED, waits=False), []),
            (RequestBody(BODY[:5], end_of_stream=False), []),
            (RequestBody(BODY[5:]), [Went(H), Continue(B), Continue(B)]),
        ],
    ),
    Conversation(
        "full duplex",
        [
            (headers(DUPLEX), []),
            (RequestBody(BODY[:5], end_of_stream=False), []),
            (RequestBody(BODY[5:]), [Went(H), Piece(B, BODY, end_of_stream=True)]),
            (RequestBody(b""), []),
            (ResponseHeaders(), [Continue(Phase.RESPONSE_HEADERS)]),
        ],
    ),
    Conversation(
        "full duplex, large body",
        [
            (headers(DUPLEX), []),
            (
                RequestBody(b"x" * 124_001),
                [
                    Went(H),
                    Piece(B, b"x" * 62_000, end_of_stream=False),
                    Piece(B, b"x" * 62_000, end_of_stream=False),
                    Piece(B, b"x", end_of_stream=True),
                ],
            ),
        ],
    ),
    Conversation(
        "full duplex, body of exactly one piece",
        [
            (headers(DUPLEX), []),
            (RequestBody(b"x" * 62_000), [Went(H), Piece(B, b"x" * 62_000, end_of_stream=True)]),
        ],
    ),
    Conversation(
        "full duplex, empty body",
        [(headers(DUPLEX), []), (RequestBody(b""), [Went(H), Piece(B, b"", end_of_stream=True)])],
    ),
    Conversation(
        "full duplex, ended by trailers",
        [
            (headers(DUPLEX), []),
            (RequestBody(BODY, end_of_stream=False), []),
            (RequestTrailers(), [Went(H), Piece(B, BODY, end_of_stream=False), Continue(T)]),
        ],
    ),
    Conversation(
        "full duplex, decided by a header",
        [
            (headers(DUPLEX, x_session="s"), [Went(H)]),
            (RequestBody(b"a", end_of_stream=False), [Piece(B, b"a", end_of_stream=False)]),
            (RequestBody(b"b"), [Piece(B, b"b", end_of_stream=True)]),
            (RequestBody(b""), []),
        ],
    ),
    Conversation(
        "full duplex response",
        [
            (headers(DUPLEX, end=True, response=DUPLEX), [Went(H)]),
            (ResponseHeaders(), [Continue(Phase.RESPONSE_HEADERS)]),
            (ResponseBody(b"data"), [Piece(Phase.RESPONSE_BODY, b"data", end_of_stream=False)]),
            (ResponseBody(b"", end_of_stream=True), [Piece(Phase.RESPONSE_BODY, b"", end_of_stream=True)]),
            (ResponseTrailers(), [Continue(Phase.RESPONSE_TRAILERS)]),
        ],
    ),
    Conversation(
        "response phases passed through",
        [
            (headers(end=True, response=BodyMode.STREAMED), [Went(H)]),
            (ResponseHeaders(), [Continue(Phase.RESPONSE_HEADERS)]),
            (ResponseBody(b"data"), [Continue(Phase.RESPONSE_BODY)]),
            (ResponseTrailers(), [Continue(Phase.RESPONSE_TRAILERS)]),
        ],
    ),
    Conversation(
        "body before any headers",
        [(RequestBody(BODY), [Went(B, piece=Piece(B, BODY, end_of_stream=True))])],
        goes_unseen=True,
    ),
    Conversation("headers twice", [(headers(end=True), [Went(H)]), (headers(end=True), [GO_ON])]),
    Conversation(
        "body too large",
        [
            (headers(DUPLEX), []),
            (RequestBody(b"x" * 150_000, end_of_stream=False), []),
            (RequestBody(b"x" * 50_001), [Said(413, "body_too_large", "200000 bytes")]),
            (RequestBody(b""), []),
        ],
    ),
    Conversation(
        "subset of one", [(headers(end=True, subset=["10.0.0.2"]), [Went(H, address="10.0.0.2:8000")])]
    ),
    Conversation(
        "subset with an IPv6 endpoint",
        [(headers(end=True, subset=["[fd00::3]:8000"]), [Went(H, address="[fd00::3]:8000")])],
    ),
    Conversation(
        "subset with a bare IPv6 address, spelt at length",
        [(headers(end=True, subset=["[FD00:0::3]"]), [Went(H, address="[fd00::3]:8000")])],
    ),
    Conversation(
        "subset told with the body",
        [
            (headers(), [GO_ON]),
            (RequestBody(BODY, subset=["10.0.0.1:8000"]), [Went(B, address="10.0.0.1:8000")]),
        ],
    ),
    Conversation(
        "empty subset", [(headers(end=True, subset=[]), [Said(503, "no_endpoint", retry_after="1")])]
    ),
    Conversation(
        "subset without match",
        [(headers(end=True, subset=["10.9.9.9:80"]), [Said(503, "no_endpoint", retry_after="1")])],
    ),
    Conversation(
        "no endpoints",
        [(headers(), [GO_ON]), (RequestBody(BODY), [Said(503, "no_endpoint", retry_after="1")])],
        picker=one_pool(()),
    ),
    Conversation(
        "no endpoints, headers only",
        [(headers(end=True), [Said(503, "no_endpoint", retry_after="1")]), (RequestBody(BODY), [])],
        picker=one_pool(()),
    ),
    Conversation(
        "model picks the pool",
        [(headers(), [GO_ON]), (_body("qwen-7b"), [Went(B, "qwen")])],
        picker=two_pools(),
    ),
    Conversation(
        "adapter picks the pool",
        [(headers(), [GO_ON]), (_body("sql-lora"), [Went(B, "qwen")])],
        picker=two_pools(),
    ),
    Conversation(
        "unknown model",
        [(headers(), [GO_ON]), (_body("gpt-9"), [Said(404, "model_not_found", "`gpt-9` does not exist")])],
        picker=two_pools(),
    ),
    Conversation(
        "unknown model with a lone surrogate",
        [(headers(), [GO_ON]), (RequestBody(b'{"model": "\\ud800"}'), [Said(404, "model_not_found")])],
        picker=two_pools(),
    ),
    Conversation(
        "several pools, no model",
        [(headers(), [GO_ON]), (RequestBody(b"{}"), [Said(400, None, "model")])],
        picker=two_pools(),
    ),
    Conversation(
        "several pools, not JSON",
        [(headers(), [GO_ON]), (RequestBody(b"\xff\xfe"), [Said(400, None)])],
        picker=two_pools(),
    ),
    Conversation(
        "several pools list their models",
        [(headers(method="GET", path="/v1/models?x=1", end=True), [Said(200, None)])],
        picker=two_pools(),
    ),
    Conversation(
        "the operator picks the pool",
        [(headers(end=True), [Went(H, "qwen")])],
        picker=two_pools(),
        pool="qwen",
    ),
    Conversation(
        "the operator names no pool of ours",
        [(headers(), [Said(503, "no_endpoint", "'mistral'", retry_after="1")])],
        picker=two_pools(),
        pool="mistral",
    ),
    Conversation(
        "full duplex, ended by trailers: the body is whole",
        [
            (headers(DUPLEX), []),
            (RequestBody(MODEL_LAST, end_of_stream=False), []),
            (RequestTrailers(), [Went(H, "qwen"), Piece(B, MODEL_LAST, end_of_stream=False), Continue(T)]),
        ],
        picker=two_pools(),
    ),
    Conversation(
        "buffered, ended by trailers: the body is whole",
        [(headers(), [GO_ON]), (RequestBody(MODEL_LAST, end_of_stream=False), [Went(B, "qwen")])],
        picker=two_pools(),
    ),
    Conversation(
        "full duplex, no room to hold the body",
        [
            (headers(DUPLEX), []),
            (RequestBody(b"a" * 9, end_of_stream=False), []),
            (
                RequestBody(b"b" * 9, end_of_stream=False),
                [Went(H), Piece(B, b"a" * 9, end_of_stream=False), Piece(B, b"b" * 9, end_of_stream=False)],
            ),
            (RequestBody(b"c", end_of_stream=False), [Piece(B, b"c", end_of_stream=False)]),
            (RequestBody(b"d"), [Piece(B, b"d", end_of_stream=True)]),
            (RequestBody(b""), []),
        ],
        budget_bytes=10,
    ),
    Conversation(
        "full duplex, no room for the last piece",
        [
            (headers(DUPLEX), []),
            (RequestBody(b"a", end_of_stream=False), []),
            (
                RequestBody(b"b"),
                [Went(H), Piece(B, b"a", end_of_stream=False), Piece(B, b"b", end_of_stream=True)],
            ),
            (RequestBody(b""), []),
        ],
        budget_bytes=1,
    ),
    Conversation(
        "streamed without waiting, no room to hold the body",
        [
            (headers(BodyMode.STREAMED, waits=False), []),
            (RequestBody(b"a", end_of_stream=False), []),
            (RequestBody(b"b", end_of_stream=False), [Went(H), Continue(B), Continue(B)]),
            (RequestBody(b"c"), [Continue(B)]),
        ],
        budget_bytes=1,
    ),
    Conversation(
        "several pools, no room for the body that decides",
        [(headers(DUPLEX), []), (RequestBody(BODY), [Said(503, "no_room", retry_after="1")])],
        picker=two_pools(),
        budget_bytes=1,
    ),
    Conversation("overload", [(headers(end=True), [Said(429, "overloaded", "limit of 1", retry_after="1")])]),
]


def overload(conversation: Conversation) -> Conversation:
    """The conversation called `overload` needs a pool that is full already."""
    if conversation.name != "overload":
        return conversation
    picker = one_pool(ADDRESSES[:1], limit=1)
    picker.pick(Query("GET", "/", {}))
    return Conversation(conversation.name, conversation.turns, picker)


# A skipped message has no bytes of its own: these go to the session alone.
SKIPPED = [
    Conversation(
        "buffered body skipped",
        [(headers(), [GO_ON]), (BodySkipped(), [Went(B)]), (ResponseHeaders(), [Continue(RESPONSE)])],
    ),
    Conversation(
        "streamed body skipped while it is held",
        [
            (headers(BodyMode.STREAMED, waits=False), []),
            (RequestBody(b"a", end_of_stream=False), []),
            (BodySkipped(), [Went(H), Continue(B), Continue(B)]),
            (RequestBody(b"c", end_of_stream=False), [Continue(B)]),
            (BodySkipped(), [Continue(B)]),
        ],
    ),
    Conversation(
        "a piece that nobody kept cannot be given back",
        [
            (headers(DUPLEX), []),
            (RequestBody(b"a", end_of_stream=False), []),
            (BodySkipped(), [Said(503, "no_room", retry_after="1")]),
            (RequestBody(b"c"), []),
        ],
    ),
    Conversation(
        "nor one of a request already routed",
        [
            (headers(DUPLEX, x_session="s"), [Went(H)]),
            (BodySkipped(), [Said(503, "no_room", retry_after="1")]),
        ],
    ),
    Conversation("nothing at all was heard", [(BodySkipped(), [Said(503, "no_room", retry_after="1")])]),
    Conversation(
        "several pools, the body that decides skipped",
        [(headers(), [GO_ON]), (BodySkipped(), [Said(503, "no_room", retry_after="1")])],
        picker=two_pools(),
    ),
    Conversation(
        "a response's body skipped",
        [
            (headers(end=True, response=BodyMode.BUFFERED), [Went(H)]),
            (ResponseHeaders(), [Continue(RESPONSE)]),
            (BodySkipped(), [Continue(Phase.RESPONSE_BODY)]),
        ],
    ),
    Conversation(
        "a response's body skipped after the request's",
        [
            (headers(response=BodyMode.BUFFERED), [ContinueAndTell(BodyMode.BUFFERED)]),
            (RequestBody(BODY), [Went(B)]),
            (BodySkipped(), [Continue(Phase.RESPONSE_BODY)]),
        ],
    ),
    Conversation(
        "a response's piece that nobody kept",
        [
            (headers(response=DUPLEX), [ContinueAndTell(BodyMode.BUFFERED)]),
            (RequestBody(BODY), [Went(B)]),
            (BodySkipped(), [Said(503, "no_room", retry_after="1")]),
        ],
    ),
]
