"""What we send to Envoy: per type, named resources, serialised once per change.

Pure: endpoints in, bytes out. A version is a hash of the content, so services with the same
endpoints give the same versions, before and after a restart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import xxhash
from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.core.v3 import Address, HealthStatus, SocketAddress
from envoy_data_plane.envoy.config.endpoint.v3 import Endpoint as EnvoyEndpoint
from envoy_data_plane.envoy.config.endpoint.v3 import LbEndpoint
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as http
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any

from extproc.router.routing.endpoint import Endpoint
from extproc.router.stream.names import DESTINATION, LB_NAMESPACE
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

    The pool named as `open_pool` is sent a second time as `DEFAULT_CLUSTER`, which the bootstrap
    routes to while the service is away. Without one there is no such cluster, and Envoy answers
    503: it cannot see which pool a prompt is for, and one pool's prompts are not another's to read.
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
        keys = sorted(
            {(endpoint.address, endpoint.is_ready): endpoint for endpoint in endpoints}.items()
        )
        fresh = {key: encoded.get(key) or encode_endpoint(endpoint) for key, endpoint in keys}
        self._encoded[pool] = fresh
        self._assignments[pool] = _resource(
            ASSIGNMENTS, encode_assignment(pool, list(fresh.values()))
        )

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
            name: _resource(CLUSTERS, bytes(build_cluster(name, pool)))
            for name, pool in names.items()
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


_POLICIES: Final = "envoy.load_balancing_policies"
_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def build_cluster(name: str, pool: str) -> cluster.Cluster:
    """Returns a pool as an Envoy cluster, sent over CDS, with its endpoints from EDS.

    The settings are those of the static cluster `vllm` in envoy/standalone.yaml (a test compares
    them). docs/why/wire.md says how a real Envoy behaves with them.
    """
    over_ads = core.ConfigSource(
        ads=core.AggregatedConfigSource(), resource_api_version=core.ApiVersion.V3
    )
    return cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.EDS,
        eds_cluster_config=cluster.ClusterEdsClusterConfig(eds_config=over_ads, service_name=pool),
        connect_timeout=timedelta(seconds=0.5),
        # Far above any pool: the bound on load is the strategy's business.
        circuit_breakers=cluster.CircuitBreakers(
            thresholds=[
                cluster.CircuitBreakersThresholds(
                    max_connections=100_000,
                    max_pending_requests=100_000,
                    max_requests=100_000,
                    max_retries=1_000,
                )
            ]
        ),
        typed_extension_protocol_options={_HTTP_OPTIONS: Any.pack(_http_options())},
        upstream_connection_options=cluster.UpstreamConnectionOptions(
            tcp_keepalive=core.TcpKeepalive(
                keepalive_time=30, keepalive_interval=10, keepalive_probes=3
            )
        ),
        common_lb_config=cluster.ClusterCommonLbConfig(
            # Never to a draining endpoint because most are draining.
            healthy_panic_threshold=Percent(value=0),
            # Envoy holds changes of health back for 1 s by default; draining is such a change.
            update_merge_window=timedelta(0),
        ),
        outlier_detection=_outlier_detection(),
        load_balancing_policy=_policy("override_host", _override_host()),
    )


def _http_options() -> http.HttpProtocolOptions:
    """HTTP/1.1; idle connections closed before vLLM closes them after 5 s."""
    return http.HttpProtocolOptions(
        explicit_http_config=http.HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=core.Http1ProtocolOptions()
        ),
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=timedelta(seconds=4)),
    )


def _outlier_detection() -> cluster.OutlierDetection:
    """Passes by an endpoint that cannot be connected to; its answers never eject it."""
    return cluster.OutlierDetection(
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=3,
        enforcing_consecutive_5xx=0,
        enforcing_consecutive_gateway_failure=0,
        enforcing_success_rate=0,
        enforcing_local_origin_success_rate=0,
        interval=timedelta(seconds=1),
        base_ejection_time=timedelta(seconds=2),
        max_ejection_time=timedelta(seconds=10),
        max_ejection_percent=50,
    )


def _override_host() -> override.OverrideHost:
    """The endpoint that we picked, in metadata or header; without one, the least loaded of two."""
    metadata = MetadataKey(key=LB_NAMESPACE, path=[MetadataKeyPathSegment(key=DESTINATION)])
    return override.OverrideHost(
        override_host_sources=[
            override.OverrideHostOverrideHostSource(metadata=metadata),
            override.OverrideHostOverrideHostSource(header=DESTINATION),
        ],
        fallback_policy=_policy("least_request", LeastRequest()),
    )


def _policy(
    name: str, message: override.OverrideHost | LeastRequest
) -> cluster.LoadBalancingPolicy:
    config = core.TypedExtensionConfig(name=f"{_POLICIES}.{name}", typed_config=Any.pack(message))
    return cluster.LoadBalancingPolicy(
        policies=[cluster.LoadBalancingPolicyPolicy(typed_extension_config=config)]
    )
