"""Between protobuf messages and the session's events and replies. The only importer of the generated code."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from extproc.errors import ProtocolError
from extproc.router.stream import events, names
from extproc.router.stream import ext_proc_pb2 as pb
from extproc.router.stream.long_body import LENGTH, Place, find_body, varint

# Stands for the 16 digits of the routing key in a reply serialised ahead; no other string has a
# NUL.
_PREFIX: Final = b"\0" * 16
# Stands for the 16 digits of a pick's number.
_TICKET: Final = b"\0\1" * 8

# The proxy waits this much longer than the queue holds the request: our answer must reach it first.
_SPARE_S: Final = 2.0

# Longest value kept as it is. A token that names a session may be so long; paths and models are
# shorter.
_VALUE_CHARS: Final = 1_024
# No picker's header is longer, and no client needs more of them: a request waits for its body with
# them.
_NAME_CHARS, _MAX_NAMES = 64, 32

# The body of a longer message is cut out.
_LONG_BYTES: Final = 65_536
# Headers and metadata, parsed, take 36 times their bytes at worst: 48 MB of them would be more than
# the container has. Envoy itself takes 60 kB of headers, and a hundred.
_MOST_BYTES, _MOST_HEADERS = 1_048_576, 10_000

_BODY_MODES: Final = {mode.value: mode for mode in events.BodyMode}

_OVERWRITE: Final = pb.OVERWRITE_IF_EXISTS_OR_ADD

_FIELDS: Final = {
    events.Phase.REQUEST_HEADERS: "request_headers",
    events.Phase.RESPONSE_HEADERS: "response_headers",
    events.Phase.REQUEST_BODY: "request_body",
    events.Phase.RESPONSE_BODY: "response_body",
    events.Phase.REQUEST_TRAILERS: "request_trailers",
    events.Phase.RESPONSE_TRAILERS: "response_trailers",
}


def _tag(message: type[Message], name: str) -> bytes:
    """What is written before the length of a field (protobuf's "Encoding")."""
    return varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | LENGTH)


# The messages around a piece of a body, from the inside out: each is the only field of the next.
_AROUND_PIECES: Final = tuple(
    _tag(message, name)
    for message, name in (
        (pb.BodyMutation, "streamed_response"),
        (pb.CommonResponse, "body_mutation"),
        (pb.BodyResponse, "response"),
    )
)
_LENGTH_OF_BODY: Final = _tag(pb.StreamedBodyResponse, "body")
_LAST: Final = pb.StreamedBodyResponse(end_of_stream=True).SerializeToString()
_TAGS: Final = {
    phase: _tag(pb.ProcessingResponse, _FIELDS[phase])
    for phase in (events.Phase.REQUEST_BODY, events.Phase.RESPONSE_BODY)
}


def _override(body: events.BodyMode, response_headers: pb.HeaderSendMode) -> pb.ProcessingMode:
    return pb.ProcessingMode(
        response_header_mode=response_headers,
        request_body_mode=pb.BodySendMode.Name(body),
        request_trailer_mode=pb.SKIP,
        # Without it Envoy 1.37 and 1.38 end the stream at the pick, and the request would not be
        # counted.
        response_trailer_mode=pb.SEND,
    )


def _continue(phase: events.Phase) -> bytes:
    response = pb.ProcessingResponse()
    getattr(response, _FIELDS[phase]).SetInParent()
    return response.SerializeToString()


def _continue_headers_only(body: events.BodyMode) -> bytes:
    response = pb.ProcessingResponse(mode_override=_override(body, pb.SEND))
    response.request_headers.SetInParent()
    return response.SerializeToString()


_SKIP_BODY: Final = _override(events.BodyMode.NONE, pb.SKIP)
_CONTINUE_HEADERS_ONLY: Final = {mode: _continue_headers_only(mode) for mode in events.BodyMode}
_CONTINUE: Final = {phase: _continue(phase) for phase in events.Phase}


def decode(message: bytes | bytearray, wanted_headers: Collection[str]) -> events.Event:
    """Reads one `ProcessingRequest` with only `wanted_headers` (lower-case), and the names of guarded ones.

    A long `bytearray` is cut down to its body, which saves a copy. Raises `ProtocolError` for bytes
    that are no such message or have none of its alternatives.
    """
    try:
        request, body = _read(message)
    except DecodeError:
        raise ProtocolError("not a ProcessingRequest") from None
    event = _event(request, body, wanted_headers)
    if not request.observability_mode:
        return event
    if isinstance(event, events.ResponseHeaders):
        event = replace(event, served=_upstream(request) or event.served)
    return events.Observed(event)


