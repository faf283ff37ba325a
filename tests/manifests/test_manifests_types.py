"""Every object of every overlay has the fields that its type has, and no others."""

import copy
import json
import re
from typing import Any

import jsonschema
import kubernetes_validate
import msgspec
import pytest
import yaml

from extproc.router.cluster.objectives import InferenceObjective
from tests.manifests.crds.kinds import SCHEMAS
from tests.manifests.rendering import APPLICABLE, MANIFESTS, OVERLAYS, each, named, of_kind, render
from tests.manifests.types_of_kubernetes import KUBERNETES, check
from tests.tables import table


def test_the_overlays_are_the_ones_that_are_documented() -> None:
    text = (MANIFESTS.parent / "docs" / "how-to" / "kubernetes.md").read_text()

    missing = [overlay for overlay in OVERLAYS if f"manifests/{overlay}" not in text]

    assert missing == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_have_their_types(version: str) -> None:
    """Each once: overlays have most objects in common."""
    objects = {json.dumps(item, sort_keys=True): folder for folder in APPLICABLE for item in render(folder)}

    assert len(objects) > 50
    for text, folder in objects.items():
        try:
            check(json.loads(text), version)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as fault:
            pytest.fail(f"{folder}: {fault}: {text}")


def test_the_objective_in_the_docs_has_its_type_and_counts_for_the_overlays_pool() -> None:
    text = (MANIFESTS.parent / "docs" / "how-to" / "priorities.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    [item] = [block for block in blocks if "kind" in block]
    check(item, "1.37")
    read = msgspec.convert(item, InferenceObjective)

    assert (item["kind"], read.priority) == ("InferenceObjective", -10)
    assert read.counts_for(named("overlays/gke", "InferencePool", "vllm")["metadata"]["name"])


def test_an_unknown_field_is_refused() -> None:
    """The check itself: both kinds of schema see a misspelt field."""
    deployment = named("base", "Deployment", "extproc")
    pod = deployment["spec"]["template"]["spec"]
    misspelt = deployment | {
        "spec": deployment["spec"] | {"template": {"spec": pod | {"terminationGracePeriod": 1}}}
    }
    route = named("overlays/istio", "HTTPRoute", "vllm")

    with pytest.raises(kubernetes_validate.ValidationError):
        check(misspelt, "1.37")
    with pytest.raises(jsonschema.ValidationError):
        check(route | {"spec": route["spec"] | {"rule": []}}, "1.37")


AGENTS, DUPLEX = "overlays/agentgateway", "overlays/istio/inference-pool"
PATCHED, BUFFERED = "overlays/istio", "overlays/envoy-gateway"
GONE = object()


@pytest.mark.parametrize(
    ("overlay", "kind", "path", "value"),
    [
        (AGENTS, "Gateway", "listeners.0.protocol", "http"),
        (AGENTS, "Gateway", "listeners", []),
        (AGENTS, "HTTPRoute", "rules.0.matches.0.path.value", "v1/models"),
        (AGENTS, "HTTPRoute", "rules.0.matches", [{"path": {"value": f"/{n}"}} for n in range(65)]),
        (AGENTS, "HTTPRoute", "rules.0.timeouts.request", "0"),
        (AGENTS, "InferencePool", "targetPorts", [{"number": n} for n in range(1, 10)]),
        (AGENTS, "InferencePool", "targetPorts", [{"number": 1}, {"number": 1}]),
        (AGENTS, "InferencePool", "selector.matchLabels", {}),
        (AGENTS, "InferencePool", "endpointPickerRef.port", GONE),
        (AGENTS, "InferencePool", "endpointPickerRef.failureMode", "Open"),
        (DUPLEX, "DestinationRule", "host", GONE),
        (DUPLEX, "DestinationRule", "trafficPolicy.tls.mode", "TLS"),
        (DUPLEX, "DestinationRule", "trafficPolicy.outlierDetection.maxEjectionPercent", 101),
        (DUPLEX, "DestinationRule", "trafficPolicy.outlierDetection.consecutive5xxErrors", -1),
        (DUPLEX, "DestinationRule", "trafficPolicy.outlierDetection.interval", "1"),
        (DUPLEX, "DestinationRule", "trafficPolicy.connectionPool.http.maxRequests", 1),
        (PATCHED, "EnvoyFilter", "workloadSelector", {"labels": {"a": "b"}}),
        (PATCHED, "EnvoyFilter", "configPatches.0.applyTo", "HTTP"),
        (PATCHED, "EnvoyFilter", "configPatches.0.patch.operation", "APPEND"),
        (PATCHED, "EnvoyFilter", "configPatches.1.match.cluster", {"name": "vllm"}),
        (PATCHED, "EnvoyFilter", "configPatches.1.match.context", "INGRESS"),
        (BUFFERED, "EnvoyExtensionPolicy", "extProc.0.processingMode.request.body", "FullDuplexStreamed"),
        (BUFFERED, "EnvoyExtensionPolicy", "extProc.0.processingMode.request.headers", "Send"),
        (BUFFERED, "EnvoyExtensionPolicy", "extProc.0.backendRefs.0.port", GONE),
        (BUFFERED, "EnvoyExtensionPolicy", "extProc.0.backendRefs.0.kind", "Deployment"),
        (BUFFERED, "EnvoyExtensionPolicy", "targetRefs", GONE),
        (BUFFERED, "BackendTrafficPolicy", "loadBalancer.type", "ConsistentHash"),
        (BUFFERED, "BackendTrafficPolicy", "targetRefs.0.kind", "Service"),
        (BUFFERED, "BackendTrafficPolicy", "retry.retryOn.triggers", ["503"]),
        (BUFFERED, "ClientTrafficPolicy", "connection.bufferLimit", "48MiB"),
        (BUFFERED, "ClientTrafficPolicy", "targetRefs.0.kind", "HTTPRoute"),
        (BUFFERED, "ClientTrafficPolicy", "http2.maxConcurrentStreams", 0),
        (BUFFERED, "ClientTrafficPolicy", "headers.earlyRequestHeaders.remove", ["x y"]),
        (BUFFERED, "EnvoyProxy", "telemetry.accessLog.settings.0.sinks.0.file", GONE),
        (BUFFERED, "EnvoyProxy", "telemetry.accessLog.settings.0.sinks.1.als.type", "TCP"),
        (BUFFERED, "EnvoyProxy", "provider.kubernetes.envoyDeployment.container.imageRepository", "a/b"),
        ("overlays/nginx-gateway-fabric", "ClientSettingsPolicy", "body.maxSize", "48Mi"),
        ("overlays/nginx-gateway-fabric", "ProxySettingsPolicy", "targetRefs.0.kind", "Service"),
        ("overlays/gke", "HealthCheckPolicy", "default.config.type", "HTTPS"),
        ("overlays/gke", "GCPBackendPolicy", "default.timeoutSec", 0),
    ],
)
def test_what_an_api_server_refuses_is_refused_here(
    overlay: str, kind: str, path: str, value: object
) -> None:
    """One edit of an overlay's own object, against limits and rules of the published types."""
    item = copy.deepcopy(of_kind(overlay, kind)[0])
    put(item["spec"], path, value)

    with pytest.raises(jsonschema.ValidationError):
        check(item, "1.37")


def put(spec: Any, path: str, value: object) -> None:
    """Sets the field at a dotted path, or takes it away."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        spec = spec[step]
    if value is GONE:
        del spec[last]
    else:
        spec[last] = value


@table(("api", "kind"), SCHEMAS)
def test_the_schemas_are_schemas(api: str, kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[api, kind])


@each(OVERLAYS)
def test_no_two_objects_are_the_same(overlay: str) -> None:
    keys = [(item["kind"], item["metadata"]["name"]) for item in render(overlay)]

    assert len(keys) == len(set(keys))


@each(OVERLAYS)
def test_every_namespaced_object_is_in_the_namespace(overlay: str) -> None:
    namespaces = {
        item["metadata"].get("namespace")
        for item in render(overlay)
        if item["kind"] not in {"GatewayClass", "PriorityClass"}
    }

    assert namespaces == {"default"}
