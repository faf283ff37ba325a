"""Recorded conversations between a proxy and the service: what comes in, what must go out.

Run against the session itself and, encoded, over a socket.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.stream import events
from extproc.router.stream.session import Session, SessionOptions
from tests.router.outside import fixed_outside

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000")
BODY = orjson.dumps({"model": "llama", "messages": [{"role": "user", "content": "hello"}]})
MAX_BODY_BYTES = 200_000
FIRST_USER = "first_user_message"


def build_pool(
    name: str,
    addresses: Sequence[str],
    *keys: str,
    is_hashed: bool = True,
    limit: int | None = None,
) -> Pool:
    kind, options = ("prefix_hash", {"key": keys}) if is_hashed else ("round_robin", {})
    strategy = STRATEGIES.build(kind, options, fixed_outside())
    pool = Pool(name, strategy, max_in_flight=limit)
    pool.replace([Endpoint(f"{name}-{address}", address) for address in addresses])
    return pool


def one_pool(addresses: Sequence[str] = ADDRESSES, limit: int | None = None) -> Picker:
    return Picker(
        [Route(build_pool("llama", addresses, "header:x-session", FIRST_USER, limit=limit))]
    )


def two_pools() -> Picker:
    first = Route(build_pool("llama", ADDRESSES[:1], FIRST_USER), ("llama",))
    second = Route(
        build_pool("qwen", ADDRESSES[1:2], FIRST_USER), ("qwen-*",), frozenset({"sql-lora"})
    )
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


def picks_in_flight(picker: Picker) -> int:
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
            went = Went(
                reply.phase, pick.pool.name, pick.endpoint.address, reply.skip_body, removed
            )
            return replace(went, request_id=reply.request_id, piece=reply.piece)
        case events.Answer():
            error = orjson.loads(reply.body).get("error", {})
            retry_after = reply.headers.get("retry-after")
            return Said(reply.status, error.get("code"), error.get("message", ""), retry_after)
        case events.Served():
            return events.Continue(events.Phase.RESPONSE_HEADERS)
        case events.Buffer():
            return reply.reply
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
        fields,
        end,
        subset,
        events.StreamConfig(mode, response, sends_body_without_waiting=not waits),
    )


H, B, T = events.Phase.REQUEST_HEADERS, events.Phase.REQUEST_BODY, events.Phase.REQUEST_TRAILERS
R, RB, RT = (
    events.Phase.RESPONSE_HEADERS,
    events.Phase.RESPONSE_BODY,
    events.Phase.RESPONSE_TRAILERS,
)
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
        (
            headers(response=events.BodyMode.BUFFERED),
            [events.ContinueHeadersOnly(events.BodyMode.BUFFERED)],
        ),
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
    "upgrade of a POST": [
        (
            headers(upgrade="websocket"),
            [Said(400, None, "a websocket begins with GET (RFC 6455, 4.1): leave out Upgrade")],
        )
    ],
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
        (
            events.RequestBody(b"x" * 124_001),
            [Went(H), *[back(b"x" * 62_000, ends=False)] * 2, back(b"x")],
        ),
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
    "unknown model": [
        ASKED,
        (_ask("gpt-9"), [Said(404, "model_not_found", "`gpt-9` does not exist")]),
    ],
    "unknown model with a lone surrogate": [
        ASKED,
        (events.RequestBody(b'{"model": "\\ud800"}'), [Said(404, "model_not_found")]),
    ],
    "several pools, no model": [ASKED, (events.RequestBody(b"{}"), [Said(400, None, "model")])],
    "several pools, compressed": [
        ASKED,
        (events.RequestBody(b"\x1f\x8b\x08"), [Said(400, None, "compressed")]),
    ],
    "several pools, not JSON": [ASKED, (events.RequestBody(b"\xff\xfe"), [Said(400, None)])],
    "several pools list their models": [
        (headers(method="GET", path="/v1/models?x=1", end=True), [Said(200, None)])
    ],
    "full duplex, ended by trailers: the body is whole": [
        OPENED,
        (part(MODEL_LAST), []),
        (
            events.RequestTrailers(),
            [Went(H, "qwen"), back(MODEL_LAST, ends=False), events.Continue(T)],
        ),
    ],
    "buffered, ended by trailers: the body is whole": [
        ASKED,
        (part(MODEL_LAST), [Went(B, "qwen")]),
    ],
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
    Conversation(
        "round robin needs no body", [(headers(), [Went(H, skip_body=True)])], plain_pool()
    ),
    Conversation("body before any headers", [(BODY_SENT, [BODY_BACK])], goes_unseen=True),
    Conversation(
        "the operator picks the pool", [(headers(end=True), [Went(H, "qwen")])], two_pools(), "qwen"
    ),
    Conversation(
        "the operator names no pool of ours", [(headers(), [NOT_OURS])], two_pools(), "mistral"
    ),
    Conversation(
        "no room for the body that decides", [OPENED, (BODY_SENT, [NO_ROOM])], two_pools(), None, 1
    ),
    Conversation(
        "overload",
        [(headers(end=True), [Said(429, "overloaded", "limit of 1", "1")])],
        overloaded(),
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
        (
            headers(response=events.BodyMode.BUFFERED),
            [events.ContinueHeadersOnly(events.BodyMode.BUFFERED)],
        ),
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


# What other proxies than our own Envoy say, and what each must get, after the message orders of
# upstream's hermetic tests (Gateway API Inference Extension, llm-d: no `protocol_config`, `:method`
# or `:path`), of agentgateway and of NGINX Gateway Fabric. Those tests expect four things that are
# not ours: a body rewritten to another model's name, and with the objective's priority in it, 400
# for a body that is not JSON or names no model although one pool takes all, and 500 for a pool
# without endpoints.

# Upstream's requests: an id, a header that means nothing, the orders of a client.
FIELDS = {"hi": "mom", "x-request-id": "test-request-id"}
ORDERS = {
    "x-gateway-inference-objective": "premium",
    "x-gateway-model-name-rewrite": "sql-lora-1fdg2",
}
NEW_ORDERS = {
    "x-llm-d-inference-objective": "premium",
    "x-llm-d-model-name-rewrite": "sql-lora-1fdg2",
}
SHEDDABLE = {"x-gateway-inference-objective": "sql-lora-sheddable"}
KEPT = Went(H, request_id=None)
ENDED_BY_TRAILERS: list[Turn] = [
    ANSWERED,
    (events.ResponseBody(b"\0\0\0\0\1x"), [answer_back(b"\0\0\0\0\1x")]),
    (events.ResponseTrailers(), [events.Continue(RT)]),
]


def upstream(
    rows: Mapping[str, Turns], build: Callable[[], Picker] = one_pool
) -> Iterator[Conversation]:
    """They end without a word of the response, as upstream's tests do."""
    for name, turns in rows.items():
        is_routed = any(isinstance(reply, Went) for _, replies in turns for reply in replies)
        yield from recorded({f"upstream: {name}": turns}, build, goes_unseen=is_routed)


