"""Recorded conversations between a proxy and the service: what comes in, what must go out.

Run against the session itself and, encoded, over a socket.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.stream import events
from extproc.router.stream.session import Session, SessionOptions

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


def no_endpoints() -> Picker:
    return one_pool(())


def full_pool() -> Picker:
    return one_pool(limit=0)


def overloaded() -> Picker:
    picker = one_pool(ADDRESSES[:1], limit=1)
    picker.pick(Query("GET", "/", {}))
    return picker


def plain_pool() -> Picker:
    return Picker([Route(build_pool("llama", ADDRESSES, is_hashed=False))])


def open_session(picker: Picker, **options: Any) -> Session:
    """A session whose request ids are all `made`, and whose bodies are bounded."""
    pool = options.pop("pool", None)
    return Session(picker, SessionOptions(lambda: "made", MAX_BODY_BYTES, **options), pool)


def in_flight(picker: Picker) -> int:
    return sum(route.pool.book.total for route in picker.routes.values())


@dataclass(frozen=True, slots=True)
class Went:
    """Stands for a `Routed` reply: its phase, the pool, perhaps the address, and what it asks of Envoy."""

    phase: events.Phase
    pool: str = "llama"
    address: str | None = None
    skip_body: bool = False
    removed: tuple[str, ...] = ()
    request_id: str | None = "made"
    piece: events.Piece | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """Stands for an `Answer`: its status, its error code, and a piece of its message."""

    status: int
    code: str | None
    message: str = ""
    retry_after: str | None = None


Expected = events.Continue | events.ContinueHeadersOnly | events.Piece | Went | Said
# What a proxy says, and what it hears.
Turn = tuple[events.Event, Sequence[Expected]]
Turns = Sequence[Turn]


@dataclass(frozen=True, slots=True)
class Conversation:
    """`budget_bytes` limits what the session may hold of a body.

    `goes_unseen` says that the request still counts when the proxy has said its last word.
    """

    name: str
    turns: Turns
    picker: Picker = field(default_factory=one_pool)
    pool: str | None = None
    budget_bytes: int = 10_000_000
    goes_unseen: bool = False

    def __str__(self) -> str:
        return self.name


def summarize(reply: events.Reply) -> Expected:
    """What is fixed of a reply: not which of equal endpoints was picked."""
    match reply:
        case events.Routed():
            pick, removed = reply.decision.pick, tuple(sorted(reply.remove_headers))
            went = Went(reply.phase, pick.pool.name, pick.endpoint.address, reply.skip_body, removed)
            return replace(went, request_id=reply.request_id, piece=reply.piece)
        case events.Answer():
            error = orjson.loads(reply.body).get("error", {})
            retry_after = reply.headers.get("retry-after")
            return Said(reply.status, error.get("code"), error.get("message", ""), retry_after)
        case events.Served():
            return events.Continue(events.Phase.RESPONSE_HEADERS)
        case events.BodyToRead() | events.Queued():
            raise AssertionError("nothing that a proxy hears")
        case _:
            return reply


def agrees(expected: Expected, actual: Expected) -> bool:
    match expected, actual:
        case Went(address=None), Went():
            return expected == replace(actual, address=None)
        case Said(), Said():
            return expected.message in actual.message and expected == replace(
                actual, message=expected.message
            )
    return expected == actual


def headers(
    mode: events.BodyMode | None = events.BodyMode.BUFFERED,
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    end: bool = False,
    subset: Sequence[str] | None = None,
    waits: bool = True,
    response: events.BodyMode | None = events.BodyMode.NONE,
    **more: str,
) -> events.RequestHeaders:
    fields = {":method": method, ":path": path, "content-type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return events.RequestHeaders(
        fields, end, subset, events.StreamConfig(mode, response, sends_body_without_waiting=not waits)
    )


H, B, T = events.Phase.REQUEST_HEADERS, events.Phase.REQUEST_BODY, events.Phase.REQUEST_TRAILERS
R, RB, RT = events.Phase.RESPONSE_HEADERS, events.Phase.RESPONSE_BODY, events.Phase.RESPONSE_TRAILERS
GO_ON, GO_ON_BODY, GO_ON_RESPONSE = events.Continue(H), events.Continue(B), events.Continue(R)
DUPLEX = events.BodyMode.FULL_DUPLEX_STREAMED
MODEL_LAST = b'{"prompt": "x", "model": "qwen-7b"}'
NO_ENDPOINT, NO_ROOM = (Said(503, code, retry_after="1") for code in ("no_endpoint", "no_room"))
BODY_SENT, BODY_BEGUN = events.RequestBody(BODY), events.RequestBody(BODY, end_of_stream=False)


def part(data: bytes) -> events.RequestBody:
    """A piece of a body, not the last."""
    return events.RequestBody(data, end_of_stream=False)


def back(data: bytes, *, ends: bool = True) -> events.Piece:
    """A piece of a request's body that is given back."""
    return events.Piece(B, data, end_of_stream=ends)


