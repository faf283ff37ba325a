"""The Helm chart is what the manifests are: rendered by a real helm and compared object by object."""

import base64
import itertools
import json
import platform
import re
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from charts.generate import SCHEMA, build_values_schema
from extproc import __version__
from extproc.cli import cli
from extproc.router.settings.reading import parse_settings
from tests.manifests.references import count_references
from tests.manifests.rendering import (
    MANIFESTS,
    Object,
    containers,
    pick_object,
    render,
    render_folder,
    selects,
)
from tests.manifests.types_of_kubernetes import KUBERNETES, check
from tests.stack.gateway import find_envoy
from tests.tables import table

# Its library has wheels for this machine alone. It is Go's, so it runs in a process of its own.
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="no helm for this machine")
HELM = """
import json, sys, helm_python as helm
path, task, given, word = sys.argv[1:]
values = json.loads(given) if given.startswith("{") else helm.parse_set_string(given)
if task == "render":
    result = helm.Chart.load(path).render(values, name=word, namespace="default")
else:
    result = helm.lint(path, values, strict=True) if task == "lint" else helm.package(path, destination=word)
json.dump(result, sys.stdout)
"""
CHART = MANIFESTS.parent / "charts" / "extproc-router"
# The overlays scale by CPU. `gateways` follows the autoscaler's least number.
AS_OVERLAYS = ",router.epp.autoscaling.enabled=true"
LABELS = r"router.modelServers.matchLabels.app\.kubernetes\.io/name=vllm"
STANDALONE = "modelServers.service=vllm"
POOL = f"{STANDALONE},router.epp.pool"
SOURCE = "endpoints.kubernetes.service=a,router.epp.config.pools[0].endpoints.kubernetes.port=1"
TWO_POOLS = f"router.epp.config.pools[0].name=a,router.epp.config.pools[0].{SOURCE}"
# What a provider wants besides, and the overlay that its release has to be like.
PROVIDERS = {
    "istio": ("", "overlays/istio/inference-pool"),
    "gke": (",provider.gke.proxySubnet=10.129.0.0/23", "overlays/gke"),
    "envoy-ai-gateway": ("", "overlays/envoy-ai-gateway"),
    "agentgateway": ("", "overlays/agentgateway"),
    "nginx-gateway-fabric": ("", "overlays/nginx-gateway-fabric"),
    "envoy-gateway": (f",{STANDALONE},modelServers.port=http", "overlays/envoy-gateway"),
}
GATEWAY = f"mode=gateway,gateway.name=llm,{LABELS},provider.name="
GATEWAYS = {name: f"{GATEWAY}{name}{more}" for name, (more, _) in PROVIDERS.items()}
PAGE = (MANIFESTS.parent / "docs/how-to/helm.md").read_text().replace("\\\n", "")
NAMED = [
    ",".join(re.findall(r"--set (\S+)", line))
    for line in re.findall("^helm install .*", PAGE, re.MULTILINE)
]
FILES = MANIFESTS.parent.glob("examples/helm-values/*.yaml")
EXAMPLES = [json.dumps(yaml.safe_load(path.read_text())) for path in FILES]
# Names that YAML takes for yes and no, and a tag for more than one word.
WORDS = "istio,fullnameOverride=on,gateway.name=off,networkPolicy.monitoringNamespace=yes"
ODD = f"{GATEWAY}{WORDS},router.epp.priorityClassName=no,router.epp.image.tag=5: # 6"
LEFT_OUT = {
    "Gateway",
    "GatewayClass",
    "Secret",
    "Job",
    "EnvoyProxy",
    "ConfigMap",
}  # yours, or read as files


@cache
def run_helm(task: str, values: str, word: str) -> Any:
    """Does `lint`, `package` into a folder, or `render` of a release; values as `--set` has them, or JSON."""
    command = [sys.executable, "-c", HELM, str(CHART), task, values, word]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def install_chart(values: str, release: str = "vllm") -> list[Object]:
    texts = [
        text for name, text in run_helm("render", values, release).items() if name.endswith(".yaml")
    ]
    return [item for text in texts for item in yaml.load_all(text, yaml.CSafeLoader) if item]