def encode(reply: events.Reply) -> bytes:  # noqa: PLR0911  # one for each kind of reply
    match reply:
        case events.Continue():
            return _CONTINUE[reply.phase]
        case events.Routed():
            return _routed(reply)
        case events.ContinueHeadersOnly():
            return _CONTINUE_HEADERS_ONLY[reply.request_body]
        case events.Served():
            return _CONTINUE[events.Phase.RESPONSE_HEADERS]
        case events.Piece():
            return _piece(reply)
        case events.Buffer():
            return encode(reply.reply)
        case events.Queued():
            response = pb.ProcessingResponse()
            response.override_message_timeout.FromNanoseconds(int((reply.wait_s + _SPARE_S) * 1e9))
            return response.SerializeToString()
        case events.BodyToRead():
            raise ProtocolError("a body that is still read has no reply yet")
    return _answer(reply)


def _read(message: bytes | bytearray) -> tuple[pb.ProcessingRequest, bytes | bytearray | None]:
    """The message, and its body if that is a long one: protobuf would copy it twice."""
    place = find_body(message) if len(message) > _LONG_BYTES else None
    if len(message if place is None else place.rest) > _MOST_BYTES:
        raise ProtocolError(f"more than {_MOST_BYTES} bytes beside a body")
    if place is not None:
        request = pb.ProcessingRequest.FromString(place.rest)
        # Where a part comes twice the last one counts, as in protobuf.
        if request.WhichOneof("request") == place.part and not getattr(request, place.part).body:
            return request, _cut(message, place)
    request = pb.ProcessingRequest.FromString(bytes(message))
    return request, None


def _cut(message: bytes | bytearray, place: Place) -> bytes | bytearray:
    if isinstance(message, bytes):
        return message[place.start : place.end]
    # Both ends of a `bytearray` are taken off without moving what is between.
    del message[place.end :]
    del message[: place.start]
    return message


def _event(
    request: pb.ProcessingRequest, data: bytes | bytearray | None, wanted: Collection[str]
) -> events.Event:
    match request.WhichOneof("request"):
        case "request_headers":
            headers = request.request_headers
            return events.RequestHeaders(
                _headers(headers.headers, wanted),
                headers.end_of_stream,
                _subset(request),
                _config(request),
            )
        case "request_body":
            body = request.request_body
            return events.RequestBody(
                body.body if data is None else data,
                body.end_of_stream,
                _subset(request),
                _config(request),
            )
        case "request_trailers":
            return events.RequestTrailers()
        case "response_headers":
            return _response_headers(request)
        case "response_body":
            body = request.response_body
            return events.ResponseBody(
                body.body if data is None else data, body.end_of_stream, _config(request)
            )
        case "response_trailers":
            return events.ResponseTrailers()
    raise ProtocolError("a ProcessingRequest of an unknown kind")


