"""Texts that grammars allow, held against other readers of schemas and regexes; and what means harm."""

import re
from contextlib import suppress
from datetime import date, datetime
from random import Random
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from extproc.simulator.http.grammars import MOST_BYTES, read_ebnf, read_regex, read_schema, write_text
from extproc.simulator.http.refusals import Refusal

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
    {"type": "integer", "multipleOf": 7, "minimum": 50},
    {"type": "integer", "maximum": -5},
    # Not up to 0.1: llguidance takes 0 for more than 0 where the greatest number has the same whole part.
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "string", "pattern": "^[A-Z]{3}-\\d+$", "maxLength": 8},
    {"type": "string", "minLength": 40, "maxLength": 44},
    {"type": ["string", "null"]},
    {"const": {"deep": [1, None]}},
    {"oneOf": [{"type": "integer"}, {"type": "string", "format": "date"}]},
    {"type": "integer", "minimum": 100_000, "multipleOf": 999},
    {"enum": ["Zürich", 1, None, {"a": 2}]},
    {"type": "string", "format": "email"},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 90}}},
        ]
    },
]
CHAIN = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(5000)}
HOSTILE: list[Any] = [
    {"$ref": "#/$defs/a0", "$defs": CHAIN | {"a5000": {"type": "integer"}}},
    {"$ref": "#"},
    {"$ref": "#/nowhere"},
    {"$ref": "https://example.com/schema"},
    {"$ref": 5},
    {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"anyOf": [{"$ref": "#"}] * 50},
    {"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]},
    {"allOf": [{"$ref": "#"}] * 50},
    {"type": "nope"},
    {"type": 5},
    {"enum": 5},
    {"enum": []},
    {"type": "array", "uniqueItems": True},
    {"not": {"type": "string"}},
    False,
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
def test_what_is_written_for_a_schema_is_allowed_by_it(schema: Any) -> None:
    grammar = read_schema(schema)
    for seed in range(50):
        Draft202012Validator(schema).validate(orjson.loads(write_text(grammar, Random(seed))))


@pytest.mark.parametrize("schema", HOSTILE, ids=lambda schema: f"{schema!s:.60}")
def test_a_schema_that_nothing_satisfies_is_refused(schema: Any) -> None:
    with pytest.raises(Refusal) as refusal:
        write_text(read_schema(schema), Random(1))

    assert 400 == refusal.value.status


class Times(BaseModel):
    at: datetime
    day: date
    id: UUID


def test_times_are_such_as_others_read() -> None:
    grammar = read_schema(Times.model_json_schema())
    for seed in range(100):
        Times.model_validate_json(write_text(grammar, Random(seed)))


def test_the_same_seed_writes_the_same_text_and_others_do_not() -> None:
    grammar = read_schema({"type": "array", "items": {"type": "string"}, "minItems": 4})
    made = [write_text(grammar, Random(seed)) for seed in (1, 1, 2, 3)]

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
        text = write_text(read_schema(schema), Random(seed))
    except Refusal:
        return

    Draft202012Validator(schema).validate(orjson.loads(text))


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
def test_any_json_for_a_schema_has_a_short_text_or_is_refused(schema: Any) -> None:
    with suppress(Refusal):
        assert len(write_text(read_schema(schema), Random(1))) <= 2 * MOST_BYTES


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
def test_a_text_written_for_a_regex_matches_all_of_it(pattern: str) -> None:
    grammar = read_regex(pattern)
    for seed in range(50):
        assert re.fullmatch(pattern, write_text(grammar, Random(seed)))


@pytest.mark.parametrize("pattern", ["([", "(?=a)b", "(a{1000}){1000}", "\ud800"])
def test_a_regex_that_is_none_or_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(Refusal):
        write_text(read_regex(pattern), Random(1))


def test_sentences_of_a_grammar_are_written_and_endless_ones_refused() -> None:
    written = {write_text(read_ebnf('root ::= "yes" | "no"'), Random(seed)) for seed in range(20)}

    assert {"yes", "no"} == written
    chain = "\n".join(f"r{number} ::= r{number + 1}" for number in range(5000))
    for grammar in ('root ::= "a" root', "nothing", "", f'root ::= r0\n{chain}\nr5000 ::= "x"'):
        with pytest.raises(Refusal):
            write_text(read_ebnf(grammar), Random(1))
