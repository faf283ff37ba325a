"""What other proxies than our own Envoy say, and what each of them must get.

Written after the message orders of upstream's hermetic tests (Gateway API Inference Extension, llm-d's
router: no `protocol_config`, no `:method`, no `:path`), of agentgateway and of NGINX Gateway Fabric. Those
tests expect four things that are not ours: a body rewritten to another model's name, and with the objective's
priority in it, 400 for a body that is not JSON or names no model although one pool takes all, and 500 for a
pool without endpoints.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from extproc.router.routing.picker import Picker
from extproc.router.stream.events import (
    BodyMode,
    Continue,
    Observed,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    StreamConfig,
)
from tests.router.stream.conversations import (
    ANSWERED,
    BODY,
    BODY_BEGUN,
    BODY_SENT,
    DUPLEX,
    GO_ON,
    GO_ON_RESPONSE,
    MODEL_LAST,
    NO_ENDPOINT,
    RT,
    B,
    Conversation,
    H,
    Said,
    T,
    Turn,
    Turns,
    Went,
    answer_back,
    back,
    headers,
    no_endpoints,
    one_pool,
    part,
    recorded,
    two_pools,
)

# Upstream's requests: an id, a header that means nothing, the orders of a client.
SAID = {"hi": "mom", "x-request-id": "test-request-id"}
ORDERS = {"x-gateway-inference-objective": "premium", "x-gateway-model-name-rewrite": "sql-lora-1fdg2"}
NEW_ORDERS = {"x-llm-d-inference-objective": "premium", "x-llm-d-model-name-rewrite": "sql-lora-1fdg2"}
SHEDDABLE = {"x-gateway-inference-objective": "sql-lora-sheddable"}
KEPT = Went(H, request_id=None)
ENDED_BY_TRAILERS: list[Turn] = [
    ANSWERED,
    (ResponseBody(b"\0\0\0\0\1x"), [answer_back(b"\0\0\0\0\1x")]),
    (ResponseTrailers(), [Continue(RT)]),
]


def upstream(rows: Mapping[str, Turns], build: Callable[[], Picker] = one_pool) -> Iterator[Conversation]:
    """They end without a word of the response, as upstream's tests do."""
    for name, turns in rows.items():
        is_routed = any(isinstance(reply, Went) for _, replies in turns for reply in replies)
        yield from recorded({f"upstream: {name}": turns}, build, goes_unseen=is_routed)


def answer(*chunks: bytes) -> Iterator[Turn]:
    """A response in full duplex: the headers, then chunks, each given back."""
    yield ANSWERED
    for number, chunk in enumerate(chunks, start=1):
        is_last = number == len(chunks)
        yield ResponseBody(chunk, is_last), [answer_back(chunk, ends=is_last)]


def ordered(orders: dict[str, str], body: bytes = BODY, first_bytes: int = 0) -> list[Turn]:
    """A client's orders, which end here; the body in one piece or two."""
    begun: list[Turn] = [(part(body[:first_bytes]), [])] if first_bytes else []
    went = Went(H, request_id=None, removed=tuple(sorted(orders)))
    return [
        (RequestHeaders(SAID | orders), []),
        *begun,
        (RequestBody(body[first_bytes:]), [went, back(body)]),
    ]


def within(subset: Sequence[str]) -> Turn:
    return RequestHeaders(SAID, subset=subset), []


TYPED: Turn = (RequestHeaders({"content-type": "application/json"}), [])
UNTYPED: Turn = (RequestHeaders({}), [])
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
        (RequestHeaders({"hi": "mom"}), []),
        (RequestBody(NO_JSON), [Went(H), back(NO_JSON)]),
    ],
    "no model, where one pool takes all": [TYPED, (RequestBody(NO_MODEL), [Went(H), back(NO_MODEL)])],
    "a request that ends with its headers": [
        (RequestHeaders({"content-type": "text/event-stream"}, end_of_stream=True), [Went(H)])
    ],
    "a subset, told with headers and body": [
        within(["10.0.0.2:8000"]),
        (RequestBody(BODY, subset=["10.0.0.2:8000"]), [SECOND, back(BODY)]),
    ],
    "a subset of several, one of which is not known": [
        within(["192.168.1.99:8000", "10.0.0.2:8000", "192.168.1.98:8000"]),
        (BODY_SENT, [SECOND, back(BODY)]),
    ],
    "a subset that no endpoint is in": [
        within(["192.168.1.99:8000"]),
        (RequestBody(BODY, subset=["192.168.1.99:8000"]), [NO_ENDPOINT]),
    ],
    "a response alone, JSON in chunks": [*answer(b'{"id": "cm', b'pl-1"}')],
    "a response alone, not JSON": [*answer(NO_JSON)],
    "a response alone, its end an empty chunk": [*answer(b'{"id": "cmpl-1"}', b"")],
    "a response alone, an event stream": [*answer(b"data: {}", b"data: [DONE]", b"")],
    "a response alone, ended by trailers": ENDED_BY_TRAILERS,
    "headers of a request, then a gRPC response that trailers end": [
        (RequestHeaders(SAID | {":path": "/vllm.grpc.engine.VllmEngine/Generate"}), []),
        *ENDED_BY_TRAILERS,
    ],
}

