"""EndpointSlices as the API server sends them: JSON, with the fields that we do not read too."""

from typing import Any

import msgspec

from extproc.router.cluster.slices import EndpointSlice

Object = dict[str, Any]

HTTP: Object = {"name": "http", "port": 8000, "protocol": "TCP"}


def pod(
    name: str | None,
    *addresses: str,
    zone: str | None = None,
    ready: bool | None = None,
    serving: bool | None = None,
    terminating: bool | None = None,
) -> Object:
    """One entry of a slice; conditions that are not given are null."""
    entry: Object = {"addresses": list(addresses), "nodeName": "node-1"}
    entry["conditions"] = {"ready": ready, "serving": serving, "terminating": terminating}
    if name:
        entry["targetRef"] = {
            "kind": "Pod",
            "namespace": "default",
            "name": name,
            "uid": f"uid-{name}",
        }
    if zone:
        entry["zone"] = zone
    return entry


def draining_pod(name: str, address: str) -> Object:
    return pod(name, address, ready=False, serving=True, terminating=True)


def slice_object(
    name: str,
    *pods: Object,
    family: str = "IPv4",
    ports: list[Object] | None = None,
    service: str = "vllm",
) -> Object:
    labels = {"kubernetes.io/service-name": service}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": labels, "generation": 1},
        "addressType": family,
        "endpoints": list(pods),
        "ports": [HTTP] if ports is None else ports,
    }


def parsed_slice(slice_: Object) -> EndpointSlice:
    return msgspec.json.decode(msgspec.json.encode(slice_), type=EndpointSlice)


A, B, C = pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3")
