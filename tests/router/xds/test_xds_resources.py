"""What is sent, read back with envoy-data-plane: the whole messages, by other code than ours."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import Extension, HealthStatus, Node
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryRequest, DiscoveryResponse
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.google.rpc import Status
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ProtocolError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.xds.requests import Request, WireResponse, decode_request
from extproc.router.xds.resources import ASSIGNMENTS, CLUSTERS, Catalog, build_cluster

STANDALONE = Path(__file__).parents[3] / "envoy" / "standalone.yaml"


def assignment(*assigned: Sequence[Endpoint]) -> ClusterLoadAssignment:
    """What there is of a pool after these endpoints, one after the other."""
    catalog = Catalog(["llama"])
    for endpoints in assigned:
        catalog.replace("llama", endpoints)
    message = Any.parse(catalog[ASSIGNMENTS]["llama"].body).unpack()
    assert isinstance(message, ClusterLoadAssignment)
    return message


def health_statuses(message: ClusterLoadAssignment) -> dict[str, HealthStatus]:
    entries = [entry for locality in message.endpoints for entry in locality.lb_endpoints]
    found = {}
    for entry in entries:
        assert entry.endpoint
        assert entry.endpoint.address
        assert entry.endpoint.address.socket_address
        address = entry.endpoint.address.socket_address
        found[f"{address.address} {address.port_value}"] = entry.health_status
    return found


def test_a_draining_endpoint_is_sent_as_draining() -> None:
    draining = Endpoint("b", "10.0.0.2:8001", is_ready=False)
    assigned = assignment(
        [Endpoint("a", "10.0.0.1:8000"), draining, Endpoint("c", "[fd00::1]:8000")]
    )

    assert assigned.cluster_name == "llama"
    assert health_statuses(assigned) == {
        "10.0.0.1 8000": HealthStatus.HEALTHY,
        "10.0.0.2 8001": HealthStatus.DRAINING,
        "fd00::1 8000": HealthStatus.HEALTHY,
    }


def test_exactly_the_last_endpoints_are_sent() -> None:
    many = [Endpoint(f"n{n}", f"10.0.0.{n}:8000") for n in range(1, 200)]
    last = [Endpoint("n7", "10.0.0.7:8000", is_ready=False)]

    assert health_statuses(assignment(many, last)) == {"10.0.0.7 8000": HealthStatus.DRAINING}
    assert health_statuses(assignment(many, [])) == {}


def test_an_endpoint_that_stays_is_not_serialised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(["llama"])
    endpoints = [Endpoint(f"n{n}", f"10.0.0.{n}:8000") for n in range(1, 50)]
    catalog.replace("llama", endpoints)
    encoded: list[Endpoint] = []

    def encode(endpoint: Endpoint) -> bytes:
        encoded.append(endpoint)
        return b"new"

    monkeypatch.setattr("extproc.router.xds.resources.encode_endpoint", encode)
    catalog.replace("llama", [*endpoints[1:], Endpoint("x", "10.0.1.1:8000")])

    assert encoded == [Endpoint("x", "10.0.1.1:8000")]


def test_a_pools_cluster_has_the_settings_of_the_static_one() -> None:
    """One behaviour, whether Envoy has its endpoints from a file, from DNS or from us."""
    clusters = yaml.safe_load(STANDALONE.read_text())["static_resources"]["clusters"]
    static = plain(next(cluster for cluster in clusters if cluster["name"] == "vllm"))
    served = plain(Cluster.parse(bytes(build_cluster("vllm", "vllm"))).to_dict())
    for place in ("type", "loadassignment", "edsclusterconfig"):
        static.pop(place, None)
        served.pop(place, None)

    assert served == static | {
        "commonlbconfig": {"healthypanicthreshold": {}, "updatemergewindow": "0s"}
    }
    assert static["commonlbconfig"] == {"healthypanicthreshold": {"value": 0}}


def plain(tree: dict[str, object]) -> dict[str, object]:
    """One spelling of keys for Envoy's YAML and protobuf's JSON."""

    def of(value: object) -> object:
        if isinstance(value, dict):
            return {key.replace("_", "").lower(): of(below) for key, below in value.items()}
        return [of(below) for below in value] if isinstance(value, list) else value

    return {key.replace("_", "").lower(): of(value) for key, value in tree.items()}


def test_the_default_cluster_has_the_open_pools_endpoints() -> None:
    catalog = Catalog(["llama", "qwen"], "qwen")
    cluster = Any.parse(catalog[CLUSTERS]["_default"].body).unpack()

    assert isinstance(cluster, Cluster)
    assert cluster.name == "_default"
    assert cluster.eds_cluster_config
    assert cluster.eds_cluster_config.service_name == "qwen"


def test_without_an_open_pool_there_is_no_default_cluster() -> None:
    catalog = Catalog(["llama"], "llama")
    assigned = [list(catalog[CLUSTERS])]
    changes: list[Callable[[], None]] = [
        lambda: catalog.open(None),
        lambda: catalog.open("qwen"),
        lambda: catalog.replace("qwen", []),
        lambda: catalog.remove("qwen"),
        lambda: catalog.remove("nobody"),
    ]
    for change in changes:
        change()
        assigned.append(list(catalog[CLUSTERS]))

    assert assigned == [
        ["llama", "_default"],
        *[["llama"]] * 2,
        ["llama", "qwen", "_default"],
        *[["llama"]] * 2,
    ]


def test_a_response_is_what_envoy_reads() -> None:
    catalog = Catalog(["llama"], "llama")
    bodies = [resource.body for resource in catalog[CLUSTERS].values()]
    response = DiscoveryResponse.parse(
        bytes(WireResponse(version_info="v1", resources=bodies, type_url=CLUSTERS, nonce="7"))
    )

    assert (response.version_info, response.type_url, response.nonce) == ("v1", CLUSTERS, "7")
    assert [resource.type_url for resource in response.resources] == [CLUSTERS, CLUSTERS]


def test_a_request_is_read_as_envoy_writes_it() -> None:
    node = Node(id="envoy", extensions=[Extension(name=f"extension {n}") for n in range(500)])
    written = DiscoveryRequest(
        version_info="v1",
        node=node,
        resource_names=["llama", "qwen"],
        type_url=ASSIGNMENTS,
        response_nonce="7",
        error_detail=Status(code=13, message="no"),
    )

    assert decode_request(bytes(written)) == Request(ASSIGNMENTS, ("llama", "qwen"), "7", "no")
    assert decode_request(bytes(DiscoveryRequest(type_url=CLUSTERS))) == Request(CLUSTERS)
    with pytest.raises(ProtocolError, match="too large"):
        decode_request(bytes(DiscoveryRequest(resource_names=["x" * 262_144])))


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda junk: b"\x22\x01x" + junk))
def test_any_bytes_are_a_request_or_a_protocol_error(data: bytes) -> None:
    try:
        request = decode_request(data)
    except ProtocolError:
        return
    assert isinstance(request.type_url, str)
    assert all(isinstance(name, str) for name in request.names)
