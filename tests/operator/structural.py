"""What the API server demands of a CustomResourceDefinition's schema, and what it then says of an object.

Written after KEP 1290 and the rules at `ValidateStructural` of apiextensions-apiserver.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft4Validator

Schema = Mapping[str, Any]

# JSONSchemaProps has no other fields; what is in the second line it refuses although it has them.
_KNOWN = {
    *(
        "type",
        "format",
        "description",
        "enum",
        "pattern",
        "required",
        "properties",
        "items",
        "nullable",
    ),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "additionalProperties", "anyOf", "allOf", "oneOf", "not", "default"),
    *("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}
_TYPES = {"object", "array", "string", "integer", "number", "boolean"}


def find_faults(schema: Schema, at: str = "root") -> Iterator[str]:
    """Yields why a schema is not structural."""
    yield from (f"{at}: unknown {name}" for name in sorted(set(schema) - _KNOWN))
    has_any = schema.get("x-kubernetes-preserve-unknown-fields") is True
    has_two = schema.get("x-kubernetes-int-or-string") is True
    if schema.get("type") not in _TYPES and not (has_any or has_two):
        yield f"{at}: type must not be empty"
    if has_any and has_two:
        yield f"{at}: preserved, and an integer or a text"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{at}: items must be specified"
    yield from _find_junctions(schema, at)
    for name, field in schema.get("properties", {}).items():
        yield from find_faults(field, f"{at}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            yield from find_faults(schema[name], f"{at}.{name}")


def _find_junctions(schema: Schema, at: str) -> Iterator[str]:
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{at}: properties and additionalProperties exclude each other"
    for junctor in ("anyOf", "allOf", "oneOf"):
        for each in schema.get(junctor, ()):
            if set(each) & {
                "type",
                "description",
                "default",
                "additionalProperties",
                "nullable",
                "title",
            }:
                yield f"{at}: {junctor} says more than values"
    if missing := set(schema.get("required", ())) - set(schema.get("properties", {})):
        yield f"{at}: requires {missing} without saying what they are"
    for bound in ("exclusiveMinimum", "exclusiveMaximum"):
        if not isinstance(schema.get(bound, False), bool):
            yield f"{at}: {bound} is a flag"


def list_refusals(schema: Schema, value: object) -> list[str]:
    """What the API server says of a value by the schema, kubectl's refusal of unknown fields included."""
    faults = Draft4Validator(_strict(schema)).iter_errors(value)
    return [f"{'.'.join(map(str, fault.path))}: {fault.message}" for fault in faults]


def _strict(schema: Schema) -> dict[str, Any]:
    made = {name: value for name, value in schema.items() if not name.startswith("x-kubernetes")}
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if "properties" in schema:
        made["properties"] = {name: _strict(field) for name, field in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), Mapping):
            made[name] = _strict(schema[name])
    return made
