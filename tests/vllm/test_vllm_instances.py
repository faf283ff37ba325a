"""Values that JSON schemas allow, held against another reader of schemas; and schemas that mean harm."""

import json
import re
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from extproc.vllm.http.instances import make_instance
from extproc.vllm.http.patterns import write_match
from extproc.vllm.http.refusals import Refusal

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["value", "next", "children"],
}
SCHEMAS: list[Any] = [
    {},
    True,
    {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
        "required": ["a"],
    },
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3},
    {
        "patternProperties": {"^a[0-9]+$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 2,
    },
    {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 5, "maxItems": 9},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3]}, "minItems": 3},
    {"type": "integer", "multipleOf": 7, "minimum": 50},
    {"type": "integer", "maximum": -5},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.1},
    {"type": "string", "pattern": "^[A-Z]{3}-\\d+$", "maxLength": 8},
    {"type": "string", "minLength": 40, "maxLength": 44},
    {"type": ["string", "null"]},
    {"const": {"deep": [1, None]}},
    {"not": {"type": "string"}},
    {"oneOf": [{"type": "integer"}, {"type": "string", "format": "date"}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 90}}},
        ]
    },
]
HOSTILE: list[Any] = [
    {"$ref": "#"},
    {"$ref": "#/nowhere"},
    {"$ref": "https://example.com/schema"},
    {"$ref": 5},
    {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"anyOf": [{"$ref": "#"}] * 50},
    {"allOf": [{"$ref": "#"}] * 50},
    {"type": "nope"},
    {"type": 5},
    {"enum": 5},
    {"enum": []},
    {"type": "array", "minItems": 10**9},
    {"type": "array", "minItems": 2000, "items": {"type": "array", "minItems": 2000}},
    {"type": "string", "minLength": 10**9},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "string", "pattern": "(["},
    {"type": "string", "pattern": "(a{1000}){1000}"},
    {"type": "string", "pattern": "(?=a)b"},
    "text",
    5,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_what_is_made_of_a_schema_is_allowed_by_it(schema: Any) -> None:
    for seed in range(100):
        Draft202012Validator(schema).validate(make_instance(schema, Random(seed)))


@pytest.mark.parametrize("schema", HOSTILE, ids=lambda schema: str(schema))
def test_a_schema_that_nothing_satisfies_is_refused(schema: Any) -> None:
    with pytest.raises(Refusal) as refusal:
        make_instance(schema, Random(1))

    assert 400 == refusal.value.status


def test_the_same_seed_makes_the_same_value_and_others_do_not() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 4}
    made = [json.dumps(make_instance(schema, Random(seed))) for seed in (1, 1, 2, 3)]

    assert made[0] == made[1]
    assert 3 == len(set(made))


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    st.builds(lambda values: {"enum": values}, st.lists(st.integers() | st.text(max_size=3), min_size=1)),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-99, 99),
        st.integers(0, 9),
    ),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 30),
        st.integers(0, 9),
    ),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda items, few: {"type": "array", "items": items, "minItems": few}, inner, st.integers(0, 3)
        ),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda named: {
                "type": "object",
                "properties": named,
                "required": sorted(named)[:2],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        ),
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(TREES, st.integers(0, 1000))
def test_any_schema_gets_an_instance_or_a_refusal(schema: Any, seed: int) -> None:
    try:
        value = make_instance(schema, Random(seed))
    except Refusal:
        return

    Draft202012Validator(schema).validate(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "items",
                    "properties",
                    "required",
                    "anyOf",
                    "allOf",
                    "$ref",
                    "enum",
                    "minItems",
                    "pattern",
                    "minimum",
                    "multipleOf",
                    "format",
                    "patternProperties",
                    "uniqueItems",
                    "contains",
                    "not",
                    "a",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(JSON)
def test_any_json_for_a_schema_makes_a_value_or_is_refused(schema: Any) -> None:
    try:
        make_instance(schema, Random(1))
    except Refusal as refusal:
        assert 400 == refusal.status


@pytest.mark.parametrize(
    "pattern",
    [
        "[0-9]{3}-[a-c]+",
        "(red|blue) (sky|sea)",
        r"\d+\.\d{2}",
        "[^a-z]{2,5}",
        ".*",
        "a?b*?c+",
        r"\w+@\w+\.com",
        "",
    ],
)
def test_a_text_written_for_a_pattern_matches_all_of_it(pattern: str) -> None:
    for seed in range(50):
        assert re.fullmatch(pattern, write_match(pattern, Random(seed)))
