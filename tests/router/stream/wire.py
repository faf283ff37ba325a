"""The proxy's side of the wire, by envoy-data-plane: a codec that is not ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeBodySendMode
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.google.protobuf import ListValue, Struct, Value

from extproc.router.stream import events
from tests.router.stream.conversations import Expected, Said, Went

DESTINATION = "x-gateway-destination-endpoint"


def write_request(event: events.Event) -> bytes:
    """The `ProcessingRequest` that a proxy sends for `event`."""
    fields: dict[str, Any] = {"protocol_config": _config(getattr(event, "config", None))}
    match event:
        case events.Observed():
            return bytes(_shown(event.event))
        case events.RequestHeaders():
            headers = ext_proc.HttpHeaders(
                headers=_header_map(event.headers), end_of_stream=event.end_of_stream
            )
            fields |= {"request_headers": headers, "metadata_context": _hint(event.subset)}
        case events.RequestBody():
            body = ext_proc.HttpBody(body=bytes(event.data), end_of_stream=event.end_of_stream)
            fields |= {"request_body": body, "metadata_context": _hint(event.subset)}
        case events.RequestTrailers():
            fields["request_trailers"] = ext_proc.HttpTrailers()
        case events.ResponseHeaders():
            headers = ext_proc.HttpHeaders(
                headers=_header_map(_response_headers(event)), end_of_stream=event.end_of_stream
            )
            fields |= {"response_headers": headers, "metadata_context": _served(event.served)}
        case events.ResponseBody():
            fields["response_body"] = ext_proc.HttpBody(
                body=bytes(event.data), end_of_stream=event.end_of_stream
            )
        case events.ResponseTrailers():
            fields["response_trailers"] = ext_proc.HttpTrailers()
        case _:
            raise ValueError("it is what a transport says of a message, not a message")
    return bytes(ext_proc.ProcessingRequest(**fields))


def _shown(event: events.Event) -> ext_proc.ProcessingRequest:
    """As Envoy 1.40 shows it: who served is an attribute of the response, under the filter's name."""
    shown = ext_proc.ProcessingRequest.parse(write_request(event))
    shown.observability_mode = True
    if isinstance(event, events.ResponseHeaders) and event.served:
        fields = {"upstream.address": Value(string_value=event.served)}
        shown.attributes = {"envoy.filters.http.ext_proc": Struct(fields=fields)}
        shown.metadata_context = None
    return shown


def asks_for_time(message: bytes) -> bool:
    """Whether a `ProcessingResponse` says no more than that its answer takes longer."""
    return ext_proc.ProcessingResponse.parse(message).override_message_timeout is not None


def read_response(message: bytes) -> Expected:
    """What a `ProcessingResponse` says, as conversations expect it."""
    response = ext_proc.ProcessingResponse.parse(message)
    if response.immediate_response is not None:
        return _answered(response.immediate_response)
    for phase in events.Phase:
        answer = getattr(response, phase.name.lower())
        if answer is not None:
            return _answer(phase, response, answer)
    raise AssertionError(f"an empty response: {response}")


def _response_headers(event: events.ResponseHeaders) -> dict[str, str]:
    """What a proxy sends of them, and one that nobody wants."""
    fields = {"content-type": "text/event-stream"}
    if event.status:
        fields[":status"] = str(event.status)
    if event.retry_after is not None:
        fields["retry-after"] = event.retry_after
    if event.is_upstreams:
        fields["x-envoy-upstream-service-time"] = "7"
    return fields


def _header_map(headers: Mapping[str, str]) -> core.HeaderMap:
    return core.HeaderMap(
        headers=[
            core.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()
        ]
    )


def _config(config: events.StreamConfig | None) -> ext_proc.ProtocolConfiguration | None:
    if config is None:
        return None
    return ext_proc.ProtocolConfiguration(
        request_body_mode=_mode(config.request_body),
        response_body_mode=_mode(config.response_body),
        send_body_without_waiting_for_header_response=config.sends_body_without_waiting,
    )


def _mode(mode: events.BodyMode | None) -> ProcessingModeBodySendMode:
    return ProcessingModeBodySendMode(99 if mode is None else int(mode))


def _hint(subset: Sequence[str] | None) -> core.Metadata | None:
    if subset is None:
        return None
    values = ListValue(values=[Value(string_value=text) for text in subset])
    return _metadata("envoy.lb.subset_hint", f"{DESTINATION}-subset", Value(list_value=values))


def _served(address: str | None) -> core.Metadata | None:
    if address is None:
        return None
    return _metadata("envoy.lb", f"{DESTINATION}-served", Value(string_value=address))


def _metadata(namespace: str, key: str, value: Value) -> core.Metadata:
    return core.Metadata(filter_metadata={namespace: Struct(fields={key: value})})


def _answer(phase: events.Phase, response: ext_proc.ProcessingResponse, answer: object) -> Expected:
    if (
        not isinstance(answer, ext_proc.HeadersResponse | ext_proc.BodyResponse)
        or answer.response is None
    ):
        override = response.mode_override
        if override is not None:
            assert (phase, override.response_body_mode) == (events.Phase.REQUEST_HEADERS, 0)
            return events.ContinueHeadersOnly(events.BodyMode(int(override.request_body_mode)))
        return events.Continue(phase)
    common = answer.response
    if common.body_mutation is not None and common.header_mutation is None:
        given_back = _piece(phase, common)
        assert given_back is not None
        return given_back
    assert common.header_mutation is not None
    assert response.dynamic_metadata is not None
    set_headers, fields = (
        _set(common.header_mutation.set_headers),
        response.dynamic_metadata.fields["envoy.lb"],
    )
    assert fields.struct_value is not None
    assert fields.struct_value.fields[DESTINATION].string_value == set_headers[DESTINATION]
    override = response.mode_override
    return Went(
        phase,
        set_headers["x-extproc-pool"],
        set_headers[DESTINATION].split(",")[0],
        override is not None and override.request_body_mode == ProcessingModeBodySendMode.NONE,
        tuple(common.header_mutation.remove_headers),
        "made" if "x-request-id" in set_headers else None,
        _piece(phase, common),
    )


def _piece(phase: events.Phase, common: ext_proc.CommonResponse) -> events.Piece | None:
    if common.body_mutation is None:
        return None
    piece = common.body_mutation.streamed_response
    assert piece is not None
    return events.Piece(phase, piece.body, piece.end_of_stream)


def _answered(answer: ext_proc.ImmediateResponse) -> Said:
    assert answer.status is not None
    set_headers = _set(answer.headers.set_headers) if answer.headers is not None else {}
    assert set_headers["content-type"] == "application/json"
    error = orjson.loads(answer.body).get("error", {})
    return Said(
        int(answer.status.code),
        error.get("code"),
        error.get("message", ""),
        set_headers.get("retry-after"),
    )


def _set(options: Sequence[core.HeaderValueOption]) -> dict[str, str]:
    assert all(option.append_action == 2 for option in options), (
        "a client's own value would survive"
    )
    return {
        option.header.key: option.header.raw_value.decode()
        for option in options
        if option.header is not None
    }