UPSTREAM = [
    *upstream(UPSTREAMS),
    *upstream(
        {"no model, where the model decides": [TYPED, (RequestBody(NO_MODEL), [Said(400, None, "model")])]},
        two_pools,
    ),
    *upstream({"no endpoints": [(RequestHeaders({}, end_of_stream=True), [NO_ENDPOINT])]}, no_endpoints),
]

# agentgateway tells `:method` and `:path`, and ends each body with an empty message.
CHAT = RequestHeaders({":method": "POST", ":path": "/v1/chat/completions"})
MODELS = RequestHeaders({":method": "GET", ":path": "/v1/models"}, end_of_stream=True)
AGENTGATEWAY = recorded(
    {
        "agentgateway: a whole exchange": [
            (CHAT, []),
            (part(BODY[:9]), []),
            (part(BODY[9:]), []),
            (RequestBody(b""), [Went(H), back(BODY)]),
            *answer(b"data: {}", b"data: [DONE]", b""),
        ],
        "agentgateway: a body with trailers": [
            (CHAT, []),
            (BODY_BEGUN, []),
            (RequestTrailers(), [Went(H), back(BODY, ends=False), Continue(T)]),
            (RequestBody(b""), [back(b"")]),
            *answer(b"{}", b""),
        ],
        "agentgateway: a GET": [(MODELS, [Went(H)]), (ResponseHeaders(end_of_stream=True), [GO_ON_RESPONSE])],
    }
)

# NGINX Gateway Fabric sends both messages, ends its side at once, and reads until ours ends.
UNSEEN: dict[str, Turns] = {
    "nginx: a request, and never a word of its response": [
        (RequestHeaders({"content-type": "application/json", "x-real-ip": "10.1.1.1"}), []),
        (BODY_SENT, [Went(H), back(BODY)]),
    ],
    "nginx: the headers decide": [(RequestHeaders({"x-session": "s"}), [Went(H)]), (BODY_SENT, [back(BODY)])],
}

SECOND_MODEL: list[Turn] = [UNTYPED, (RequestBody(MODEL_LAST), [Went(H, "qwen"), back(MODEL_LAST)])]
NGINX = [
    *recorded(UNSEEN, goes_unseen=True),
    Conversation("nginx: the second pool's model", SECOND_MODEL, two_pools(), goes_unseen=True),
    Conversation("nginx: refused", [UNTYPED, (BODY_SENT, [NO_ENDPOINT])], no_endpoints()),
    Conversation("agentgateway: refused", [(CHAT, []), (BODY_SENT, [NO_ENDPOINT])], no_endpoints()),
]

TOLD = StreamConfig(DUPLEX, DUPLEX)
BUFFERED = RequestBody(BODY, config=StreamConfig(BodyMode.BUFFERED, BodyMode.NONE))
OURS = ("x-gateway-destination-endpoint-served", "x-extproc-anything")
TOLD_LATER: dict[str, Turns] = {
    "headers skipped: the mode comes with the body": [(BUFFERED, [Went(B)])],
    "headers skipped, full duplex: the pick goes with the first piece": [
        (RequestBody(b"x" * 60_000, end_of_stream=False, config=TOLD), []),
        (
            RequestBody(b"y" * 10_000),
            [Went(B, piece=back(b"x" * 60_000 + b"y" * 2_000, ends=False)), back(b"y" * 8_000)],
        ),
    ],
    "only watched": [(Observed(), [])] * 3,
    "our own control headers end here, those of another spelling too": [
        (headers(x_gateway_destination_endpoint_served="6.6.6.6:1", x_extproc_anything="y"), [GO_ON]),
        (BODY_SENT, [Went(B, removed=OURS[::-1])]),
    ],
}

WITHOUT_ROOM: list[Turn] = [
    (
        RequestBody(b"xx", end_of_stream=False, config=TOLD),
        [Went(B, piece=back(b"", ends=False)), back(b"xx", ends=False)],
    ),
    (RequestBody(b"y"), [back(b"y")]),
]
MODE_TOLD_LATE: list[Turn] = [(CHAT, []), (BUFFERED, [Went(H), back(BODY)])]
OTHERS = [
    *recorded(TOLD_LATER),
    Conversation("headers skipped, full duplex, no room to hold the body", WITHOUT_ROOM, budget_bytes=1),
    Conversation("a mode told later than with the first message is none", MODE_TOLD_LATE, goes_unseen=True),
]

GATEWAYS = [*UPSTREAM, *AGENTGATEWAY, *NGINX, *OTHERS]
