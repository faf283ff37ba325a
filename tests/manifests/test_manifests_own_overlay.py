"""An overlay of a user's own, as docs/how-to/kubernetes.md describes it: image, namespace, monitoring."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from extproc.router.settings.share_settings import ShareSettings
from monitoring.dashboards import BOARDS
from tests.manifests.crds.kinds import SCHEMAS
from tests.manifests.rendering import MANIFESTS, Object, render, render_folder


@pytest.fixture(scope="module", params=["sidecar", "gateway"])
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    folder = tmp_path_factory.mktemp("own")
    ours = os.path.relpath(MANIFESTS, folder.resolve())
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "llm",
        "resources": [f"{ours}/overlays/{request.param}"],
        "components": [f"{ours}/components/monitoring"],
        "images": [{"name": "extproc-router", "newName": "images.example/extproc", "newTag": "9.9.9"}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return render_folder(folder)


def test_a_pod_monitor_of_vllm_is_a_component(tmp_path: Path) -> None:
    """A cluster without the Prometheus Operator would refuse all of the example for it."""
    ours = os.path.relpath(MANIFESTS, tmp_path.resolve())
    kustomization = {
        "resources": [f"{ours}/overlays/example-vllm"],
        "components": [f"{ours}/components/vllm-monitoring"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    rendered = render_folder(tmp_path)
    [monitor] = [item for item in rendered if item["kind"] == "PodMonitor"]
    [deployment] = [item for item in rendered if item["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    ports = {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}

    jsonschema.validate(monitor, SCHEMAS["monitoring.coreos.com/v1", "PodMonitor"])
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert "PodMonitor" not in {item["kind"] for item in render("overlays/example-vllm")}


def test_sharing_of_picks_is_a_component(tmp_path: Path) -> None:
    """Its headless Service finds the Pods; port and secret are where its comment's `share` looks."""
    ours = os.path.relpath(MANIFESTS, tmp_path.resolve())
    kustomization = {"resources": [f"{ours}/overlays/gateway"], "components": [f"{ours}/components/share"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    rendered = render_folder(tmp_path)
    [peers] = [item for item in rendered if item["metadata"]["name"] == "extproc-peers"]
    [policy] = [
        item
        for item in rendered
        if (item["kind"], item["metadata"]["name"]) == ("NetworkPolicy", "extproc-share")
    ]
    [template] = [
        item["spec"]["template"]
        for item in rendered
        if item["kind"] == "Deployment" and item["metadata"]["name"] == "extproc"
    ]
    [container] = [each for each in template["spec"]["containers"] if each["name"] == "extproc"]
    comment = (MANIFESTS / "components" / "share" / "kustomization.yaml").read_text()
    block = "\n".join(line.removeprefix("# ") for line in comment.splitlines() if line.startswith("#   "))
    share = ShareSettings.model_validate(yaml.safe_load(block)["share"])

    assert share.mesh
    assert share.mesh.listen.endswith(":9004")
    assert {"name": "share", "containerPort": 9004} in container["ports"]
    assert share.secret.env in {variable["name"] for variable in container["env"]}
    assert peers["spec"]["clusterIP"] == "None"
    assert peers["spec"]["publishNotReadyAddresses"]
    assert peers["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert [[{"port": 9004}]] * 2 == [
        rule["ports"] for rule in (*policy["spec"]["ingress"], *policy["spec"]["egress"])
    ]


def test_the_rules_and_the_dashboards_come_with_it(rendered: list[Object]) -> None:
    """The rules are those of the rule file; a dashboard is where a Grafana's sidecar looks for it."""
    [rule] = [item for item in rendered if item["kind"] == "PrometheusRule"]
    maps = [item for item in rendered if "grafana_dashboard" in item["metadata"].get("labels", {})]
    boards = [json.loads(text) for item in maps for text in item["data"].values()]

    jsonschema.validate(rule, SCHEMAS["monitoring.coreos.com/v1", "PrometheusRule"])
    assert rule["spec"] == yaml.safe_load((MANIFESTS.parent / "monitoring" / "rules.yaml").read_text())
    assert {board["uid"] for board in boards} == {board.uid for board in BOARDS}
    # kubectl's annotation holds 262,144.
    assert all(sum(map(len, item["data"].values())) < 100_000 for item in maps)


def test_a_misspelt_field_of_a_rule_is_refused(rendered: list[Object]) -> None:
    [item] = [item for item in rendered if item["kind"] == "PrometheusRule"]
    [*_, rule] = item["spec"]["groups"][-1]["rules"]
    rule["four"] = rule.pop("for")

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(item, SCHEMAS["monitoring.coreos.com/v1", "PrometheusRule"])


def test_the_image_is_its_own(rendered: list[Object]) -> None:
    [deployment] = [
        item for item in rendered if (item["kind"], item["metadata"]["name"]) == ("Deployment", "extproc")
    ]
    pod = deployment["spec"]["template"]["spec"]
    images = {each["name"]: each["image"] for each in [*pod.get("initContainers", []), *pod["containers"]]}

    assert images["extproc"] == "images.example/extproc:9.9.9"


def test_a_service_monitor_is_added_and_finds_the_services(rendered: list[Object]) -> None:
    [monitor] = [item for item in rendered if item["kind"] == "ServiceMonitor"]
    services = [item for item in rendered if item["kind"] == "Service"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [item for item in services if wanted <= item["metadata"]["labels"].items()]
    ports = {port["name"] for item in found for port in item["spec"]["ports"]}

    jsonschema.validate(monitor, SCHEMAS["monitoring.coreos.com/v1", "ServiceMonitor"])
    assert found
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
