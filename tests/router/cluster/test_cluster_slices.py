from functools import partial

from extproc.router.cluster.slices import (
    EndpointConditions,
    EndpointPort,
    find_port,
    read_slice,
    read_state,
)
from extproc.router.routing.endpoint import Endpoint
from tests.router.cluster.objects import Object, parsed_slice, pod, slice_object
from tests.tables import table

METRICS: Object = {"name": "metrics", "port": 9090, "protocol": "TCP"}
READY, DRAINING, LEFT_OUT = True, False, None
IP = "10.0.0.1"


one = partial(slice_object, "vllm-1")
OTHER_PORT = [{"name": "http", "port": 9000}]


@table(
    ("slice_", "endpoint"),
    [
        (
            one(pod("v", IP, zone="eu-1a", ready=True)),
            Endpoint("default/v", f"{IP}:8000", zone="eu-1a"),
        ),
        (one(pod(None, IP)), Endpoint(f"{IP}:8000", f"{IP}:8000")),  # no pod: named by its address
        (one(pod("v", "fd00:0:0::1"), family="IPv6"), Endpoint("default/v", "[fd00::1]:8000")),
        (
            one(pod("v", IP, "10.0.0.9")),
            Endpoint("default/v", f"{IP}:8000"),
        ),  # the first address counts
        (one(pod("v", IP), ports=OTHER_PORT), Endpoint("default/v", f"{IP}:9000")),
    ],
)
def test_a_pod_becomes_an_endpoint(slice_: Object, endpoint: Endpoint) -> None:
    assert read_slice(parsed_slice(slice_), ("http",)).endpoints == (endpoint,)


@table(
    ("ready", "serving", "terminating", "state"),
    [
        (True, True, False, READY),
        (True, None, None, READY),
        (None, None, None, READY),
        (True, False, False, READY),  # publishNotReadyAddresses: "ready" overrides
        (False, False, False, LEFT_OUT),
        (False, True, False, LEFT_OUT),
        (False, True, True, DRAINING),
        (False, None, True, DRAINING),  # null serving is to be read as true
        (None, None, True, DRAINING),
        (True, True, True, DRAINING),  # publishNotReadyAddresses calls terminating pods ready
        (False, False, True, LEFT_OUT),
        (True, False, True, LEFT_OUT),
    ],
)
def test_conditions_read_as_the_api_reference_says(
    ready: bool | None, serving: bool | None, terminating: bool | None, state: bool | None
) -> None:
    assert read_state(EndpointConditions(ready, serving, terminating)) is state


def test_missing_conditions_mean_ready_and_draining_pods_are_listed() -> None:
    bare = {"addresses": [IP], "conditions": None}
    dying = pod("dying", "10.0.0.2", ready=False, serving=True, terminating=True)
    dead = pod("dead", "10.0.0.3", ready=False, serving=False)
    slice_ = parsed_slice(one(bare, dying, dead))

    assert [(e.name, e.is_ready) for e in read_slice(slice_, ("http",)).endpoints] == [
        ("10.0.0.1:8000", True),
        ("default/dying", False),
    ]


HTTP_PORT = EndpointPort("http", 8000)


@table(
    ("ports", "port", "number"),
    [
        ([HTTP_PORT], "http", 8000),
        ([EndpointPort("metrics", 9090), HTTP_PORT], "http", 8000),
        ([EndpointPort(None, 8000)], "", 8000),
        *(([HTTP_PORT], other, None) for other in ("grpc", 80)),
        *(([EndpointPort("http", 8000, "UDP")], "http", None), ([], "http", None)),
        ([EndpointPort("http", 8000, "TCP")], 8000, 8000),
        *(([], 8000, 8000), ([EndpointPort("any", None)], 8000, 8000)),
    ],
)
def test_port_is_found_however_named(
    ports: list[EndpointPort], port: int | str, number: int | None
) -> None:
    assert find_port(ports, port) == number


@table(
    ("slice_", "fault"),
    [
        (one(pod("a", IP), ports=[METRICS]), "only metrics=9090/TCP"),
        (one(pod("a", IP), ports=[]), "has no TCP port 'http', only none"),
        (one(pod("a", "vllm.example"), family="FQDN"), "has addresses of type 'FQDN'"),
    ],
)
def test_a_slice_of_no_use_says_why(slice_: Object, fault: str) -> None:
    reading = read_slice(parsed_slice(slice_), ("http",))

    assert reading.endpoints == ()
    assert fault in str(reading.fault)


def test_one_bad_address_costs_that_endpoint_alone() -> None:
    reading = read_slice(parsed_slice(one(pod("a", "10.0.0"), pod("b", "10.0.0.2"))), ("http",))

    assert [endpoint.name for endpoint in reading.endpoints] == ["default/b"]
    assert reading.fault == "'10.0.0' is not an IP address"


def test_null_lists_are_empty() -> None:
    for field in ("endpoints", "ports"):
        assert read_slice(parsed_slice(one() | {field: None}), (8000,)).endpoints == ()


RANKS = [{"name": f"rank-{rank}", "port": 8000 + rank, "protocol": "TCP"} for rank in range(2)]


@table("ports", [(8000, 8001), ("rank-0", "rank-1"), ("rank-0", 8001)])
def test_each_port_of_a_pod_is_an_endpoint(ports: tuple[int | str, ...]) -> None:
    slice_ = one(pod("a", IP, zone="eu-1a"), pod(None, "10.0.0.2"), ports=RANKS)
    endpoints = read_slice(parsed_slice(slice_), ports).endpoints

    assert [(endpoint.name, endpoint.address) for endpoint in endpoints] == [
        ("default/a:8000", "10.0.0.1:8000"),
        ("default/a:8001", "10.0.0.1:8001"),
        ("10.0.0.2:8000", "10.0.0.2:8000"),
        ("10.0.0.2:8001", "10.0.0.2:8001"),
    ]
    assert [endpoint.zone for endpoint in endpoints] == ["eu-1a", "eu-1a", None, None]


def test_a_port_that_is_missing_among_several_is_logged_and_two_names_of_one_are_one_endpoint() -> (
    None
):
    slice_ = parsed_slice(one(pod("a", IP), ports=RANKS[:1]))
    reading = read_slice(slice_, ("rank-0", "rank-1"))

    assert [endpoint.name for endpoint in reading.endpoints] == ["default/a:8000"]
    assert reading.fault == "has no TCP port 'rank-1', only rank-0=8000/TCP"
    assert not reading.lacks_port
    assert [each.name for each in read_slice(slice_, ("rank-0", 8000)).endpoints] == [
        "default/a:8000"
    ]
