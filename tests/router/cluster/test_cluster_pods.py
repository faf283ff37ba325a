"""What an InferencePool selects, which pods are its endpoints, and what they are called."""

from functools import partial

from extproc.router.cluster.pods import ZONE_LABEL, PodBook, read_pod
from extproc.router.cluster.slices import AddressFamily, read_slice
from extproc.router.routing.endpoint import Endpoint
from tests.router.cluster.objects import Object, parsed_slice, pod, slice_object
from tests.router.cluster.pool_objects import (
    LABELS,
    parsed_pod,
    parsed_pool,
    pool_object,
    running_pod,
)
from tests.tables import table

IP = "10.0.0.1"
pod_a = partial(running_pod, "a")
READY = [("default/a", "10.0.0.1:8000", True)]
DRAINING = [("default/a", "10.0.0.1:8000", False)]


def shown(endpoints: tuple[Endpoint, ...] | list[Endpoint]) -> list[tuple[str, str, bool]]:
    return [(endpoint.name, endpoint.address, endpoint.is_ready) for endpoint in endpoints]


def pod_book(*pods: Object, ports: tuple[int, ...] = (8000,)) -> PodBook:
    book = PodBook(ports)
    book.replace(map(parsed_pod, pods))
    return book


@table(
    ("pod_", "endpoints"),
    [
        (pod_a(IP), READY),
        *(
            (pod_a(IP, ready=ready), []) for ready in ("False", "Unknown", None)
        ),  # its node is lost, not yet
        *((pod_a(IP, phase=phase), []) for phase in ("Pending", "Succeeded", "Failed", "Unknown")),
        (pod_a(), []),  # no address yet
        ({**pod_a(), "status": {}}, []),
        (pod_a(IP, deleted=True), DRAINING),  # terminating, and still serving
        (pod_a(IP, deleted=True, ready="False"), []),
        (pod_a(IP, "fd00::1"), READY),
        (pod_a("fd00:0::1"), [("default/a", "[fd00::1]:8000", True)]),
        ({**pod_a(), "status": {**pod_a()["status"], "podIP": IP}}, READY),  # without podIPs
    ],
)
def test_a_running_ready_pod_is_an_endpoint(
    pod_: Object, endpoints: list[tuple[str, str, bool]]
) -> None:
    assert shown(read_pod(parsed_pod(pod_), (8000,), "IPv4").endpoints) == endpoints


@table(
    ("family", "addresses", "address"),
    [
        ("IPv4", ("10.0.0.1", "fd00::1"), "10.0.0.1:8000"),
        ("IPv6", ("10.0.0.1", "fd00::1"), "[fd00::1]:8000"),
        ("IPv4", ("fd00::1", "10.0.0.1"), "10.0.0.1:8000"),
        ("IPv6", ("10.0.0.1",), "10.0.0.1:8000"),
    ],
)
def test_the_preferred_family_is_used_and_the_other_serves_where_it_is_missing(
    family: AddressFamily, addresses: tuple[str, ...], address: str
) -> None:
    [endpoint] = read_pod(parsed_pod(running_pod("a", *addresses)), (8000,), family).endpoints

    assert endpoint.address == address


def test_each_port_of_a_pod_is_an_endpoint_with_a_name_of_its_own() -> None:
    book = pod_book(running_pod("b", "10.0.0.2"), running_pod("a", "10.0.0.1"), ports=(8000, 8001))

    assert shown(book.endpoints()) == [
        ("default/a:8000", "10.0.0.1:8000", True),
        ("default/a:8001", "10.0.0.1:8001", True),
        ("default/b:8000", "10.0.0.2:8000", True),
        ("default/b:8001", "10.0.0.2:8001", True),
    ]
    book.use_ports((9000,))
    assert [address for _, address, _ in shown(book.endpoints())] == [
        "10.0.0.1:9000",
        "10.0.0.2:9000",
    ]


@table("ports", [(8000,), (8000, 8001)])
def test_a_pod_is_called_as_its_endpoint_slice_calls_it(ports: tuple[int, ...]) -> None:
    """A pool that changes from the one source to the other keeps its places on the ring."""
    entries = [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports]
    slice_ = slice_object("s1", pod("a", "10.0.0.1", zone="eu-1a"), ports=entries)
    labels = LABELS | {ZONE_LABEL: "eu-1a"}

    by_pod = pod_book(running_pod("a", "10.0.0.1", labels=labels), ports=ports).endpoints()

    assert tuple(by_pod) == read_slice(parsed_slice(slice_), ports).endpoints
    assert [endpoint.zone for endpoint in by_pod] == ["eu-1a"] * len(ports)


def test_a_pod_with_an_address_that_is_none_is_left_out_and_logged() -> None:
    book = pod_book(running_pod("a", "10.0.0"), running_pod("b", "10.0.0.2"))

    assert [endpoint.name for endpoint in book.endpoints()] == ["default/b"]
    assert book.faults == {"a": "is left out: '10.0.0' is not an IP address"}


@table(
    ("pool", "selector", "ports"),
    [
        (pool_object(), "app=vllm,model=llama", (8000,)),
        (pool_object(ports=[8000, 8001, 8002]), "app=vllm,model=llama", (8000, 8001, 8002)),
        (pool_object(ports=[8000, 8000]), "app=vllm,model=llama", (8000,)),
        (pool_object(labels={"z": "1", "a.b/c": ""}), "a.b/c=,z=1", (8000,)),
    ],
)
def test_a_pool_is_a_selector_and_ports(
    pool: Object, selector: str, ports: tuple[int, ...]
) -> None:
    terms = parsed_pool(pool).terms

    assert (terms.selector, terms.ports, terms.fault) == (selector, ports, None)


ours = pool_object()
NO_SELECTOR = ("no_selector", "has no labels in its selector")
NO_PORT = ("no_port", "has no target port")


@table(
    ("pool", "fault"),
    [
        (pool_object(labels={}), NO_SELECTOR),
        (ours | {"spec": {}}, NO_SELECTOR),
        (ours | {"spec": None}, NO_SELECTOR),
        (pool_object(ports=[]), NO_PORT),
        (ours | {"spec": {"selector": {"matchLabels": {"app": "x"}}}}, NO_PORT),
    ],
)
def test_a_pool_that_selects_nothing_is_at_fault_not_all_pods(
    pool: Object, fault: tuple[str, str]
) -> None:
    assert parsed_pool(pool).terms.fault == fault
