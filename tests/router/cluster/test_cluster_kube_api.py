from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.router.cluster.inference_pool_source import InferencePool, PoolTerms
from extproc.router.cluster.kube_api import KubeObject, Unreadable, WatchLost, read_event
from extproc.router.cluster.objectives import InferenceObjective
from extproc.router.cluster.pods import Pod, read_pod
from extproc.router.cluster.slices import EndpointSlice
from tests.router.cluster.api_server import event_line, status_object
from tests.router.cluster.objects import parsed_slice, pod, slice_object
from tests.tables import table


def test_an_event_is_its_type_and_its_slice_and_a_bookmark_a_version_alone() -> None:
    slice_ = slice_object("s1", pod("a", "10.0.0.1", ready=True))
    mark = event_line("BOOKMARK", {"metadata": {"resourceVersion": "7"}, "endpoints": None})
    kind, marked = read_event(mark, EndpointSlice)

    assert read_event(event_line("ADDED", slice_), EndpointSlice) == ("ADDED", parsed_slice(slice_))
    assert (kind, marked.metadata.resource_version) == ("BOOKMARK", "7")


@table(
    ("code", "why"),
    [
        *((410, "expired"), (401, "unauthorized"), (403, "forbidden"), (404, "not_found")),
        *((429, "throttled"), (500, "server_error"), (504, "server_error")),
    ],
)
def test_an_error_event_has_one_of_a_few_reasons(code: int, why: str) -> None:
    with pytest.raises(WatchLost, match=f"{code}: no luck") as caught:
        read_event(event_line("ERROR", status_object(code, "no luck")), EndpointSlice)

    assert (caught.value.why, caught.value.keeps_version) == (why, False)


KINDS: list[type[KubeObject]] = [EndpointSlice, Pod, InferencePool, InferenceObjective]


@pytest.mark.parametrize("type_", KINDS)
@given(data=st.binary() | st.text().map(str.encode))
@example(b"[" * 100_000)
@example(b'{"type": "ADDED", "object": ' + b"[" * 100_000)
@example(b'{"type": "\xff", "object": {}}')
@example(b'{"type": "ERROR", "object": {"code": "410"}}')
def test_any_bytes_are_an_event_or_unreadable(type_: type[KubeObject], data: bytes) -> None:
    try:
        kind, _ = read_event(data, type_)
    except Unreadable:
        return

    assert isinstance(kind, str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = [
    *("poolRef", "name", "kind", "priority", "selector", "matchLabels", "targetPorts", "number"),
    *(
        "targetPortNumber",
        "parents",
        "parent",
        "conditions",
        "parentRef",
        "status",
        "phase",
        "podIP",
    ),
    *("podIPs", "ip", "type", "reason"),
]
OBJECTS = st.dictionaries(
    st.sampled_from(FIELDS),
    st.recursive(
        JSON,
        lambda below: (
            st.dictionaries(st.sampled_from(FIELDS), below, max_size=4)
            | st.lists(below, max_size=2)
        ),
        max_leaves=8,
    ),
    max_size=5,
)


@given(OBJECTS, OBJECTS)
def test_whatever_an_object_holds_it_is_read_or_unreadable(spec: object, status: object) -> None:
    """What the API server's schemas forbid may come all the same, from one that has others."""
    object_ = {"metadata": {"name": "x", "namespace": "default"}, "spec": spec, "status": status}
    event = event_line("ADDED", object_)
    with suppress(Unreadable):
        assert isinstance(read_event(event, InferencePool)[1].terms, PoolTerms)
    with suppress(Unreadable):
        read_pod(read_event(event, Pod)[1], (8000, 0), "IPv4")
    with suppress(Unreadable):
        objective = read_event(event, InferenceObjective)[1]
        assert isinstance(objective.priority, int)
        assert objective.counts_for("x") in {True, False}
