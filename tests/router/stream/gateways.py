"""What other proxies than our own Envoy say, and what each of them must hear.

Written after the message orders of upstream's hermetic tests (Gateway API Inference Extension, llm-d's
router: no `protocol_config`, no `:method`, no `:path`), of agentgateway and of NGINX Gateway Fabric. Those
tests expect four things that are not ours: a body rewritten to another model's name, and with the objective's
priority in it, 400 for a body that is not JSON or names no model although one pool takes all, and 500 for a
pool without endpoints.
"""

from collections.abc import Iterator, Sequence

from extproc.router.stream.events import (
    BodyMode,
    Continue,
    Event,
    Observed,
    Phase,
    Piece,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    StreamConfig,
)
from tests.router.stream.conversations import (
    BODY,
    DUPLEX,
    GO_ON,
    MODEL_LAST,
    B,
    Conversation,
    Expected,
    H,
    Said,
    T,
    Went,
    headers,
    one_pool,
    two_pools,
)

Turns = Sequence[tuple[Event, Sequence[Expected]]]

R, RB, RT = Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY, Phase.RESPONSE_TRAILERS

# Upstream's requests: an id, a header that means nothing, the orders of a client.
SAID = {"hi": "mom", "x-request-id": "test-request-id"}
ORDERS = {"x-gateway-inference-objective": "premium", "x-gateway-model-name-rewrite": "sql-lora-1fdg2"}
NEW_ORDERS = {"x-llm-d-inference-objective": "premium", "x-llm-d-model-name-rewrite": "sql-lora-1fdg2"}
KEPT = Went(H, request_id=None)


def given_back(body: bytes, *, ends: bool = True) -> list[Expected]:
    return [Piece(B, body, end_of_stream=ends)]


def upstream(name: str, turns: Turns, **fields: object) -> Conversation:
    """Ends without a word of the response, as upstream's tests do."""
    return Conversation(f"upstream: {name}", turns, goes_unseen=_is_routed(turns), **fields)  # type: ignore[arg-type]


def _is_routed(turns: Turns) -> bool:
    told = [reply for _, replies in turns for reply in replies]
    return any(isinstance(reply, Went) for reply in told)


def answer(*chunks: bytes) -> Iterator[tuple[Event, list[Expected]]]:
    """A response in full duplex: the headers, then chunks, each given back."""
    yield ResponseHeaders(), [Continue(R)]
    for number, chunk in enumerate(chunks, start=1):
        is_last = number == len(chunks)
        yield ResponseBody(chunk, is_last), [Piece(RB, chunk, end_of_stream=is_last)]


def _request(subset: Sequence[str] | None = None) -> RequestHeaders:
    return RequestHeaders(SAID, subset=subset)


