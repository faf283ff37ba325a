"""Whether Kubernetes knows the fields of an object."""

from typing import Any

from kubernetes import client


def unknown_fields(value: Any, kind: str) -> Any:
    """Yields the paths that the Kubernetes client's model of `kind` does not know."""
    if kind.startswith("List["):
        for item in value:
            yield from unknown_fields(item, kind[5:-1])
    elif isinstance(value, dict) and (model := getattr(client, kind, None)) is not None:
        types = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
        for name, item in value.items():
            if name not in types:
                yield f"{kind}.{name}"
            else:
                yield from unknown_fields(item, types[name])
