"""What a Pod's command is on this machine: folders in place of mounts."""

from pathlib import Path
from typing import Any, Protocol

Object = dict[str, Any]


class Holds(Protocol):
    def find(self, kind: str, name: str) -> Object | None: ...


def translate(cluster: Holds, folder: Path, job: Object, index: int, words: Path) -> list[str]:
    """The command of a Job's `index`-th Pod, whose last words go to `words`."""
    run = job["metadata"]["labels"]["extproc.dev/run"]
    pod = job["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = {"/results": str(folder / "results"), "/dev/termination-log": str(words)}
    if "etc-benchmark" in volumes:
        spec = _find(cluster, "v1/configmaps", volumes["etc-benchmark"]["configMap"]["name"])
        places["/etc/benchmark/benchmark.yaml"] = _lay(
            folder, f"{run}.yaml", spec["data"]["benchmark.yaml"]
        )
    places["$(JOB_COMPLETION_INDEX)"] = str(index)
    return [_replace(word, places) for word in pod["containers"][0]["command"]]


def _find(cluster: Holds, kind: str, name: str) -> Object:
    """What a volume names: without it a Pod does not begin."""
    found = cluster.find(kind, name)
    assert found is not None
    return found


def _replace(text: str, places: dict[str, str]) -> str:
    for old, new in places.items():
        text = text.replace(old, new)
    return text


def _lay(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)
