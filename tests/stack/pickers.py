"""Envoy as each gateway configures it for an endpoint picker: its filter, its clusters, its failure mode.

What differs from envoy/standalone.yaml, written after the gateways' sources: Istio 1.28, Envoy
Gateway 1.5, Envoy AI Gateway (its two failure modes) and the Envoy that llm-d's charts install.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.stack.gateway import Tree, cluster_named, ext_proc_filter, load

DESTINATION = "x-gateway-destination-endpoint"
NAMED = {"key": "envoy.lb", "path": [{"key": DESTINATION}]}
NO_TRAFFIC = {
    "no_traffic_interval": "1s"
}  # up to a minute there: nobody waits for the first client here
NOT_ENFORCED = (
    "local_origin_success_rate",
    "success_rate",
    "consecutive_5xx",
    "consecutive_gateway_failure",
)
_TYPES = "type.googleapis.com/envoy.extensions"
FULL_DUPLEX = {
    f"{which}_{part}_mode": "FULL_DUPLEX_STREAMED" if part == "body" else "SEND"
    for which in ("request", "response")
    for part in ("header", "body", "trailer")
}


@dataclass(frozen=True, slots=True)
class PickerGateway:
    """One gateway. `when_killed` is what a client gets while the picker is dead, once that is known.

    `when_hung` likewise, `None` for nothing: the request waits for the gateway's `message_timeout`.
    """

    name: str
    edit: Callable[[Tree], None]
    when_killed: int
    when_hung: int | None
    fallbacks: int = 0
    server: dict[str, Any] = field(default_factory=lambda: {"tls": {"self_signed": True}})

    def __str__(self) -> str:
        return self.name

    @property
    def listener(self) -> str:
        return re.sub(r"\W+", "_", self.name)

    def tree(self) -> Tree:
        tree = load("standalone.yaml")
        self.edit(tree)
        return tree


def thresholds(unhealthy: int, healthy: int) -> dict[str, int]:
    return {"unhealthy_threshold": unhealthy, "healthy_threshold": healthy}


def speak_tls(tree: Tree, *alpn: str) -> None:
    """TLS to the picker, whatever its certificate."""
    common: Tree = {"validation_context": {}}
    if alpn:
        common["alpn_protocols"] = list(alpn)
    cluster_named(tree, "extproc")["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": common,
        },
    }


def ask_in_full_duplex(tree: Tree, *, timeout: str, fails_open: bool) -> Tree:
    """Returns the filter, as gateways write it for an InferencePool."""
    config = ext_proc_filter(tree)
    for name in ("allow_mode_override", "metadata_options"):
        config.pop(name, None)
    config.update(
        processing_mode=FULL_DUPLEX, message_timeout=timeout, failure_mode_allow=fails_open
    )
    return config


def unprobed(tree: Tree) -> Tree:
    """Returns the picker's cluster, without the health checks and limits of ours."""
    picker = cluster_named(tree, "extproc")
    for name in ("health_checks", "common_lb_config", "circuit_breakers"):
        picker.pop(name, None)
    picker["connect_timeout"] = "10s"
    return picker


def go_by_header(tree: Tree) -> None:
    """Every request goes to the one address that the header names, and nowhere else."""
    vllm = cluster_named(tree, "vllm")
    for name in (
        "load_assignment",
        "load_balancing_policy",
        "outlier_detection",
        "common_lb_config",
    ):
        vllm.pop(name)
    vllm.update(
        type="ORIGINAL_DST",
        lb_policy="CLUSTER_PROVIDED",
        original_dst_lb_config={"use_http_header": True, "http_header_name": DESTINATION},
    )


def override_host(tree: Tree) -> Tree:
    """Returns the policy of the endpoints' cluster."""
    [policy] = cluster_named(tree, "vllm")["load_balancing_policy"]["policies"]
    config: Tree = policy["typed_extension_config"]["typed_config"]
    return config


def istio(tree: Tree) -> None:
    """FailOpen, with the overlay's DestinationRule: TLS, and outlier detection on the picker."""
    config = ask_in_full_duplex(tree, timeout="1000s", fails_open=True)
    config["metadata_options"] = {
        "receiving_namespaces": {"untyped": ["envoy.lb"]},
        "forwarding_namespaces": {"untyped": ["envoy.lb"]},
    }
    override_host(tree)["override_host_sources"] = [{"metadata": NAMED}]
    override_host(tree)["selected_host_key"] = {
        "key": "envoy.lb",
        "path": [{"key": f"{DESTINATION}-served"}],
    }
    speak_tls(tree, "h2")
    unprobed(tree).update(
        common_lb_config={"healthy_panic_threshold": {"value": 0}},
        outlier_detection={
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            **{"enforcing_consecutive_local_origin_failure": 100}
            | {f"enforcing_{each}": 0 for each in NOT_ENFORCED},
            "interval": "1s",
            "base_ejection_time": "5s",
            "max_ejection_percent": 100,
        },
    )


