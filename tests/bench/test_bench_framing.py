"""Cutting responses into events, however the network cut them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.processors.collector import Read, cut_sse

EVENTS = ["naïve 👋🏽", "", '{"a": "b\\n"}', "[DONE]"]
STREAM = "".join(f": ping\r\n\r\nevent: x\ndata: {data}\n\n" for data in EVENTS).encode()


def cut(data: bytes, cuts: list[int]) -> list[Read]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [(float(b), data[a:b]) for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(min_value=0)), st.lists(st.binary()))
def test_events_are_the_same_however_they_are_cut(cuts: list[int], chunks: list[bytes]) -> None:
    """Any other bytes can be cut, too."""
    assert [data.decode() for _, data in cut_sse(cut(STREAM, cuts))] == EVENTS
    assert sum(len(data) for _, data in cut_sse((0.0, chunk) for chunk in chunks)) <= sum(map(len, chunks))


def test_event_has_the_time_of_its_last_byte_and_an_unfinished_one_is_none() -> None:
    reads = [(1.0, b"data: a"), (2.0, b"b\n"), (3.0, b"\ndata: c\n\ndata: d"), (4.0, b"\n\n")]

    assert list(cut_sse(reads)) == [(3.0, b"ab"), (3.0, b"c"), (4.0, b"d")]
    assert list(cut_sse([(1.0, b"data:a\ndata: b\n\ndata: lost")])) == [(1.0, b"a\nb")]