UPSTREAM = [
    upstream("headers, then one body", [(_request(), []), (RequestBody(BODY), [KEPT, *given_back(BODY)])]),
    upstream(
        "a client's orders end here",
        [
            (RequestHeaders(SAID | ORDERS), []),
            (RequestBody(BODY), [Went(H, request_id=None, removed=tuple(ORDERS)), *given_back(BODY)]),
        ],
    ),
    upstream(
        "a client's orders in llm-d's words end here",
        [
            (RequestHeaders(SAID | NEW_ORDERS), []),
            (RequestBody(BODY), [Went(H, request_id=None, removed=tuple(NEW_ORDERS)), *given_back(BODY)]),
        ],
    ),
    upstream(
        "a body in two chunks",
        [
            (_request(), []),
            (RequestBody(BODY[:20], end_of_stream=False), []),
            (RequestBody(BODY[20:]), [KEPT, *given_back(BODY)]),
        ],
    ),
    upstream(
        "a body that is not JSON is the endpoint's to refuse",
        [
            (RequestHeaders({"hi": "mom"}), []),
            (RequestBody(b"no healthy upstream"), [Went(H), *given_back(b"no healthy upstream")]),
        ],
    ),
    upstream(
        "a request without a model, where one pool takes all",
        [
            (RequestHeaders({"content-type": "application/json"}), []),
            (RequestBody(b'{"prompt": "hello world"}'), [Went(H), *given_back(b'{"prompt": "hello world"}')]),
        ],
    ),
    upstream(
        "a request without a model, where the model decides",
        [
            (RequestHeaders({"content-type": "application/json"}), []),
            (RequestBody(b'{"prompt": "hello world"}'), [Said(400, None, "model")]),
        ],
        picker=two_pools(),
    ),
    upstream(
        "a request that ends with its headers",
        [(RequestHeaders({"content-type": "text/event-stream"}, end_of_stream=True), [Went(H)])],
    ),
    upstream(
        "no endpoints",
        [
            (
                RequestHeaders({"content-type": "application/json"}, end_of_stream=True),
                [Said(503, "no_endpoint", retry_after="1")],
            )
        ],
        picker=one_pool(()),
    ),
    upstream(
        "a subset, told with headers and body",
        [
            (_request(["10.0.0.2:8000"]), []),
            (
                RequestBody(BODY, subset=["10.0.0.2:8000"]),
                [Went(H, address="10.0.0.2:8000", request_id=None), *given_back(BODY)],
            ),
        ],
    ),
    upstream(
        "a subset of several, one of which is not known",
        [
            (_request(["192.168.1.99:8000", "10.0.0.2:8000", "192.168.1.98:8000"]), []),
            (RequestBody(BODY), [Went(H, address="10.0.0.2:8000", request_id=None), *given_back(BODY)]),
        ],
    ),
    upstream(
        "a body that only passes through, with an objective",
        [
            (RequestHeaders(SAID | ORDERS), []),
            (
                RequestBody(b"passthrough-parser"),
                [Went(H, request_id=None, removed=tuple(ORDERS)), *given_back(b"passthrough-parser")],
            ),
        ],
    ),
    upstream(
        "a body in two chunks, with a sheddable objective and the pool not full",
        [
            (RequestHeaders(SAID | {"x-gateway-inference-objective": "sql-lora-sheddable"}), []),
            (RequestBody(BODY[:20], end_of_stream=False), []),
            (
                RequestBody(BODY[20:]),
                [Went(H, request_id=None, removed=("x-gateway-inference-objective",)), *given_back(BODY)],
            ),
        ],
    ),
    upstream(
        "a subset that no endpoint is in",
        [
            (_request(["192.168.1.99:8000"]), []),
            (RequestBody(BODY, subset=["192.168.1.99:8000"]), [Said(503, "no_endpoint", retry_after="1")]),
        ],
    ),
    upstream("a response alone, JSON in chunks", [*answer(b'{"id": "cm', b'pl-1"}')]),
    upstream(
        "headers of a request, then a gRPC response that trailers end",
        [
            (RequestHeaders(SAID | {":path": "/vllm.grpc.engine.VllmEngine/Generate"}), []),
            (ResponseHeaders(), [Continue(R)]),
            (ResponseBody(b"\0\0\0\0\1x"), [Piece(RB, b"\0\0\0\0\1x", end_of_stream=False)]),
            (ResponseTrailers(), [Continue(RT)]),
        ],
    ),
    upstream("a response alone, not JSON", [*answer(b"no healthy upstream")]),
    upstream("a response alone, its end an empty chunk", [*answer(b'{"id": "cmpl-1"}', b"")]),
    upstream("a response alone, an event stream", [*answer(b"data: {}", b"data: [DONE]", b"")]),
    upstream(
        "a response alone, ended by trailers",
        [
            (ResponseHeaders(), [Continue(R)]),
            (ResponseBody(b"\0\0\0\0\1x"), [Piece(RB, b"\0\0\0\0\1x", end_of_stream=False)]),
            (ResponseTrailers(), [Continue(RT)]),
        ],
    ),
]

# agentgateway tells `:method` and `:path`, and ends each body with an empty message.
ASKED = RequestHeaders({":method": "POST", ":path": "/v1/chat/completions"})

