"""A pool as an Envoy cluster, sent over CDS.

The settings are those of the static cluster `vllm` in envoy/standalone.yaml (a test compares them),
with the endpoints from EDS. docs/kubernetes.md tells how a real Envoy behaves with them.
"""

from datetime import timedelta
from typing import Final

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    Http1ProtocolOptions,
    TcpKeepalive,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.core.v3 import HttpProtocolOptions as CommonHttpOptions
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions,
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any

from extproc.router.stream.names import DESTINATION, LB_NAMESPACE

_POLICIES: Final = "envoy.load_balancing_policies"
_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def build_cluster(name: str, pool: str) -> Cluster:
    over_ads = ConfigSource(ads=AggregatedConfigSource(), resource_api_version=ApiVersion.V3)
    return Cluster(
        name=name,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=over_ads, service_name=pool),
        connect_timeout=timedelta(seconds=0.5),
        # Far above any pool: the bound on load is the strategy's business.
        circuit_breakers=CircuitBreakers(
            thresholds=[
                CircuitBreakersThresholds(
                    max_connections=100_000,
                    max_pending_requests=100_000,
                    max_requests=100_000,
                    max_retries=1_000,
                )
            ]
        ),
        typed_extension_protocol_options={_HTTP_OPTIONS: Any.pack(_http_options())},
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(keepalive_time=30, keepalive_interval=10, keepalive_probes=3)
        ),
        common_lb_config=ClusterCommonLbConfig(
            # Never to a draining endpoint because most are draining.
            healthy_panic_threshold=Percent(value=0),
            # Envoy holds changes of health back for 1 s by default; draining is such a change.
            update_merge_window=timedelta(0),
        ),
        outlier_detection=_outlier_detection(),
        load_balancing_policy=_policy("override_host", _override_host()),
    )


def _http_options() -> HttpProtocolOptions:
    """HTTP/1.1; idle connections closed before vLLM closes them after 5 s."""
    return HttpProtocolOptions(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=Http1ProtocolOptions()
        ),
        common_http_protocol_options=CommonHttpOptions(idle_timeout=timedelta(seconds=4)),
    )


def _outlier_detection() -> OutlierDetection:
    """Passes by an endpoint that cannot be connected to; its answers never eject it."""
    return OutlierDetection(
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


def _override_host() -> OverrideHost:
    """The endpoint that we picked, in metadata or header; without one, the least loaded of two."""
    metadata = MetadataKey(key=LB_NAMESPACE, path=[MetadataKeyPathSegment(key=DESTINATION)])
    return OverrideHost(
        override_host_sources=[
            OverrideHostOverrideHostSource(metadata=metadata),
            OverrideHostOverrideHostSource(header=DESTINATION),
        ],
        fallback_policy=_policy("least_request", LeastRequest()),
    )


def _policy(name: str, message: OverrideHost | LeastRequest) -> LoadBalancingPolicy:
    config = TypedExtensionConfig(name=f"{_POLICIES}.{name}", typed_config=Any.pack(message))
    return LoadBalancingPolicy(policies=[LoadBalancingPolicyPolicy(typed_extension_config=config)])
