"""Our codec and envoy-data-plane, which knows the whole API, read each other's messages alike."""

import random
from collections.abc import Mapping
from datetime import timedelta

import pytest
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderMap,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    Metadata,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HttpBody,
    HttpHeaders,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any, ListValue, Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ProtocolError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Decision
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.balanced import RoundRobin
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.stream import ext_proc_pb2 as pb
from extproc.router.stream.codec import decode, encode
from extproc.router.stream.events import (
    Answer,
    BodyMode,
    BodyToRead,
    Continue,
    ContinueAndTell,
    Event,
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
    Routed,
    Served,
    StreamConfig,
)
from tests.router.stream.wire import write
from tests.tables import table

DESTINATION = "x-gateway-destination-endpoint"
STRATEGY = RoundRobin(Outside(random.Random(1), lambda: 0.0))
POOL = Pool("llama", STRATEGY)

texts = st.text(st.characters(codec="utf-8"), max_size=20)
addresses = st.text(st.sampled_from("0123456789.:[]f"), min_size=1, max_size=20)
subsets = st.none() | st.lists(addresses, max_size=4).map(tuple)
modes = st.none() | st.sampled_from(BodyMode)
configs = st.none() | st.builds(StreamConfig, modes, modes, st.booleans())
headers = st.dictionaries(st.sampled_from([":path", ":method", "content-type", "x-session"]), texts)

events = st.one_of(
    st.builds(RequestHeaders, headers, st.booleans(), subsets, configs),
    st.builds(RequestBody, st.binary(), st.booleans(), subsets, configs),
    st.builds(RequestTrailers),
    st.builds(
        ResponseHeaders,
        st.none() | addresses,
        st.booleans(),
        st.just(0) | st.integers(100, 599),
        st.none() | texts,
        st.booleans(),
        configs,
    ),
    st.builds(ResponseBody, st.binary(), st.booleans(), configs),
    st.builds(Observed),
    st.builds(ResponseTrailers),
)

endpoints = st.builds(Endpoint, texts, addresses)
picks = st.builds(
    Pick,
    st.just(POOL),
    texts,
    st.sampled_from([*STRATEGIES.reasons.values()]),
    endpoints,
    st.lists(endpoints, max_size=3).map(tuple),
    st.just(STRATEGY),
)
replies = st.one_of(
    st.builds(Continue, st.sampled_from(Phase)),
    st.builds(ContinueAndTell, st.sampled_from(BodyMode)),
    st.builds(Piece, st.sampled_from([Phase.REQUEST_BODY, Phase.RESPONSE_BODY]), st.binary(), st.booleans()),
    st.builds(
        Answer,
        st.sampled_from([200, 400, 404, 413, 429, 503]),
        st.binary(),
        texts,
        st.dictionaries(texts, texts),
    ),
    st.builds(
        Routed,
        st.sampled_from([Phase.REQUEST_HEADERS, Phase.REQUEST_BODY]),
        st.builds(Decision, picks, st.none() | st.integers(0, 2**64 - 1)),
        st.none() | texts,
        st.lists(texts, max_size=3),
        st.booleans(),
        st.booleans(),
        ticket=st.just(0) | st.integers(1, 2**64 - 1),
    ),
    st.builds(
        Routed,
        st.just(Phase.REQUEST_BODY),
        st.builds(Decision, picks, st.none()),
        piece=st.builds(Piece, st.just(Phase.REQUEST_BODY), st.binary(), st.booleans()),
    ),
    st.builds(
        Routed,
        st.just(Phase.REQUEST_HEADERS),
        st.builds(Decision, picks, st.none()),
        skip_body=st.just(value=True),
        is_unread=st.booleans(),
    ),
)


@given(events)
def test_what_the_other_codec_writes_is_the_event_it_wrote(event: Event) -> None:
    wanted = event.headers.keys() if isinstance(event, RequestHeaders) else ()

    request = write(event)

    assert event == decode(request, wanted)
    ours = pb.ProcessingRequest.FromString(request).SerializeToString()
    assert ProcessingRequest.parse(request) == ProcessingRequest.parse(ours)


@given(replies)
def test_the_other_codec_reads_what_a_reply_says_and_writes_the_same(reply: Reply) -> None:
    expected, ours = _expected(reply), encode(reply)

    assert expected == ProcessingResponse.parse(ours)
    assert pb.ProcessingResponse.FromString(bytes(expected)) == pb.ProcessingResponse.FromString(ours)


def test_what_we_do_not_know_is_skipped() -> None:
    request = ProcessingRequest(
        request_headers=HttpHeaders(
            headers=HeaderMap(
                headers=[HeaderValue(key=":path", raw_value=b"/"), HeaderValue(key="x", raw_value=b"y")]
            )
        ),
        attributes={"envoy.filters.http.ext_proc": Struct(fields={"a": Value(number_value=1)})},
        metadata_context=Metadata(
            filter_metadata={"other": Struct(fields={"a": Value(bool_value=True)})},
            typed_filter_metadata={"other": Any(type_url="t", value=b"v")},
        ),
    )

    assert decode(bytes(request), {":path"}) == RequestHeaders({":path": "/"})


def texts_of(*texts: str) -> Value:
    return Value(list_value=ListValue(values=[Value(string_value=text) for text in texts]))


