"""An Envoy of somebody else's, with a rule of its own, and the three blocks of envoy/shadow.yaml in it."""

from collections.abc import Sequence
from typing import Any

from tests.stack.gateway import Tree, load, move_ports

HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def somebodys_envoy(
    clients: Sequence[int], admin: int, service: int, vllm: Sequence[str], rule: str = "ROUND_ROBIN"
) -> Tree:
    """Listens at two ports: at the first as it was, at the second with the blocks."""
    blocks = load("shadow.yaml")
    move_ports(blocks, {9002: service})
    pairs = [address.rsplit(":", 1) for address in vllm]
    sockets = [{"socket_address": {"address": ip, "port_value": int(port)}} for ip, port in pairs]
    assignment = {
        "cluster_name": "vllm",
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": each}} for each in sockets]}],
    }
    cluster = {
        "name": "vllm",
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": rule,
        "load_assignment": assignment,
        "circuit_breakers": {
            "thresholds": [
                {"max_connections": 9999, "max_requests": 9999, "max_pending_requests": 9999}
            ]
        },
    }
    listeners = [
        _listener(port, filters)
        for port, filters in zip(clients, ([], blocks["http_filters"]), strict=True)
    ]
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {"listeners": listeners, "clusters": [cluster, *blocks["clusters"]]},
    }


def _listener(port: int, filters: Sequence[Tree]) -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "vllm", "timeout": "0s"}}
    manager = {
        "@type": HCM,
        "stat_prefix": f"at_{port}",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
            "response_headers_to_add": [
                {"header": {"key": "x-served-by", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
            ],
        },
        "http_filters": [
            *filters,
            {"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}},
        ],
    }
    chain = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {"name": f"at {port}", "address": address, "filter_chains": [chain]}
