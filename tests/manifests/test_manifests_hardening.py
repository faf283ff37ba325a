"""Pods that can do no more than they must, and are moved with care."""

from typing import Any

import pytest

from tests.manifests.rendering import (
    OVERLAYS,
    SERVING,
    Object,
    containers,
    named,
    of_kind,
    pod_labels,
    pods,
    selects,
)

NOBODY = 65_532
DRAIN_LIMIT_S = 300  # drain.sh: SETTLE_S and LIMIT_S


def ours(overlay: str) -> dict[str, Object]:
    """The Pods with our code or our Envoy; the example's vLLM image brings its own user."""
    return {} if overlay == "overlays/example-vllm" else pods(overlay)


@pytest.mark.parametrize("overlay", SERVING)
def test_pods_are_nobody_with_the_default_seccomp_profile(overlay: str) -> None:
    for pod in ours(overlay).values():
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (
            True,
            NOBODY,
            NOBODY,
        )
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("overlay", SERVING)
def test_containers_have_no_capability_and_nothing_to_write_to(overlay: str) -> None:
    for pod in ours(overlay).values():
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_ask_for_what_they_need_and_are_probed_from_their_start(overlay: str) -> None:
    for pod in pods(overlay).values():
        for container in containers(pod):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys()
            assert "memory" in resources["limits"]
            assert "cpu" not in resources["limits"]
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_have_a_version(overlay: str) -> None:
    for pod in pods(overlay).values():
        for container in containers(pod):
            _, colon, tag = container["image"].rpartition(":")
            assert colon
            assert tag.strip("v")[0].isdigit()


@pytest.mark.parametrize("overlay", SERVING)
def test_the_service_may_read_endpoint_slices_of_its_namespace_and_nothing_else(overlay: str) -> None:
    assert not of_kind(overlay, "ClusterRole", "ClusterRoleBinding")
    [role] = of_kind(overlay, "Role")
    [binding] = of_kind(overlay, "RoleBinding")
    account = pods(overlay)["extproc"]["serviceAccountName"]

    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "default"}]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_service_has_a_token(overlay: str) -> None:
    with_token = {name for name, pod in pods(overlay).items() if pod["automountServiceAccountToken"]}

    assert with_token == (pods(overlay).keys() & {"extproc"})


@pytest.mark.parametrize("overlay", [folder for folder in SERVING if "/s" not in folder])
def test_the_service_is_asked_over_grpc(overlay: str) -> None:
    [container] = pods(overlay)["extproc"]["containers"]

    probes = {name: container[f"{name}Probe"]["grpc"] for name in ("startup", "liveness", "readiness")}

    assert probes == {
        "startup": {"port": 9002, "service": "liveness"},
        "liveness": {"port": 9002, "service": "liveness"},
        "readiness": {"port": 9002, "service": "readiness"},
    }


@pytest.mark.parametrize("overlay", SERVING)
def test_pods_spread_and_are_not_all_evicted(overlay: str) -> None:
    budgets = {item["metadata"]["name"]: item["spec"] for item in of_kind(overlay, "PodDisruptionBudget")}
    for name in pods(overlay).keys() & {"extproc", "envoy"}:
        labels = pod_labels(overlay)[name]
        spread = pods(overlay)[name]["topologySpreadConstraints"]

        assert [constraint["topologyKey"] for constraint in spread] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        assert all(selects(each["labelSelector"]["matchLabels"], labels) for each in spread)
        assert selects(budgets[name]["selector"]["matchLabels"], labels)
        assert budgets[name]["maxUnavailable"] == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_autoscalers_scale_deployments_that_do_not_say_how_many_they_are(overlay: str) -> None:
    deployments = {item["metadata"]["name"]: item["spec"] for item in of_kind(overlay, "Deployment")}

    for item in of_kind(overlay, "HorizontalPodAutoscaler"):
        assert "replicas" not in deployments[item["spec"]["scaleTargetRef"]["name"]]


