"""What we send to Envoy: per type, named resources, serialised once per change.

Pure: endpoints in, bytes out. A version is a hash of the content, so services with the same endpoints give
the same versions, before and after a restart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash
from envoy_data_plane.envoy.config.core.v3 import Address, HealthStatus, SocketAddress
from envoy_data_plane.envoy.config.endpoint.v3 import Endpoint as EnvoyEndpoint
from envoy_data_plane.envoy.config.endpoint.v3 import LbEndpoint
from envoy_data_plane.google.protobuf import Any

from extproc.router.routing.endpoint import Endpoint
from extproc.router.xds.clusters import build_cluster
from extproc.router.xds.requests import WireAssignment, WireLocality

CLUSTERS: Final = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ASSIGNMENTS: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

# The open pool's cluster under a fixed name, for bootstraps; no pool can be called so.
DEFAULT_CLUSTER: Final = "_default"


@dataclass(frozen=True, slots=True)
class XdsResource:
    """A serialised google.protobuf.Any and the hash of its content."""

    body: bytes
    version: str


class Catalog:
    """The resources in force. Replacing one forgets the one before.

    The pool named as `open_pool` is sent a second time as `DEFAULT_CLUSTER`, which the bootstrap routes to
    while the service is away. Without one there is no such cluster, and Envoy answers 503: it cannot see
    which pool a prompt is for, and one pool's prompts are not another's to read.
    """

    def __init__(self, pools: Iterable[str], open_pool: str | None = None) -> None:
        self._pools = dict.fromkeys(pools)
        self._open_pool = open_pool
        self._clusters: dict[str, XdsResource] = {}
        self._assignments: dict[str, XdsResource] = {}
        self._encoded: dict[str, dict[tuple[str, bool], bytes]] = {}
        self._rebuild_clusters()

    def __getitem__(self, type_url: str) -> Mapping[str, XdsResource]:
        """Returns the resources of a type by name; raises `KeyError` for a type that we do not serve."""
        return {CLUSTERS: self._clusters, ASSIGNMENTS: self._assignments}[type_url]

    def replace(self, pool: str, endpoints: Sequence[Endpoint]) -> None:
        """Sets a pool's endpoints. Costs 0.1 ms per endpoint that is new or changed its state."""
        if pool not in self._pools:
            self._pools[pool] = None
            self._rebuild_clusters()
        encoded = self._encoded.get(pool, {})
        keys = sorted({(endpoint.address, endpoint.is_ready): endpoint for endpoint in endpoints}.items())
        fresh = {key: encoded.get(key) or encode_endpoint(endpoint) for key, endpoint in keys}
        self._encoded[pool] = fresh
        self._assignments[pool] = _resource(ASSIGNMENTS, encode_assignment(pool, list(fresh.values())))

    def remove(self, pool: str) -> None:
        """Forgets a pool, if it is there."""
        self._pools.pop(pool, None)
        self._encoded.pop(pool, None)
        self._assignments.pop(pool, None)
        self._rebuild_clusters()

    def open(self, pool: str | None) -> None:
        self._open_pool = pool
        self._rebuild_clusters()

    def _rebuild_clusters(self) -> None:
        names = {name: name for name in self._pools}
        if self._open_pool in self._pools:
            names[DEFAULT_CLUSTER] = self._open_pool
        self._clusters = {
            name: _resource(CLUSTERS, bytes(build_cluster(name, pool))) for name, pool in names.items()
        }


def encode_endpoint(endpoint: Endpoint) -> bytes:
    address = Address(socket_address=SocketAddress(address=endpoint.ip, port_value=endpoint.port))
    status = HealthStatus.HEALTHY if endpoint.is_ready else HealthStatus.DRAINING
    return bytes(LbEndpoint(endpoint=EnvoyEndpoint(address=address), health_status=status))


def encode_assignment(pool: str, endpoints: list[bytes]) -> bytes:
    localities = [bytes(WireLocality(lb_endpoints=endpoints))] if endpoints else []
    return bytes(WireAssignment(cluster_name=pool, endpoints=localities))


def version_of(resources: Mapping[str, XdsResource]) -> str:
    """Returns one version for resources of a type, whatever their order."""
    content = (f"{name}={resource.version}" for name, resource in sorted(resources.items()))
    return xxhash.xxh3_64_hexdigest("\n".join(content).encode())


def _resource(type_url: str, message: bytes) -> XdsResource:
    body = bytes(Any(type_url=type_url, value=message))
    return XdsResource(body, xxhash.xxh3_64_hexdigest(body))