def answer_back(data: bytes, *, ends: bool = False) -> events.Piece:
    return events.Piece(RB, data, end_of_stream=ends)


def recorded(
    rows: Mapping[str, Turns], build: Callable[[], Picker] = one_pool, **fields: Any
) -> list[Conversation]:
    """Conversations by their names, each with a picker of its own."""
    return [Conversation(name, turns, build(), **fields) for name, turns in rows.items()]


def _ask(model: str) -> events.RequestBody:
    return events.RequestBody(orjson.dumps({"model": model, "prompt": "x"}))


# How most of them begin: buffered, in full duplex, streamed without waiting for an answer.
ASKED: Turn = (headers(), [GO_ON])
OPENED: Turn = (headers(DUPLEX), [])
STREAMED: Turn = (headers(events.BodyMode.STREAMED, waits=False), [])
ANSWERED: Turn = (events.ResponseHeaders(), [GO_ON_RESPONSE])
# An end that comes twice.
NO_MORE: Turn = (events.RequestBody(b""), [])

ONE_POOL: dict[str, Turns] = {
    "buffered": [ASKED, (BODY_SENT, [Went(B)])],
    "buffered both ways: the answer is not wanted": [
        (headers(response=events.BodyMode.BUFFERED), [events.ContinueHeadersOnly(events.BodyMode.BUFFERED)]),
        (BODY_SENT, [Went(B)]),
        ANSWERED,
        (events.ResponseBody(b"all the same", end_of_stream=True), [events.Continue(RB)]),
    ],
    "mode unknown": [(headers(None), [GO_ON]), (BODY_SENT, [Went(B)])],
    "buffered, empty body": [ASKED, (events.RequestBody(b""), [Went(B)])],
    "buffered, not JSON": [ASKED, (events.RequestBody(b"{"), [Went(B)])],
    "buffered, with trailers": [
        ASKED,
        (BODY_BEGUN, [Went(B)]),
        (events.RequestTrailers(), [events.Continue(T)]),
    ],
    "buffered partial, cut off": [
        (headers(events.BodyMode.BUFFERED_PARTIAL), [GO_ON]),
        (part(BODY[:-9]), [Went(B)]),
    ],
    "no body mode": [(headers(events.BodyMode.NONE), [Went(H)])],
    "headers only": [(headers(method="GET", path="/v1/models", end=True), [Went(H)])],
    "websocket": [(headers(method="GET", upgrade="websocket"), [Went(H, skip_body=True)])],
    "upgrade of a POST": [(headers(upgrade="websocket"), [Went(H, skip_body=True)])],
    "request id kept": [(headers(end=True, x_request_id="abc"), [Went(H, request_id=None)])],
    "session header decides, body skipped": [
        (headers(x_session="s-1"), [Went(H, skip_body=True)]),
        (BODY_SENT, [GO_ON_BODY]),
    ],
    "control headers removed": [
        (headers(x_gateway_destination_endpoint="6.6.6.6:1", x_extproc_pool="other"), [GO_ON]),
        (BODY_SENT, [Went(B, removed=("x-extproc-pool", "x-gateway-destination-endpoint"))]),
    ],
    "streamed, decided before the body": [
        (headers(events.BodyMode.STREAMED), [Went(H)]),
        (part(b"a"), [GO_ON_BODY]),
        (events.RequestBody(b"b"), [GO_ON_BODY]),
    ],
    "streamed, body sent without waiting": [
        STREAMED,
        (part(BODY[:5]), []),
        (events.RequestBody(BODY[5:]), [Went(H), GO_ON_BODY, GO_ON_BODY]),
    ],
    "full duplex": [
        OPENED,
        (part(BODY[:5]), []),
        (events.RequestBody(BODY[5:]), [Went(H), back(BODY)]),
        NO_MORE,
        ANSWERED,
    ],
    "full duplex, large body": [
        OPENED,
        (events.RequestBody(b"x" * 124_001), [Went(H), *[back(b"x" * 62_000, ends=False)] * 2, back(b"x")]),
    ],
    "full duplex, body of exactly one piece": [
        OPENED,
        (events.RequestBody(b"x" * 62_000), [Went(H), back(b"x" * 62_000)]),
    ],
    "full duplex, empty body": [OPENED, (events.RequestBody(b""), [Went(H), back(b"")])],
    "full duplex, ended by trailers": [
        OPENED,
        (BODY_BEGUN, []),
        (events.RequestTrailers(), [Went(H), back(BODY, ends=False), events.Continue(T)]),
    ],
    "full duplex, decided by a header": [
        (headers(DUPLEX, x_session="s"), [Went(H)]),
        (part(b"a"), [back(b"a", ends=False)]),
        (events.RequestBody(b"b"), [back(b"b")]),
        NO_MORE,
    ],
    "full duplex response": [
        (headers(DUPLEX, end=True, response=DUPLEX), [Went(H)]),
        ANSWERED,
        (events.ResponseBody(b"data"), [answer_back(b"data")]),
        (events.ResponseBody(b"", end_of_stream=True), [answer_back(b"", ends=True)]),
        (events.ResponseTrailers(), [events.Continue(RT)]),
    ],
    "response phases passed through": [
        (headers(end=True, response=events.BodyMode.STREAMED), [Went(H)]),
        ANSWERED,
        (events.ResponseBody(b"data"), [events.Continue(RB)]),
        (events.ResponseTrailers(), [events.Continue(RT)]),
    ],
    "headers twice": [(headers(end=True), [Went(H)]), (headers(end=True), [GO_ON])],
    "body too large": [
        OPENED,
        (part(b"x" * 150_000), []),
        (events.RequestBody(b"x" * 50_001), [Said(413, "body_too_large", "200000 bytes")]),
        NO_MORE,
    ],
    "subset of one": [(headers(end=True, subset=["10.0.0.2"]), [Went(H, address="10.0.0.2:8000")])],
    **{
        f"subset with an IPv6 endpoint, spelt {spelt}": [
            (headers(end=True, subset=[spelt]), [Went(H, address="[fd00::3]:8000")])
        ]
        for spelt in ("[fd00::3]:8000", "[FD00:0::3]")
    },
    "subset told with the body": [
        ASKED,
        (events.RequestBody(BODY, subset=["10.0.0.1:8000"]), [Went(B, address="10.0.0.1:8000")]),
    ],
    "empty subset": [(headers(end=True, subset=[]), [NO_ENDPOINT])],
    "subset without match": [(headers(end=True, subset=["10.9.9.9:80"]), [NO_ENDPOINT])],
}
TWO_POOLS: dict[str, Turns] = {
    "model picks the pool": [ASKED, (_ask("qwen-7b"), [Went(B, "qwen")])],
    "adapter picks the pool": [ASKED, (_ask("sql-lora"), [Went(B, "qwen")])],
    "unknown model": [ASKED, (_ask("gpt-9"), [Said(404, "model_not_found", "`gpt-9` does not exist")])],
    "unknown model with a lone surrogate": [
        ASKED,
        (events.RequestBody(b'{"model": "\\ud800"}'), [Said(404, "model_not_found")]),
    ],
    "several pools, no model": [ASKED, (events.RequestBody(b"{}"), [Said(400, None, "model")])],
    "several pools, not JSON": [ASKED, (events.RequestBody(b"\xff\xfe"), [Said(400, None)])],
    "several pools list their models": [
        (headers(method="GET", path="/v1/models?x=1", end=True), [Said(200, None)])
    ],
    "full duplex, ended by trailers: the body is whole": [
        OPENED,
        (part(MODEL_LAST), []),
        (events.RequestTrailers(), [Went(H, "qwen"), back(MODEL_LAST, ends=False), events.Continue(T)]),
    ],
    "buffered, ended by trailers: the body is whole": [ASKED, (part(MODEL_LAST), [Went(B, "qwen")])],
}
NOWHERE: dict[str, Turns] = {
    "no endpoints": [ASKED, (BODY_SENT, [NO_ENDPOINT])],
    "no endpoints, headers only": [(headers(end=True), [NO_ENDPOINT]), (BODY_SENT, [])],
}
TEN_BYTES: dict[str, Turns] = {
    "full duplex, no room to hold the body": [
        OPENED,
        (part(b"a" * 9), []),
        (part(b"b" * 9), [Went(H), back(b"a" * 9, ends=False), back(b"b" * 9, ends=False)]),
        (part(b"c"), [back(b"c", ends=False)]),
        (events.RequestBody(b"d"), [back(b"d")]),
        NO_MORE,
    ]
}
ONE_BYTE: dict[str, Turns] = {
    "full duplex, no room for the last piece": [
        OPENED,
        (part(b"a"), []),
        (events.RequestBody(b"b"), [Went(H), back(b"a", ends=False), back(b"b")]),
        NO_MORE,
    ],
    "streamed without waiting, no room to hold the body": [
        STREAMED,
        (part(b"a"), []),
        (part(b"b"), [Went(H), GO_ON_BODY, GO_ON_BODY]),
        (events.RequestBody(b"c"), [GO_ON_BODY]),
    ],
}

