"""The folder that `extproc init kubernetes` writes, and the walks of the docs."""

import base64
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from extproc.cli import cli
from tests.manifests.references import CLUSTER_WIDE, count_references, strings
from tests.manifests.rendering import MANIFESTS, Object, pick_object, render_folder
from tests.manifests.types_of_kubernetes import check
from tests.tables import table

GATEWAYS = ["envoy", "envoy-gateway", "istio", "existing"]
DOCS = MANIFESTS.parent / "docs"
PAGES = [
    DOCS / "start/kubernetes.md",
    DOCS / "start/envoy-gateway.md",
    DOCS / "how-to/existing-gateway.md",
]


def run_cli(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def write_folder(folder: Path, gateway: str, *words: str) -> str:
    """Writes the folder for the Service `qwen`, port 8123, namespace `llm`; returns what is printed."""
    vllm = ["--service", "qwen", "--port", "8123", "--model", "Qwen/Qwen3-8B", "--namespace", "llm"]
    return run_cli(
        "init", "kubernetes", *vllm, "--gateway", gateway, "--output", str(folder), *words
    )


def render_joined(folder: Path, gateway: str) -> list[Object]:
    """Does what is said of an existing Gateway: its three files are added."""
    path = folder / "kustomization.yaml"
    if gateway == "existing":
        assert "# components:" in path.read_text()
        path.write_text(path.read_text().replace("# components:", "components:"))
    return render_folder(folder)


def service_object(name: str, port: int) -> Object:
    """A Service of the user's own, which is in no folder of ours."""
    metadata = {"name": name, "namespace": "llm"}
    return {"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": port}]}}


