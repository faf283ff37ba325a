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
    Object,
    containers,
    pick_object,
    render,
    render_folder,
    render_own,
)


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


def test_sharing_of_picks_is_a_component(tmp_path: Path) -> None:
    """Its headless Service finds the Pods; port and secret are where its comment's `share` looks."""
    rendered = render_own(tmp_path, ["overlays/gateway"], ["share"])
    peers = pick_object(rendered, "Service", "extproc-peers")["spec"]
    policy = pick_object(rendered, "NetworkPolicy", "extproc-share")["spec"]
    template = pick_object(rendered, "Deployment", "extproc")["spec"]["template"]
    [container] = [each for each in template["spec"]["containers"] if each["name"] == "extproc"]
    comment = (MANIFESTS / "components" / "share" / "kustomization.yaml").read_text()
    block = "\n".join(
        line.removeprefix("# ") for line in comment.splitlines() if line.startswith("#   ")
    )
    share = ShareSettings.model_validate(yaml.safe_load(block)["share"])

    assert share.mesh
    assert share.mesh.listen.endswith(":9004")
    assert {"name": "share", "containerPort": 9004} in container["ports"]
    assert share.secret.env in {variable["name"] for variable in container["env"]}
    assert peers["clusterIP"] == "None"
    assert peers["publishNotReadyAddresses"]
    assert peers["selector"].items() <= template["metadata"]["labels"].items()
    assert [[{"port": 9004}]] * 2 == [
        rule["ports"] for rule in (*policy["ingress"], *policy["egress"])
    ]


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
