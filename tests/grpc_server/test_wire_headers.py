"""Header blocks: HPACK and its cache (RFC 7541), what a call's headers say, and the blocks that we write."""

from collections.abc import Iterable
from urllib.parse import unquote

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given
from hypothesis import strategies as st

from extproc.grpc_server.calls import Status
from extproc.grpc_server.headers import (
    RESPONSE_BLOCK,
    Head,
    HeadReader,
    MalformedRequest,
    TooManySizes,
    read_head,
    refusal_block,
    trailers_block,
)
from tests.grpc_server.header_blocks import (
    compare_decoders,
    huffman_valued,
    literal,
    plainly_read,
    size_update,
    string,
)
from tests.grpc_server.peer import PATH, REQUEST, Field
from tests.reach import reach
from tests.tables import table

LIMIT_BYTES = 16_384


def decoded_fields(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in Decoder().decode(block)}


def test_reads_path_and_metadata() -> None:
    """Fields of one name are joined."""
    head = read_head([*REQUEST, ("x", "1"), ("x", "2"), ("x", ""), ("grpc-encoding", "gzip")])

    assert head.path == PATH
    assert head.metadata == dict(REQUEST[4:]) | {"x": "1,2,", "grpc-encoding": "gzip"}
    assert (head.refusal, head.timeout_s, head.encoding) == (0, None, "gzip")


TIMEOUTS = {"5S": 5.0, "2M": 120.0, "1H": 3_600.0, "250m": 0.25, "1u": 1e-6, "1n": 1e-9, "0S": 0.0}
NO_TIMEOUTS = ["100000000S", "", "S", "5", "5s", "-5S", "5.0S", "\xb25S"]


@table(
    ("text", "seconds"),
    [*TIMEOUTS.items(), ("99999999S", 99_999_999.0), *((text, None) for text in NO_TIMEOUTS)],
)
def test_reads_the_clients_timeout(text: str, seconds: float | None) -> None:
    assert read_head([*REQUEST, ("grpc-timeout", text)]).timeout_s == seconds


GRPC = ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"]


@table(
    ("method", "content_type", "refusal"),
    [
        *(("POST", kind, 0) for kind in GRPC),
        *(("POST", kind, 415) for kind in ("application/grpc-web", "application/json", None)),
        *((method, "application/grpc", 405) for method in ("GET", "post")),
    ],
)
def test_knows_a_grpc_call(method: str, content_type: str | None, refusal: int) -> None:
    fields = [(":method", method), *REQUEST[1:4]]
    if content_type is not None:
        fields.append(("content-type", content_type))

    assert read_head(fields).refusal == refusal


def without(name: str) -> list[Field]:
    return [field for field in REQUEST if field[0] != name]


# RFC 9113 §8.2: no field's name, no field's value, and what belongs to a connection.
NO_NAMES = ["", "X-a", "x a", "x:a", "x\x7f", "\xe9"]
NO_VALUES = ["a\x00b", "a\nb", "a\r", " a", "a\t", " "]
CONNECTIONS = {"connection": "close", "proxy-connection": "close", "keep-alive": "1", "te": "gzip"}
CONNECTIONS |= {"transfer-encoding": "chunked", "upgrade": "h2c"}
# §8.3: a pseudo-header twice, a response's, one that nobody knows, one without a name.
NO_PSEUDO_HEADERS = [(":path", "/"), (":status", "200"), (":protocol", "websocket"), (":", "")]
MALFORMED: list[list[Field]] = [
    [],
    *(without(name) for name in (":method", ":scheme", ":path")),
    [*REQUEST[:2], (":path", ""), *REQUEST[3:]],
    *([field, *REQUEST] for field in NO_PSEUDO_HEADERS),
    [*REQUEST, (":authority", "x")],
    *([*REQUEST, (name, "x")] for name in NO_NAMES),
    *([*REQUEST, ("x", value)] for value in NO_VALUES),
    *([*REQUEST, field] for field in CONNECTIONS.items()),
]


@table("fields", MALFORMED)
def test_a_malformed_request_is_distinguished_from_others(fields: list[Field]) -> None:
    with pytest.raises(MalformedRequest):
        read_head(fields)


@table(
    "field",
    [("x", ""), ("x", "a b\tc"), ("x", "\x01\xff"), ("te", "Trailers"), ("!#$%&'*+-.^_`|~", "x")],
)
def test_a_strange_field_is_none_of_our_business(field: Field) -> None:
    assert read_head([*REQUEST, field]).path == PATH


