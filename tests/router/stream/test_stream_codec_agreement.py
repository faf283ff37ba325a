"""Our codec and envoy-data-plane, which knows the whole API, read each other's messages alike."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as modes
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any, ListValue, Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ProtocolError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Decision
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.balanced import RoundRobin
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.stream import events
from extproc.router.stream import ext_proc_pb2 as pb
from extproc.router.stream.codec import decode, encode
from extproc.router.stream.uploads import Upload
from tests.router.outside import fixed_outside
from tests.router.stream.wire import write_request
from tests.tables import table

DESTINATION = "x-gateway-destination-endpoint"
STRATEGY = RoundRobin(fixed_outside(1))
POOL = Pool("llama", STRATEGY)

texts = st.text(st.characters(codec="utf-8"), max_size=20)
addresses = st.text(st.sampled_from("0123456789.:[]f"), min_size=1, max_size=20)
subsets = st.none() | st.lists(addresses, max_size=4).map(tuple)
any_mode = st.none() | st.sampled_from(events.BodyMode)
configs = st.none() | st.builds(events.StreamConfig, any_mode, any_mode, st.booleans())
headers = st.dictionaries(st.sampled_from([":path", ":method", "content-type", "x-session"]), texts)

plain_event = st.one_of(
    st.builds(events.RequestHeaders, headers, st.booleans(), subsets, configs),
    st.builds(events.RequestBody, st.binary(), st.booleans(), subsets, configs),
    st.builds(events.RequestTrailers),
    st.builds(
        events.ResponseHeaders,
        st.none() | addresses,
        st.booleans(),
        st.just(0) | st.integers(100, 599),
        st.none() | texts,
        st.booleans(),
        configs,
    ),
    st.builds(events.ResponseBody, st.binary(), st.booleans(), configs),
    st.builds(events.ResponseTrailers),
)
any_event = plain_event | st.builds(events.Observed, plain_event)

endpoints = st.builds(Endpoint, texts, addresses)
reasons = st.sampled_from([*STRATEGIES.reasons.values()])
picks = st.builds(
    Pick,
    st.just(POOL),
    texts,
    reasons,
    endpoints,
    st.lists(endpoints, max_size=3).map(tuple),
    st.just(STRATEGY),
    prefill=st.none()
    | st.builds(Pick, st.just(POOL), texts, reasons, endpoints, st.just(()), st.just(STRATEGY)),
)
replies = st.one_of(
    st.builds(events.Continue, st.sampled_from(events.Phase)),
    st.builds(events.ContinueHeadersOnly, st.sampled_from(events.BodyMode)),
    st.builds(
        events.Buffer,
        st.builds(events.Continue, st.sampled_from(events.Phase)),
        st.just(Upload(1, 0.0)),
    ),
    st.builds(
        events.Piece,
        st.sampled_from([events.Phase.REQUEST_BODY, events.Phase.RESPONSE_BODY]),
        st.binary(),
        st.booleans(),
    ),
    st.builds(
        events.Answer,
        st.sampled_from([200, 400, 404, 413, 429, 503]),
        st.binary(),
        texts,
        st.dictionaries(texts, texts),
    ),
    st.builds(
        events.Routed,
        st.sampled_from([events.Phase.REQUEST_HEADERS, events.Phase.REQUEST_BODY]),
        st.builds(Decision, picks, st.none() | st.integers(0, 2**64 - 1)),
        st.none() | texts,
        st.lists(texts, max_size=3),
        st.booleans(),
        st.booleans(),
        ticket=st.just(0) | st.integers(1, 2**64 - 1),
    ),
    st.builds(
        events.Routed,
        st.just(events.Phase.REQUEST_BODY),
        st.builds(Decision, picks, st.none()),
        piece=st.builds(
            events.Piece, st.just(events.Phase.REQUEST_BODY), st.binary(), st.booleans()
        ),
    ),
    st.builds(
        events.Routed,
        st.just(events.Phase.REQUEST_HEADERS),
        st.builds(Decision, picks, st.none()),
        skip_body=st.just(value=True),
        is_unread=st.booleans(),
    ),
)


@given(any_event)
def test_what_the_other_codec_writes_is_the_event_it_wrote(event: events.Event) -> None:
    shown = event.event if isinstance(event, events.Observed) else event
    wanted = shown.headers.keys() if isinstance(shown, events.RequestHeaders) else ()

    request = write_request(event)

    assert event == decode(request, wanted)
    ours = pb.ProcessingRequest.FromString(request).SerializeToString()
    assert ext_proc.ProcessingRequest.parse(request) == ext_proc.ProcessingRequest.parse(ours)


@given(replies)
def test_the_other_codec_reads_what_a_reply_says_and_writes_the_same(reply: events.Reply) -> None:
    expected, ours = _expected(reply), encode(reply)

    assert expected == ext_proc.ProcessingResponse.parse(ours)
    assert pb.ProcessingResponse.FromString(bytes(expected)) == pb.ProcessingResponse.FromString(
        ours
    )


def test_what_we_do_not_know_is_skipped() -> None:
    request = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(
            headers=core.HeaderMap(
                headers=[
                    core.HeaderValue(key=":path", raw_value=b"/"),
                    core.HeaderValue(key="x", raw_value=b"y"),
                ]
            )
        ),
        attributes={"envoy.filters.http.ext_proc": Struct(fields={"a": Value(number_value=1)})},
        metadata_context=core.Metadata(
            filter_metadata={"other": Struct(fields={"a": Value(bool_value=True)})},
            typed_filter_metadata={"other": Any(type_url="t", value=b"v")},
        ),
    )

    assert decode(bytes(request), {":path"}) == events.RequestHeaders({":path": "/"})


def texts_of(*texts: str) -> Value:
    return Value(list_value=ListValue(values=[Value(string_value=text) for text in texts]))


@table(
    ("value", "subset"),
    [
        (Value(string_value="10.0.0.1:8000"), ("10.0.0.1:8000",)),
        (Value(string_value=" 10.0.0.1:80 , 10.0.0.2:80,"), ("10.0.0.1:80", "10.0.0.2:80")),
        (Value(string_value=""), ()),
        (
            texts_of("10.0.0.1:80, 10.0.0.2:80", "", "10.0.0.3"),
            ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3"),
        ),
    ],
)
def test_subset_may_be_one_text_and_an_item_of_it_a_list_with_commas(
    value: Value, subset: tuple[str, ...]
) -> None:
    hint = Struct(fields={f"{DESTINATION}-subset": value})
    request = ext_proc.ProcessingRequest(
        request_body=ext_proc.HttpBody(body=b"{}"),
        metadata_context=core.Metadata(filter_metadata={"envoy.lb.subset_hint": hint}),
    )

    assert decode(bytes(request), ()) == events.RequestBody(
        b"{}", end_of_stream=False, subset=subset
    )


def test_names_of_headers_may_come_in_any_case_and_values_as_text() -> None:
    names = ["Content-Type", "X-SESSION", "X-Gateway-Destination-Endpoint", "X-LLM-D-Slo", "Accept"]
    values = [core.HeaderValue(key=name, raw_value=b"y") for name in names]
    header_map = core.HeaderMap(
        headers=[*values, core.HeaderValue(key=":path", value="/v1/models")]
    )
    request = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders(headers=header_map))

    wanted = dict.fromkeys([name.lower() for name in names[:3]], "y") | {":path": "/v1/models"}
    read = decode(bytes(request), wanted.keys())
    assert read == events.RequestHeaders(wanted | {"x-llm-d-slo": ""})


@table("message", [b"", b"\xff", b"\x12\x7f", bytes(3)])
def test_what_is_no_request_raises(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(message, ())


def _expected(reply: events.Reply) -> ext_proc.ProcessingResponse:  # noqa: PLR0911  # one for each kind of reply
    match reply:
        case events.Continue():
            return _answering(reply.phase, None)
        case events.ContinueHeadersOnly():
            response = _answering(events.Phase.REQUEST_HEADERS, None)
            body = modes.ProcessingModeBodySendMode(reply.request_body.value)
            response.mode_override = _mode(body, modes.ProcessingModeHeaderSendMode.SEND)
            return response
        case events.Served():
            return _answering(events.Phase.RESPONSE_HEADERS, None)
        case events.Buffer():
            return _expected(reply.reply)
        case events.Queued():
            return ext_proc.ProcessingResponse(
                override_message_timeout=timedelta(seconds=reply.wait_s + 2)
            )
        case events.BodyToRead():
            raise AssertionError("nothing that is sent")
        case events.Piece():
            streamed = ext_proc.StreamedBodyResponse(
                body=bytes(reply.data), end_of_stream=reply.end_of_stream
            )
            return _answering(
                reply.phase,
                ext_proc.CommonResponse(
                    body_mutation=ext_proc.BodyMutation(streamed_response=streamed)
                ),
            )
        case events.Answer():
            return ext_proc.ProcessingResponse(
                immediate_response=ext_proc.ImmediateResponse(
                    status=HttpStatus(code=StatusCode(reply.status)),
                    headers=_mutation({"content-type": "application/json", **reply.headers}),
                    body=reply.body,
                    details=f"extproc_{reply.outcome}",
                )
            )
        case events.Routed():
            return _routed(reply)


def _answering(
    phase: events.Phase, common: ext_proc.CommonResponse | None
) -> ext_proc.ProcessingResponse:
    name, response = phase.name.lower(), ext_proc.ProcessingResponse()
    kind = {"headers": ext_proc.HeadersResponse, "body": ext_proc.BodyResponse}.get(
        name.partition("_")[2]
    )
    setattr(response, name, ext_proc.TrailersResponse() if kind is None else kind(response=common))
    return response


def _routed(reply: events.Routed) -> ext_proc.ProcessingResponse:
    pick, key = reply.decision.pick, reply.decision.key
    destination = ",".join(endpoint.address for endpoint in (pick.endpoint, *pick.fallbacks))
    mutation = _mutation({DESTINATION: destination, "x-extproc-pool": "llama"})
    mutation.remove_headers = sorted(reply.remove_headers)
    if reply.request_id is not None:
        mutation.set_headers += _mutation({"x-request-id": reply.request_id}).set_headers
    fields = {
        "pool": "llama",
        "strategy": pick.strategy,
        "reason": pick.reason,
        "endpoint": pick.endpoint.name,
    }
    if key is not None:
        fields["prefix"] = f"{key:016x}"
    if reply.ticket:
        fields["pick"] = f"{reply.ticket:016x}"
    if reply.is_unread:
        mutation.set_headers += _mutation({"x-extproc-unread": "1"}).set_headers
    if pick.prefill is not None:
        fields["prefill"] = pick.prefill.endpoint.address
        mutation.set_headers += _mutation({"x-prefiller-host-port": fields["prefill"]}).set_headers
    clears = reply.clear_route_cache or reply.is_unread
    common = ext_proc.CommonResponse(header_mutation=mutation, clear_route_cache=clears)
    if reply.piece is not None:
        piece = reply.piece
        streamed = ext_proc.StreamedBodyResponse(
            body=bytes(piece.data), end_of_stream=piece.end_of_stream
        )
        common.body_mutation = ext_proc.BodyMutation(streamed_response=streamed)
    response = _answering(reply.phase, common)
    response.dynamic_metadata = Struct(
        fields={
            "envoy.lb": Value(struct_value=_struct({DESTINATION: destination})),
            "extproc": Value(struct_value=_struct(fields)),
        }
    )
    shown = modes.ProcessingModeHeaderSendMode.SKIP
    response.mode_override = (
        _mode(modes.ProcessingModeBodySendMode.NONE, shown) if reply.skip_body else None
    )
    return response


def _mode(
    body: modes.ProcessingModeBodySendMode, header_mode: modes.ProcessingModeHeaderSendMode
) -> modes.ProcessingMode:
    return modes.ProcessingMode(
        response_header_mode=header_mode,
        request_body_mode=body,
        request_trailer_mode=modes.ProcessingModeHeaderSendMode.SKIP,
        response_trailer_mode=modes.ProcessingModeHeaderSendMode.SEND,
    )


def _struct(fields: Mapping[str, str]) -> Struct:
    return Struct(fields={name: Value(string_value=value) for name, value in fields.items()})


def _mutation(values: Mapping[str, str]) -> ext_proc.HeaderMutation:
    action = core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    return ext_proc.HeaderMutation(
        set_headers=[
            core.HeaderValueOption(
                header=core.HeaderValue(key=key, raw_value=value.encode()), append_action=action
            )
            for key, value in values.items()
        ]
    )