def comparable(objects: list[Object]) -> dict[str, Object]:
    """Returns objects by kind without what a release adds: its name, its labels, its way to say variables."""
    text = re.sub(r"\b(vllm|llm-gateway)-epp\b", "extproc", json.dumps(objects))
    text = re.sub(r'("app.kubernetes.io/name": "extproc)-router"', r'\1"', text)
    text = re.sub(
        r'"(app.kubernetes.io/(instance|managed-by|version)|helm.sh/chart)": "[^"]*",? ?', "", text
    )
    maps = {
        item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "ConfigMap"
    }
    found = {}
    for item in json.loads(text.replace(", }", "}")):
        kind, name = item["kind"], item["metadata"]["name"]
        if kind in LEFT_OUT or (kind, name) == ("Service", "vllm"):
            continue
        item["metadata"] = item["metadata"].get("annotations", {})
        if kind == "Deployment":
            item["spec"]["template"]["metadata"].pop("annotations", None)
            for container in containers(item["spec"]["template"]["spec"]):
                given = [
                    maps[each["configMapRef"]["name"]] for each in container.pop("envFrom", [])
                ]
                own = {
                    each["name"]: each.get("value", "of a Secret")
                    for each in container.pop("env", [])
                    if each["name"] != "VLLM_API_KEY"  # the chart's is in `router.epp.env`
                }
                container["env"] = (given[0] if given else {}) | own
                container.pop("imagePullPolicy", None)
        is_one = kind not in {"Service", "NetworkPolicy"}
        found[kind if is_one else f"{kind} {name}"] = item
    return found


def file(objects: list[Object], name: str) -> str:
    """The text of a file in the ConfigMaps; the one that a hook tries is the same."""
    [text] = {item["data"][name] for item in objects if name in item.get("data", {})}
    return str(text)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_gateway_mode_is_the_providers_overlay(provider: str) -> None:
    overlay = render(PROVIDERS[provider][1])
    objects = install_chart(GATEWAYS[provider] + AS_OVERLAYS)
    theirs = comparable(overlay)
    pool, their_pool = (
        yaml.safe_load(file(each, "extproc.yaml"))["pools"] for each in (objects, overlay)
    )

    assert comparable(objects) == theirs
    assert {
        "Deployment",
        "Role",
        "HTTPRoute",
        "NetworkPolicy extproc",
        "NetworkPolicy extproc-share",
        "HorizontalPodAutoscaler",
    } <= theirs.keys()
    assert pool == their_pool


@pytest.mark.envoy
def test_standalone_mode_is_the_sidecar_overlay_with_the_envoy_that_init_writes(
    tmp_path: Path,
) -> None:
    """One Pod as in overlays/sidecar; Envoy, its files and its Service as `init` writes them."""
    words = [
        "--service",
        "vllm",
        "--port",
        "8000",
        "--model",
        "llm-gateway",
        "--output",
        str(tmp_path / "f"),
    ]
    assert CliRunner().invoke(cli, ["init", "kubernetes", *words]).exit_code == 0
    folder, objects = (
        render_folder(tmp_path / "f"),
        install_chart(STANDALONE + AS_OVERLAYS, "llm-gateway"),
    )
    ours, sidecar = comparable(objects), comparable(render("overlays/sidecar"))
    envoy = comparable([item for item in folder if item["metadata"]["name"] == "envoy"])
    written = comparable([item for item in folder if item["metadata"]["name"] != "envoy"])

    pod, our_pod = (each["Deployment"]["spec"]["template"]["spec"] for each in (sidecar, ours))
    router = pod["initContainers"][0]
    router["env"] |= {"EXTPROC_SERVER__LISTEN": "127.0.0.1:9002", "EXTPROC_SERVER__XDS": "true"}
    router["volumeMounts"] = [each for each in router["volumeMounts"] if each["name"] != "socket"]
    pod["containers"] = envoy["Deployment"]["spec"]["template"]["spec"]["containers"]
    names = {each["name"] for each in pod.pop("volumes")} - {"socket"}
    assert {each["name"] for each in our_pod.pop("volumes")} == names
    policy = "NetworkPolicy extproc"
    sidecar[policy]["spec"]["egress"][2] = written[policy]["spec"]["egress"][2]
    gateway = "Service llm-gateway"
    sidecar[gateway]["spec"] |= {"ports": written[gateway]["spec"]["ports"], "type": "ClusterIP"}

    assert ours == sidecar
    assert ours["Role"] == written["Role"]
    text = file(objects, "extproc.yaml").replace("llm-gateway-epp", "extproc")
    assert yaml.safe_load(text) == yaml.safe_load(file(folder, "extproc.yaml"))
    assert file(objects, "drain.sh").strip() == file(folder, "drain.sh").strip()
    alone = file(folder, "envoy.yaml").replace("{address: extproc,", "{address: 127.0.0.1,")
    assert alone != file(folder, "envoy.yaml")
    assert yaml.safe_load(file(objects, "envoy.yaml")) == yaml.safe_load(alone)
    command = [find_envoy(), "--mode", "validate", "--config-yaml", alone]
    subprocess.run(command, capture_output=True, check=True)


