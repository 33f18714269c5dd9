"""Which JSON Schemas are valid, and which are valid as strict ones. The errors have OpenAI's
wording; the validity is compared with the meta-schema."""

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
    """The error for the schema, without its prefix; None if the schema is accepted."""
    try:
        require_schema(
            schema,
            "text.format.schema",
            "response_format 'n'",
            code="invalid_json_schema",
            strict=strict,
        )
    except InvalidRequest as refusal:
        error = refusal
    else:
        return None
    prefix = "Invalid schema for response_format 'n': "
    assert (error.param, error.code) == ("text.format.schema", "invalid_json_schema")
    assert error.message.startswith(prefix)
    return error.message.removeprefix(prefix)


def closed(**properties: Any) -> Json:
    """An object as strict schemas require it."""
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
def test_a_schema_that_some_draft_allows_is_accepted_unchanged(schema: Json) -> None:
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
    (
        {"anyOf": [{}, {"minLength": -1}]},
        "In context=('anyOf', '1'), 'minLength' must be a non-negative integer.",
    ),
    ({"items": "string"}, "'items' must be a schema, not 'string'."),
    ({"enum": "a"}, "'enum' must be an array, not 'a'."),
    ({"minimum": "3"}, "'minimum' must be a number, not '3'."),
    ({"multipleOf": 0}, "'multipleOf' must be a number above 0."),
    ({"description": 3}, "'description' must be a string."),
    ({"uniqueItems": 1}, "'uniqueItems' must be a boolean."),
    ({"$ref": {}}, "'$ref' must be a string."),
    (
        {"dependencies": {"a": "b"}},
        "'dependencies' must be an object of schemas or of arrays of strings.",
    ),
]


@pytest.mark.parametrize(("schema", "message"), BAD, ids=range(len(BAD)))
def test_a_schema_that_no_draft_allows_is_refused_with_the_keyword(
    schema: Json, message: str
) -> None:
    assert fault(schema) == message
    assert fault(schema, strict=True) is not None


STRICT: list[Json] = [
    closed(),
    closed(
        a={"type": "string", "pattern": "x", "format": "date"},
        b={"type": ["integer", "null"], "minimum": 1},
    ),
    closed(a={"type": "array", "items": closed(b={"enum": ["x"]}), "minItems": 1, "maxItems": 3}),
    closed(a={"anyOf": [{"type": "string"}, closed(b={"const": 1}), {"type": "null"}]}),
    {
        **closed(a={"$ref": "#/$defs/n", "description": "linked"}),
        "$defs": {"n": closed(next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})},
    },
    {**closed(a={"$ref": "#"}), "$schema": "http://json-schema.org/draft-07/schema#", "title": "T"},
    {**closed(a={"$ref": "#/definitions/a~1b%20c"}), "definitions": {"a/b c": {"type": "string"}}},
    closed(properties=closed(type={"type": "string"}), required={"type": "boolean"}),
]


@pytest.mark.parametrize("schema", STRICT, ids=range(len(STRICT)))
def test_a_strict_schema_is_accepted(schema: Json) -> None:
    assert fault(schema, strict=True) is None


