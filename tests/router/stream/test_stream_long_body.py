"""A long body is cut out of its message where it stands; protobuf says what must come of it."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ProtocolError
from extproc.router.stream import ext_proc_pb2 as pb
from extproc.router.stream.codec import decode
from extproc.router.stream.events import Event, Observed, RequestBody, ResponseBody
from extproc.router.stream.long_body import find_body, varint
from tests.tables import table

LONG = bytes(range(256)) * 400


def request_message(**parts: object) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest(**parts)  # type: ignore[arg-type]
    message.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields[
        "x-gateway-destination-endpoint-subset"
    ].string_value = "10.0.0.1:1,10.0.0.2:2"
    message.protocol_config.request_body_mode = pb.BUFFERED
    return message


def both_ways(message: bytes) -> list[Event | None]:
    """What comes of the same bytes as `bytes` and as a `bytearray`."""
    events: list[Event | None] = []
    for form in (bytes(message), bytearray(message)):
        try:
            events.append(decode(form, ()))
        except ProtocolError:
            events.append(None)
    return events


@table("is_end", [False, True])
def test_long_body_is_what_protobuf_reads(is_end: bool) -> None:
    body = pb.HttpBody(body=LONG, end_of_stream=is_end)
    asked, answered = request_message(request_body=body), request_message(response_body=body)
    [plain, in_place] = both_ways(asked.SerializeToString())

    assert isinstance(plain, RequestBody)
    assert (LONG, is_end, ("10.0.0.1:1", "10.0.0.2:2")) == (
        plain.data,
        plain.end_of_stream,
        plain.subset,
    )
    assert plain == in_place
    assert [ResponseBody(LONG, is_end, plain.config)] * 2 == both_ways(answered.SerializeToString())


def test_whatever_comes_behind_a_body_is_kept() -> None:
    """A field that only a later protocol knows, of any length."""
    for size in (100, 300, 20_000):
        more = b"\x7a" + varint(size) + bytes(size)
        part = pb.HttpBody.FromString(
            pb.HttpBody(body=LONG, end_of_stream=True).SerializeToString() + more
        )
        [plain, in_place] = both_ways(request_message(request_body=part).SerializeToString())

        assert isinstance(plain, RequestBody)
        assert (LONG, True) == (plain.data, plain.end_of_stream)
        assert plain == in_place


def test_long_body_is_not_copied_and_one_that_a_proxy_only_shows_is_observed() -> None:
    message = bytearray(request_message(request_body=pb.HttpBody(body=LONG)).SerializeToString())
    shown = request_message(request_body=pb.HttpBody(body=LONG), observability_mode=True)
    event = decode(message, ())

    assert isinstance(event, RequestBody)
    assert event.data is message
    assert [Observed(event)] * 2 == both_ways(shown.SerializeToString())


def test_part_that_is_sent_twice_counts_as_protobuf_has_it() -> None:
    long, short = (
        pb.ProcessingRequest(request_body=pb.HttpBody(body=body)) for body in (LONG, b"short")
    )
    headers = pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=True))
    twice = long.SerializeToString() + short.SerializeToString()
    other = long.SerializeToString() + headers.SerializeToString()

    assert [RequestBody(b"short", end_of_stream=False)] * 2 == both_ways(twice)
    assert [decode(headers.SerializeToString(), ())] * 2 == both_ways(other)


@table("part", ["request_headers", "response_headers"])
def test_headers_that_no_proxy_takes_are_refused_before_they_are_read(part: str) -> None:
    """Once 40 MB of empty ones took 23 s and 1.7 GB: the container's end."""
    long, none = pb.HeaderValue(raw_value=bytes(1_048_576)), pb.HeaderValue()
    for headers, is_read in (([none] * 10_000, True), ([none] * 10_001, False), ([long], False)):
        message = request_message(**{part: pb.HttpHeaders(headers=pb.HeaderMap(headers=headers))})
        assert (None not in both_ways(message.SerializeToString())) == is_read
    body = request_message(request_body=pb.HttpBody(body=LONG)).SerializeToString()
    assert both_ways(body + b"\x7a" + varint(1_048_576) + bytes(1_048_576)) == [None, None]


CUT = [
    b"",
    b"\x22",
    b"\x22\x05\x0a",
    b"\x22\x02\x10\x01",
    b"\x22\x05\x0a\x09abc",
    b"\x22\xff\x0a\x02abc",
]
BEHIND_OTHERS = [b"\x09abcdefgh\x22\x02\x0a\x00", b"\x50\x01" * 64 + b"\x22\x02\x0a\x00"]


@table("message", [*CUT, *BEHIND_OTHERS, b"\xff" * 11])
def test_place_that_cannot_be_known_is_none(message: bytes) -> None:
    assert find_body(message) is None


@given(st.binary(max_size=400), st.integers(0, 100_000), st.booleans())
def test_spoilt_message_is_read_as_protobuf_reads_it(
    noise: bytes, place: int, is_behind: bool
) -> None:
    message = request_message(
        request_body=pb.HttpBody(body=LONG, end_of_stream=True)
    ).SerializeToString()
    spoilt = (
        message[: None if is_behind else place]
        + noise
        + message[len(message) if is_behind else place :]
    )
    try:
        found = pb.ProcessingRequest.FromString(spoilt)
    except Exception:  # noqa: BLE001  # whatever protobuf raises, we refuse
        found = None
    for event in both_ways(spoilt):
        if event is not None and found is not None and isinstance(event, RequestBody):
            assert (found.request_body.body, found.request_body.end_of_stream) == (
                event.data,
                event.end_of_stream,
            )
        assert (event is None) <= (found is None or found.WhichOneof("request") is None)