@pytest.mark.parametrize("values", [LABELS, *NAMED, *GATEWAYS.values(), *EXAMPLES])
def test_objects_have_their_types_and_name_what_is_there(values: str) -> None:
    objects = install_chart(values)
    vllm: Object = {
        "kind": "Service",
        "metadata": {"name": "vllm"},
        "spec": {"ports": [{"port": 8000}]},
    }
    given: list[Object] = [{"kind": "Gateway", "metadata": {"name": "llm"}}]
    given += [vllm] if STANDALONE in values or '"vllm", "port"' in values else []
    notes = run_helm("render", values, "vllm")["extproc-router/templates/NOTES.txt"]
    named = set(re.findall(r"(deployment|service|get gateway)[/ ](\S+)", notes))

    for item, version in itertools.product(objects, KUBERNETES):
        check(item, version)
    assert count_references([*objects, *given], "default") >= 2
    there = {(item["kind"].lower(), item["metadata"]["name"]) for item in [*objects, *given]}
    assert {(kind.removeprefix("get "), name) for kind, name in named} <= there
    parse_settings(file(objects, "extproc.yaml"), {})


def test_names_stay_names_whatever_they_are() -> None:
    objects = install_chart(ODD)
    [pod] = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]

    for item in objects:
        check(item, KUBERNETES[0])
    assert (pod["priorityClassName"], pod["containers"][0]["image"]) == (
        "no",
        "extproc-router:5: # 6",
    )


def test_the_values_of_llm_ds_charts_are_taken() -> None:
    """Labels instead of a Service, two ports a Pod, an image with its registry; a ServiceMonitor."""
    epp = ("replicas=3", "image.registry=images.example/team", "image.tag=v9")
    models = ("matchLabels.app=qwen", "targetPorts[0].number=8000", "targetPorts[1].number=8001")
    values = [f"router.epp.{each}" for each in epp] + [
        f"router.modelServers.{each}" for each in models
    ]
    objects = install_chart(",".join([*values, "monitoring.prometheus.enabled=true"]))
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    deployment = found["Deployment", "vllm-epp"]["spec"]
    [router] = deployment["template"]["spec"]["initContainers"]
    [pool] = yaml.safe_load(file(objects, "extproc.yaml"))["pools"]

    check(found["ServiceMonitor", "vllm-epp"], KUBERNETES[0])
    assert deployment["replicas"] == pool["strategy"]["gateways"] == 3
    assert router["image"] == "images.example/team/extproc-router:v9"
    assert found["Service", "vllm-endpoints"]["spec"]["selector"] == {"app": "qwen"}
    assert pool["endpoints"] == {"kubernetes": {"service": "vllm-endpoints", "port": [8000, 8001]}}


def test_the_service_reaches_prefill_pods_whose_labels_and_port_differ() -> None:
    """By labels while all endpoints have them; else any Pod of the namespace."""
    stage = "router.epp.pool.prefill.endpoints.kubernetes"
    values = "router.modelServers.matchLabels.app=decode"
    more = f"{stage}.service=early,{stage}.port=8100"
    policies = [
        pick_object(install_chart(each), "NetworkPolicy", "vllm-epp")["spec"]["egress"][-1]
        for each in (values, f"{values},{more}")
    ]

    assert policies[0]["to"] == [{"podSelector": {"matchLabels": {"app": "decode"}}}]
    assert policies[1] == {"to": [{"podSelector": {}}]}


@table(
    ("values", "named"),
    [
        ("mode=standalone", "where is vLLM?"),
        ("modelServers.servce=vllm", "additional properties 'servce' not allowed"),
        (f"{STANDALONE},mode=other", "value must be one of 'standalone', 'gateway'"),
        (f"{STANDALONE},modelServers.port=70000", "70,000"),
        ("mode=gateway", "name your Gateway"),
        (f"mode=gateway,gateway.name=llm,{STANDALONE}", "set router.modelServers.matchLabels"),
        (f"{GATEWAY}gke", "set provider.gke.proxySubnet"),
        (f"{GATEWAY}envoy-gateway", "set modelServers.service"),
        (f"{POOL}.strategy.name=prefix_cash", "must be one of 'least_load', 'prefix_cache'"),
        (f"{POOL}.strategy.engine=h100", "/strategy/engine': value must be one of"),
        (f"{POOL}.max_inflight=3", "'max_inflight' not allowed"),
        (f"{STANDALONE},router.epp.config.pool=3", "'pool' not allowed"),
        (f"{STANDALONE},router.epp.flags.v=4", "'flags' not allowed"),
        (f"{POOL}.fallbacks=1,{TWO_POOLS}", "write router.epp.pool into its `pools`"),
        (f"{STANDALONE}{AS_OVERLAYS},router.epp.autoscaling.minReplicas=9", "is above maxReplicas"),
    ],
)
def test_values_that_cannot_work_are_refused_in_a_sentence(values: str, named: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(named)):
        install_chart(values)


