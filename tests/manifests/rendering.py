"""What `kubectl kustomize` makes of an overlay."""

import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

MANIFESTS = Path(__file__).parents[2] / "manifests"
KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"

# Every folder that can be applied; a new one is tested without being listed.
APPLICABLE = sorted(
    str(path.parent.relative_to(MANIFESTS))
    for path in MANIFESTS.rglob("kustomization.yaml")
    if "components" not in path.parts
)
OVERLAYS = [folder for folder in APPLICABLE if folder == "base" or folder.startswith("overlays/")]
# Those with an InferencePool, whose endpoint picker the service is.
PICKERS = [
    *(
        "overlays/agentgateway",
        "overlays/envoy-ai-gateway",
        "overlays/gke",
        "overlays/istio/inference-pool",
    ),
    "overlays/nginx-gateway-fabric",
]
# Those that run the service.
SERVING = [folder for folder in OVERLAYS if folder != "overlays/example-vllm"]


@cache
def render(overlay: str) -> list[Object]:
    """Returns the objects of an overlay of ours, once rendered."""
    return render_folder(MANIFESTS / overlay)


def render_folder(folder: Path) -> list[Object]:
    """Returns the objects of a kustomization; fails with kubectl's words if there are none."""
    command = [str(KUBECTL), "kustomize", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert not result.stderr, result.stderr
    return list(yaml.load_all(result.stdout, yaml.CSafeLoader))


def each(overlays: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Has one test look at every one of these overlays; a failure names its overlay."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def look_at_each(*instance: object) -> None:
            for overlay in overlays:
                try:
                    test(*instance, overlay)
                except Exception as fault:
                    fault.add_note(f"overlay: {overlay}")
                    raise

        look_at_each.__name__, look_at_each.__doc__ = test.__name__, test.__doc__
        return look_at_each

    return decorate


def of_kind(overlay: str, *kinds: str) -> list[Object]:
    return [item for item in render(overlay) if item["kind"] in kinds]


def reference_names(overlay: str, kind: str, name: str) -> Object:
    return pick_object(render(overlay), kind, name)


def pods(overlay: str) -> dict[str, Object]:
    """Returns the Pod specs of an overlay's workloads by the workloads' names."""
    workloads = of_kind(overlay, "Deployment", "StatefulSet", "DaemonSet")
    return {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in workloads}


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def config_files(overlay: str, suffix: str) -> Iterator[tuple[str, str]]:
    """Yields name and text of the files in an overlay's ConfigMaps."""
    for item in of_kind(overlay, "ConfigMap"):
        for name, text in item["data"].items():
            if name.endswith(suffix):
                yield name, text


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def pod_labels(overlay: str) -> dict[str, dict[str, str]]:
    workloads = of_kind(overlay, "Deployment")
    return {
        item["metadata"]["name"]: item["spec"]["template"]["metadata"]["labels"]
        for item in workloads
    }


def service_environment(overlay: str) -> dict[str, str]:
    """Returns the environment that the service's container is given, its ConfigMap first."""
    [container] = [
        each for each in containers(pods(overlay)["extproc"]) if each["name"] == "extproc"
    ]
    [source] = container["envFrom"]
    variables = dict(reference_names(overlay, "ConfigMap", source["configMapRef"]["name"])["data"])
    return variables | {
        variable["name"]: variable.get("value", "of a Secret") for variable in container["env"]
    }


def render_own(
    folder: Path, resources: Sequence[str], components: Sequence[str], **more: object
) -> list[Object]:
    """Returns the objects of a user's own kustomization in `folder` over these of ours."""
    ours = os.path.relpath(MANIFESTS, folder.resolve())
    tree = {"resources": [f"{ours}/{each}" for each in resources]}
    tree["components"] = [f"{ours}/components/{each}" for each in components]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**tree, **more}))
    return render_folder(folder)


def pick_object(objects: Iterable[Object], kind: str, name: str | None = None) -> Object:
    """The one object of that kind, and of that name where one is given."""
    [found] = [o for o in objects if o["kind"] == kind and name in {None, o["metadata"]["name"]}]
    return found