ROOT = "schema must be a JSON Schema of 'type: \"object\"', got "
MISSING = (
    "'required' is required to be supplied and to be an array including every key in properties. "
    "Missing"
)
NOT_STRICT: list[tuple[Json, str]] = [
    ({}, f"{ROOT}'type: \"None\"'."),
    ({"type": "array", "items": {"type": "string"}}, f"{ROOT}'type: \"array\"'."),
    ({"type": ["object", "null"]}, f"{ROOT}'type: \"['object', 'null']\"'."),
    ({**closed(), "anyOf": [closed()]}, f"{ROOT}'anyOf'."),
    ({"type": "object"}, "'additionalProperties' is required to be supplied and to be false."),
    (
        {**closed(), "additionalProperties": True},
        "'additionalProperties' is required to be supplied and to be false.",
    ),
    ({**closed(a={"type": "string"}), "required": []}, f"{MISSING} 'a'."),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
        f"{MISSING} 'a'.",
    ),
    (
        {**closed(), "required": ["b"]},
        (
            "'required' is required to be an array of keys in properties. Extra required key 'b' "
            "supplied."
        ),
    ),
    (
        closed(a={"type": "object", "properties": {}}),
        (
            "In context=('properties', 'a'), 'additionalProperties' is required to be supplied and "
            "to be false."
        ),
    ),
    (
        closed(a={"type": "array", "items": {**closed(b={"type": "string"}), "required": []}}),
        f"In context=('properties', 'a', 'items'), {MISSING} 'b'.",
    ),
    (closed(a={}), "In context=('properties', 'a'), schema must have a 'type' key."),
    (closed(a=True), "property 'a': schema must have a 'type' key."),
    (closed(a={"type": "array"}), "In context=('properties', 'a'), array schema missing items."),
    (
        closed(a={"oneOf": [{"type": "string"}]}),
        "In context=('properties', 'a'), 'oneOf' is not permitted.",
    ),
    (
        {**closed(), "patternProperties": {"^x": {"type": "string"}}},
        "'patternProperties' is not permitted.",
    ),
    (
        closed(a={"$ref": "#/$defs/gone"}),
        (
            "In context=('properties', 'a'), reference to component '#/$defs/gone' which was not "
            "found in the schema."
        ),
    ),
    (
        closed(a={"$ref": "https://evil.example/x.json"}),
        (
            "In context=('properties', 'a'), reference to component 'https://evil.example/x.json' "
            "which was not found in the schema."
        ),
    ),
    (
        {**closed(), "$defs": {"x": {"not": {"type": "null"}}}},
        "In context=('$defs', 'x'), 'not' is not permitted.",
    ),
    (
        closed(a={"type": "integer", "enum": list(range(MAX_ENUM_VALUES + 1))}),
        "In context=('properties', 'a'), the schema exceeds the limit of 1000 enum values in all.",
    ),
    (
        closed(**{f"p{n}": {"type": "null"} for n in range(MAX_PROPERTIES + 1)}),
        "the schema exceeds the limit of 5000 object properties in all.",
    ),
]


@pytest.mark.parametrize(("schema", "message"), NOT_STRICT, ids=range(len(NOT_STRICT)))
def test_a_schema_that_is_not_strict_is_refused_in_the_words_of_openai(
    schema: Json, message: str
) -> None:
    assert fault(schema, strict=True) == message
    assert fault(schema) is None


def test_the_limit_of_levels_counts_objects_only() -> None:
    def nested(levels: int) -> Json:
        schema = closed(end={"type": "string"})
        for _ in range(levels - 1):
            schema = closed(a={"type": "array", "items": schema})
        return schema

    assert fault(nested(MAX_LEVELS), strict=True) is None
    assert (fault(nested(MAX_LEVELS + 1), strict=True) or "").endswith("levels of nesting.")
    assert fault(nested(MAX_LEVELS + 1)) is None


def test_the_error_about_a_deep_schema_is_short() -> None:
    schema: Json = {"type": "x" * 10_000}
    for _ in range(190):
        schema = {"not": schema}
    message = fault(schema)
    assert message is not None
    assert len(message) < 600


def _mutated(chance: random.Random, schema: Any) -> Any:
    """A copy of the schema with another value in one place."""
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
    remaining = [copied]
    while remaining:
        value = remaining.pop()
        children = (
            list(value.items())
            if isinstance(value, dict)
            else list(enumerate(value))
            if isinstance(value, list)
            else []
        )
        spots += [(value, key) for key, _ in children]
        remaining += [child for _, child in children]
    if spots:
        holder, key = chance.choice(spots)
        holder[key] = chance.choice(junk)
    return copied


def test_no_schema_is_refused_that_the_meta_schema_accepts() -> None:
    chance = random.Random(6)
    refused = 0
    for _ in range(3000):
        schema = {
            **_mutated(chance, chance.choice([*GOOD, *STRICT])),
            "$schema": "https://json-schema.org/draft/2020-12/schema",
        }
        message = fault(schema)
        assert message is None or not jsonschema_rs.meta.is_valid(schema), (schema, message)
        refused += message is not None
    assert refused > 300
