"""InferencePools and Pods as the API server sends them: JSON, with the fields that we do not read too."""

from collections.abc import Sequence

import msgspec

from extproc.router.cluster.inference_pool_source import InferencePool
from extproc.router.cluster.pods import Pod
from tests.router.cluster.objects import Object

LABELS = {"app": "vllm", "model": "llama"}
OBJECTIVE_API = "inference.networking.x-k8s.io/v1alpha2"


def pool_object(
    name: str = "vllm", *, labels: dict[str, str] | None = None, ports: Sequence[int] = (8000,)
) -> Object:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "default", "generation": 1},
        "spec": {
            "selector": {"matchLabels": LABELS if labels is None else labels},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {
                "name": "extproc",
                "port": {"number": 9002},
                "failureMode": "FailOpen",
            },
        },
        "status": {"parents": []},
    }


def objective(
    name: str, priority: object = None, pool: str = "vllm", api: str = OBJECTIVE_API, **ref: str
) -> Object:
    return {
        "apiVersion": api,
        "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"poolRef": {"name": pool, **ref}}
        | ({} if priority is None else {"priority": priority}),
    }


def running_pod(
    name: str,
    *addresses: str,
    phase: str = "Running",
    ready: str | None = "True",
    deleted: bool = False,
    labels: dict[str, str] | None = None,
) -> Object:
    """A pod; `ready` is the status of its condition Ready, `None` without one."""
    metadata: Object = {
        "name": name,
        "namespace": "default",
        "labels": LABELS if labels is None else labels,
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-22T05:00:00Z"
    status: Object = {"phase": phase, "hostIP": "192.0.2.1", "qosClass": "Burstable"}
    status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastProbeTime": None}]
    if ready is not None:
        status["conditions"].append({"type": "Ready", "status": ready})
    if addresses:
        status["podIP"] = addresses[0]
        status["podIPs"] = [{"ip": address} for address in addresses]
    spec = {
        "containers": [
            {"name": "vllm", "image": "vllm", "env": [{"name": "A", "value": "b" * 100}]}
        ]
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def parsed_pod(pod: Object) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod), type=Pod)


def parsed_pool(pool: Object) -> InferencePool:
    return msgspec.json.decode(msgspec.json.encode(pool), type=InferencePool)