def _headers(headers: pb.HeaderMap, wanted: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if len(headers.headers) > _MOST_HEADERS:
        raise ProtocolError(f"more than {_MOST_HEADERS} headers")
    for header in headers.headers:
        name = (
            header.key.lower()
        )  # NGINX Gateway Fabric sends names as Go writes them: `Content-Type`
        if name in wanted:
            found[name] = _short(header.raw_value.decode("utf-8", "replace") or header.value)
        elif (
            name.startswith(names.GUARDED) and len(name) <= _NAME_CHARS and len(found) < _MAX_NAMES
        ):
            found[name] = ""  # nobody reads it: it is only removed
    return found


def _short(value: str) -> str:
    """Cuts a long value to its beginning and a hash: a request may wait for its body for minutes."""
    if len(value) <= _VALUE_CHARS:
        return value
    return value[:_VALUE_CHARS] + xxh3_64_hexdigest(value.encode(errors="replace"))


def _config(request: pb.ProcessingRequest) -> events.StreamConfig | None:
    if not request.HasField("protocol_config"):
        return None
    config = request.protocol_config
    return _stream_config(
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
    )


# An open stream keeps it: one for all that are alike. A mode is any number that a proxy sends.
@lru_cache(maxsize=64)
def _stream_config(
    request_body: int, response_body: int, sends_body_without_waiting: bool
) -> events.StreamConfig:
    return events.StreamConfig(
        _BODY_MODES.get(request_body), _BODY_MODES.get(response_body), sends_body_without_waiting
    )


def _subset(request: pb.ProcessingRequest) -> tuple[str, ...] | None:
    """The addresses the proxy allows; a list, or one text; either with commas. `None`: the key is absent."""
    if not request.HasField("metadata_context"):
        return None
    value = _metadata(request, names.SUBSET_NAMESPACE).get(names.SUBSET)
    if value is None:
        return None
    if value.WhichOneof("kind") == "list_value":
        texts = [item.string_value for item in value.list_value.values]
    else:
        texts = [value.string_value]
    return tuple(item.strip() for text in texts for item in text.split(",") if item.strip())


def _response_headers(request: pb.ProcessingRequest) -> events.ResponseHeaders:
    headers = _headers(request.response_headers.headers, names.READ_RESPONSE_HEADERS)
    status, served = (
        headers.get(names.STATUS, ""),
        _metadata(request, names.LB_NAMESPACE).get(names.SERVED),
    )
    return events.ResponseHeaders(
        served.string_value or None if served is not None else None,
        request.response_headers.end_of_stream,
        int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 0,
        headers.get(names.RETRY_AFTER),
        names.UPSTREAM_TIME in headers,
        _config(request),
    )


def _upstream(request: pb.ProcessingRequest) -> str:
    """Who served, by the proxy's attributes, which stand under the name of its filter; empty: it does not say."""
    told = (
        each.fields[names.UPSTREAM].string_value
        for each in request.attributes.values()
        if names.UPSTREAM in each.fields
    )
    return next(filter(None, told), "")


def _metadata(request: pb.ProcessingRequest, namespace: str) -> Mapping[str, Any]:
    spaces = request.metadata_context.filter_metadata
    return spaces[namespace].fields if namespace in spaces else {}


class _Fixed(NamedTuple):
    """What one routed reply has in common with many others."""

    phase: events.Phase
    destination: str
    pool: str
    strategy: str
    reason: str
    endpoint: str
    has_prefix: bool
    has_ticket: bool
    remove_headers: Sequence[str]
    clear_route_cache: bool
    skip_body: bool
    is_unread: bool
    prefiller: str


def _routed(reply: events.Routed) -> bytes:
    if reply.piece is None:
        return _decided(reply)
    response = pb.ProcessingResponse.FromString(_decided(reply))
    response.MergeFromString(_piece(reply.piece))
    return response.SerializeToString()


def _decided(reply: events.Routed) -> bytes:
    key, pick = reply.decision.key, reply.decision.pick
    fixed = _Fixed(
        reply.phase,
        pick.destination,
        pick.pool.name,
        pick.strategy,
        pick.reason,
        pick.endpoint.name,
        key is not None,
        reply.ticket != 0,
        tuple(sorted(reply.remove_headers)),  # in one order, whatever the client's is
        reply.clear_route_cache,
        reply.skip_body,
        reply.is_unread,
        "" if pick.prefill is None else pick.prefill.destination,
    )
    prefix = b"" if key is None else b"%016x" % key
    if reply.request_id is None and names.KNOWN_ORDERS.issuperset(fixed.remove_headers):
        built = _template(fixed)
    else:
        built = _build(fixed, reply.request_id)
    if reply.ticket:
        built = built.replace(_TICKET, b"%016x" % reply.ticket, 1)
    return built.replace(_PREFIX, prefix)


# No client chooses any part of the key: pools, endpoints and reasons are ours, the headers
# `KNOWN_ORDERS`.
@lru_cache(maxsize=4_096)
def _template(fixed: _Fixed) -> bytes:
    return _build(fixed, None)


def _build(fixed: _Fixed, request_id: str | None) -> bytes:
    response = pb.ProcessingResponse()
    common = getattr(response, _FIELDS[fixed.phase]).response
    common.clear_route_cache = fixed.clear_route_cache or fixed.is_unread
    common.header_mutation.remove_headers.extend(fixed.remove_headers)
    headers = {names.DESTINATION: fixed.destination, names.POOL: fixed.pool}
    if request_id is not None:
        headers[names.REQUEST_ID] = request_id
    if fixed.is_unread:
        headers[names.UNREAD] = "1"
    if fixed.prefiller:
        headers[names.PREFILLER] = fixed.prefiller
    _set_headers(common.header_mutation, headers)
    metadata = response.dynamic_metadata.fields
    metadata[names.LB_NAMESPACE].struct_value.fields[
        names.DESTINATION
    ].string_value = fixed.destination
    ours = metadata[names.DECISION_NAMESPACE].struct_value.fields
    for name in ("pool", "strategy", "reason", "endpoint"):
        ours[name].string_value = getattr(fixed, name)
    if fixed.has_prefix:
        ours["prefix"].string_value = _PREFIX.decode()
    if fixed.has_ticket:
        ours[names.TICKET].string_value = _TICKET.decode()
    if fixed.prefiller:
        ours["prefill"].string_value = fixed.prefiller
    if fixed.skip_body:
        response.mode_override.CopyFrom(_SKIP_BODY)
    return response.SerializeToString()


def _set_headers(mutation: pb.HeaderMutation, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key = name
        option.header.raw_value = value.encode()


def _piece(reply: events.Piece) -> bytes:
    """Written by hand: protobuf copies the bytes of a body once for each message around them."""
    size = len(reply.data)
    tail = _LAST if reply.end_of_stream else b""
    heads = [_LENGTH_OF_BODY + varint(size) if size else b""]
    size += len(heads[0]) + len(tail)
    for tag in (*_AROUND_PIECES, _TAGS[reply.phase]):
        heads.append(tag + varint(size))
        size += len(heads[-1])
    return b"".join([*reversed(heads), reply.data, tail])


def _answer(reply: events.Answer) -> bytes:
    response = pb.ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = reply.status
    immediate.body = reply.body
    immediate.details = f"extproc_{reply.outcome}"
    _set_headers(immediate.headers, {"content-type": "application/json", **reply.headers})
    return response.SerializeToString()