# The cache. Heads are kept by their bytes, so the same bytes must mean the same.
PLAIN = b"\x83\x86" + literal(b":path", b"/p") + literal(b"content-type", b"application/grpc")
# Pieces of blocks, such that one may mean different things from one time to the next.
KEPT = [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"long", b"l" * 100)]
PIECES = st.sampled_from(
    [
        *(b"\xbe", b"\xbf", b"\xc0", b"\x7e\x013"),
        *(literal(*field, 0x40) for field in KEPT),
        *(literal(b"never", b"n", 0x10), literal(b"none", b"n")),
    ]
)
UPDATES = st.sampled_from(
    [b"", b"", b"", size_update(0), size_update(70), size_update(4_096), b"\x20\x3f\xe1\x1f"]
)
BLOCKS = st.builds(
    lambda update, pieces: update + PLAIN + b"".join(pieces), UPDATES, st.lists(PIECES, max_size=3)
)


BYTES = st.lists(st.binary(max_size=60), min_size=1, max_size=8)


@given(st.lists(BLOCKS, min_size=1, max_size=4) | BYTES, st.lists(st.integers(0, 3), max_size=25))
def test_blocks_mean_the_same_with_the_cache_and_without(
    blocks: list[bytes], order: list[int]
) -> None:
    sequence = [*blocks, *(blocks[place % len(blocks)] for place in order)]

    compare_decoders(sequence)


NAMES = st.sampled_from(["a", "b", "c", "x-long-name", "grpc-timeout"])
VALUES = st.sampled_from(["", "1", "2", "three", "v" * 80])
CALLS = st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=4), min_size=1, max_size=20)


@given(
    CALLS, st.lists(st.sampled_from([None, None, 0, 64, 200, 4_096]), max_size=20), st.booleans()
)
def test_a_real_encoders_blocks_are_read_as_they_were_meant(
    calls: list[list[Field]], sizes: list[int | None], is_huffman: bool
) -> None:
    encoder, reader = Encoder(), HeadReader(LIMIT_BYTES)
    for place, extra in enumerate(calls):
        size = sizes[place] if place < len(sizes) else None
        if size is not None:
            encoder.header_table_size = size
        fields = [*REQUEST, *extra]
        block = encoder.encode(fields, huffman=is_huffman)
        # Twice, as if two calls had it: the second time, it may come from the cache.
        expected = read_head(fields)
        assert expected == reader.read(block)
        again = encoder.encode(fields, huffman=is_huffman)
        assert expected == reader.read(again)


def test_an_entry_that_pushes_out_its_equal_is_a_change() -> None:
    """As many entries as before, with an equal one in front: found by identity."""
    reader = HeadReader(LIMIT_BYTES)
    # Room for two entries of 34 bytes.
    reader.read(size_update(70) + PLAIN + literal(b"a", b"1", 0x40) + literal(b"b", b"1", 0x40))
    assert reader.read(PLAIN + b"\xbf").metadata["a"] == "1"

    reader.read(PLAIN + literal(b"b", b"1", 0x40))

    assert reader.read(PLAIN + b"\xbf").metadata == {"content-type": "application/grpc", "b": "1"}


def test_trailers_and_late_blocks_change_the_table_too() -> None:
    reader = HeadReader(LIMIT_BYTES)
    reader.read(PLAIN + literal(b"a", b"1", 0x40))
    first = reader.read(PLAIN + b"\xbe")

    assert reader.read_trailers(literal(b"b", b"2", 0x40))
    second = reader.read(PLAIN + b"\xbe")
    reader.pass_over(literal(b"c", b"3", 0x40))
    third = reader.read(PLAIN + b"\xbe")

    assert [list(head.metadata)[-1] for head in (first, second, third)] == ["a", "b", "c"]


def test_the_cache_is_bounded_and_goes_on() -> None:
    reader = HeadReader(LIMIT_BYTES)
    blocks = [PLAIN + literal(b"n", b"%d" % number) for number in range(100)]
    long = PLAIN + literal(b"n", b"x" * 126) * 10
    heads = [*map(reader.read, [*blocks, long])]

    assert 0 < known_to(reader, heads) <= 32
    assert reader.read(long) is not reader.read(long)
    assert reader.read(PLAIN) is reader.read(PLAIN)


def known_to(reader: HeadReader, heads: Iterable[Head]) -> int:
    """How many of these heads it still has."""
    kept = {id(found) for found in reach(reader)}
    return sum(id(head) in kept for head in heads)