AGENTGATEWAY = [
    Conversation(
        "agentgateway: a whole exchange",
        [
            (ASKED, []),
            (RequestBody(BODY[:9], end_of_stream=False), []),
            (RequestBody(BODY[9:], end_of_stream=False), []),
            (RequestBody(b""), [Went(H), *given_back(BODY)]),
            *answer(b"data: {}", b"data: [DONE]", b""),
        ],
    ),
    Conversation(
        "agentgateway: a body with trailers",
        [
            (ASKED, []),
            (RequestBody(BODY, end_of_stream=False), []),
            (RequestTrailers(), [Went(H), *given_back(BODY, ends=False), Continue(T)]),
            (RequestBody(b""), given_back(b"")),
            *answer(b"{}", b""),
        ],
    ),
    Conversation(
        "agentgateway: a GET",
        [
            (RequestHeaders({":method": "GET", ":path": "/v1/models"}, end_of_stream=True), [Went(H)]),
            (ResponseHeaders(end_of_stream=True), [Continue(R)]),
        ],
    ),
    Conversation(
        "agentgateway: refused",
        [(ASKED, []), (RequestBody(BODY), [Said(503, "no_endpoint", retry_after="1")])],
        picker=one_pool(()),
    ),
]

# NGINX Gateway Fabric sends both messages, ends its side at once, and reads until ours ends.
NGINX = [
    Conversation(
        "nginx: a request, and never a word of its response",
        [
            (RequestHeaders({"content-type": "application/json", "x-real-ip": "10.1.1.1"}), []),
            (RequestBody(BODY), [Went(H), *given_back(BODY)]),
        ],
        goes_unseen=True,
    ),
    Conversation(
        "nginx: a completion of the second pool's model",
        [(RequestHeaders({}), []), (RequestBody(MODEL_LAST), [Went(H, "qwen"), *given_back(MODEL_LAST)])],
        picker=two_pools(),
        goes_unseen=True,
    ),
    Conversation(
        "nginx: the headers decide",
        [(RequestHeaders({"x-session": "s"}), [Went(H)]), (RequestBody(BODY), given_back(BODY))],
        goes_unseen=True,
    ),
    Conversation(
        "nginx: refused",
        [(RequestHeaders({}), []), (RequestBody(BODY), [Said(503, "no_endpoint", retry_after="1")])],
        picker=one_pool(()),
    ),
]

TOLD = StreamConfig(DUPLEX, DUPLEX)

OTHERS = [
    Conversation(
        "headers skipped: the mode comes with the body",
        [(RequestBody(BODY, config=StreamConfig(BodyMode.BUFFERED, BodyMode.NONE)), [Went(B)])],
    ),
    Conversation(
        "headers skipped, full duplex: the pick goes with the first piece",
        [
            (RequestBody(b"x" * 60_000, end_of_stream=False, config=TOLD), []),
            (
                RequestBody(b"y" * 10_000),
                [
                    Went(B, piece=Piece(B, b"x" * 60_000 + b"y" * 2_000, end_of_stream=False)),
                    Piece(B, b"y" * 8_000, end_of_stream=True),
                ],
            ),
        ],
    ),
    Conversation(
        "headers skipped, full duplex, no room to hold the body",
        [
            (
                RequestBody(b"xx", end_of_stream=False, config=TOLD),
                [Went(B, piece=Piece(B, b"", end_of_stream=False)), *given_back(b"xx", ends=False)],
            ),
            (RequestBody(b"y"), given_back(b"y")),
        ],
        budget_bytes=1,
    ),
    Conversation(
        "a mode told later than with the first message is none",
        [
            (ASKED, []),
            (RequestBody(BODY, config=StreamConfig(BodyMode.BUFFERED)), [Went(H), *given_back(BODY)]),
        ],
        goes_unseen=True,
    ),
    Conversation("only watched", [(Observed(), []), (Observed(), []), (Observed(), [])]),
    Conversation(
        "our own control headers end here, those of another spelling too",
        [
            (headers(x_gateway_destination_endpoint_served="6.6.6.6:1", x_extproc_anything="y"), [GO_ON]),
            (
                RequestBody(BODY),
                [Went(B, removed=("x-gateway-destination-endpoint-served", "x-extproc-anything"))],
            ),
        ],
    ),
]

GATEWAYS = [*UPSTREAM, *AGENTGATEWAY, *NGINX, *OTHERS]