def answer(*chunks: bytes) -> Iterator[Turn]:
    """A response in full duplex: the headers, then chunks, each given back."""
    yield ANSWERED
    for number, chunk in enumerate(chunks, start=1):
        is_last = number == len(chunks)
        yield events.ResponseBody(chunk, is_last), [answer_back(chunk, ends=is_last)]


def ordered(orders: dict[str, str], body: bytes = BODY, first_bytes: int = 0) -> list[Turn]:
    """A client's orders, which end here; the body in one piece or two."""
    begun: list[Turn] = [(part(body[:first_bytes]), [])] if first_bytes else []
    went = Went(H, request_id=None, removed=tuple(sorted(orders)))
    return [
        (events.RequestHeaders(FIELDS | orders), []),
        *begun,
        (events.RequestBody(body[first_bytes:]), [went, back(body)]),
    ]


def limited_to(subset: Sequence[str]) -> Turn:
    return events.RequestHeaders(FIELDS, subset=subset), []


TYPED: Turn = (events.RequestHeaders({"content-type": "application/json"}), [])
UNTYPED: Turn = (events.RequestHeaders({}), [])
NO_MODEL = b'{"prompt": "hello world"}'
NO_JSON = b"no healthy upstream"
SECOND = Went(H, address="10.0.0.2:8000", request_id=None)

