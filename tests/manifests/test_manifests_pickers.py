"""The overlays with an InferencePool: pool, route, picker and model servers fit together."""

import os
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.router.settings.reading import parse_settings
from extproc.router.stream.names import KNOWN_ORDERS
from tests.manifests import rendering
from tests.stack.gateway import cluster_named, ext_proc_filter, find, load
from tests.stack.pickers import GATEWAYS
from tests.tables import table

# Those whose gateway speaks plain text to a picker, and those that read a list of addresses.
PLAIN = ["overlays/gke"]
LISTED = ["overlays/istio/inference-pool"]
SIDECAR_ORDERS = [
    each for each in KNOWN_ORDERS if not each.startswith(("x-gate", "x-llm", "x-ext"))
]


def picker_spec(overlay: str, kind: str, name: str) -> Any:
    return rendering.reference_names(overlay, kind, name)["spec"]


@rendering.each(rendering.PICKERS)
def test_the_pools_picker_is_the_service_which_may_read_the_pool(overlay: str) -> None:
    picker = picker_spec(overlay, "InferencePool", "vllm")["endpointPickerRef"]
    ports = {
        port["port"]: port for port in picker_spec(overlay, "Service", picker["name"])["ports"]
    }
    [text] = [text for _, text in rendering.config_files(overlay, "extproc.yaml")]
    settings = parse_settings(text, rendering.service_environment(overlay))
    [pool] = settings.pools
    source = pool.endpoints.inference_pool
    [role] = rendering.of_kind(overlay, "Role")

    assert picker["port"]["number"] in ports
    assert ports[9002]["appProtocol"] == ("kubernetes.io/h2c" if overlay in PLAIN else "http2")
    assert settings.server.listen.endswith(f":{picker['port']['number']}")
    assert settings.server.health == "0.0.0.0:9003"
    assert (settings.server.tls is None) is (overlay in PLAIN)
    assert settings.server.tls is None or settings.server.tls.self_signed
    assert pool.fallbacks == (2 if overlay in LISTED else 0)
    assert source is not None
    assert source.namespace is None  # the Pod's own
    assert picker_spec(overlay, "InferencePool", source.name)
    assert role["rules"][1]["resourceNames"] == [source.name]


@rendering.each([each for each in rendering.PICKERS if each != "overlays/gke"])
def test_what_llmds_sidecar_obeys_ends_at_the_gateway_also_without_the_service(
    overlay: str,
) -> None:
    """Of GKE's load balancer nobody said what removes a header before the picker is asked."""
    objects = rendering.of_kind(overlay, "HTTPRoute", "ClientTrafficPolicy", "EnvoyFilter")
    removed = *chain.from_iterable(find(objects, "remove")), *find(objects, "prefix")

    assert [each for each in SIDECAR_ORDERS if not each.startswith(removed)] == []


def overlay_of_picker(
    folder: Path, overlay: str, pods_: rendering.Object
) -> list[rendering.Object]:
    """An overlay of a user's own over one of ours, with a copy of the component `vllm`."""
    shutil.copytree(rendering.MANIFESTS / "components/vllm", folder / "vllm")
    [edit] = yaml.safe_load((folder / "vllm/vllm.yaml").read_text())
    (folder / "vllm/vllm.yaml").write_text(yaml.safe_dump([edit | {"value": pods_}]))
    copy = os.path.relpath(folder.resolve(), rendering.MANIFESTS / "components")
    return rendering.render_own(folder, [overlay], ["vllm-network", f"{copy}/vllm"])


