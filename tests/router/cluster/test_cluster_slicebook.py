from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from extproc.router.cluster.slices import AddressFamily, SliceBook
from tests.router.cluster.objects import Object, draining_pod, parsed_slice, pod, slice_object
from tests.tables import table

OLD, NEW = "10.0.0.1", "10.0.0.2"


def slice_book(*slices: Object, family: AddressFamily = "IPv4") -> SliceBook:
    book = SliceBook(("http",), family=family)
    book.replace(map(parsed_slice, slices))
    return book


def listed_endpoints(book: SliceBook) -> list[tuple[str, str, bool]]:
    return [
        (each.name.removeprefix("default/"), each.address.removesuffix(":8000"), each.is_ready)
        for each in book.endpoints()
    ]


one, two = partial(slice_object, "s1"), partial(slice_object, "s2")
STALE, FRESH = one(draining_pod("a", OLD)), two(pod("a", OLD, ready=True))
DUAL = [
    one(pod("a", OLD), pod("four", NEW)),
    two(pod("a", "fd00::1"), pod("six", "fd00::6"), family="IPv6"),
]
SIX = ("six", "[fd00::6]", True)


@table(
    ("slices", "expected"),
    [
        (
            [one(pod("b", NEW)), two(pod("a", OLD))],
            [("a", OLD, True), ("b", NEW, True)],
        ),  # by their names
        ([STALE, FRESH], [("a", OLD, True)]),  # in two slices: ready if one says so
        ([FRESH, STALE], [("a", OLD, True)]),
        ([one(draining_pod("a", OLD), pod("a", NEW, ready=True))], [("a", NEW, True)]),  # restarted
        (
            [one(draining_pod("old", OLD)), two(pod("new", OLD))],
            [("new", OLD, True)],
        ),  # one address
        (DUAL, [("a", OLD, True), ("four", NEW, True), SIX]),
        (
            [STALE, DUAL[1]],
            [("a", OLD, False), SIX],
        ),  # dual stack, and draining: it keeps its address
    ],
)
def test_a_pod_is_listed_once(slices: list[Object], expected: list[tuple[str, str, bool]]) -> None:
    assert listed_endpoints(slice_book(*slices)) == expected
    addresses = [address for _, address, _ in listed_endpoints(slice_book(*DUAL, family="IPv6"))]
    assert addresses == ["[fd00::1]", NEW, "[fd00::6]"], "where that is preferred"


def test_a_deleted_slice_takes_its_endpoints_along_unless_they_moved() -> None:
    book = slice_book(slice_object("s1", pod("a", OLD)), slice_object("s2", pod("b", NEW)))
    book.delete(parsed_slice(slice_object("s2")))
    book.delete(parsed_slice(slice_object("never-seen")))
    before = book.endpoints()
    book.put(parsed_slice(slice_object("s3", pod("a", OLD))))
    between = book.endpoints()
    book.delete(parsed_slice(slice_object("s1")))

    assert listed_endpoints(book) == [("a", OLD, True)]
    assert before == between == book.endpoints()


METRICS = [{"name": "metrics", "port": 9000, "protocol": "TCP"}]
NONE, OTHER = "has no TCP port 'http', only none", "has no TCP port 'http', only metrics=9000/TCP"


@table(
    ("slices", "faults", "portless", "is_missing"),
    [
        ([one(pod("b", NEW), ports=[]), two(pod("a", OLD))], {"s1": NONE}, None, False),
        ([one(ports=[])], {}, None, False),  # a Service that is scaled to nothing
        ([one(pod("a", OLD), ports=METRICS), two(ports=[])], {"s1": OTHER}, OTHER, False),
        ([], {}, None, True),
    ],
)
def test_what_a_service_lacks_is_reported(
    slices: list[Object], faults: dict[str, str], portless: str | None, *, is_missing: bool
) -> None:
    book = slice_book(*slices)

    assert (book.faults, book.portless, book.is_missing) == (faults, portless, is_missing)


conditions = st.sampled_from([True, False, None])
pods = st.builds(
    lambda name, address, zone, ready, serving, terminating: pod(
        name, address, zone=zone, ready=ready, serving=serving, terminating=terminating
    ),
    st.sampled_from([None, "a", "b", "c"]),
    st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    st.sampled_from([None, "eu-1a", "eu-1b"]),
    conditions,
    conditions,
    conditions,
)
names = st.sampled_from(["s1", "s2", "s3"])
slices = st.builds(
    lambda name, entries, has_port: slice_object(name, *entries, ports=None if has_port else []),
    names,
    st.lists(pods, max_size=4),
    st.booleans(),
)
events = st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), slices), max_size=12)


@given(events)
def test_any_sequence_of_events_gives_the_same_pool_as_a_fresh_list(
    script: list[tuple[str, Object]],
) -> None:
    followed = SliceBook(("http",))
    final: dict[str, Object] = {}
    for kind, slice_ in script:
        name = slice_["metadata"]["name"]
        if kind == "DELETED":
            followed.delete(parsed_slice(slice_))
            final.pop(name, None)
        else:
            followed.put(parsed_slice(slice_))
            final[name] = slice_

    assert followed.endpoints() == slice_book(*reversed(final.values())).endpoints()
    assert followed.faults == slice_book(*final.values()).faults


@given(st.lists(slices, max_size=6), st.sampled_from(["IPv4", "IPv6"]))
def test_no_name_and_no_address_is_listed_twice(some: list[Object], family: AddressFamily) -> None:
    endpoints = slice_book(*some, family=family).endpoints()

    assert len({endpoint.name for endpoint in endpoints}) == len(endpoints)
    assert len({endpoint.address for endpoint in endpoints}) == len(endpoints)
    assert endpoints == sorted(endpoints, key=lambda endpoint: endpoint.name)
