"""The Helm chart is what the manifests are: rendered by a real helm and compared object by object."""

import copy
import json
import platform
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc import __version__
from extproc.cli import cli
from extproc.router.settings.reading import parse_settings
from tests.manifests.charts import CHART, HelmRefusal, chart_objects, run_helm
from tests.manifests.references import count_references
from tests.manifests.rendering import MANIFESTS, Object, containers, render, render_folder
from tests.manifests.types_of_kubernetes import KUBERNETES, check
from tests.stack.gateway import find_envoy
from tests.tables import table

# Its library has wheels for this machine alone.
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="no helm for this machine")
# The overlays scale by CPU, name a class and say how many routers there are.
SAME = ",".join(
    f"router.epp.{value}"
    for value in ("autoscaling.enabled=true", "priorityClassName=llm-gateway", "pool.strategy.gateways=2")
)
LABELS = r"router.modelServers.matchLabels.app\.kubernetes\.io/name=vllm"
GATEWAY = f"mode=gateway,gateway.name=llm,{LABELS},provider.name="
STANDALONE = "modelServers.service=vllm"
# Each provider, what it wants besides, and the overlay that it has to be like.
PROVIDERS = {
    "istio": ("", "overlays/istio/inference-pool"),
    "gke": (",provider.gke.proxySubnet=10.129.0.0/23", "overlays/gke"),
    "envoy-ai-gateway": ("", "overlays/envoy-ai-gateway"),
    "agentgateway": ("", "overlays/agentgateway"),
    "nginx-gateway-fabric": ("", "overlays/nginx-gateway-fabric"),
    "envoy-gateway": (",modelServers.service=vllm", "overlays/envoy-gateway"),
}
MODES = [STANDALONE, LABELS, *(f"{GATEWAY}{name}{more}" for name, (more, _) in PROVIDERS.items())]
# Yours, or the cluster's: a chart that made them could be installed once only.
NOT_THE_CHARTS = {"Gateway", "GatewayClass", "PriorityClass", "EnvoyProxy"}


def comparable(objects: list[Object]) -> dict[str, Object]:
    """Returns objects by kind without what a release adds: its name and its labels."""
    text = json.dumps(objects)
    text = re.sub(r"\b(vllm|llm-gateway)-epp\b", "extproc", text)
    maps = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "ConfigMap"}
    found = {}
    for item in json.loads(text):
        kind, name = item["kind"], item["metadata"]["name"]
        if kind in NOT_THE_CHARTS | {"ConfigMap"} or (kind, name) == ("Service", "vllm"):
            continue
        annotations = item["metadata"].get("annotations", {})
        item["metadata"] = {"annotations": annotations} if annotations else {}
        if kind == "Deployment":
            item["spec"]["template"]["metadata"].pop("annotations", None)
            for container in containers(item["spec"]["template"]["spec"]):
                source = container.pop("envFrom", [])
                given = maps[source[0]["configMapRef"]["name"]] if source else {}
                env = {each["name"]: each["value"] for each in container.pop("env", [])}
                container["env"] = given | env
                container.pop("imagePullPolicy", None)
        found[f"{kind} {name}" if kind == "Service" else kind] = without_labels(item)
    return found


def without_labels(tree: Any) -> Any:
    """Drops the labels that only a release has."""
    if isinstance(tree, dict):
        added = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
        return {
            name: without_labels(value)
            for name, value in tree.items()
            if name not in added and name != "helm.sh/chart"
        }
    return [without_labels(each) for each in tree] if isinstance(tree, list) else tree


def file(objects: list[Object], name: str) -> str:
    [text] = [item["data"][name] for item in objects if name in item.get("data", {})]
    return str(text)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_gateway_mode_is_the_providers_overlay(provider: str) -> None:
    more, overlay = PROVIDERS[provider]
    objects = chart_objects(f"{GATEWAY}{provider}{more},{SAME}")
    theirs = comparable(render(overlay))

    assert comparable(objects) == theirs
    assert {"Deployment", "Role", "HTTPRoute", "NetworkPolicy", "HorizontalPodAutoscaler"} <= theirs.keys()
    pools = [yaml.safe_load(file(each, "extproc.yaml"))["pools"] for each in (objects, render(overlay))]
    if provider == "envoy-gateway":
        assert pools[0][0]["endpoints"]["kubernetes"].pop("port") == 8000
        assert pools[1][0]["endpoints"]["kubernetes"].pop("port") == "http"
    assert pools[0] == pools[1]


