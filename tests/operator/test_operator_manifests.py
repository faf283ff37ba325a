"""The operator's manifests: types, ports that meet, and who may reach whom."""

import json
import re

import pytest

from extproc.operator.objects import BOARD_PORT
from tests.manifests.rendering import MANIFESTS, Object, pick, render_own
from tests.manifests.types_of_kubernetes import KUBERNETES, check
from tests.operator.made import EVERYTHING, objects_of

OPERATOR = {"app.kubernetes.io/name": "extproc-operator"}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    folder, image = tmp_path_factory.mktemp("overlay"), {"name": "extproc-router"}
    images = [image | {"newName": "my.registry/extproc-router"}]
    return render_own(folder, [], ["operator", "operator-monitoring"], namespace="llm", images=images)


@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_have_their_types(rendered: list[Object], version: str) -> None:
    for item in rendered:
        if item["kind"] != "CustomResourceDefinition":
            check(item, version)


def test_port_of_the_operator_is_served_probed_scraped_and_let_in(rendered: list[Object]) -> None:
    template = pick(rendered, "Deployment", "extproc-operator")["spec"]["template"]
    [container] = template["spec"]["containers"]
    listen = container["args"][container["args"].index("--listen") + 1]
    [port] = pick(rendered, "Service", "extproc-operator")["spec"]["ports"]
    [endpoint] = pick(rendered, "ServiceMonitor", "extproc-operator")["spec"]["endpoints"]
    policy = pick(rendered, "NetworkPolicy", "extproc-operator")["spec"]

    assert listen == f"0.0.0.0:{port['targetPort']}"
    for probe, path in (
        ("livenessProbe", "/healthz"),
        ("startupProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": port["targetPort"]}
    assert (endpoint["port"], endpoint["path"], endpoint["honorLabels"]) == (port["name"], "/metrics", True)
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": port["targetPort"]}]]
    assert OPERATOR.items() <= template["metadata"]["labels"].items()
    assert pick(rendered, "Service", "extproc-operator")["spec"]["selector"] == OPERATOR
    assert pick(rendered, "ServiceMonitor", "extproc-operator")["spec"]["selector"]["matchLabels"] == OPERATOR
    assert policy["podSelector"]["matchLabels"] == OPERATOR


def test_operator_names_its_image_once_so_that_a_registry_reaches_every_run(rendered: list[Object]) -> None:
    """`images:` rewrites no arguments: the runs' Pods get the image of the operator's own Pod."""
    spec = pick(rendered, "Deployment", "extproc-operator")["spec"]
    [container] = spec["template"]["spec"]["containers"]

    assert container["image"].startswith("my.registry/extproc-router:")
    assert "--image" not in container["args"]
    assert container["name"] == "operator"
    assert "POD_NAME" in {each["name"] for each in container["env"]}
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@pytest.mark.parametrize("version", KUBERNETES)
def test_pod_that_the_docs_fetch_reports_with_is_a_pod(version: str) -> None:
    text = (MANIFESTS.parent / "docs" / "how-to" / "benchmark-in-cluster.md").read_text()
    [overrides] = re.findall(r"--overrides='(.*)'", text)

    check(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reports"}, **json.loads(overrides)}, version
    )


def test_only_the_operator_reaches_the_pods_of_runs_and_they_the_router(rendered: list[Object]) -> None:
    """By the labels that the operator really gives to Pods."""
    jobs = [made for made in objects_of(**EVERYTHING) if made["kind"] == "Job"]
    everyone, reports, router, operator = (
        pick(rendered, "NetworkPolicy", name)["spec"]
        for name in (
            "extproc-benchmark",
            "extproc-benchmark-reports",
            "extproc-benchmark-router",
            "extproc-operator",
        )
    )
    runs = everyone["podSelector"]
    to_runs, to_router = ([{"port": port}] for port in (BOARD_PORT, 9090))

    for job in jobs:
        assert runs["matchLabels"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert (everyone["policyTypes"], "ingress" in everyone) == (["Ingress"], False)
    assert reports["podSelector"] == runs
    assert reports["ingress"] == [{"from": [{"podSelector": {"matchLabels": OPERATOR}}], "ports": to_runs}]
    assert {"to": [{"podSelector": runs}], "ports": to_runs} in operator["egress"]
    assert router["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "extproc"}
    assert router["ingress"] == [{"from": [{"podSelector": runs}], "ports": to_router}]
