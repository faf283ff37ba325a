"""Whatever an object names is there: each overlay in another namespace, with the components it may take."""

from functools import cache
from typing import Any

import pytest
import yaml

from tests.manifests import rendering
from tests.manifests.references import CLUSTER_WIDE, count_references, references, strings
from tests.manifests.rendering import each

NAMESPACE = "llm"
# Its EnvoyFilter matches the Service by its whole name: docs/how-to/kubernetes.md says how to change it.
WHOLE_NAMES = {"overlays/istio"}
VLLM = {"app.kubernetes.io/name": "vllm"}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Renders an overlay and vLLM's example in the namespace `llm`, with optional components; each once."""

    @cache
    def moved(overlay: str) -> list[rendering.Object]:
        resources = [overlay] if overlay == "overlays/simulated" else [overlay, "overlays/example-vllm"]
        folder = tmp_path_factory.mktemp("overlay")
        return rendering.render_own(folder, resources, ["share", "vllm-network"], namespace=NAMESPACE)

    return moved


@pytest.mark.parametrize("overlay", rendering.SERVING)
def test_everything_moves_into_the_namespace_and_every_reference_with_it(moved: Any, overlay: str) -> None:
    objects = moved(overlay)

    spaces = {item["metadata"].get("namespace") for item in objects if item["kind"] not in CLUSTER_WIDE}
    assert spaces == {NAMESPACE}
    left = [text for text in strings(objects) if text == "default" or ".default.svc" in text]
    assert left == (["vllm.default.svc.cluster.local"] if overlay in WHOLE_NAMES else [])
    assert count_references(objects, NAMESPACE) >= 3


@pytest.mark.parametrize("overlay", rendering.SERVING)
def test_every_selector_finds_pods_with_the_ports_it_needs(moved: Any, overlay: str) -> None:
    objects = moved(overlay)
    templates = [item["spec"]["template"] for item in objects if item["kind"] == "Deployment"]

    def ports_of(labels: rendering.Object) -> set[int]:
        chosen = [each for each in templates if rendering.selects(labels, each["metadata"]["labels"])]
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
            wanted = {port["port"] for rule in spec.get("ingress", []) for port in rule.get("ports", [])}
            assert wanted <= ports_of(spec["podSelector"]["matchLabels"]), item["metadata"]["name"]


@pytest.mark.parametrize("overlay", rendering.SERVING)
def test_what_is_watched_is_what_is_routed_to(moved: Any, overlay: str) -> None:
    """The pool's Service is there, and where a route names a Service, it is the same one."""
    objects = moved(overlay)
    services = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Service"}
    [pool] = yaml.safe_load(rendering.pick(objects, "ConfigMap", "extproc")["data"]["extproc.yaml"])["pools"]
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


def test_who_shares_may_read_peers_whatever_the_pool_is_found_by(moved: Any) -> None:
    roles = [item["rules"] for item in moved("overlays/istio/inference-pool") if item["kind"] == "Role"]
    [rule] = [rule for rules in roles for rule in rules if "endpointslices" in rule["resources"]]

    assert (rule["apiGroups"], rule["verbs"]) == (["discovery.k8s.io"], ["list", "watch"])
    assert rule["resources"] == ["endpointslices"]
