from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.router.cluster.slices import AddressFamily, SliceBook
from tests.router.cluster.objects import Object, draining_pod, parsed, pod, slice_object

OLD, NEW = "10.0.0.1", "10.0.0.2"


def book_of(*slices: Object, family: AddressFamily = "IPv4") -> SliceBook:
    book = SliceBook(("http",), family=family)
    book.replace(map(parsed, slices))
    return book


def listed(book: SliceBook) -> list[tuple[str, str, bool]]:
    return [(endpoint.name, endpoint.address, endpoint.is_ready) for endpoint in book.endpoints()]


def test_slices_add_up_in_the_order_of_names() -> None:
    book = book_of(slice_object("s1", pod("b", "10.0.0.2")), slice_object("s2", pod("a", "10.0.0.1")))

    assert listed(book) == [("default/a", "10.0.0.1:8000", True), ("default/b", "10.0.0.2:8000", True)]


def test_a_deleted_slice_takes_its_endpoints_along() -> None:
    book = book_of(slice_object("s1", pod("a", "10.0.0.1")), slice_object("s2", pod("b", "10.0.0.2")))
    book.delete(parsed(slice_object("s2")))
    book.delete(parsed(slice_object("never-seen")))

    assert [name for name, *_ in listed(book)] == ["default/a"]


def test_a_renamed_slice_changes_nothing_once_the_old_one_is_gone() -> None:
    book = book_of(slice_object("s1", pod("a", "10.0.0.1")))
    before = book.endpoints()
    book.put(parsed(slice_object("s2", pod("a", "10.0.0.1"))))
    between = book.endpoints()
    book.delete(parsed(slice_object("s1")))

    assert before == between == book.endpoints()


def test_a_pod_in_two_slices_is_listed_once_and_ready_if_one_says_so() -> None:
    stale = slice_object("s1", draining_pod("a", "10.0.0.1"))
    fresh = slice_object("s2", pod("a", "10.0.0.1", ready=True))

    assert listed(book_of(stale, fresh)) == [("default/a", "10.0.0.1:8000", True)]
    assert listed(book_of(fresh, stale)) == [("default/a", "10.0.0.1:8000", True)]


def test_a_restarted_pod_with_a_new_address_replaces_its_draining_self() -> None:
    book = book_of(slice_object("s1", draining_pod("a", OLD), pod("a", NEW, ready=True)))

    assert listed(book) == [("default/a", f"{NEW}:8000", True)]


def test_an_address_in_two_slices_under_two_names_is_listed_once() -> None:
    book = book_of(slice_object("s1", draining_pod("old", OLD)), slice_object("s2", pod("new", OLD)))

    assert listed(book) == [("default/new", f"{OLD}:8000", True)]


def test_a_dual_stack_pod_is_one_endpoint_at_its_preferred_address() -> None:
    v4 = slice_object("v4", pod("a", "10.0.0.1"), pod("four", "10.0.0.4"))
    v6 = slice_object("v6", pod("a", "fd00::1"), pod("six", "fd00::6"), family="IPv6")

    assert [address for _, address, _ in listed(book_of(v4, v6))] == [
        "10.0.0.1:8000",
        "10.0.0.4:8000",
        "[fd00::6]:8000",
    ]
    assert [address for _, address, _ in listed(book_of(v4, v6, family="IPv6"))] == [
        "[fd00::1]:8000",
        "10.0.0.4:8000",
        "[fd00::6]:8000",
    ]


def test_a_draining_dual_stack_pod_keeps_its_address() -> None:
    v4 = slice_object("v4", draining_pod("a", "10.0.0.1"))
    v6 = slice_object("v6", pod("a", "fd00::1", ready=True), family="IPv6")

    assert listed(book_of(v4, v6)) == [("default/a", "10.0.0.1:8000", False)]


def test_faults_name_the_slice() -> None:
    book = book_of(slice_object("s1", pod("b", NEW), ports=[]), slice_object("s2", pod("a", OLD)))

    assert book.faults == {"s1": "has no TCP port 'http', only none"}
    assert book.portless is None


def test_an_empty_slice_is_no_fault() -> None:
    """A Service that is scaled to nothing has one, without ports."""
    book = book_of(slice_object("s1", ports=[]))

    assert (book.faults, book.portless, book.is_missing) == ({}, None, False)


def test_a_port_that_no_pod_has_is_told() -> None:
    metrics = [{"name": "metrics", "port": 9000, "protocol": "TCP"}]
    book = book_of(slice_object("s1", pod("a", OLD), ports=metrics), slice_object("s2", ports=[]))

    assert book.portless == "has no TCP port 'http', only metrics=9000/TCP"


def test_a_service_without_a_slice_is_missing() -> None:
    book = book_of()

    assert book.is_missing


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


@settings(deadline=None)
@given(events)
def test_any_sequence_of_events_gives_the_same_pool_as_a_fresh_list(script: list[tuple[str, Object]]) -> None:
    followed = SliceBook(("http",))
    final: dict[str, Object] = {}
    for kind, slice_ in script:
        name = slice_["metadata"]["name"]
        if kind == "DELETED":
            followed.delete(parsed(slice_))
            final.pop(name, None)
        else:
            followed.put(parsed(slice_))
            final[name] = slice_

    assert followed.endpoints() == book_of(*reversed(final.values())).endpoints()
    assert followed.faults == book_of(*final.values()).faults


@settings(deadline=None)
@given(st.lists(slices, max_size=6), st.sampled_from(["IPv4", "IPv6"]))
def test_no_name_and_no_address_is_listed_twice(some: list[Object], family: AddressFamily) -> None:
    endpoints = book_of(*some, family=family).endpoints()

    assert len({endpoint.name for endpoint in endpoints}) == len(endpoints)
    assert len({endpoint.address for endpoint in endpoints}) == len(endpoints)
    assert endpoints == sorted(endpoints, key=lambda endpoint: endpoint.name)
