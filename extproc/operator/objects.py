"""The objects that a run is made of, as the API server takes them. Pure.

A run is one Job. With several workers it is an Indexed Job, whose Pods offer a part of the load
each and write their journals to the claim, and then a Job that merges them. Whatever is made
belongs to the Benchmark: it goes when that goes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import yaml

from extproc.operator.resource import API_VERSION, KIND, Benchmark, Operation, write_time

Object = dict[str, Any]

APP: Final = "extproc-benchmark"
BENCHMARK_LABEL: Final = "extproc.dev/benchmark"
RUN_LABEL: Final = "extproc.dev/run"
PART_LABEL: Final = "extproc.dev/part"
DUE_ANNOTATION: Final = "extproc.dev/due"
# A run ends with its main Job; with several workers the Indexed Job of its parts comes first.
MAIN, PARTS = "main", "parts"

BOARD_PORT: Final = 9201
# The kubelet takes a minute and more until a changed ConfigMap is in a Pod's files.
_SWITCH_TIMEOUT: Final = "5m"
_SPEC, _DATA, _RESULTS = "/etc/benchmark", "/data", "/results"
_LAST_WORDS: Final = "/dev/termination-log"
# Long enough to cancel requests in flight, and to write the journal.
_GRACE_S: Final = 120
_USER: Final = 65532
_OPERATIONS: Final = {field.alias or name for name, field in Operation.model_fields.items()}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a Benchmark: its name, and when it was due if a schedule says so.

    Its Pods prepare the dataset, and keep it on the claim for later runs.
    """

    benchmark: Benchmark
    name: str
    due: datetime | None = None

    @property
    def parts_name(self) -> str:
        """The parts' Job: with an index it is the name of a host, which has no dots."""
        return f"load-{self.name}".replace(".", "-")

    @property
    def claim(self) -> str:
        return self.benchmark.operation.results.claim or f"{self.benchmark.name}-results"

    @property
    def folder(self) -> str:
        return f"{self.benchmark.name}/{self.name}"

    @property
    def report(self) -> str:
        return f"{self.claim}/{self.folder}"


def list_objects(run: Run, image: str, now: datetime) -> Iterator[Object]:
    """Yields what a run needs, in the order in which it is to be made; its Job comes last."""
    yield _spec_map(run)
    if run.benchmark.operation.results.claim is None:
        yield _claim(run)
    if run.benchmark.operation.workers > 1:
        yield _parts_job(run, image, now)
    else:
        arguments = [*_run_arguments(run), "--brief", _LAST_WORDS]
        yield _job(run, run.name, MAIN, _pod(run, MAIN, image, arguments))


def _shared_metadata(run: Run, name: str, part: str) -> Object:
    """Metadata of objects that later runs use, too."""
    metadata = _metadata(run, name, part)
    del metadata["labels"][RUN_LABEL]
    metadata.pop("annotations", None)
    return metadata


def _metadata(run: Run, name: str, part: str) -> Object:
    benchmark = run.benchmark
    labels = {"app.kubernetes.io/name": APP, BENCHMARK_LABEL: benchmark.name}
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": benchmark.name, "uid": benchmark.uid}
    made: Object = {
        "name": name,
        "namespace": benchmark.namespace,
        "labels": {**labels, RUN_LABEL: run.name, PART_LABEL: part},
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }
    if run.due is not None:
        made["annotations"] = {DUE_ANNOTATION: write_time(run.due)}
    return made


def write_spec(tree: Mapping[str, Any], name: str) -> str:
    """The spec file of a run: the resource's, without what only the operator reads."""
    spec = {key: value for key, value in tree.items() if key not in _OPERATIONS}
    if tree.get("router"):
        spec["ab"] = {"switch-timeout": _SWITCH_TIMEOUT, **spec.get("ab", {})}
    return yaml.safe_dump({"name": name, **spec}, sort_keys=False, allow_unicode=True)


def _spec_map(run: Run) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _shared_metadata(run, run.benchmark.stem, "spec"),
        "data": {"benchmark.yaml": write_spec(run.benchmark.tree, run.benchmark.name)},
    }