@pytest.mark.parametrize("overlay", rendering.PICKERS)
def test_other_labels_and_ports_are_set_in_one_place(overlay: str, tmp_path: Path) -> None:
    labels, numbers = {"llm-d.ai/model": "qwen", "tier": "gpu"}, [9000, 9001]
    ports = [{"port": number} for number in numbers]
    pods_ = {
        "labels": labels,
        "targetPorts": [{"number": number} for number in numbers],
        "ports": ports,
    }
    objects = overlay_of_picker(tmp_path, overlay, pods_)
    rendered = {(item["kind"], item["metadata"]["name"]): item for item in objects}

    pool = rendered["InferencePool", "vllm"]["spec"]
    inward = rendered["NetworkPolicy", "vllm"]["spec"]
    [outward] = [
        rule for rule in rendered["NetworkPolicy", "extproc"]["spec"]["egress"] if "to" in rule
    ]
    assert (pool["selector"]["matchLabels"], pool["targetPorts"]) == (labels, pods_["targetPorts"])
    assert inward["podSelector"]["matchLabels"] == labels
    assert [rule.get("ports") for rule in inward["ingress"]] == [ports, ports, None]
    assert inward["ingress"][2]["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert outward == {"to": [{"podSelector": {"matchLabels": labels}}], "ports": ports}
    assert "8000" not in yaml.safe_dump(list(rendered.values()))
    if ("HealthCheckPolicy", "vllm") in rendered:
        check = rendered["HealthCheckPolicy", "vllm"]["spec"]["default"]["config"][
            "httpHealthCheck"
        ]
        assert check["port"] == 9000
    assert ("Pods", "vllm") not in rendered


@rendering.each(rendering.PICKERS)
def test_the_route_leads_from_the_gateway_to_the_pool(overlay: str) -> None:
    route = picker_spec(overlay, "HTTPRoute", "vllm")
    [parent] = route["parentRefs"]
    [rule] = route["rules"]
    [backend] = rule["backendRefs"]

    assert picker_spec(overlay, "Gateway", parent["name"])
    assert (backend["group"], backend["kind"]) == ("inference.networking.k8s.io", "InferencePool")
    assert picker_spec(overlay, backend["kind"], backend["name"])
    assert rule["timeouts"] == {"request": "0s"}


def test_istios_picker_is_watched_as_in_the_test_with_a_real_envoy() -> None:
    """What the DestinationRule says, in Envoy's words."""
    rule = picker_spec("overlays/istio/inference-pool", "DestinationRule", "extproc")[
        "trafficPolicy"
    ]
    [istio] = [gateway for gateway in GATEWAYS if gateway.name == "istio"]
    tree = load("standalone.yaml")
    istio.edit(tree)
    detection = cluster_named(tree, "extproc")["outlier_detection"]
    rule_fields = rule["outlierDetection"]

    assert rule["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}
    assert cluster_named(tree, "extproc")["transport_socket"]["typed_config"]["common_tls_context"]
    # Without it the next one counts for nothing.
    assert (
        rule_fields["splitExternalLocalOriginErrors"]
        is detection["split_external_local_origin_errors"]
        is True
    )
    assert (
        rule_fields["consecutiveLocalOriginFailures"]
        == detection["consecutive_local_origin_failure"]
    )
    assert rule_fields["interval"] == detection["interval"] == "1s"
    assert rule_fields["baseEjectionTime"] == detection["base_ejection_time"] == "5s"
    assert rule_fields["maxEjectionPercent"] == detection["max_ejection_percent"]
    assert rule_fields["consecutive5xxErrors"] == rule_fields["consecutiveGatewayErrors"] == 0
    # Every request in flight is an open stream to the picker.
    assert rule["connectionPool"]["http"]["http2MaxRequests"] >= 100_000


def test_envoy_ai_gateway_sends_bodies_at_once_and_answers_not_at_all() -> None:
    """The pool's annotations, and what the test with a real Envoy makes of them."""
    annotations = rendering.reference_names("overlays/envoy-ai-gateway", "InferencePool", "vllm")[
        "metadata"
    ]["annotations"]
    [buffered] = [gateway for gateway in GATEWAYS if gateway.name == "envoy-ai-gateway, buffered"]
    tree = load("standalone.yaml")
    buffered.edit(tree)
    config = ext_proc_filter(tree)

    assert annotations == {
        "aigateway.envoyproxy.io/processing-body-mode": config["processing_mode"][
            "request_body_mode"
        ].lower(),
        "aigateway.envoyproxy.io/allow-mode-override": str(config["allow_mode_override"]).lower(),
    }


@table(
    ("overlay", "kind", "part", "field"),
    [
        ("overlays/envoy-ai-gateway", "ClientTrafficPolicy", "connection", "bufferLimit"),
        ("overlays/envoy-gateway", "ClientTrafficPolicy", "connection", "bufferLimit"),
        ("overlays/nginx-gateway-fabric", "ClientSettingsPolicy", "body", "maxSize"),
    ],
)
def test_the_largest_body_gets_through_the_gateway(
    overlay: str, kind: str, part: str, field: str
) -> None:
    [text] = [text for _, text in rendering.config_files(overlay, "extproc.yaml")]
    limit_bytes = parse_settings(text, rendering.service_environment(overlay)).server.max_body_bytes
    size = picker_spec(overlay, kind, "llm")[part][field]

    assert int(size.rstrip("Mim")) * 1024 * 1024 == limit_bytes
    if "nginx" in overlay:
        # It sends tokens as they come, and its requests count for a while.
        assert picker_spec(overlay, "ProxySettingsPolicy", "llm")["buffering"] == {"disable": True}
        assert float(rendering.service_environment(overlay)["EXTPROC_SERVER__UNSEEN_S"]) > 0


def test_gkes_load_balancer_finds_the_picker_asks_vllm_for_its_health_and_waits_for_answers() -> (
    None
):
    target = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "vllm"}
    health = picker_spec("overlays/gke", "HealthCheckPolicy", "vllm")
    backend = picker_spec("overlays/gke", "GCPBackendPolicy", "vllm")
    [port] = picker_spec("overlays/gke", "InferencePool", "vllm")["targetPorts"]

    assert health["targetRef"] == backend["targetRef"] == target
    assert health["default"]["config"] == {
        "type": "HTTP",
        "httpHealthCheck": {
            "requestPath": "/health",
            "portSpecification": "USE_FIXED_PORT",
            "port": port["number"],
        },
    }
    assert backend["default"]["timeoutSec"] >= 3_600
    # It takes the Pods from a Service that is not headless.
    assert "clusterIP" not in picker_spec("overlays/gke", "Service", "extproc")
