"""The words that the schemas are written in: JSON Schema, in which a field that is not named is refused."""

from typing import Any, Final

Schema = dict[str, Any]

NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    "maxLength": 253,
}
GROUP: Final[Schema] = {
    "type": "string",
    "pattern": r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    "maxLength": 253,
}
KIND: Final[Schema] = {
    "type": "string",
    "pattern": "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$",
    "maxLength": 63,
}
STRING: Final[Schema] = {"type": "string"}
TEXT: Final[Schema] = {"type": "string", "minLength": 1}
FLAG: Final[Schema] = {"type": "boolean"}
LABELS: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": 63},
}
STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
# An object that its own project does not look into, or one of Kubernetes' own types.
FREE: Final[Schema] = {"type": "object"}


def between(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


PORT: Final = between(1, 65_535)
INT32: Final = between(-(2**31), 2**31 - 1)
UINT32: Final = between(0, 2**32 - 1)


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def some(item: Schema, most: int | None = None, *, least: int = 1) -> Schema:
    """A list of at least one; that of a schema without a limit has none here."""
    limit = {} if most is None else {"maxItems": most}
    return {"type": "array", "items": item, "minItems": least} | limit


def any_number(item: Schema, most: int | None = None) -> Schema:
    return some(item, most, least=0)


def record(required: str = "", /, **fields: Schema) -> Schema:
    """An object with these fields and no others; `required` names some of them."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def at_most_one(*fields: str) -> Schema:
    """A rule beside a record's own: these fields exclude each other."""
    pairs = [[one, other] for n, one in enumerate(fields) for other in fields[n + 1 :]]
    return {"not": {"anyOf": [{"required": pair} for pair in pairs]}}


def exactly_one(*fields: str) -> Schema:
    return {"oneOf": [{"required": [field]} for field in fields]}


def union(tag: str, **arms: str) -> Schema:
    """A rule beside a record's own: the field of an arm is there if, and only if, `tag` names it."""
    return {
        "allOf": [
            {
                "if": {"properties": {tag: {"const": value}}, "required": [tag]},
                "then": {"required": [field]},
                "else": {"not": {"required": [field]}},
            }
            for value, field in arms.items()
        ]
    }


def resource(spec: Schema) -> Schema:
    metadata = record("name", name=NAME, namespace=NAME, labels=LABELS, annotations=STRINGS)
    return record(
        "apiVersion kind metadata spec", apiVersion=TEXT, kind=KIND, metadata=metadata, spec=spec
    )
