"""Every object of every overlay has the fields of its type, no others, and what it names is there."""

import copy
import json
import re
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import msgspec
import pytest
import yaml

from extproc.router.cluster.objectives import InferenceObjective
from tests.manifests import rendering
from tests.manifests.references import CLUSTER_WIDE, count_references, references, strings
from tests.manifests.rendering import (
    APPLICABLE,
    MANIFESTS,
    OVERLAYS,
    each,
    of_kind,
    reference_names,
    render,
)
from tests.manifests.types_of_kubernetes import KUBERNETES, check
from tests.tables import table


def test_the_overlays_are_the_ones_that_are_documented() -> None:
    text = (MANIFESTS.parent / "docs" / "how-to" / "kubernetes.md").read_text()

    missing = [overlay for overlay in OVERLAYS if f"manifests/{overlay}" not in text]

    assert missing == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_have_their_types(version: str) -> None:
    """Each once: overlays have most objects in common."""
    objects = {
        json.dumps(item, sort_keys=True): folder for folder in APPLICABLE for item in render(folder)
    }

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
    assert read.counts_for(
        reference_names("overlays/gke", "InferencePool", "vllm")["metadata"]["name"]
    )


def test_an_unknown_field_of_kubernetes_own_kinds_is_refused() -> None:
    deployment = copy.deepcopy(reference_names("base", "Deployment", "extproc"))
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
        (
            BUFFERED,
            "EnvoyExtensionPolicy",
            "extProc.0.processingMode.request.body",
            "FullDuplexStreamed",
        ),
        (BUFFERED, "EnvoyExtensionPolicy", "targetRefs", GONE),
        (BUFFERED, "BackendTrafficPolicy", "loadBalancer.type", "ConsistentHash"),
        (BUFFERED, "ClientTrafficPolicy", "connection.bufferLimit", "48MiB"),
        (BUFFERED, "EnvoyProxy", "telemetry.accessLog.settings.0.sinks.1.als.type", "TCP"),
        ("overlays/nginx-gateway-fabric", "ClientSettingsPolicy", "body.maxSize", "48Mi"),
        ("overlays/gke", "HealthCheckPolicy", "default.config.type", "HTTPS"),
    ],
)
def test_what_api_servers_refuse_is_refused_here(
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


@each(OVERLAYS)
def test_no_two_objects_are_the_same_and_all_are_in_the_namespace(overlay: str) -> None:
    keys = [(item["kind"], item["metadata"]["name"]) for item in render(overlay)]
    spaces = {
        item["metadata"].get("namespace")
        for item in render(overlay)
        if item["kind"] not in CLUSTER_WIDE
    }

    assert len(keys) == len(set(keys))
    assert spaces == {"default"}


NAMESPACE = "llm"
# Its EnvoyFilter matches the Service by its whole name: docs/how-to/kubernetes.md says how to
# change it.
WHOLE_NAMES = {"overlays/istio"}
VLLM = {"app.kubernetes.io/name": "vllm"}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Renders an overlay and vLLM's example in the namespace `llm`, with optional components; each once."""

    @cache
    def moved(overlay: str) -> list[rendering.Object]:
        resources = (
            [overlay] if overlay == "overlays/simulated" else [overlay, "overlays/example-vllm"]
        )
        folder = tmp_path_factory.mktemp("overlay")
        return rendering.render_own(folder, resources, ["vllm-network"], namespace=NAMESPACE)

    return moved


@pytest.mark.parametrize("overlay", rendering.SERVING)
def test_everything_moves_into_the_namespace_and_every_reference_with_it(
    moved: Any, overlay: str
) -> None:
    objects = moved(overlay)

    spaces = {
        item["metadata"].get("namespace") for item in objects if item["kind"] not in CLUSTER_WIDE
    }
    assert spaces == {NAMESPACE}
    left = [text for text in strings(objects) if text == "default" or ".default.svc" in text]
    assert left == (["vllm.default.svc.cluster.local"] if overlay in WHOLE_NAMES else [])
    assert count_references(objects, NAMESPACE) >= 3


@pytest.mark.parametrize("overlay", rendering.SERVING)
def test_every_selector_finds_pods_with_the_ports_it_needs(moved: Any, overlay: str) -> None:
    objects = moved(overlay)
    templates = [item["spec"]["template"] for item in objects if item["kind"] == "Deployment"]

    def ports_of(labels: rendering.Object) -> set[int]:
        chosen = [
            each for each in templates if rendering.selects(labels, each["metadata"]["labels"])
        ]
        assert chosen, labels
        return {
            port["containerPort"]
            for template in chosen
            for container in rendering.containers(template["spec"])
            for port in container.get("ports", [])
        }

    for item in objects:
        spec = item.get("spec", {})
        if item["kind"] == "Service":
            assert {port["targetPort"] for port in spec["ports"]} <= ports_of(spec["selector"])
        elif item["kind"] == "PodDisruptionBudget":
            assert ports_of(spec["selector"]["matchLabels"])
        elif item["kind"] == "InferencePool":
            numbers = {port["number"] for port in spec["targetPorts"]}
            assert numbers <= ports_of(spec["selector"]["matchLabels"])
        elif item["kind"] == "NetworkPolicy":
            wanted = {
                port["port"] for rule in spec.get("ingress", []) for port in rule.get("ports", [])
            }
            assert wanted <= ports_of(spec["podSelector"]["matchLabels"]), item["metadata"]["name"]


@pytest.mark.parametrize("overlay", rendering.SERVING)
def test_what_is_watched_is_what_is_routed_to(moved: Any, overlay: str) -> None:
    """The pool's Service is there, and where a route names a Service, it is the same one."""
    objects = moved(overlay)
    services = {
        item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Service"
    }
    [pool] = yaml.safe_load(
        rendering.pick_object(objects, "ConfigMap", "extproc")["data"]["extproc.yaml"]
    )["pools"]
    if overlay in rendering.PICKERS:
        pools = {item["metadata"]["name"] for item in objects if item["kind"] == "InferencePool"}
        assert pool["endpoints"]["inference_pool"]["name"] in pools
        return

    watched = pool["endpoints"]["kubernetes"]

    assert rendering.selects(services[watched["service"]]["selector"], VLLM)
    assert watched["port"] in {port["name"] for port in services[watched["service"]]["ports"]}
    routed = {
        reference["name"]
        for item in objects
        if item["kind"] == "HTTPRoute"
        for _, reference in references(item["spec"])
        if reference.get("kind") in {None, "Service"} and reference["name"] in services
    }
    assert routed <= {watched["service"]}


@each(rendering.SERVING)
def test_no_overlay_restricts_vllm_unasked(overlay: str) -> None:
    """Applying a gateway cuts off no other client of these Pods: the policy is a component."""
    for item in rendering.of_kind(overlay, "NetworkPolicy"):
        assert not rendering.selects(item["spec"]["podSelector"].get("matchLabels", {}), VLLM)


@each(OVERLAYS)
def test_no_overlay_may_evict_model_servers_for_a_rollout(overlay: str) -> None:
    """A class that preempts evicted all four of a node's Pods of vLLM."""
    classes = rendering.of_kind(overlay, "PriorityClass")

    assert [
        each["metadata"]["name"] for each in classes if each.get("preemptionPolicy") != "Never"
    ] == []