LOST = {
    "index 0": b"\x80",
    "an index of nothing": b"\xbe",
    "a number without an end": b"\xff" * 100,
    "a huge size": b"\x3f\xff\xff\xff\x7f",
    "a size beyond what we allow": size_update(4_097),
    "three sizes": size_update(0) * 3 + PLAIN,
    "three sizes of several bytes and no field": size_update(4_096) * 3,
    "a size after a field": PLAIN + size_update(0),
    "cut": b"\x00\x05ab",
    "Huffman code that is none": b"\x00\x81\x00\x01a",
    "a list longer than allowed": literal(b"n" * 100, b"v" * 100) * 100,
}


@table("block", LOST.values(), ids=LOST)
def test_a_block_that_loses_the_table_is_an_error_and_two_sizes_are_none(block: bytes) -> None:
    assert HeadReader(LIMIT_BYTES).read(size_update(0) + size_update(4_096) + PLAIN).path == "/p"
    with pytest.raises(HPACKError):
        HeadReader(LIMIT_BYTES).read(block)


def test_many_sizes_are_not_worked_off() -> None:
    """16,384 of them took hpack 35 ms."""
    reader = HeadReader(LIMIT_BYTES)
    with pytest.raises(TooManySizes):
        reader.read(size_update(0) * LIMIT_BYTES)

    assert reader.decoded_bytes == 0


# What a proxy says of a trace is another with each call.

PARENT = b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
OTHER = b"00-fedcba9876543210fedcba9876543210-fedcba9876543210-00"
PARENT_NAME, STATE_NAME = (b"\x00" + string(name) for name in (b"traceparent", b"tracestate"))
BACK = literal(b"x-envoy-internal", b"true")
# The block of an Envoy 1.40 that traces, up to its traceparent's value and from there on.
ENVOYS = (
    bytes.fromhex(
        "8304a560b5773fa5d05b3b98855cbe5315761c8bf7657c1e525b2a1d1aec390a841ec635d872150801852f94d761c98600"
        "027465864d833505b11f0f108b1d75d0620d263d4c4d656400884d83216b1d85a93f"
    ),
    bytes.fromhex(
        "00874d83215091a4bf00008cf2b16aee7f4b1aa496ca8747834d9697008bf2b4a7b3c0ec90b22d29ec870be25c0b89717f"
    ),
)


def traced_block(parent: bytes, state: bytes | None = None, back: bytes = BACK) -> bytes:
    more = b"" if state is None else STATE_NAME + string(state)
    return PLAIN + PARENT_NAME + string(parent) + more + back


def reader_of(block: bytes, limit_bytes: int = LIMIT_BYTES) -> HeadReader:
    """One that has no table and knows a block of this form."""
    reader = HeadReader(limit_bytes)
    reader.read(size_update(0) + PLAIN)
    reader.read(block)
    reader.decoded_bytes = 0
    return reader


def test_of_envoys_blocks_only_the_id_is_decoded() -> None:
    first, second = (string(parent).join(ENVOYS) for parent in (PARENT, OTHER))
    reader = reader_of(first)
    head = reader.read(second)

    assert head == plainly_read(Decoder(), second)
    assert head.metadata["traceparent"] == OTHER.decode()
    assert [*head.metadata][2:] == [
        "traceparent",
        "tracestate",
        "x-envoy-internal",
        "x-forwarded-for",
    ]
    # Its state, which is empty, is a byte.
    assert reader.decoded_bytes == len(string(OTHER)) + 1


STATES = [b"", b"vendor=1", b"dd=s:1;p:0123456789abcdef", b"v" * 126]
# What came, what comes, and what is decoded of that: the state may differ, and need not be
# Huffman-coded; a form with a state is not one without.
FORMS = [
    *(
        (
            traced_block(PARENT, b"first=1"),
            traced_block(OTHER, state),
            string(OTHER) + string(state),
        )
        for state in STATES
    ),
    (
        traced_block(PARENT),
        PLAIN + PARENT_NAME + string(OTHER, is_huffman=False) + BACK,
        string(OTHER, is_huffman=False),
    ),
]


@table(("first", "second", "decoded"), FORMS)
def test_of_a_known_form_only_the_values_are_decoded(
    first: bytes, second: bytes, decoded: bytes
) -> None:
    reader = reader_of(first)

    assert reader.read(second) == plainly_read(Decoder(), second)
    assert reader.decoded_bytes == len(decoded)
    assert "tracestate" not in reader_of(first).read(traced_block(OTHER)).metadata