@table(
    ("value", "subset"),
    [
        (Value(string_value="10.0.0.1:8000"), ("10.0.0.1:8000",)),
        (Value(string_value=" 10.0.0.1:80 , 10.0.0.2:80,"), ("10.0.0.1:80", "10.0.0.2:80")),
        (Value(string_value=""), ()),
        (texts_of("10.0.0.1:80, 10.0.0.2:80", "", "10.0.0.3"), ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3")),
    ],
)
def test_subset_may_be_one_text_and_an_item_of_it_a_list_with_commas(
    value: Value, subset: tuple[str, ...]
) -> None:
    hint = Struct(fields={f"{DESTINATION}-subset": value})
    request = ProcessingRequest(
        request_body=HttpBody(body=b"{}"),
        metadata_context=Metadata(filter_metadata={"envoy.lb.subset_hint": hint}),
    )

    assert decode(bytes(request), ()) == RequestBody(b"{}", end_of_stream=False, subset=subset)


def test_names_of_headers_may_come_in_any_case_and_values_as_text() -> None:
    names = ["Content-Type", "X-SESSION", "X-Gateway-Destination-Endpoint", "X-LLM-D-Slo", "Accept"]
    values = [HeaderValue(key=name, raw_value=b"y") for name in names]
    header_map = HeaderMap(headers=[*values, HeaderValue(key=":path", value="/v1/models")])
    request = ProcessingRequest(request_headers=HttpHeaders(headers=header_map))

    wanted = dict.fromkeys([name.lower() for name in names[:3]], "y") | {"x-llm-d-slo": ""}
    assert decode(bytes(request), {"content-type", "x-session", ":path"}) == RequestHeaders(
        wanted | {":path": "/v1/models"}
    )


@table("message", [b"", b"\xff", b"\x12\x7f", bytes(3)])
def test_what_is_no_request_raises(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(message, ())


def _expected(reply: Reply) -> ProcessingResponse:  # noqa: PLR0911  # one for each kind of reply
    match reply:
        case Continue():
            return _answering(reply.phase, None)
        case ContinueAndTell():
            response = _answering(Phase.REQUEST_HEADERS, None)
            body = ProcessingModeBodySendMode(reply.request_body.value)
            response.mode_override = _mode(body, ProcessingModeHeaderSendMode.SEND)
            return response
        case Served():
            return _answering(Phase.RESPONSE_HEADERS, None)
        case Queued():
            return ProcessingResponse(override_message_timeout=timedelta(seconds=reply.wait_s + 2))
        case BodyToRead():
            raise AssertionError("nothing that is sent")
        case Piece():
            streamed = StreamedBodyResponse(body=bytes(reply.data), end_of_stream=reply.end_of_stream)
            return _answering(
                reply.phase, CommonResponse(body_mutation=BodyMutation(streamed_response=streamed))
            )
        case Answer():
            return ProcessingResponse(
                immediate_response=ImmediateResponse(
                    status=HttpStatus(code=StatusCode(reply.status)),
                    headers=_mutation({"content-type": "application/json", **reply.headers}),
                    body=reply.body,
                    details=f"extproc_{reply.outcome}",
                )
            )
        case Routed():
            return _routed(reply)


def _answering(phase: Phase, common: CommonResponse | None) -> ProcessingResponse:
    name, response = phase.name.lower(), ProcessingResponse()
    kind = {"headers": HeadersResponse, "body": BodyResponse}.get(name.partition("_")[2])
    setattr(response, name, TrailersResponse() if kind is None else kind(response=common))
    return response


def _routed(reply: Routed) -> ProcessingResponse:
    pick, key = reply.decision.pick, reply.decision.key
    destination = ",".join(endpoint.address for endpoint in (pick.endpoint, *pick.fallbacks))
    mutation = _mutation({DESTINATION: destination, "x-extproc-pool": "llama"})
    mutation.remove_headers = list(reply.remove_headers)
    if reply.request_id is not None:
        mutation.set_headers += _mutation({"x-request-id": reply.request_id}).set_headers
    told = {"pool": "llama", "strategy": pick.strategy, "reason": pick.reason, "endpoint": pick.endpoint.name}
    if key is not None:
        told["prefix"] = f"{key:016x}"
    if reply.ticket:
        told["pick"] = f"{reply.ticket:016x}"
    if reply.is_unread:
        mutation.set_headers += _mutation({"x-extproc-unread": "1"}).set_headers
    clears = reply.clear_route_cache or reply.is_unread
    common = CommonResponse(header_mutation=mutation, clear_route_cache=clears)
    if reply.piece is not None:
        piece = reply.piece
        streamed = StreamedBodyResponse(body=bytes(piece.data), end_of_stream=piece.end_of_stream)
        common.body_mutation = BodyMutation(streamed_response=streamed)
    response = _answering(reply.phase, common)
    response.dynamic_metadata = Struct(
        fields={
            "envoy.lb": Value(struct_value=_struct({DESTINATION: destination})),
            "extproc": Value(struct_value=_struct(told)),
        }
    )
    shown = ProcessingModeHeaderSendMode.SKIP
    response.mode_override = _mode(ProcessingModeBodySendMode.NONE, shown) if reply.skip_body else None
    return response


def _mode(body: ProcessingModeBodySendMode, told: ProcessingModeHeaderSendMode) -> ProcessingMode:
    return ProcessingMode(
        response_header_mode=told,
        request_body_mode=body,
        request_trailer_mode=ProcessingModeHeaderSendMode.SKIP,
        response_trailer_mode=ProcessingModeHeaderSendMode.SEND,
    )


def _struct(fields: Mapping[str, str]) -> Struct:
    return Struct(fields={name: Value(string_value=value) for name, value in fields.items()})


def _mutation(values: Mapping[str, str]) -> HeaderMutation:
    action = HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    return HeaderMutation(
        set_headers=[
            HeaderValueOption(header=HeaderValue(key=key, raw_value=value.encode()), append_action=action)
            for key, value in values.items()
        ]
    )