BODY_BACK = Went(B, piece=back(BODY))
NOT_OURS = Said(503, "no_endpoint", "'mistral'", retry_after="1")
CONVERSATIONS = [
    *recorded(ONE_POOL),
    *recorded(NOWHERE, no_endpoints),
    *recorded(TWO_POOLS, two_pools),
    *recorded(TEN_BYTES, budget_bytes=10),
    *recorded(ONE_BYTE, budget_bytes=1),
    Conversation("round robin needs no body", [(headers(), [Went(H, skip_body=True)])], plain_pool()),
    Conversation("body before any headers", [(BODY_SENT, [BODY_BACK])], goes_unseen=True),
    Conversation(
        "the operator picks the pool", [(headers(end=True), [Went(H, "qwen")])], two_pools(), "qwen"
    ),
    Conversation("the operator names no pool of ours", [(headers(), [NOT_OURS])], two_pools(), "mistral"),
    Conversation("no room for the body that decides", [OPENED, (BODY_SENT, [NO_ROOM])], two_pools(), None, 1),
    Conversation(
        "overload", [(headers(end=True), [Said(429, "overloaded", "limit of 1", "1")])], overloaded()
    ),
]


# A skipped message has no bytes of its own: these go to the session alone.
UNKEPT: Turn = (events.BodySkipped(), [NO_ROOM])
BODIES_SKIPPED: dict[str, Turns] = {
    "buffered body skipped": [ASKED, (events.BodySkipped(), [Went(B)]), ANSWERED],
    "streamed body skipped while it is held": [
        STREAMED,
        (part(b"a"), []),
        (events.BodySkipped(), [Went(H), GO_ON_BODY, GO_ON_BODY]),
        (part(b"c"), [GO_ON_BODY]),
        (events.BodySkipped(), [GO_ON_BODY]),
    ],
    "a piece that nobody kept cannot be given back": [
        OPENED,
        (part(b"a"), []),
        UNKEPT,
        (events.RequestBody(b"c"), []),
    ],
    "nor one of a request already routed": [(headers(DUPLEX, x_session="s"), [Went(H)]), UNKEPT],
    "nothing at all was heard": [UNKEPT],
    "a response's body skipped": [
        (headers(end=True, response=events.BodyMode.BUFFERED), [Went(H)]),
        ANSWERED,
        (events.BodySkipped(), [events.Continue(RB)]),
    ],
    "a response's body skipped after the request's": [
        (headers(response=events.BodyMode.BUFFERED), [events.ContinueHeadersOnly(events.BodyMode.BUFFERED)]),
        (BODY_SENT, [Went(B)]),
        (events.BodySkipped(), [events.Continue(RB)]),
    ],
    "a response's piece that nobody kept": [
        (headers(response=DUPLEX), [events.ContinueHeadersOnly(events.BodyMode.BUFFERED)]),
        (BODY_SENT, [Went(B)]),
        UNKEPT,
    ],
}

SKIPPED = [
    *recorded(BODIES_SKIPPED),
    Conversation("the body that decides skipped", [ASKED, UNKEPT], two_pools()),
]
