"""The overlays with an InferencePool: pool, route, picker and model servers fit together."""

from typing import Any

import pytest

from extproc.settings import parse_settings
from tests.integration.gateway import cluster, load
from tests.integration.pickers import GATEWAYS
from tests.manifests.rendering import (
    PICKERS,
    containers,
    environment,
    files,
    named,
    pod_labels,
    pods,
    selects,
)

# Those whose gateway speaks plain text to a picker, and those that read a list of addresses.
PLAIN = ["overlays/gke"]
LISTED = ["overlays/istio/inference-pool"]


def spec(overlay: str, kind: str, name: str) -> Any:
    return named(overlay, kind, name)["spec"]


@pytest.mark.parametrize("overlay", PICKERS)
def test_the_pool_has_the_examples_pods_and_their_port(overlay: str) -> None:
    pool = spec(overlay, "InferencePool", "vllm")
    for example in ("overlays/example-vllm", "overlays/simulated"):
        [container, *_] = containers(pods(example)["vllm"])
        ports = {port["containerPort"] for port in container["ports"]}

        assert selects(pool["selector"]["matchLabels"], pod_labels(example)["vllm"])
        assert {port["number"] for port in pool["targetPorts"]} <= ports


@pytest.mark.parametrize("overlay", PICKERS)
def test_the_pools_picker_is_the_service(overlay: str) -> None:
    picker = spec(overlay, "InferencePool", "vllm")["endpointPickerRef"]
    service = spec(overlay, "Service", picker["name"])
    [text] = [text for _, text in files(overlay, "extproc.yaml")]
    settings = parse_settings(text, environment(overlay))

    assert picker["port"]["number"] in {port["port"] for port in service["ports"]}
    assert settings.server.listen.endswith(f":{picker['port']['number']}")
    assert settings.server.health == "0.0.0.0:9003"
    assert (settings.server.tls is None) is (overlay in PLAIN)
    assert settings.server.tls is None or settings.server.tls.self_signed
    assert [pool.fallbacks for pool in settings.pools] == ([2] if overlay in LISTED else [0])


@pytest.mark.parametrize("overlay", PICKERS)
def test_the_services_protocol_is_the_one_it_speaks(overlay: str) -> None:
    [port] = [port for port in spec(overlay, "Service", "extproc")["ports"] if port["port"] == 9002]

    assert port["appProtocol"] == ("kubernetes.io/h2c" if overlay in PLAIN else "http2")


@pytest.mark.parametrize("overlay", PICKERS)
def test_the_route_leads_from_the_gateway_to_the_pool(overlay: str) -> None:
    route = spec(overlay, "HTTPRoute", "vllm")
    [parent] = route["parentRefs"]
    [rule] = route["rules"]
    [backend] = rule["backendRefs"]

    assert spec(overlay, "Gateway", parent["name"])
    assert (backend["group"], backend["kind"]) == ("inference.networking.k8s.io", "InferencePool")
    assert spec(overlay, backend["kind"], backend["name"])
    assert rule["timeouts"] == {"request": "0s"}


def test_istios_picker_is_watched_as_in_the_test_with_a_real_envoy() -> None:
    """What the DestinationRule says, in Envoy's words."""
    rule = spec("overlays/istio/inference-pool", "DestinationRule", "extproc")["trafficPolicy"]
    [istio] = [gateway for gateway in GATEWAYS if gateway.name == "istio"]
    tree = load("standalone.yaml")
    istio.edit(tree)
    detection = cluster(tree, "extproc")["outlier_detection"]
    said = rule["outlierDetection"]

    assert rule["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}
    assert cluster(tree, "extproc")["transport_socket"]["typed_config"]["common_tls_context"]
    assert said["consecutiveLocalOriginFailures"] == detection["consecutive_local_origin_failure"]
    assert (said["interval"], said["baseEjectionTime"]) == ("1s", "5s")
    assert (said["interval"], said["baseEjectionTime"]) == (
        detection["interval"],
        detection["base_ejection_time"],
    )
    assert said["maxEjectionPercent"] == detection["max_ejection_percent"]
    assert said["consecutive5xxErrors"] == said["consecutiveGatewayErrors"] == 0