def routed_services(objects: list[Object]) -> set[tuple[str, object]]:
    """Returns the Services and ports that routes, and Istio's cluster, name."""
    rules = [
        rule for item in objects if item["kind"] == "HTTPRoute" for rule in item["spec"]["rules"]
    ]
    found = {(each["name"], each["port"]) for rule in rules for each in rule["backendRefs"]}
    for item in objects:
        if item["kind"] == "EnvoyFilter":
            [cluster] = [
                each["match"]["cluster"]
                for each in item["spec"]["configPatches"]
                if "service" in each["match"].get("cluster", {})
            ]
            assert cluster["service"].endswith(".llm.svc.cluster.local")
            found.add((cluster["service"].partition(".")[0], cluster["portNumber"]))
    return found


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_the_folder_is_taken_as_it_is_and_names_vllm_in_one_file(
    gateway: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    words = ("--image", "images.example:5000/team/extproc:9.9.9", "--prefill-service", "early")
    write_folder(folder, gateway, *words)
    naming = [
        path.name for path in folder.rglob("*.*") if re.search("qwen\\b|8123", path.read_text())
    ]
    untouched = render_folder(folder)
    if gateway == "existing":
        assert "HTTPRoute" not in {item["kind"] for item in untouched}
    objects = render_joined(folder, gateway)

    assert naming == ["extproc.yaml"]
    assert run_cli("check", str(folder / "extproc.yaml")).endswith("ok, 1 pool(s)\n")
    text = (folder / "extproc.yaml").read_text()
    assert pick_object(objects, "ConfigMap", "extproc")["data"]["extproc.yaml"] == text
    [pool] = yaml.safe_load(text)["pools"]
    assert pool["name"] == "Qwen3-8B"
    assert pool["endpoints"] == {"kubernetes": {"service": "qwen", "port": 8123}}
    assert pool["prefill"]["endpoints"] == {"kubernetes": {"service": "early", "port": 8123}}
    assert routed_services(objects) == (set() if gateway == "envoy" else {("qwen", 8123)})
    [container] = pick_object(objects, "Deployment", "extproc")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["image"] == "images.example:5000/team/extproc:9.9.9"
    for item in objects:
        check(item, "1.37")
    # The service and Envoy reach the Pods whatever their labels.
    policies = [
        item["spec"]
        for item in objects
        if item["kind"] == "NetworkPolicy" and item["metadata"]["name"] != "extproc-share"
    ]
    assert len(policies) == (2 if gateway == "envoy" else 1)
    assert all({"to": [{"podSelector": {}}]} in policy["egress"] for policy in policies)


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_every_reference_in_the_folder_names_an_object_that_is_there(
    gateway: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "folder", gateway)
    objects = render_joined(tmp_path / "folder", gateway)
    if gateway == "existing":
        objects.append({"kind": "Gateway", "metadata": {"name": "llm"}})
    spaced = [item["metadata"] for item in objects if item["kind"] not in CLUSTER_WIDE]

    assert {metadata.get("namespace", "llm") for metadata in spaced} == {"llm"}
    assert [text for text in strings(objects) if text == "default" or ".default.svc" in text] == []
    assert "vllm" not in {item["metadata"]["name"] for item in objects if item["kind"] == "Service"}
    assert count_references([*objects, service_object("qwen", 8123)], "llm") >= 3


@table(
    ("gateway", "target"),
    [(gateway, target) for gateway in GATEWAYS for target in ("8000", "http")],
)
def test_a_services_port_may_lead_to_another_of_its_pods(
    gateway: str, target: str, tmp_path: Path
) -> None:
    """The Pods' port is watched, the Service's is in the routes."""
    write_folder(tmp_path / target / gateway, gateway, "--target-port", target)
    objects = render_joined(tmp_path / target / gateway, gateway)
    [pool] = yaml.safe_load(pick_object(objects, "ConfigMap", "extproc")["data"]["extproc.yaml"])[
        "pools"
    ]

    assert str(pool["endpoints"]["kubernetes"]["port"]) == target
    assert routed_services(objects) == (set() if gateway == "envoy" else {("qwen", 8123)})


def test_a_change_of_the_service_in_extproc_yaml_is_all_that_a_route_needs(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_folder(folder, "istio")
    path = folder / "extproc.yaml"
    path.write_text(
        path.read_text().replace("service: qwen, port: 8123", "service: llama, port: 9000")
    )

    assert routed_services(render_folder(folder)) == {("llama", 9000)}


def test_the_folder_brings_a_secret_of_its_own_that_only_its_owner_reads(tmp_path: Path) -> None:
    objects, secrets = [], set()
    for name in ("one", "other"):
        write_folder(tmp_path / name, "envoy")
        path = tmp_path / name / "share-secret"
        objects = render_folder(path.parent)
        secrets.add(path.read_text())
        assert path.stat().st_mode & 0o777 == 0o600
        assert (path.parent / ".gitignore").read_text() == "share-secret\n"
    made = pick_object(objects, "Secret")
    [container] = pick_object(objects, "Deployment", "extproc")["spec"]["template"]["spec"][
        "containers"
    ]

    assert len(secrets) == 2
    assert all(len(each) >= 40 for each in secrets)
    assert base64.b64decode(made["data"]["secret"]).decode() in secrets
    variable, _ = container["env"]  # and the engines' key
    assert variable["valueFrom"]["secretKeyRef"]["name"] == made["metadata"]["name"]


def test_two_folders_share_nothing_that_one_of_them_could_take_away(tmp_path: Path) -> None:
    """`kubectl delete -k` of one namespace deletes what is in its folder, cluster-wide objects too."""
    wide = []
    for namespace in ("a", "b"):
        write_folder(tmp_path / namespace, "envoy-gateway", "--namespace", namespace)
        objects = render_folder(tmp_path / namespace)
        wide += [item["metadata"]["name"] for item in objects if item["kind"] in CLUSTER_WIDE]
        assert pick_object(objects, "Gateway")["spec"]["gatewayClassName"] == f"llm-{namespace}"

    assert wide == ["llm-a", "llm-b"]


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_folder_of_a_shadow_runs_one_service_that_routes_nothing(
    gateway: str, tmp_path: Path
) -> None:
    """What the gateway is to do is in one object, which is deleted to take it out again."""
    folder = tmp_path / "folder"
    said = write_folder(folder, gateway, "--shadow")
    path = folder / "kustomization.yaml"
    path.write_text(path.read_text().replace("# components: [shadow]", "components: [shadow]"))
    objects = render_folder(folder)
    for item in objects:
        check(item, "1.33")
    kinds = {item["kind"] for item in objects}
    deployed = [item for item in objects if item["kind"] == "Deployment"]
    shown = {"existing": {"EnvoyPatchPolicy"}, "envoy": set(), "istio": {"EnvoyFilter"}}

    assert [(each["metadata"]["name"], each["spec"]["replicas"]) for each in deployed] == [
        ("extproc", 1)
    ]
    assert not kinds & {"Gateway", "HTTPRoute", "DestinationRule", "EnvoyExtensionPolicy"}
    assert kinds & {"EnvoyPatchPolicy", "EnvoyFilter"} == shown.get(gateway, {"EnvoyPatchPolicy"})
    theirs = {"kind": "Gateway", "metadata": {"name": "llm", "namespace": "llm"}, "spec": {}}
    assert count_references([*objects, theirs], "llm") >= 2
    assert not [text for text in strings(objects) if ".default.svc" in text or "default/" in text]
    assert "Nothing is routed" in said
    assert yaml.safe_load((folder / "extproc.yaml").read_text()).keys() == {"pools"}


def test_what_the_next_pages_add_is_in_the_folder(tmp_path: Path) -> None:
    """Components, a pull secret, and a change of extproc.yaml that rolls the Pods where this is wanted."""
    folder = tmp_path / "folder"
    write_folder(folder, "envoy", "--pull-secret", "registry")
    path = folder / "kustomization.yaml"
    components = [f"manifests/components/{each}" for each in ("operator", "monitoring")]
    text = path.read_text().replace("# replacements:\n# -", "replacements:\n-")
    path.write_text(f"{text}components: {json.dumps(components)}\n")
    before = render_folder(folder)
    pods = [item["spec"]["template"]["spec"] for item in before if item["kind"] == "Deployment"]
    (folder / "extproc.yaml").write_text("pools: []")
    old, new = (
        pick_object(each, "Deployment", "extproc")["spec"]["template"]
        for each in (before, render_folder(folder))
    )

    assert [pod["imagePullSecrets"] for pod in pods] == [[{"name": "registry"}]] * 3
    assert new != old
    assert {"PrometheusRule", "CustomResourceDefinition"} <= {item["kind"] for item in before}


@table(
    ("image", "rendered"),
    [
        ("a", "a:latest"),
        ("images.example:5000/a", "images.example:5000/a:latest"),
        ("images.example/a:1.10", "images.example/a:1.10"),
        (f"a:1@sha256:{'0' * 64}", f"a@sha256:{'0' * 64}"),
    ],
)
def test_an_image_has_a_tag_or_a_digest(image: str, rendered: str, tmp_path: Path) -> None:
    folder = tmp_path / image.replace("/", "-")
    write_folder(folder, "existing", "--image", image)
    pod = pick_object(render_folder(folder), "Deployment", "extproc")["spec"]["template"]["spec"]

    assert pod["containers"][0]["image"] == rendered


@table(
    ("words", "message"),
    [
        (["--service", "Qwen"], "'Qwen' is no name that Kubernetes takes"),
        (["--target-port", "a}b"], "'a}b' is no name that Kubernetes takes"),
        (["--target-port", "70000"], "extproc.yaml:8: pools.0.endpoints.kubernetes.port"),
        (["--port", "http"], "'http' is not a number. (A port's name goes with --target-port.)"),
        (["--target-port", "0"], "extproc.yaml:8: pools.0.endpoints.kubernetes.port"),
        (["--target-port", "²"], "'²' is no name that Kubernetes takes"),
        (["--service", "on"], "'on' is no name to YAML: take another one"),
        (["--service", "1e5"], "'1e5' is no name to YAML: take another one"),
        (["--model", "qwen\n- name: evil"], "is no model's name"),
        (["--image", 'a:1", newName: "evil'], "is no image's name"),
        (["--engine", "h100-llama8b-bf61"], "did you mean h100-llama8b-bf16?"),
        (["--output", "/proc/folder"], "/proc/folder: cannot be written to: No such file"),
        (["--output", "."], ". is there already: give another --output"),
    ],
)
def test_what_cannot_be_written_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    vllm = [
        "--service",
        "qwen",
        "--port",
        "8123",
        "--model",
        "qwen",
        "--output",
        str(tmp_path / "folder"),
    ]
    done = CliRunner().invoke(cli, ["init", "kubernetes", *vllm, *words])

    assert message in f"{done.exception}{done.output}"
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_may_be_typed_and_what_is_written_is_read(tmp_path: Path) -> None:
    folder, model = tmp_path / "a folder", 'it\'s; "qwen" # {x}'
    message = write_folder(folder, "envoy", "--model", model, "--namespace", "123")
    [apply, curl] = [
        shlex.split(line) for line in message.splitlines() if "apply -k" in line or "curl" in line
    ]

    assert apply[-1] == str(folder)
    assert json.loads(curl[-1])["model"] == model
    assert f"# models: [{json.dumps(model)}]" in (folder / "extproc.yaml").read_text()
    assert {item["metadata"].get("namespace", "123") for item in render_folder(folder)} == {"123"}


def test_the_pages_are_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of ours runs; folders are rendered in place of a cluster, and have what kubectl asks for.

    What is printed to do next is in a page.
    """
    monkeypatch.chdir(tmp_path)
    commands, printed, made = [], "", set[str]()
    for page in PAGES:
        blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
        commands += [
            line for line in "".join(blocks).replace("\\\n", " ").splitlines() if line.strip()
        ]
    for words in [shlex.split(line, comments=True) for line in commands]:
        assert words[0] in {"extproc", "kubectl", "curl", "make", "docker"}, words
        if words[0] == "extproc":
            printed += run_cli(*words[1:])
        if words[:3] == ["kubectl", "apply", "-k"]:
            made |= {
                f"{each['kind'].lower()}/{each['metadata']['name']}"
                for each in render_folder(Path(words[3]))
            }

    asked = set(
        re.findall(
            r"^kubectl .*((?:deployment|service)/[a-z-]+)", "\n".join(commands), re.MULTILINE
        )
    )
    # Istio makes the Service of a Gateway.
    assert asked - made == {"service/llm-istio"}
    following = [line.strip() for line in printed.splitlines() if line.startswith("  kubectl ")]
    assert following
    assert [
        line for line in following if line not in {" ".join(each.split()) for each in commands}
    ] == []
