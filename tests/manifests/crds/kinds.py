"""Every custom resource that the manifests use, by API version and kind.

Each YAML file beside this module is a project's: which release, and from where. Its trees are
written after the project's CustomResourceDefinitions, and have the fields that our manifests use.
Another field is refused, as is a misspelt one: who uses it adds it here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

Schema = dict[str, Any]

_RESOURCE: Final = """
type: object
properties:
  apiVersion: {type: string, minLength: 1}
  kind: {type: string, pattern: "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", maxLength: 63}
  metadata:
    type: object
    properties:
      name: &name {type: string, pattern: "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", maxLength: 253}
      namespace: *name
      labels: {type: object, additionalProperties: {type: string, maxLength: 63}}
      annotations: {type: object, additionalProperties: {type: string}}
    required: [name]
required: [apiVersion, kind, metadata, spec]
"""


def _close(schema: Any) -> Any:
    """An object whose fields are named has no others."""
    if isinstance(schema, list):
        return [_close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _close(value) for name, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed["additionalProperties"] = False
    return closed


def _read() -> Iterator[tuple[tuple[str, str], Schema]]:
    for file in sorted(Path(__file__).parent.glob("*.yaml")):
        for name, spec in yaml.safe_load(file.read_text())["specs"].items():
            version, _, kind = name.partition(" ")
            resource = yaml.safe_load(_RESOURCE)
            resource["properties"]["spec"] = spec
            yield (version, kind), _close(resource)


SCHEMAS: Final = dict(_read())
