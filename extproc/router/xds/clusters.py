"""A pool as an Envoy cluster, sent over CDS.

The settings are those of the static cluster `vllm` in envoy/standalone.yaml (a test compares them),
with the endpoints from EDS. docs/why/wire.md says how a real Envoy behaves with them.
"""

from datetime import timedelta
from typing import Final

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as http
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any

from extproc.router.stream.names import DESTINATION, LB_NAMESPACE

_POLICIES: Final = "envoy.load_balancing_policies"
_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def build_cluster(name: str, pool: str) -> cluster.Cluster:
    over_ads = core.ConfigSource(ads=core.AggregatedConfigSource(), resource_api_version=core.ApiVersion.V3)
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
            tcp_keepalive=core.TcpKeepalive(keepalive_time=30, keepalive_interval=10, keepalive_probes=3)
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


def _policy(name: str, message: override.OverrideHost | LeastRequest) -> cluster.LoadBalancingPolicy:
    config = core.TypedExtensionConfig(name=f"{_POLICIES}.{name}", typed_config=Any.pack(message))
    return cluster.LoadBalancingPolicy(
        policies=[cluster.LoadBalancingPolicyPolicy(typed_extension_config=config)]
    )
