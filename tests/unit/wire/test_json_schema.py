"""What is a JSON Schema, and what can be obeyed strictly: in OpenAI's words, and held against the `jsonschema` package."""

import copy
import random
from typing import Any

import jsonschema_rs
import pytest

from models.errors import InvalidRequest
from models.wire.checks.json_schema import (
    MAX_ENUM_VALUES,
    MAX_LEVELS,
    MAX_PROPERTIES,
    require_schema,
)

Json = dict[str, Any]


def fault(schema: Json, *, strict: bool = False) -> str | None:
    """What is wrong with the schema, without the words before it."""
    try:
        require_schema(
            schema,
            "text.format.schema",
            "response_format 'n'",
            code="invalid_json_schema",
            strict=strict,
        )
    except InvalidRequest as refusal:
        told = refusal
    else:
        return None
    start = "Invalid schema for response_format 'n': "
    assert (told.param, told.code) == ("text.format.schema", "invalid_json_schema")
    assert told.message.startswith(start)
    return told.message.removeprefix(start)


def closed(**properties: Any) -> Json:
    """An object as strict schemas want it."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


GOOD: list[Json] = [
    {},
    {"type": "object"},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": ["string", "null"], "default": None}},
    },
    {"$schema": "https://evil.example/never-fetched", "$ref": "https://evil.example/never-fetched"},
    {"items": [{"type": "string"}, True], "additionalItems": False},
    {"exclusiveMinimum": True, "minimum": 3},
    {"exclusiveMinimum": 3, "multipleOf": 0.5, "minLength": 2.0},
    {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
    {
        "enum": [None, 1, {"type": "no schema, a value"}],
        "const": {"properties": 3},
        "default": {"type": 7},
        "examples": "any",
    },
    {
        "properties": {
            "properties": {"type": "object"},
            "type": {"type": "string"},
            "required": True,
        }
    },
    {"unheard-of": {"type": 3}, "nullable": True, "pattern": "(?<js>\\p{L})", "format": "made-up"},
    {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
]


@pytest.mark.parametrize("schema", GOOD, ids=range(len(GOOD)))
def test_what_some_draft_allows_is_a_schema(schema: Json) -> None:
    before = copy.deepcopy(schema)
    assert fault(schema) is None
    assert schema == before


TYPES = "one of array, boolean, integer, null, number, object, string, or an array of these"
BAD: list[tuple[Json, str]] = [
    ({"type": "strng"}, f"'type' must be {TYPES}, not 'strng'."),
    ({"type": None}, f"'type' must be {TYPES}."),
    ({"type": []}, f"'type' must be {TYPES}."),
    ({"type": ["string", 3]}, f"'type' must be {TYPES}."),
    (
        {"properties": {"a": {"items": {"type": "text"}}}},
        f"In context=('properties', 'a', 'items'), 'type' must be {TYPES}, not 'text'.",
    ),
    ({"properties": []}, "'properties' must be an object of schemas."),
    ({"properties": {"a": "string"}}, "'properties' must be an object of schemas."),
    ({"required": True}, "'required' must be an array of strings."),
    ({"anyOf": []}, "'anyOf' must be an array of schemas."),
    ({"anyOf": [{}, {"minLength": -1}]}, "In context=('anyOf', '1'), 'minLength' must be a non-negative integer."),
    ({"items": "string"}, "'items' must be a schema, not 'string'."),
    ({"enum": "a"}, "'enum' must be an array, not 'a'."),
    ({"minimum": "3"}, "'minimum' must be a number, not '3'."),
    ({"multipleOf": 0}, "'multipleOf' must be a number above 0."),
    ({"description": 3}, "'description' must be a string."),
    ({"uniqueItems": 1}, "'uniqueItems' must be a boolean."),
    ({"$ref": {}}, "'$ref' must be a string."),
    ({"dependencies": {"a": "b"}}, "'dependencies' must be an object of schemas or of arrays of strings."),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "told"), BAD, ids=range(len(BAD)))
def test_what_no_draft_allows_is_none(schema: Json, told: str) -> None:
    assert fault(schema) == told
    assert fault(schema, strict=True) is not None


STRICT: list[Json] = [
    closed(),
    closed(a={"type": "string", "pattern": "x", "format": "date"}, b={"type": ["integer", "null"], "minimum": 1}),
    closed(a={"type": "array", "items": closed(b={"enum": ["x"]}), "minItems": 1, "maxItems": 3}),
    closed(a={"anyOf": [{"type": "string"}, closed(b={"const": 1}), {"type": "null"}]}),
    {**closed(a={"$ref": "#/$defs/n", "description": "linked"}), "$defs": {"n": closed(next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})}},
    {**closed(a={"$ref": "#"}), "$schema": "http://json-schema.org/draft-07/schema#", "title": "T"},
    {**closed(a={"$ref": "#/definitions/a~1b%20c"}), "definitions": {"a/b c": {"type": "string"}}},
    closed(properties=closed(type={"type": "string"}), required={"type": "boolean"}),
]  # fmt: skip


@pytest.mark.parametrize("schema", STRICT, ids=range(len(STRICT)))
def test_what_a_model_can_be_held_to(schema: Json) -> None:
    assert fault(schema, strict=True) is None


ROOT = "schema must be a JSON Schema of 'type: \"object\"', got "
MISSING = "'required' is required to be supplied and to be an array including every key in properties. Missing"
NOT_STRICT: list[tuple[Json, str]] = [
    ({}, f"{ROOT}'type: \"None\"'."),
    ({"type": "array", "items": {"type": "string"}}, f"{ROOT}'type: \"array\"'."),
    ({"type": ["object", "null"]}, f"{ROOT}'type: \"['object', 'null']\"'."),
    ({**closed(), "anyOf": [closed()]}, f"{ROOT}'anyOf'."),
    ({"type": "object"}, "'additionalProperties' is required to be supplied and to be false."),
    ({**closed(), "additionalProperties": True}, "'additionalProperties' is required to be supplied and to be false."),
    ({**closed(a={"type": "string"}), "required": []}, f"{MISSING} 'a'."),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}, f"{MISSING} 'a'."),
    ({**closed(), "required": ["b"]}, "'required' is required to be an array of keys in properties. Extra required key 'b' supplied."),
    (
        closed(a={"type": "object", "properties": {}}),
        "In context=('properties', 'a'), 'additionalProperties' is required to be supplied and to be false.",
    ),
    (
        closed(a={"type": "array", "items": {**closed(b={"type": "string"}), "required": []}}),
        f"In context=('properties', 'a', 'items'), {MISSING} 'b'.",
    ),
    (closed(a={}), "In context=('properties', 'a'), schema must have a 'type' key."),
    (closed(a=True), "property 'a': schema must have a 'type' key."),
    (closed(a={"type": "array"}), "In context=('properties', 'a'), array schema missing items."),
    (closed(a={"oneOf": [{"type": "string"}]}), "In context=('properties', 'a'), 'oneOf' is not permitted."),
    ({**closed(), "patternProperties": {"^x": {"type": "string"}}}, "'patternProperties' is not permitted."),
    (closed(a={"$ref": "#/$defs/gone"}), "In context=('properties', 'a'), reference to component '#/$defs/gone' which was not found in the schema."),
    (
        closed(a={"$ref": "https://evil.example/x.json"}),
        "In context=('properties', 'a'), reference to component 'https://evil.example/x.json' which was not found in the schema.",
    ),
    ({**closed(), "$defs": {"x": {"not": {"type": "null"}}}}, "In context=('$defs', 'x'), 'not' is not permitted."),
    (
        closed(a={"type": "integer", "enum": list(range(MAX_ENUM_VALUES + 1))}),
        "In context=('properties', 'a'), the schema exceeds the limit of 1000 enum values in all.",
    ),
    (closed(**{f"p{n}": {"type": "null"} for n in range(MAX_PROPERTIES + 1)}), "the schema exceeds the limit of 5000 object properties in all."),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "told"), NOT_STRICT, ids=range(len(NOT_STRICT)))
def test_what_no_model_can_be_held_to_is_told_as_openai_tells_it(schema: Json, told: str) -> None:
    assert fault(schema, strict=True) == told
    assert fault(schema) is None


def test_levels_are_counted_by_objects() -> None:
    def nested(levels: int) -> Json:
        schema = closed(end={"type": "string"})
        for _ in range(levels - 1):
            schema = closed(a={"type": "array", "items": schema})
        return schema

    assert fault(nested(MAX_LEVELS), strict=True) is None
    assert (fault(nested(MAX_LEVELS + 1), strict=True) or "").endswith("levels of nesting.")
    assert fault(nested(MAX_LEVELS + 1)) is None


def test_a_schema_may_be_as_deep_as_a_body_and_the_error_stays_short() -> None:
    schema: Json = {"type": "x" * 10_000}
    for _ in range(190):
        schema = {"not": schema}
    told = fault(schema)
    assert told is not None
    assert len(told) < 600


def _mutated(chance: random.Random, schema: Any) -> Any:
    """The same with something else in one place."""
    junk: list[Any] = [
        None,
        True,
        -1,
        0.5,
        "text",
        "string",
        [],
        ["a"],
        [3],
        {},
        {"type": "string"},
        [{"type": "x"}],
    ]
    copied = copy.deepcopy(schema)
    spots: list[tuple[Any, Any]] = []
    waiting = [copied]
    while waiting:
        found = waiting.pop()
        children = (
            list(found.items())
            if isinstance(found, dict)
            else list(enumerate(found))
            if isinstance(found, list)
            else []
        )
        spots += [(found, key) for key, _ in children]
        waiting += [value for _, value in children]
    if spots:
        holder, key = chance.choice(spots)
        holder[key] = chance.choice(junk)
    return copied


def test_nothing_is_refused_that_the_package_takes() -> None:
    chance = random.Random(6)
    refused = 0
    for _ in range(3000):
        schema = {
            **_mutated(chance, chance.choice([*GOOD, *STRICT])),
            "$schema": "https://json-schema.org/draft/2020-12/schema",
        }
        told = fault(schema)
        assert told is None or not jsonschema_rs.meta.is_valid(schema), (schema, told)
        refused += told is not None
    assert refused > 300