def _claim(run: Run) -> Object:
    results = run.benchmark.operation.results
    metadata = _shared_metadata(run, run.claim, "results")
    if results.keep:
        del metadata["ownerReferences"]
    default = "ReadWriteMany" if run.benchmark.operation.workers > 1 else "ReadWriteOnce"
    storage = {"storageClassName": results.storage_class} if results.storage_class else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {
            "accessModes": [results.access_mode or default],
            "resources": {"requests": {"storage": results.size}},
            **storage,
        },
    }


def _parts_job(run: Run, image: str, now: datetime) -> Object:
    """All parts begin at one instant, by when each of them must be ready."""
    operation = run.benchmark.operation
    count = operation.workers
    start_at = write_time(now + timedelta(seconds=operation.start_within_seconds))
    # The Job controller sets the variable in each Pod, the kubelet puts it in.
    arguments = [
        *_run_arguments(run),
        "--part",
        f"$(JOB_COMPLETION_INDEX)/{count}",
        "--start-at",
        start_at,
    ]
    job = _job(run, run.parts_name, PARTS, _pod(run, PARTS, image, arguments))
    job["spec"] |= {"completionMode": "Indexed", "completions": count, "parallelism": count}
    return job


def merge_job(run: Run, image: str) -> Object:
    """Merges the parts' journals into the run's report."""
    folder = f"{_RESULTS}/{run.folder}"
    arguments = ["report", folder, "--output", folder, "--brief", _LAST_WORDS]
    return _job(run, run.name, MAIN, _pod(run, MAIN, image, arguments))


def _run_arguments(run: Run) -> list[str]:
    arguments = [run.benchmark.operation.mode, f"{_SPEC}/benchmark.yaml", "--quiet"]
    arguments += ["--output", f"{_RESULTS}/{run.folder}"]
    return [*arguments, "--board", f"0.0.0.0:{BOARD_PORT}"]


def _job(run: Run, name: str, part: str, pod: Object) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(run, name, part),
        "spec": {
            # A run that was cut short is not a result: it is not tried again behind anybody's back.
            "backoffLimit": 0,
            "activeDeadlineSeconds": run.benchmark.operation.deadline_seconds,
            "template": pod,
        },
    }


def _pod(run: Run, part: str, image: str, arguments: list[str]) -> Object:
    options = run.benchmark.operation.pods
    volumes = dict(_volumes(run))
    container: Object = {
        "name": "benchmark",
        "image": image,
        "command": ["extproc", "bench", *arguments],
        "terminationMessagePath": _LAST_WORDS,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": options.cpu, "memory": options.memory},
            "limits": {"memory": options.memory},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "ports": [{"name": "board", "containerPort": BOARD_PORT}],
        "volumeMounts": [_mount(path) for path in volumes],
    }
    if options.env_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": options.env_secret}}]
    return {
        "metadata": {"labels": _metadata(run, run.name, part)["labels"]},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _GRACE_S,
            "nodeSelector": dict(options.node_selector),
            "tolerations": [each.model_dump(exclude_none=True) for each in options.tolerations],
            "imagePullSecrets": [{"name": options.pull_secret}] if options.pull_secret else [],
            "securityContext": {
                **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), _USER),
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": _name_volume(path), **volume} for path, volume in volumes.items()],
        },
    }


def _name_volume(path: str) -> str:
    return path.strip("/").replace("/", "-")


def _mount(path: str) -> Object:
    rights = {} if path in {_RESULTS, "/tmp"} else {"readOnly": True}  # noqa: S108  # an emptyDir
    return {"name": _name_volume(path), "mountPath": path, **rights}


def _volumes(run: Run) -> Iterator[tuple[str, Object]]:
    """Yields where a Pod finds what."""
    operation = run.benchmark.operation
    yield "/tmp", {"emptyDir": {}}  # noqa: S108
    yield _SPEC, {"configMap": {"name": run.benchmark.stem}}
    yield _RESULTS, {"persistentVolumeClaim": {"claimName": run.claim}}
    if operation.files is not None and operation.files.config_map is not None:
        yield _DATA, {"configMap": {"name": operation.files.config_map}}
    elif operation.files is not None:
        yield (
            _DATA,
            {"persistentVolumeClaim": {"claimName": operation.files.claim, "readOnly": True}},
        )


def is_owned(body: Mapping[str, Any], uid: str) -> bool:
    return any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences", ()))
