"""Pods that can do no more than they must, and are moved with care."""

from pathlib import Path
from typing import Any

import pytest

from extproc.router.cluster.kubeclient import KubeClients
from tests.manifests.rendering import (
    OVERLAYS,
    PICKERS,
    SERVING,
    Object,
    containers,
    each,
    of_kind,
    pick_object,
    pod_labels,
    pods,
    reference_names,
    render_own,
    selects,
    service_environment,
)

NON_ROOT = 65_532
DRAIN_LIMIT_S = 300  # drain.sh: SETTLE_S and LIMIT_S


def ours(overlay: str) -> dict[str, Object]:
    """The Pods with our code or our Envoy; the example's vLLM image brings its own user."""
    return {} if overlay == "overlays/example-vllm" else pods(overlay)


@each(SERVING)
def test_pods_are_nobody_without_capabilities_and_with_nothing_to_write_to(overlay: str) -> None:
    for pod in ours(overlay).values():
        context = pod["securityContext"]
        user = (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"])
        assert user == (True, NON_ROOT, NON_ROOT)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    # A Service called extproc-x in the namespace would set EXTPROC_X_PORT.
    assert pods(overlay)["extproc"]["enableServiceLinks"] is False


@each(OVERLAYS)
def test_containers_ask_for_what_they_need_are_probed_and_have_images_of_a_version(
    overlay: str,
) -> None:
    for pod in pods(overlay).values():
        for container in containers(pod):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys()
            assert "memory" in resources["limits"]
            assert "cpu" not in resources["limits"]
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
            _, colon, tag = container["image"].rpartition(":")
            assert colon
            assert tag.strip("v")[0].isdigit()


WATCH = ["list", "watch"]
POOLS = "inference.networking.k8s.io"
OBJECTIVES = ["inference.networking.x-k8s.io", "llm-d.ai"]
SLICES = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": WATCH}]
POOL_AND_PODS = [
    {
        "apiGroups": [POOLS],
        "resources": ["inferencepools"],
        "resourceNames": ["vllm"],
        "verbs": WATCH,
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": WATCH},
    {"apiGroups": OBJECTIVES, "resources": ["inferenceobjectives"], "verbs": WATCH},
]


@each(SERVING)
def test_the_service_may_read_what_its_endpoints_are_known_from_and_nothing_else(
    overlay: str,
) -> None:
    assert not of_kind(overlay, "ClusterRole", "ClusterRoleBinding")
    [role] = of_kind(overlay, "Role")
    [binding] = of_kind(overlay, "RoleBinding")
    account = pods(overlay)["extproc"]["serviceAccountName"]

    assert role["rules"] == (SLICES + POOL_AND_PODS if overlay in PICKERS else SLICES)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": "default"}
    ]


@each(OVERLAYS)
def test_only_the_services_container_has_a_token(overlay: str) -> None:
    """Not the Envoy beside it: what parses clients' bytes has no use for it."""
    with_token = set()
    for pod in pods(overlay).values():
        assert pod["automountServiceAccountToken"] is False
        tokens = {volume["name"] for volume in pod.get("volumes", []) if _has_token(volume)}
        for container in containers(pod):
            if tokens & {mount["name"] for mount in container.get("volumeMounts", [])}:
                with_token.add(container["name"])

    assert with_token == (pods(overlay).keys() & {"extproc"})


def _has_token(volume: Object) -> bool:
    sources = volume.get("projected", {}).get("sources", [])
    return any("serviceAccountToken" in source for source in sources)


@each(SERVING)
def test_the_token_is_where_the_client_looks_for_it(overlay: str) -> None:
    pod = pods(overlay)["extproc"]
    [volume] = [volume for volume in pod["volumes"] if _has_token(volume)]
    [container] = [each for each in containers(pod) if each["name"] == "extproc"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    token, authority, namespace = volume["projected"]["sources"]

    assert Path(mount["mountPath"]) == KubeClients().service_account
    assert mount["readOnly"]
    assert token["serviceAccountToken"]["path"] == "token"
    assert authority["configMap"]["items"][0]["path"] == "ca.crt"
    assert namespace["downwardAPI"]["items"][0]["path"] == "namespace"


@each([folder for folder in SERVING if "/s" not in folder])
def test_the_service_is_asked_over_grpc(overlay: str) -> None:
    [container] = pods(overlay)["extproc"]["containers"]
    probes = [container[f"{name}Probe"]["grpc"] for name in ("startup", "liveness", "readiness")]

    port = 9003 if overlay in PICKERS else 9002
    asked = ("liveness", "liveness", "readiness")
    assert probes == [{"port": port, "service": service} for service in asked]


@each(SERVING)
def test_pods_spread_and_are_not_all_evicted(overlay: str) -> None:
    budgets = {
        item["metadata"]["name"]: item["spec"] for item in of_kind(overlay, "PodDisruptionBudget")
    }
    for name in pods(overlay).keys() & {"extproc", "envoy"}:
        labels = pod_labels(overlay)[name]
        spread = pods(overlay)[name]["topologySpreadConstraints"]

        assert [constraint["topologyKey"] for constraint in spread] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        assert all(selects(each["labelSelector"]["matchLabels"], labels) for each in spread)
        assert all(each["matchLabelKeys"] == ["pod-template-hash"] for each in spread)
        assert selects(budgets[name]["selector"]["matchLabels"], labels)
        assert budgets[name]["maxUnavailable"] == 1


@each(OVERLAYS)
def test_autoscalers_scale_deployments_that_do_not_say_how_many_they_are(overlay: str) -> None:
    deployments = {
        item["metadata"]["name"]: item["spec"] for item in of_kind(overlay, "Deployment")
    }

    for item in of_kind(overlay, "HorizontalPodAutoscaler"):
        assert "replicas" not in deployments[item["spec"]["scaleTargetRef"]["name"]]


@each(SERVING)
def test_pods_are_given_the_time_to_drain(overlay: str) -> None:
    drain_s = int(service_environment(overlay)["EXTPROC_SERVER__DRAIN_S"])
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


@pytest.mark.parametrize("overlay", ["overlays/sidecar", "overlays/gateway", "overlays/istio"])
def test_a_change_of_the_server_section_rolls_the_pods_one_of_pools_not(
    overlay: str, tmp_path: Path
) -> None:
    """The first is read at the start only, the second by the running service."""
    server = {
        "name": "extproc-server",
        "behavior": "merge",
        "literals": ["EXTPROC_SERVER__LOG_LEVEL=DEBUG"],
    }
    pools: Object = {
        "name": "extproc",
        "behavior": "replace",
        "literals": ["extproc.yaml=pools: []"],
    }
    pools["options"] = {"disableNameSuffixHash": True}
    before, with_pools, with_server = (
        pick_object(
            render_own(tmp_path, [overlay], [], configMapGenerator=maps), "Deployment", "extproc"
        )["spec"]
        for maps in ([], [pools], [server])
    )

    assert with_pools["template"] == before["template"] != with_server["template"]


class TestNetwork:
    """Who may talk to whom. Ports by number: sidecar containers' names are not looked up everywhere."""

    @each(SERVING)
    def test_metrics_are_for_the_monitoring_namespace(self, overlay: str) -> None:
        for policy in of_kind(overlay, "NetworkPolicy"):
            for rule in policy["spec"]["ingress"]:
                ports = _allowed(rule)
                if ports & {9090, 9902}:
                    assert ports <= {9090, 9902}
                    assert rule["from"] == MONITORING

    @each(SERVING)
    def test_grpc_is_for_envoy(self, overlay: str) -> None:
        policy = reference_names(overlay, "NetworkPolicy", "extproc")
        rules = [rule for rule in policy["spec"]["ingress"] if 9002 in _allowed(rule)]

        if 9002 not in _ports(pods(overlay)["extproc"]):
            assert not rules
            return
        [rule] = rules
        assert _allowed(rule) == {9002}
        if overlay in OUTSIDE:
            assert all(peer["ipBlock"]["cidr"] for peer in rule["from"])
            return
        [peer] = rule["from"]
        assert peer["podSelector"]["matchLabels"]
        if overlay == "overlays/gateway":
            assert selects(peer["podSelector"]["matchLabels"], pod_labels(overlay)["envoy"])

    @each(SERVING)
    def test_policies_choose_pods_that_are_there_with_their_ports_and_let_them_out_to_what_they_need(
        self, overlay: str
    ) -> None:
        names, api_server = {53}, {443, 6443}
        out = {"extproc": names | api_server | {8000}, "envoy": names | {9002, 8000}}
        out["extproc-share"] = {9004}
        reached = dict.fromkeys(pod_labels(overlay), frozenset[int]())
        for policy in of_kind(overlay, "NetworkPolicy"):
            spec = policy["spec"]
            wanted = spec["podSelector"]["matchLabels"]
            [name] = [
                name for name, labels in pod_labels(overlay).items() if selects(wanted, labels)
            ]
            reached[name] = reached[name].union(*map(_allowed, spec["ingress"]))
            assert spec["policyTypes"] == ["Ingress", "Egress"]
            assert set().union(*map(_allowed, spec["egress"])) == out[policy["metadata"]["name"]]
        reached.pop("vllm", None)
        assert reached == {name: _ports(pods(overlay)[name]) for name in reached}


# Gateways that are no Pods: let in by address.
OUTSIDE = ["overlays/gke"]
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def _allowed(rule: Object) -> set[int]:
    return {port["port"] for port in rule["ports"]}


@each(OVERLAYS)
def test_volumes_are_there(overlay: str) -> None:
    maps = {item["metadata"]["name"] for item in of_kind(overlay, "ConfigMap")}
    for pod in pods(overlay).values():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        mounted = {
            mount["name"] for each in containers(pod) for mount in each.get("volumeMounts", [])
        }

        assert mounted == volumes.keys()
        assert {
            volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume
        } <= maps


def test_the_sidecars_socket_is_in_memory_and_shared() -> None:
    pod = pods("overlays/sidecar")["extproc"]
    [socket] = [volume for volume in pod["volumes"] if volume["name"] == "socket"]
    mounts = [(each["name"], mount) for each in containers(pod) for mount in each["volumeMounts"]]
    paths = {name: mount["mountPath"] for name, mount in mounts if mount["name"] == "socket"}

    assert socket["emptyDir"]["medium"] == "Memory"
    assert paths == {"extproc": "/run/extproc", "envoy": "/run/extproc"}
    assert pod["initContainers"][0]["restartPolicy"] == "Always"


def _ports(pod: Object) -> set[int]:
    return {
        port["containerPort"]
        for container in containers(pod)
        for port in container.get("ports", [])
    }
