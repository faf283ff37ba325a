"""The operator's manifests: types, ports that meet, and who may reach whom."""

import json
import re

import pytest

from extproc.operator.objects import BOARD_PORT
from tests.manifests.rendering import MANIFESTS, Object, pick_object, render_own
from tests.manifests.types_of_kubernetes import KUBERNETES, check
from tests.operator.cluster import JOBS, ServedCluster
from tests.operator.comparing import comparison_spec, write_settings
from tests.operator.made import EVERYTHING, objects_of
from tests.operator.operating import operating
from tests.operator.roles import read_rules

OPERATOR = {"app.kubernetes.io/name": "extproc-operator"}


@pytest.fixture(scope="module")
def operator_overlay(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    folder, image = tmp_path_factory.mktemp("overlay"), {"name": "extproc-router"}
    images = [image | {"newName": "my.registry/extproc-router"}]
    return render_own(
        folder, [], ["operator", "operator-monitoring"], namespace="llm", images=images
    )


@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_have_their_types(operator_overlay: list[Object], version: str) -> None:
    for item in operator_overlay:
        if item["kind"] != "CustomResourceDefinition":
            check(item, version)


def test_port_of_the_operator_is_served_probed_scraped_and_let_in(
    operator_overlay: list[Object],
) -> None:
    template = pick_object(operator_overlay, "Deployment", "extproc-operator")["spec"]["template"]
    [container] = template["spec"]["containers"]
    listen = container["args"][container["args"].index("--listen") + 1]
    [port] = pick_object(operator_overlay, "Service", "extproc-operator")["spec"]["ports"]
    [endpoint] = pick_object(operator_overlay, "ServiceMonitor", "extproc-operator")["spec"][
        "endpoints"
    ]
    policy = pick_object(operator_overlay, "NetworkPolicy", "extproc-operator")["spec"]

    assert listen == f"0.0.0.0:{port['targetPort']}"
    for probe, path in (
        ("livenessProbe", "/healthz"),
        ("startupProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": port["targetPort"]}
    assert (endpoint["port"], endpoint["path"], endpoint["honorLabels"]) == (
        port["name"],
        "/metrics",
        True,
    )
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": port["targetPort"]}]]
    assert OPERATOR.items() <= template["metadata"]["labels"].items()
    assert (
        pick_object(operator_overlay, "Service", "extproc-operator")["spec"]["selector"] == OPERATOR
    )
    assert (
        pick_object(operator_overlay, "ServiceMonitor", "extproc-operator")["spec"]["selector"][
            "matchLabels"
        ]
        == OPERATOR
    )
    assert policy["podSelector"]["matchLabels"] == OPERATOR


def test_operator_names_its_image_once_so_that_a_registry_reaches_every_run(
    operator_overlay: list[Object],
) -> None:
    """`images:` rewrites no arguments: the runs' Pods get the image of the operator's own Pod."""
    spec = pick_object(operator_overlay, "Deployment", "extproc-operator")["spec"]
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
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "reports"},
            **json.loads(overrides),
        },
        version,
    )


def test_only_the_operator_reaches_the_pods_of_runs_and_they_the_router(
    operator_overlay: list[Object],
) -> None:
    """By the labels that the operator really gives to Pods."""
    jobs = [made for made in objects_of(**EVERYTHING) if made["kind"] == "Job"]
    everyone, reports, router, operator = (
        pick_object(operator_overlay, "NetworkPolicy", name)["spec"]
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
    assert reports["ingress"] == [
        {"from": [{"podSelector": {"matchLabels": OPERATOR}}], "ports": to_runs}
    ]
    assert {"to": [{"podSelector": runs}], "ports": to_runs} in operator["egress"]
    [chosen] = router["podSelector"]["matchExpressions"]
    assert (chosen["key"], chosen["operator"]) == ("app.kubernetes.io/name", "In")
    assert chosen["values"] == ["extproc", "extproc-router"]  # the manifests' Pods, the chart's
    assert router["ingress"] == [{"from": [{"podSelector": runs}], "ports": to_router}]


pytestmark = pytest.mark.timeout(600)

# Asked of the API server by an admission plugin, where there is one, not by the operator.
_FOR_ADMISSION = {("extproc.dev", "benchmarks/finalizers", "update")}


@pytest.mark.slow
async def test_role_allows_what_the_operator_does_and_nothing_else(
    served: ServedCluster, null_server: int
) -> None:
    """A story that needs all of it; the server of every other test refuses what the Role does not allow.

    1. A comparison takes the router and is asked for an arm. 2. Somebody deletes the run's
    Job: what a run needs is found to be there. 3. It is suspended.
    """
    cluster = served.cluster
    text, data = write_settings(null_server), {"name": "extproc"}
    cluster.add(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": data, "data": {"extproc.yaml": text}}
    )
    spec = comparison_spec(null_server, "127.0.0.1:1")

    def config() -> str:
        return str(cluster.of("v1/configmaps").objects["extproc"]["data"]["extproc.yaml"])

    # As after a crash between making a Job and noting it: what is there is looked at.
    cluster.faults = {("POST", "jobs"): [409]}
    async with operating(served):
        cluster.apply("b", spec)
        await served.wait(lambda: config() != text)
        run = served.benchmark("b")["status"]["run"]
        await cluster.remove(JOBS, run)
        # Asked for, and there: a server takes its time.
        await served.wait(
            lambda: cluster.asked.count("POST jobs") >= 3 and bool(cluster.of(JOBS).objects)
        )
        cluster.apply("b", {**spec, "suspend": True})
        await served.wait(lambda: not cluster.of(JOBS).objects and config() == text)

    assert cluster.used == cluster.rules.keys() - _FOR_ADMISSION


@pytest.mark.slow
async def test_router_that_the_role_does_not_name_is_refused(
    served: ServedCluster, null_server: int
) -> None:
    data, text = {"name": "second"}, write_settings(null_server)
    served.cluster.add(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": data, "data": {"extproc.yaml": text}}
    )
    async with operating(served):
        served.cluster.apply(
            "b", comparison_spec(null_server, "r:1", router={"config-map": "second"})
        )
        status = await served.until("b", "Refused")

    assert "Role does not name it" in status["faults"][0]
    assert served.cluster.denied == {("", "configmaps", "update")}
    served.cluster.denied.clear()
    assert not served.cluster.of(JOBS).objects


def test_only_the_router_that_is_named_may_be_written() -> None:
    """Who may write Benchmarks is not to change whatever ConfigMap there is by the operator's hand."""
    assert read_rules()["", "configmaps", "update"] == {"extproc"}