def test_standalone_mode_is_the_sidecar_overlay_with_the_envoy_that_init_writes(tmp_path: Path) -> None:
    """One Pod as in overlays/sidecar; Envoy, its files and its Service as `init` writes them."""
    words = ["--service", "vllm", "--port", "8000", "--model", "llm-gateway", "--output", str(tmp_path / "f")]
    assert CliRunner().invoke(cli, ["init", "kubernetes", *words]).exit_code == 0
    folder, objects = render_folder(tmp_path / "f"), chart_objects(f"{STANDALONE},{SAME}", "llm-gateway")
    ours, sidecar = comparable(objects), comparable(render("overlays/sidecar"))
    [envoy] = [item for item in folder if (item["kind"], item["metadata"]["name"]) == ("Deployment", "envoy")]
    written = comparable([item for item in folder if item["metadata"]["name"] != "envoy"])

    pod = sidecar["Deployment"]["spec"]["template"]["spec"]
    [router] = pod["initContainers"]
    router["env"] |= {"EXTPROC_SERVER__LISTEN": "127.0.0.1:9002", "EXTPROC_SERVER__XDS": "true"}
    router["volumeMounts"] = [each for each in router["volumeMounts"] if each["name"] != "socket"]
    [container] = envoy["spec"]["template"]["spec"]["containers"]
    pod["containers"] = [container | {"env": {}}]
    names = {each["name"] for each in pod.pop("volumes")} - {"socket"}
    assert {each["name"] for each in ours["Deployment"]["spec"]["template"]["spec"].pop("volumes")} == names
    sidecar["NetworkPolicy"]["spec"]["egress"][2] = written["NetworkPolicy"]["spec"]["egress"][2]
    front = "Service llm-gateway"
    sidecar[front]["spec"]["ports"] = written[front]["spec"]["ports"]
    assert ours[front]["spec"].pop("type") == "ClusterIP"

    assert ours == sidecar
    assert ours["Role"] == written["Role"]
    assert yaml.safe_load(file(objects, "extproc.yaml")) == yaml.safe_load(file(folder, "extproc.yaml"))
    assert file(objects, "drain.sh").strip() == file(folder, "drain.sh").strip()
    theirs = file(folder, "envoy.yaml")
    assert theirs.count("address: extproc,") == 1
    alone = theirs.replace("address: extproc,", "address: 127.0.0.1,")
    assert yaml.safe_load(file(objects, "envoy.yaml")) == yaml.safe_load(alone)


@pytest.mark.parametrize("values", MODES)
def test_objects_have_their_types_and_name_what_is_there(values: str) -> None:
    objects = chart_objects(f"{values},monitoring.prometheus.enabled=true")
    given: list[Object] = [{"kind": "Gateway", "metadata": {"name": "llm"}}]
    if "modelServers.service" in values:
        vllm: Object = {"kind": "Service", "metadata": {"name": "vllm"}, "spec": {"ports": [{"port": 8000}]}}
        given.append(vllm)

    for item, version in [(item, version) for item in objects for version in KUBERNETES]:
        check(copy.deepcopy(item), version)
    assert count_references([*objects, *given], "default") >= 2
    # What is said to run next names objects that are there.
    there = {(item["kind"].lower(), item["metadata"]["name"]) for item in [*objects, *given]}
    said = re.findall(
        r"(deployment/|service/|gateway )(\S+)",
        run_helm("render", values, "vllm")["extproc-router/templates/NOTES.txt"],
    )
    assert {(kind.strip("/ "), name) for kind, name in said if name != "has"} <= there
    parse_settings(file(objects, "extproc.yaml"), {})


@pytest.mark.envoy
def test_envoy_takes_the_charts_configuration(tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(file(chart_objects(STANDALONE), "envoy.yaml"))

    subprocess.run([find_envoy(), "--mode", "validate", "-c", str(path)], capture_output=True, check=True)


def test_the_values_of_llm_ds_charts_are_taken() -> None:
    """Labels instead of a Service, two ports a Pod, an image with its registry, flags."""
    image = "router.epp.image.registry=images.example/team,router.epp.image.tag=v9"
    epp = f"router.epp.replicas=3,{image},router.epp.flags.v=4"
    ports = "router.modelServers.targetPorts[0].number=8000,router.modelServers.targetPorts[1].number=8001"
    objects = chart_objects(f"router.modelServers.matchLabels.app=qwen,{ports},{epp}")
    [deployment] = [item for item in objects if item["kind"] == "Deployment"]
    [service] = [item for item in objects if item["metadata"]["name"] == "vllm-endpoints"]
    [router] = deployment["spec"]["template"]["spec"]["initContainers"]
    [pool] = yaml.safe_load(file(objects, "extproc.yaml"))["pools"]

    assert deployment["spec"]["replicas"] == pool["strategy"]["gateways"] == 3
    assert (router["image"], router["args"][-1]) == ("images.example/team/extproc-router:v9", "--v=4")
    assert service["spec"]["selector"] == {"app": "qwen"}
    assert pool["endpoints"] == {"kubernetes": {"service": "vllm-endpoints", "port": [8000, 8001]}}


@table(
    ("values", "said"),
    [
        ("mode=standalone", "where is vLLM?"),
        ("modelServers.servce=vllm", "additional properties 'servce' not allowed"),
        ("modelServers.service=vllm,mode=other", "value must be one of 'standalone', 'gateway'"),
        ("modelServers.service=vllm,modelServers.port=70000", "70,000"),
        ("mode=gateway", "name your Gateway"),
        ("mode=gateway,gateway.name=llm,modelServers.service=vllm", "set router.modelServers.matchLabels"),
        (f"{GATEWAY}gke", "set provider.gke.proxySubnet"),
        (f"{GATEWAY}envoy-gateway", "set modelServers.service"),
    ],
)
def test_values_that_cannot_work_are_refused_in_a_sentence(values: str, said: str) -> None:
    with pytest.raises(HelmRefusal, match=re.escape(said)):
        run_helm("render", values, "vllm")


def test_the_package_has_the_manifests_files_and_the_projects_version(tmp_path: Path) -> None:
    """In a checkout the chart's files are links to the manifests; in a package they are the files."""
    archive = Path(run_helm("package", STANDALONE, str(tmp_path)))
    links = sorted((CHART / "files").iterdir())
    with tarfile.open(archive) as package:
        packed = {
            Path(name).name: package.extractfile(name) for name in package.getnames() if "/files/" in name
        }
        texts = {name: stream.read().decode() for name, stream in packed.items() if stream}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert run_helm("lint", STANDALONE, "")["errors"] == []
    assert archive.name == f"extproc-router-{__version__}.tgz"
    assert chart["appVersion"] == __version__
    assert texts == {path.name: path.read_text() for path in links}
    assert all(path.resolve().is_relative_to(MANIFESTS) for path in links)