def envoy_gateway(tree: Tree) -> None:
    """An EnvoyExtensionPolicy and a BackendTrafficPolicy: plain text, buffered, no trailers, by header."""
    config = ext_proc_filter(tree)
    config.pop("metadata_options")
    skipped = dict.fromkeys(
        ("response_header_mode", "request_trailer_mode", "response_trailer_mode"), "SKIP"
    )
    config["processing_mode"] = {
        "request_body_mode": "BUFFERED",
        "request_header_mode": "SEND",
        **skipped,
    }
    override_host(tree)["override_host_sources"] = [{"header": DESTINATION}]
    unprobed(tree)


def envoy_ai_gateway_open(tree: Tree) -> None:
    """`failureMode: FailOpen`: by metadata among the pool's endpoints; the picker is probed over TCP."""
    config = ask_in_full_duplex(tree, timeout="300s", fails_open=True)
    config["metadata_options"] = {"receiving_namespaces": {"untyped": ["envoy.lb"]}}
    override_host(tree)["override_host_sources"] = [{"metadata": NAMED}]
    speak_tls(tree)
    unprobed(tree).update(
        common_lb_config={"healthy_panic_threshold": {"value": 0}},
        health_checks=[
            # A second there. It is a handshake, which takes longer where many tests share two
            # cores.
            {
                "timeout": "10s",
                "interval": "1s",
                **NO_TRAFFIC,
                **thresholds(1, 1),
                "tcp_health_check": {},
            }
        ],
    )


def envoy_ai_gateway_buffered(tree: Tree) -> None:
    """The pool's annotations `processing-body-mode: buffered` and `allow-mode-override: "true"`, FailOpen."""
    envoy_ai_gateway_open(tree)
    config = ext_proc_filter(tree)
    buffered = dict.fromkeys(("request_body_mode", "response_body_mode"), "BUFFERED")
    config.update(processing_mode=FULL_DUPLEX | buffered, allow_mode_override=True)


def envoy_ai_gateway_closed(tree: Tree) -> None:
    """`failureMode: FailClose`, the default: by header alone, the picker is not probed."""
    ask_in_full_duplex(tree, timeout="300s", fails_open=False)
    go_by_header(tree)
    speak_tls(tree)
    unprobed(tree)


def llm_d(tree: Tree) -> None:
    """llm-d's standalone chart: small buffers, by header, the picker probed by gRPC every ten seconds."""
    config = ask_in_full_duplex(tree, timeout="1000s", fails_open=False)
    config["grpc_service"]["timeout"] = "10s"
    go_by_header(tree)
    speak_tls(tree)
    tree["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = 32_768
    unprobed(tree).update(
        connect_timeout="86400s",
        health_checks=[
            {
                "timeout": "2s",
                "interval": "10s",
                **NO_TRAFFIC,
                **thresholds(3, 2),
                "grpc_health_check": {
                    "service_name": "envoy.service.ext_proc.v3.ExternalProcessor"
                },
                "tls_options": {"alpn_protocols": ["h2"]},
            }
        ],
    )


GATEWAYS = [
    PickerGateway("istio", istio, when_killed=200, when_hung=None, fallbacks=2),
    PickerGateway(
        "envoy-gateway", envoy_gateway, when_killed=200, when_hung=200, fallbacks=2, server={}
    ),
    PickerGateway(
        "envoy-ai-gateway, buffered", envoy_ai_gateway_buffered, when_killed=200, when_hung=200
    ),
    PickerGateway(
        "envoy-ai-gateway, FailOpen", envoy_ai_gateway_open, when_killed=200, when_hung=200
    ),
    PickerGateway(
        "envoy-ai-gateway, FailClose", envoy_ai_gateway_closed, when_killed=500, when_hung=None
    ),
    PickerGateway("llm-d", llm_d, when_killed=500, when_hung=None),
]


def is_probed(gateway: PickerGateway) -> bool:
    """Whether Envoy asks the picker for its health, and passes by one that does not answer."""
    return "health_checks" in cluster_named(gateway.tree(), "extproc")


def answers_in_duplex(gateway: PickerGateway) -> bool:
    """Whether every piece of every answer passes through the picker."""
    mode: Tree = ext_proc_filter(gateway.tree())["processing_mode"]
    return bool(mode.get("response_body_mode") == "FULL_DUPLEX_STREAMED")