UPSTREAMS: dict[str, Turns] = {
    "headers, then one body": ordered({}),
    "a client's orders end here": ordered(ORDERS),
    "a client's orders in llm-d's words end here": ordered(NEW_ORDERS),
    "a body in two chunks": ordered({}, first_bytes=20),
    "a body that only passes through, with an objective": ordered(ORDERS, b"passthrough-parser"),
    "a sheddable objective and the pool not full": ordered(SHEDDABLE, first_bytes=20),
    "a body that is not JSON is the endpoint's to refuse": [
        (events.RequestHeaders({"hi": "mom"}), []),
        (events.RequestBody(NO_JSON), [Went(H), back(NO_JSON)]),
    ],
    "no model, where one pool takes all": [
        TYPED,
        (events.RequestBody(NO_MODEL), [Went(H), back(NO_MODEL)]),
    ],
    "a request that ends with its headers": [
        (
            events.RequestHeaders({"content-type": "text/event-stream"}, end_of_stream=True),
            [Went(H)],
        )
    ],
    "a subset, told with headers and body": [
        limited_to(["10.0.0.2:8000"]),
        (events.RequestBody(BODY, subset=["10.0.0.2:8000"]), [SECOND, back(BODY)]),
    ],
    "a subset of several, one of which is not known": [
        limited_to(["192.168.1.99:8000", "10.0.0.2:8000", "192.168.1.98:8000"]),
        (BODY_SENT, [SECOND, back(BODY)]),
    ],
    "a subset that no endpoint is in": [
        limited_to(["192.168.1.99:8000"]),
        (events.RequestBody(BODY, subset=["192.168.1.99:8000"]), [NO_ENDPOINT]),
    ],
    "a response alone, JSON in chunks": [*answer(b'{"id": "cm', b'pl-1"}')],
    "a response alone, not JSON": [*answer(NO_JSON)],
    "a response alone, its end an empty chunk": [*answer(b'{"id": "cmpl-1"}', b"")],
    "a response alone, an event stream": [*answer(b"data: {}", b"data: [DONE]", b"")],
    "a response alone, ended by trailers": ENDED_BY_TRAILERS,
    "headers of a request, then a gRPC response that trailers end": [
        (events.RequestHeaders(FIELDS | {":path": "/vllm.grpc.engine.VllmEngine/Generate"}), []),
        *ENDED_BY_TRAILERS,
    ],
}

UPSTREAM = [
    *upstream(UPSTREAMS),
    *upstream(
        {
            "no model, where the model decides": [
                TYPED,
                (events.RequestBody(NO_MODEL), [Said(400, None, "model")]),
            ]
        },
        two_pools,
    ),
    *upstream(
        {"no endpoints": [(events.RequestHeaders({}, end_of_stream=True), [NO_ENDPOINT])]},
        no_endpoints,
    ),
]

