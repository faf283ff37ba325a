"""An overlay of a user's own, as docs/how-to/kubernetes.md describes it: image, namespace, monitoring."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from extproc.router.settings.share_settings import ShareSettings
from monitoring.dashboards import BOARDS
from tests.manifests.crds.kinds import SCHEMAS
from tests.manifests.rendering import (
    MANIFESTS,
    SERVING,
    Object,
    config_files,
    containers,
    each,
    of_kind,
    pick_object,
    pod_labels,
    pods,
    reference_names,
    render,
    render_folder,
    render_own,
    selects,
)
from tests.manifests.types_of_kubernetes import KUBERNETES, check

# What a user's own overlay may add to any of ours.
OPTIONAL = ["monitoring", "operator", "operator-monitoring", "vllm-monitoring", "vllm-network"]


@pytest.fixture(scope="module", params=["sidecar", "gateway"])
def rendered_overlay(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    image = {"name": "extproc-router", "newName": "images.example/extproc", "newTag": "9.9.9"}
    folder, overlay = tmp_path_factory.mktemp("own"), f"overlays/{request.param}"
    return render_own(folder, [overlay], ["monitoring"], namespace="llm", images=[image])


def test_a_pod_monitor_of_vllm_is_a_component(tmp_path: Path) -> None:
    """A cluster without the Prometheus Operator would refuse all of the example for it."""
    rendered = render_own(tmp_path, ["overlays/example-vllm"], ["vllm-monitoring"])
    monitor, template = (
        pick_object(rendered, "PodMonitor"),
        pick_object(rendered, "Deployment")["spec"]["template"],
    )
    ports = {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}

    jsonschema.validate(monitor, SCHEMAS["monitoring.coreos.com/v1", "PodMonitor"])
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    )
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert "PodMonitor" not in {item["kind"] for item in render("overlays/example-vllm")}


@each(SERVING)
def test_replicas_share_their_picks(overlay: str) -> None:
    """A headless Service finds the Pods; port and secret are where the settings' `share` looks."""
    [text] = [text for _, text in config_files(overlay, "extproc.yaml")]
    share = ShareSettings.model_validate(yaml.safe_load(text)["share"])
    peers = reference_names(overlay, "Service", "extproc-peers")["spec"]
    policy = reference_names(overlay, "NetworkPolicy", "extproc-share")["spec"]
    [container] = [
        each for each in containers(pods(overlay)["extproc"]) if each["name"] == "extproc"
    ]

    assert share.mesh
    assert share.mesh.listen.endswith(":9004")
    assert share.mesh.peers.kubernetes
    assert share.mesh.peers.kubernetes.service == "extproc-peers"
    assert {"name": "share", "containerPort": 9004} in container["ports"]
    assert share.secret.env in {variable["name"] for variable in container["env"]}
    # One that everybody can read is none.
    assert not of_kind(overlay, "Secret")
    assert peers["clusterIP"] == "None"
    assert peers["publishNotReadyAddresses"]
    assert selects(peers["selector"], pod_labels(overlay)["extproc"])
    assert [[{"port": 9004}]] * 2 == [
        rule["ports"] for rule in (*policy["ingress"], *policy["egress"])
    ]


@each(SERVING)
def test_a_secret_is_all_that_engines_with_a_key_need_beside_the_file(overlay: str) -> None:
    [router] = [each for each in containers(pods(overlay)["extproc"]) if each["name"] == "extproc"]
    given = {each["name"]: each.get("valueFrom") for each in router["env"]}

    assert given["VLLM_API_KEY"] == {
        "secretKeyRef": {"name": "vllm-api-key", "key": "api-key", "optional": True}
    }


@pytest.mark.parametrize("overlay", SERVING)
def test_with_every_optional_component_containers_have_names_of_their_own_and_images(
    overlay: str, tmp_path: Path
) -> None:
    """A patch that meets no container of its name makes an empty one, and kustomize says nothing."""
    objects = render_own(tmp_path, [overlay], OPTIONAL)
    templates = [
        item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"
    ]

    for pod in templates:
        found = containers(pod)
        assert len({each["name"] for each in found}) == len(found)
        assert all(each.get("image") and each.get("command") for each in found)
    for item in objects:
        check(item, KUBERNETES[-1])


def test_the_rules_and_the_dashboards_come_with_it(rendered_overlay: list[Object]) -> None:
    """The rules are those of the rule file; a dashboard is where a Grafana's sidecar looks for it."""
    [rule] = [item for item in rendered_overlay if item["kind"] == "PrometheusRule"]
    maps = [
        item
        for item in rendered_overlay
        if "grafana_dashboard" in item["metadata"].get("labels", {})
    ]
    boards = [json.loads(text) for item in maps for text in item["data"].values()]

    jsonschema.validate(rule, SCHEMAS["monitoring.coreos.com/v1", "PrometheusRule"])
    assert rule["spec"] == yaml.safe_load(
        (MANIFESTS.parent / "monitoring" / "rules.yaml").read_text()
    )
    assert {board["uid"] for board in boards} == {board.uid for board in BOARDS}
    # kubectl's annotation holds 262,144.
    assert all(sum(map(len, item["data"].values())) < 100_000 for item in maps)


def test_the_image_is_its_own_and_a_service_monitor_finds_the_services(
    rendered_overlay: list[Object],
) -> None:
    pod = pick_object(rendered_overlay, "Deployment", "extproc")["spec"]["template"]["spec"]
    images = {each["image"] for each in containers(pod) if each["name"] == "extproc"}
    monitor = pick_object(rendered_overlay, "ServiceMonitor")
    services = [item for item in rendered_overlay if item["kind"] == "Service"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [item for item in services if wanted <= item["metadata"]["labels"].items()]
    ports = {port["name"] for item in found for port in item["spec"]["ports"]}

    assert images == {"images.example/extproc:9.9.9"}
    jsonschema.validate(monitor, SCHEMAS["monitoring.coreos.com/v1", "ServiceMonitor"])
    assert found
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_the_examples_have_their_own_pools_and_ask_for_a_metric_that_is_there() -> None:
    folder = MANIFESTS.parent / "examples"
    objects = render_folder(folder / "own-overlay")
    pools = pick_object(objects, "ConfigMap", "extproc")["data"]["extproc.yaml"]
    [metric] = re.findall(r"(extproc_\w+)\{pool=", (folder / "keda/scaledobject.yaml").read_text())

    assert pools == (folder / "own-overlay" / "extproc.yaml").read_text()
    assert {item["metadata"].get("namespace", "llm") for item in objects} == {"llm"}
    assert "image: registry.example/team/extproc-router:" in yaml.safe_dump(objects)
    assert f"`{metric}`" in (MANIFESTS.parent / "docs/reference/metrics.md").read_text()
