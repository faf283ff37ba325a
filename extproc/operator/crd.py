"""The CustomResourceDefinition, made of the spec's pydantic models. Pure.

A structural schema (KEP 1290, apiextensions' `schema/validation.go`) says the type of every field
once, outside of `anyOf`: references are laid open, `null` becomes an absent field, a number or a
text an integer or a text, and what may be a text, a number or an object has no type. What a schema
cannot say, the operator does.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from extproc.bench.spec.tree import Spec
from extproc.operator.resource import GROUP, KIND, PLURAL, VERSION, Operation

Schema = dict[str, Any]

_BOUNDED: Final = ("Items", "Length", "imum")
_COPIED: Final = (
    "type",
    "enum",
    "pattern",
    *(f"{end}{what}" for end in ("min", "max") for what in _BOUNDED),
)
# The object's own name is the run's.
_LEFT_OUT: Final = frozenset({"name"})


def build_crd() -> Schema:
    """Returns the whole definition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["bm"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": list(_columns()),
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _columns() -> Iterator[Schema]:
    for name, kind, path, priority in (
        ("Phase", "string", ".status.phase", 0),
        ("Verdict", "string", ".status.verdict", 0),
        ("Progress", "string", ".status.progress", 0),
        ("Req/s", "string", ".status.summary.requestsPerSecond", 0),
        ("TTFT p95", "string", ".status.summary.ttftP95", 0),
        ("Message", "string", ".status.message", 0),
        ("Age", "date", ".metadata.creationTimestamp", 0),
        ("Report", "string", ".status.report", 1),
    ):
        yield {
            "name": name,
            "type": kind,
            "jsonPath": path,
            **({"priority": priority} if priority else {}),
        }


def _root() -> Schema:
    return {
        "type": "object",
        "description": (
            "A benchmark of a model server: its load, how it is run, and in its status what came "
            "of it. Applied, it is run by Jobs, and judged; deleted, all that it made goes with it."
        ),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": build_spec_schema(),
            "status": {
                "type": "object",
                "description": "What came of it, written by the operator alone.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
        },
    }


def build_spec_schema() -> Schema:
    """The spec file's fields, and the operator's beside them."""
    ours, theirs = _of_model(Spec), _of_model(Operation)
    properties = {**ours["properties"], **theirs["properties"]}
    for name in _LEFT_OUT:
        properties.pop(name)
    return {
        "type": "object",
        "description": f"{ours['description']}\n\n{theirs['description']}",
        "required": ours["required"],
        "properties": properties,
    }


def _of_model(model: type[BaseModel]) -> Schema:
    schema = model.model_json_schema()
    return make_structural(schema, schema.get("$defs", {}))


def make_structural(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Returns the structural form of a JSON schema as pydantic writes it."""
    if "$ref" in schema:
        found = make_structural(defs[schema["$ref"].rpartition("/")[2]], defs)
        return {**found, **_describe(schema)} if "description" in schema else found
    if "anyOf" in schema:
        return _of_choices(schema, defs)
    if "const" in schema:
        return {"type": "string", "enum": [schema["const"]]}
    made = (
        {name: schema[name] for name in _COPIED if name in schema}
        | _describe(schema)
        | _bound(schema)
    )
    if schema.get("type") == "integer":
        made["format"] = "int64"
    if schema.get("type") == "array":
        made["items"] = make_structural(schema["items"], defs)
    if schema.get("type") == "object" or "properties" in schema:
        made |= _of_object(schema, defs)
    if "type" not in made:
        made["x-kubernetes-preserve-unknown-fields"] = True
    return made


def _bound(schema: Mapping[str, Any]) -> Schema:
    """A bound that is not reached is a flag beside the bound in OpenAPI 3.0."""
    made: Schema = {}
    for side in ("Minimum", "Maximum"):
        if f"exclusive{side}" in schema:
            made |= {side.lower(): schema[f"exclusive{side}"], f"exclusive{side}": True}
    return made


def _of_object(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    made: Schema = {}
    properties = schema.get("properties", {})
    if properties:
        made["properties"] = {
            name: _with_default(make_structural(field, defs), field)
            for name, field in properties.items()
        }
    if schema.get("required"):
        made["required"] = list(schema["required"])
    others = schema.get("additionalProperties", False)
    if isinstance(others, dict) and others:
        made["additionalProperties"] = make_structural(others, defs)
    elif others is not False:
        made["x-kubernetes-preserve-unknown-fields"] = True
    return made


def _of_choices(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """One of several types: `null` is a field that is left out; what is left of them decides."""
    choices = [_resolve(each, defs) for each in schema["anyOf"] if each.get("type") != "null"]
    about = _describe(schema)
    if len(choices) == 1:
        return make_structural(choices[0], defs) | about
    made = [make_structural(each, defs) for each in choices]
    kinds = {each.get("type") for each in made}
    if kinds <= {"number", "integer", "string"}:
        patterns = {each["pattern"] for each in made if "pattern" in each}
        return {
            "x-kubernetes-int-or-string": True,
            **({"pattern": patterns.pop()} if patterns else {}),
            **about,
        }
    # A text or an object: no type, but the object's fields are listed, and explained.
    fields = next((each for each in made if "properties" in each), {})
    return {
        **{name: value for name, value in fields.items() if name in {"description", "properties"}},
        **about,
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _resolve(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return defs[reference.rpartition("/")[2]] if reference else schema


def _describe(schema: Mapping[str, Any]) -> Schema:
    return {"description": spell(schema["description"])} if "description" in schema else {}


def _with_default(made: Schema, field: Mapping[str, Any]) -> Schema:
    """Adds to the description what a field is unless given."""
    default = field.get("default")
    if default in (None, "") or isinstance(default, dict | list):
        return made
    shown = f"{default:g}" if type(default) is float else json.dumps(default).strip('"')
    return {
        **made,
        "description": "\n".join(filter(None, (made.get("description"), f"Default: {shown}."))),
    }


def spell(text: str) -> str:
    """Writes field names as the resource does, with hyphens, and every paragraph in one line."""
    text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    return re.sub(r"`[a-z0-9]+(_[a-z0-9]+)+`", lambda found: found[0].replace("_", "-"), text)