@pytest.mark.parametrize("overlay", SERVING)
def test_pods_are_given_the_time_to_drain(overlay: str) -> None:
    [config] = [item for item in of_kind(overlay, "ConfigMap") if "extproc.yaml" in item["data"]]
    drain_s = int(config["data"]["extproc.yaml"].partition("drain_s: ")[2].split()[0])
    for name, pod in ours(overlay).items():
        needed_s = max(_pause_s(container) for container in containers(pod))
        needed_s += drain_s if name == "extproc" else 0

        assert pod["terminationGracePeriodSeconds"] >= needed_s + 5


def _pause_s(container: Object) -> int:
    hook: dict[str, Any] = container.get("lifecycle", {}).get("preStop", {})
    if "exec" in hook:
        assert hook["exec"]["command"][-1] == "/etc/envoy-drain/drain.sh"
        return DRAIN_LIMIT_S
    return int(hook.get("sleep", {}).get("seconds", 0))


class TestNetwork:
    """Who may talk to whom."""

    @pytest.mark.parametrize("overlay", SERVING)
    def test_metrics_are_for_the_monitoring_namespace(self, overlay: str) -> None:
        monitoring = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
        for policy in of_kind(overlay, "NetworkPolicy"):
            for rule in policy["spec"]["ingress"]:
                ports = {port["port"] for port in rule["ports"]}
                if ports & {"metrics", "envoy-metrics"}:
                    assert ports <= {"metrics", "envoy-metrics"}
                    assert rule["from"] == monitoring

    @pytest.mark.parametrize("overlay", SERVING)
    def test_grpc_is_for_envoy(self, overlay: str) -> None:
        policy = named(overlay, "NetworkPolicy", "extproc")
        rules = [rule for rule in policy["spec"]["ingress"] if {"port": "grpc"} in rule["ports"]]
        listens = _ports(pods(overlay)["extproc"])

        if "grpc" not in listens:
            assert not rules
            return
        [rule] = rules
        [peer] = rule["from"]
        assert rule["ports"] == [{"port": "grpc"}]
        assert peer["podSelector"]["matchLabels"]

    def test_the_gateways_envoy_is_let_in(self) -> None:
        policy = named("overlays/gateway", "NetworkPolicy", "extproc")
        [peer] = policy["spec"]["ingress"][0]["from"]

        assert selects(peer["podSelector"]["matchLabels"], pod_labels("overlays/gateway")["envoy"])

    @pytest.mark.parametrize("overlay", SERVING)
    def test_policies_choose_pods_that_are_there_and_ports_that_they_have(self, overlay: str) -> None:
        for policy in of_kind(overlay, "NetworkPolicy"):
            wanted = policy["spec"]["podSelector"]["matchLabels"]
            [name] = [name for name, labels in pod_labels(overlay).items() if selects(wanted, labels)]
            ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
            assert ports == _ports(pods(overlay)[name])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_choose_pods_that_have_their_ports(overlay: str) -> None:
    for service in of_kind(overlay, "Service"):
        wanted = service["spec"]["selector"]
        chosen = [name for name, labels in pod_labels(overlay).items() if selects(wanted, labels)]
        if wanted == {"app.kubernetes.io/name": "vllm"} and not chosen:
            continue  # example-vllm has them
        [name] = chosen
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= _ports(pods(overlay)[name])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_volumes_are_there(overlay: str) -> None:
    maps = {item["metadata"]["name"] for item in of_kind(overlay, "ConfigMap")}
    for pod in pods(overlay).values():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        mounted = {mount["name"] for each in containers(pod) for mount in each.get("volumeMounts", [])}

        assert mounted == volumes.keys()
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= maps


def test_the_sidecars_socket_is_in_memory_and_shared() -> None:
    pod = pods("overlays/sidecar")["extproc"]
    [socket] = [volume for volume in pod["volumes"] if volume["name"] == "socket"]
    paths = {
        each["name"]: mount["mountPath"]
        for each in containers(pod)
        for mount in each["volumeMounts"]
        if mount["name"] == "socket"
    }

    assert socket["emptyDir"]["medium"] == "Memory"
    assert paths == {"extproc": "/run/extproc", "envoy": "/run/extproc"}
    assert pod["initContainers"][0]["restartPolicy"] == "Always"


def _ports(pod: Object) -> set[str]:
    return {port["name"] for container in containers(pod) for port in container.get("ports", [])}
