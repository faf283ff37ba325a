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
from tests.manifests.references import CLUSTER_WIDE
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


def test_an_unknown_field_of_kubernetes_own_kinds_is_refused() -> None:
    deployment = copy.deepcopy(named("base", "Deployment", "extproc"))
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 1

    with pytest.raises(kubernetes_validate.ValidationError):
        check(deployment, "1.37")


AGENTS, BUFFERED = "overlays/agentgateway", "overlays/envoy-gateway"
GONE = object()


@table(
    ("overlay", "kind", "path", "value"),
    [
        (AGENTS, "Gateway", "listeners.0.protocol", "http"),
        (AGENTS, "HTTPRoute", "rule", []),
        (AGENTS, "HTTPRoute", "rules.0.timeouts.request", "0"),
        (AGENTS, "InferencePool", "targetPorts", [{"number": 1}, {"number": 1}]),
        (AGENTS, "InferencePool", "endpointPickerRef.port", GONE),
        ("overlays/istio/inference-pool", "DestinationRule", "host", GONE),
        ("overlays/istio", "EnvoyFilter", "workloadSelector", {"labels": {"a": "b"}}),
        (BUFFERED, "EnvoyExtensionPolicy", "extProc.0.processingMode.request.body", "FullDuplexStreamed"),
        (BUFFERED, "EnvoyExtensionPolicy", "targetRefs", GONE),
        (BUFFERED, "BackendTrafficPolicy", "loadBalancer.type", "ConsistentHash"),
        (BUFFERED, "ClientTrafficPolicy", "connection.bufferLimit", "48MiB"),
        (BUFFERED, "EnvoyProxy", "telemetry.accessLog.settings.0.sinks.1.als.type", "TCP"),
        ("overlays/nginx-gateway-fabric", "ClientSettingsPolicy", "body.maxSize", "48Mi"),
        ("overlays/gke", "HealthCheckPolicy", "default.config.type", "HTTPS"),
    ],
)
def test_what_api_servers_refuse_is_refused_here(overlay: str, kind: str, path: str, value: object) -> None:
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


@each(OVERLAYS)
def test_no_two_objects_are_the_same_and_all_are_in_the_namespace(overlay: str) -> None:
    keys = [(item["kind"], item["metadata"]["name"]) for item in render(overlay)]
    spaces = {
        item["metadata"].get("namespace") for item in render(overlay) if item["kind"] not in CLUSTER_WIDE
    }

    assert len(keys) == len(set(keys))
    assert spaces == {"default"}