def test_a_value_that_looks_like_a_trace_spoils_no_other_head() -> None:
    """The cached head of the first must not be used for the second."""
    seeming = [huffman_valued(b"x", PARENT_NAME + string(parent)) for parent in (PARENT, OTHER)]
    calls = [PLAIN + field + literal(b"traceparent", PARENT) for field in seeming]
    heads, filled = compare_decoders([size_update(0) + PLAIN, *calls])

    values = [
        head.metadata["x"][-55:]
        for head in heads
        if isinstance(head, Head) and "x" in head.metadata
    ]
    assert (values, filled) == ([PARENT.decode(), OTHER.decode()], 0)


def test_where_there_is_a_table_nothing_is_cut() -> None:
    reader = HeadReader(LIMIT_BYTES)
    reader.read(traced_block(PARENT))

    assert reader.read(traced_block(PARENT)) is reader.read(traced_block(PARENT))
    assert decodes_all(reader, traced_block(OTHER))


def decodes_all(reader: HeadReader, block: bytes) -> bool:
    """Whether it reads a block without a form of it."""
    reader.decoded_bytes = 0
    reader.read(block)
    return reader.decoded_bytes >= len(block)


# EOS, wrong padding, cut, a length cut, a length too long, nothing.
NO_STRINGS = [b"\x88" + b"\xff" * 8, b"\x81\x00", b"\x05ab", b"\x7f", b"\xff\xff\xff", b""]


@table(
    ("value", "error"),
    [
        *((value, HPACKError) for value in NO_STRINGS),
        *((string(text), MalformedRequest) for text in (b"a\x00b", b"a\nb", b" a")),
    ],
)
def test_a_wrong_value_in_a_known_form_is_what_it_is_elsewhere(
    value: bytes, error: type[Exception]
) -> None:
    reader = reader_of(traced_block(PARENT, back=b""))
    with pytest.raises(error):
        reader.read(PLAIN + PARENT_NAME + value)


@given(st.integers(0, 126), st.integers(0, 126), st.integers(-3, 3))
def test_a_form_is_as_long_as_a_list_may_be(parent: int, state: int, more: int) -> None:
    longest = sum(
        32 + len(field[0] + field[1]) for field in Decoder().decode(traced_block(b"", b""))
    )
    sequence = [
        size_update(0) + PLAIN,
        traced_block(b"", b""),
        traced_block(b"p" * parent, b"s" * state),
    ]

    compare_decoders(sequence, longest + parent + state + more if more else longest)


@table("change", [PLAIN + literal(b"a", b"1", 0x40), PLAIN])
def test_forms_are_right_as_long_as_there_is_no_table(change: bytes) -> None:
    reader = reader_of(traced_block(PARENT))
    assert not decodes_all(reader, traced_block(OTHER))
    reader.read(size_update(100) + change)

    assert decodes_all(reader, traced_block(OTHER))


def test_forms_are_bounded() -> None:
    reader = reader_of(traced_block(PARENT))
    backs = [literal(b"n", b"%d" % number) for number in range(100)]
    heads = [reader.read(traced_block(PARENT, back=back)) for back in backs]

    assert 0 < known_to(reader, heads) <= 32
    assert not decodes_all(reader, traced_block(OTHER, back=backs[-1]))


@table("status", Status)
@table("is_alone", [True, False])
def test_trailers_name_the_status(status: Status, is_alone: bool) -> None:
    fields = decoded_fields(trailers_block(status, "details", is_alone=is_alone))
    base = {":status": "200", "content-type": "application/grpc"} if is_alone else {}

    assert fields == base | {"grpc-status": str(int(status)), "grpc-message": "details"}


@given(st.text(max_size=10))
def test_details_are_percent_encoded_and_cut(details: str) -> None:
    message = decoded_fields(trailers_block(Status.INTERNAL, details)).get("grpc-message", "")

    assert all(0x20 <= ord(char) < 0x7F for char in message)
    assert details == unquote(message) or len(message) == 126
    long = decoded_fields(trailers_block(Status.INTERNAL, "x" * 300 + details))
    assert long["grpc-message"] == "x" * 126


def test_nothing_that_we_write_changes_the_peers_table() -> None:
    decoder = Decoder()
    for block in (
        RESPONSE_BLOCK,
        trailers_block(Status.OK, "x", is_alone=True),
        refusal_block(405),
    ):
        decoder.decode(block)

    assert not decoder.header_table.dynamic_entries
