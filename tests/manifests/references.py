"""What objects name, and whether it is there."""

from collections.abc import Iterator
from typing import Any

from tests.manifests.rendering import Object

# Made by hand or by the cluster, as the files say.
GIVEN = {
    ("Secret", "extproc-share"),
    ("Secret", "vllm-api-key"),
    ("Secret", "extproc-tls"),
    ("Secret", "hf-token"),
    ("ConfigMap", "kube-root-ca.crt"),
}
CLUSTER_WIDE = {"GatewayClass"}


def strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for value in tree.values():
            yield from strings(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from strings(value)
    elif isinstance(tree, str):
        yield tree


def references(tree: Any, key: str = "") -> Iterator[tuple[str, Object]]:
    """Yields (key, object) of everything below that names another object."""
    if isinstance(tree, list):
        for value in tree:
            yield from references(value, key)
    elif isinstance(tree, dict):
        if "name" in tree and (key.endswith(("Ref", "Refs")) or key == "subjects"):
            yield key, tree
        for below, value in tree.items():
            yield from references(value, below)


# What a reference without a kind means, by the key that it stands under.
KINDS = {
    "backendRefs": "Service",
    "endpointPickerRef": "Service",
    "parentRefs": "Gateway",
    "configMapRef": "ConfigMap",
    "secretKeyRef": "Secret",
    "configMapKeyRef": "ConfigMap",
}


def count_references(objects: list[Object], namespace: str) -> int:
    """Counts what objects name; fails if one of it is not there, in this namespace and at that port."""
    there = {(item["kind"], item["metadata"]["name"]) for item in objects} | GIVEN
    services = {
        item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Service"
    }
    found = 0
    for item in objects:
        for key, reference in references({name: item[name] for name in item if name != "metadata"}):
            kind = reference.get("kind") or KINDS.get(key)
            assert kind, (item["kind"], key, reference)
            assert (kind, reference["name"]) in there, (
                item["kind"],
                item["metadata"]["name"],
                reference,
            )
            assert reference.get("namespace", namespace) == namespace
            if kind == "Service" and "port" in reference:
                port = reference["port"]
                number = port["number"] if isinstance(port, dict) else port
                assert number in {each["port"] for each in services[reference["name"]]["ports"]}
            found += 1
    return found
