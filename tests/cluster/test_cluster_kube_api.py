import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc.cluster.decoding import Unreadable
from extproc.cluster.kube_api import WatchLost, read_event
from extproc.cluster.slices import EndpointSlice
from tests.cluster.api_server import line, status_object
from tests.cluster.objects import parsed, pod, slice_object


def test_an_event_is_its_type_and_its_slice() -> None:
    slice_ = slice_object("s1", pod("a", "10.0.0.1", ready=True))

    assert read_event(line("ADDED", slice_), EndpointSlice) == ("ADDED", parsed(slice_))


def test_a_bookmark_is_a_version_alone() -> None:
    kind, slice_ = read_event(
        line("BOOKMARK", {"metadata": {"resourceVersion": "7"}, "endpoints": None}), EndpointSlice
    )

    assert (kind, slice_.metadata.resource_version) == ("BOOKMARK", "7")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (410, "expired"),
        (401, "unauthorized"),
        (403, "forbidden"),
        (429, "throttled"),
        (500, "server_error"),
        (504, "server_error"),
        (404, "not_found"),
    ],
)
def test_an_error_event_is_told_in_one_of_a_few_words(code: int, why: str) -> None:
    with pytest.raises(WatchLost, match=f"{code}: no luck") as caught:
        read_event(line("ERROR", status_object(code, "no luck")), EndpointSlice)

    assert (caught.value.why, caught.value.keeps_version) == (why, False)


@settings(deadline=None)
@given(st.binary() | st.text().map(str.encode))
@example(b"[" * 100_000)
@example(b'{"type": "ADDED", "object": ' + b"[" * 100_000)
@example(b'{"type": "\xff", "object": {}}')
@example(b'{"type": "ERROR", "object": {"code": "410"}}')
def test_any_bytes_are_an_event_or_unreadable(data: bytes) -> None:
    try:
        kind, _ = read_event(data, EndpointSlice)
    except Unreadable:
        return

    assert isinstance(kind, str)