# agentgateway tells `:method` and `:path`, and ends each body with an empty message.
CHAT = events.RequestHeaders({":method": "POST", ":path": "/v1/chat/completions"})
MODELS = events.RequestHeaders({":method": "GET", ":path": "/v1/models"}, end_of_stream=True)
AGENTGATEWAY = recorded(
    {
        "agentgateway: a whole exchange": [
            (CHAT, []),
            (part(BODY[:9]), []),
            (part(BODY[9:]), []),
            (events.RequestBody(b""), [Went(H), back(BODY)]),
            *answer(b"data: {}", b"data: [DONE]", b""),
        ],
        "agentgateway: a body with trailers": [
            (CHAT, []),
            (BODY_BEGUN, []),
            (events.RequestTrailers(), [Went(H), back(BODY, ends=False), events.Continue(T)]),
            (events.RequestBody(b""), [back(b"")]),
            *answer(b"{}", b""),
        ],
        "agentgateway: a GET": [
            (MODELS, [Went(H)]),
            (events.ResponseHeaders(end_of_stream=True), [GO_ON_RESPONSE]),
        ],
    }
)

# NGINX Gateway Fabric sends both messages, ends its side at once, and reads until ours ends.
UNSEEN: dict[str, Turns] = {
    "nginx: a request, and never a word of its response": [
        (events.RequestHeaders({"content-type": "application/json", "x-real-ip": "10.1.1.1"}), []),
        (BODY_SENT, [Went(H), back(BODY)]),
    ],
    "nginx: the headers decide": [
        (events.RequestHeaders({"x-session": "s"}), [Went(H)]),
        (BODY_SENT, [back(BODY)]),
    ],
}

SECOND_MODEL: list[Turn] = [
    UNTYPED,
    (events.RequestBody(MODEL_LAST), [Went(H, "qwen"), back(MODEL_LAST)]),
]
NGINX = [
    *recorded(UNSEEN, goes_unseen=True),
    Conversation("nginx: the second pool's model", SECOND_MODEL, two_pools(), goes_unseen=True),
    Conversation("nginx: refused", [UNTYPED, (BODY_SENT, [NO_ENDPOINT])], no_endpoints()),
    Conversation("agentgateway: refused", [(CHAT, []), (BODY_SENT, [NO_ENDPOINT])], no_endpoints()),
]

REPORTED = events.StreamConfig(DUPLEX, DUPLEX)
BUFFERED = events.RequestBody(
    BODY, config=events.StreamConfig(events.BodyMode.BUFFERED, events.BodyMode.NONE)
)
OURS = ("x-gateway-destination-endpoint-served", "x-extproc-anything")
REPORTED_LATER: dict[str, Turns] = {
    "headers skipped: the mode comes with the body": [(BUFFERED, [Went(B)])],
    "headers skipped, full duplex: the pick goes with the first piece": [
        (events.RequestBody(b"x" * 60_000, end_of_stream=False, config=REPORTED), []),
        (
            events.RequestBody(b"y" * 10_000),
            [Went(B, piece=back(b"x" * 60_000 + b"y" * 2_000, ends=False)), back(b"y" * 8_000)],
        ),
    ],
    "only watched": [
        (events.Observed(event), []) for event in (headers(), events.RequestBody(BODY))
    ],
    "our own control headers end here, those of another spelling too": [
        (
            headers(x_gateway_destination_endpoint_served="6.6.6.6:1", x_extproc_anything="y"),
            [GO_ON],
        ),
        (BODY_SENT, [Went(B, removed=OURS[::-1])]),
    ],
}

WITHOUT_ROOM: list[Turn] = [
    (
        events.RequestBody(b"xx", end_of_stream=False, config=REPORTED),
        [Went(B, piece=back(b"", ends=False)), back(b"xx", ends=False)],
    ),
    (events.RequestBody(b"y"), [back(b"y")]),
]
MODE_LATE: list[Turn] = [(CHAT, []), (BUFFERED, [Went(H), back(BODY)])]
OTHERS = [
    *recorded(REPORTED_LATER),
    Conversation(
        "headers skipped, full duplex, no room to hold the body", WITHOUT_ROOM, budget_bytes=1
    ),
    Conversation(
        "a mode told later than with the first message is none", MODE_LATE, goes_unseen=True
    ),
]

GATEWAYS = [*UPSTREAM, *AGENTGATEWAY, *NGINX, *OTHERS]