def test_the_schema_of_values_is_that_of_the_settings() -> None:
    """`make reference` writes it."""
    text = SCHEMA.read_text()

    assert build_values_schema(json.loads(text)) == json.loads(text)


def test_a_file_that_the_router_refuses_ends_an_upgrade_before_it_changes_anything() -> None:
    """A hook tries the very file that the release would have, with the image and variables of its Pods."""
    values = f"{STANDALONE},imagePullSecrets[0].name=registry,router.epp.tolerations[0].key=gpu"
    found = {(each["kind"], each["metadata"]["name"]): each for each in install_chart(values)}
    job, tried = found["Job", "vllm-epp-check"], found["ConfigMap", "vllm-epp-check"]
    pod, router = (
        each["spec"]["template"]["spec"] for each in (job, found["Deployment", "vllm-epp"])
    )
    [check_], [running] = pod["containers"], router["initContainers"]

    hooks = [each["metadata"]["annotations"]["helm.sh/hook"] for each in (job, tried)]
    assert hooks == ["pre-install,pre-upgrade"] * 2
    assert tried["data"] == found["ConfigMap", "vllm-epp"]["data"]
    assert check_["command"] == ["extproc", "check", "/etc/extproc/extproc.yaml"]
    assert [each for each in running["env"] if each["name"] != "SHARE_SECRET"] == check_["env"]
    assert check_["image"] == running["image"]
    assert (pod["imagePullSecrets"], pod["tolerations"]) == (
        [{"name": "registry"}],
        router["tolerations"],
    )
    # It counts as none of the router's Pods.
    selector = found["Service", "vllm"]["spec"]["selector"]
    assert not selects(selector, job["spec"]["template"]["metadata"]["labels"])


def test_replicas_share_by_a_secret_that_is_made_or_named() -> None:
    made = install_chart(STANDALONE)
    secret = pick_object(made, "Secret", "vllm-epp-share")["data"]["secret"]
    others = install_chart(f"{STANDALONE},router.epp.share.existingSecret=mine")
    alone = install_chart(f"{STANDALONE},router.epp.share.enabled=false")

    assert len(base64.b64decode(secret)) == 43
    assert "lookup" in (CHART / "templates/share.yaml").read_text()  # no cluster is here to look in
    assert "Secret" not in {each["kind"] for each in others}
    assert "name: mine" in yaml.safe_dump(others)
    assert "9004" not in yaml.safe_dump(alone)
    assert "share" not in yaml.safe_load(file(alone, "extproc.yaml"))


def test_pods_of_the_chart_and_of_the_manifests_in_one_namespace_leave_each_other_alone() -> None:
    """Two budgets on one Pod make its node impossible to drain."""
    both = [install_chart(f"{STANDALONE}{AS_OVERLAYS}"), render("overlays/gateway")]
    labels = [pick_labels(each) for each in both]

    for objects, others in zip(both, reversed(labels), strict=True):
        for item in objects:
            spec = item.get("spec", {})
            wanted = spec.get("podSelector", spec.get("selector", {})) or {}
            wanted = wanted.get("matchLabels", wanted)
            assert not wanted or not any(selects(wanted, each) for each in others), item


def pick_labels(objects: list[Object]) -> list[dict[str, str]]:
    templates = [each["spec"]["template"] for each in objects if each["kind"] == "Deployment"]
    return [each["metadata"]["labels"] for each in templates]


def test_the_package_has_the_manifests_files_and_the_projects_version(tmp_path: Path) -> None:
    """In a checkout the chart's files are links to the manifests; in a package they are the files."""
    archive = Path(run_helm("package", STANDALONE, str(tmp_path)))
    with tarfile.open(archive) as package:
        files = {
            Path(each.name): package.extractfile(each) for each in package if "/files/" in each.name
        }
        packed = {path.name: file.read().decode() for path, file in files.items() if file}
    links = list((CHART / "files").iterdir())

    assert run_helm("lint", STANDALONE, "")["errors"] == []
    assert archive.name == f"extproc-router-{__version__}.tgz"
    assert packed == {each.name: each.read_text() for each in links}
    assert all(path.resolve().is_relative_to(MANIFESTS) for path in links)
