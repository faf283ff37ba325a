"""`make reference`: writes into values.schema.json what a pool and a whole extproc.yaml may say.

Helm then refuses a misspelt strategy, engine or field before anything is installed. Nobody edits these parts:
a test compares them with the settings.
"""

import json
from pathlib import Path
from typing import Any, Final

from extproc.router.settings.tree import Settings

Schema = dict[str, Any]

SCHEMA: Final = Path(__file__).parent / "extproc-router" / "values.schema.json"
# What docs/reference/settings.md says; and what the chart fills in itself.
_LEFT_OUT: Final = ("title", "default", "description", "discriminator")
_STRATEGY: Final = "prefix_cache"


def build_values_schema(values: Schema) -> Schema:
    """Returns the schema of values with the settings' part made anew; its own definitions have small letters."""
    settings = Settings.model_json_schema()
    own = {name: each for name, each in values["$defs"].items() if name[0].islower()}
    epp = values["properties"]["router"]["properties"]["epp"]["properties"]
    described = {name: epp[name]["description"] for name in ("pool", "config")}
    # The chart says where the endpoints are, and the pool's name.
    pool = {**settings["$defs"]["PoolSettings"], "required": []}
    whole = {name: each for name, each in settings.items() if name != "$defs"}
    epp["pool"] = {"description": described["pool"], **_simplify(pool)}
    # `{}` is the value that says nothing.
    file = {"if": {"minProperties": 1}, "then": _simplify(whole)}
    epp["config"] = {"description": described["config"], "type": "object", **file}
    return {
        **values,
        "$defs": own | {name: _simplify(each) for name, each in settings["$defs"].items()},
    }


def _simplify(schema: Any, *, names_fields: bool = False) -> Any:
    if isinstance(schema, list):
        return [_simplify(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "discriminator" in str(schema.get("anyOf", ())):
        return _choose_strategy(schema["anyOf"])
    return {
        name: _simplify(each, names_fields=name in {"properties", "$defs"} and not names_fields)
        for name, each in schema.items()
        if names_fields or name not in _LEFT_OUT
    }


def _choose_strategy(kinds: list[Schema]) -> Schema:
    """By its name, so that what is wrong is said of that strategy and not of all others."""
    mapping = next(each["discriminator"]["mapping"] for each in kinds if "discriminator" in each)
    names = list(mapping)
    chosen: list[Schema] = [
        {
            "if": {
                "properties": {"name": {"const": name}},
                "required": [] if name == _STRATEGY else ["name"],
            },
            "then": {"$ref": reference},
        }
        for name, reference in mapping.items()
    ]
    section = {"properties": {"name": {"enum": names}}, "allOf": chosen}
    return {"if": {"type": "object"}, "then": section, "else": {"enum": names}}


def main() -> None:
    made = build_values_schema(json.loads(SCHEMA.read_text()))
    SCHEMA.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
