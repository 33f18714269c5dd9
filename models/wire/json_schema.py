"""Whether what a client calls a JSON Schema is one, and whether it is one that structured output can promise to obey (contract §2).

The first question is asked of every schema: do its keywords have values that some common draft (4 to 2020-12) allows? The second of those
that are to be obeyed strictly: OpenAI's documented subset, in OpenAI's words. Written by hand, because the `jsonschema` package takes 2 ms
for a small schema and 1.2 s for a large one, more than all the rest of a create; a test holds it against the meta-schema. Nothing is
fetched, compiled or recursed into: a schema is walked once, as deep as a body may be (models/wire/json_input.py).
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from models.errors import InvalidRequest
from models.wire.checks import shorten

Json = dict[str, Any]
KeywordCheck = Callable[[Any], str | None]
"""Says what it wanted instead of a value, or None."""

MAX_PROPERTIES = 5000
MAX_LEVELS = 10
MAX_ENUM_VALUES = 1000
"""Of a strict schema, as OpenAI documents them: properties in all, objects within objects, values of all enums together."""

_SHOWN_STEPS = 20


class _Place:
    """Where in the root a schema stands: the way to it from the schema it is in."""

    __slots__ = ("outer", "schema", "way")

    def __init__(
        self, schema: Json, way: tuple[str, ...] = (), outer: "_Place | None" = None
    ) -> None:
        self.schema = schema
        self.way = way
        self.outer = outer

    @property
    def context(self) -> tuple[str, ...]:
        """As OpenAI shows it: `('properties', 'city', 'items')`. Asked for only when something is wrong."""
        steps: tuple[str, ...] = ()
        place: _Place | None = self
        while place is not None:
            steps, place = place.way + steps, place.outer
        return steps

    @property
    def levels(self) -> int:
        """How many objects it is inside of."""
        count = 0
        place: _Place | None = self
        while place is not None:
            count += place.way[:1] == ("properties",)
            place = place.outer
        return count


class _SchemaError(Exception):
    """What is wrong with the schema at hand, in words."""


def require_schema(schema: Json, where: str, subject: str, *, code: str, strict: bool) -> None:
    """Raises InvalidRequest(param=where, code) unless the schema is one. `subject` is what it is for: `function 'look'`.

    `strict`: unless a model can be held to it as well.
    """
    strictly = _Strict(schema) if strict else None
    waiting = [_Place(schema)]
    while waiting:
        place = waiting.pop()
        try:
            inside = _check_schema(place)
            if strictly is not None:
                strictly.check(place)
        except _SchemaError as fault:
            steps = tuple(map(shorten, place.context[:_SHOWN_STEPS]))
            message = f"In context={steps}, {fault}" if steps else str(fault)
            raise InvalidRequest(
                f"Invalid schema for {subject}: {message}", param=where, code=code
            ) from None
        waiting += reversed(
            inside
        )  # so that they are looked at in the order in which they were written


# What every schema must be.


def _check_schema(place: _Place) -> list[_Place]:
    """The schemas in this one. Raises _Fault where a keyword has a value that no draft allows."""
    inside: list[_Place] = []
    for keyword, value in place.schema.items():
        check = _KEYWORDS.get(keyword)
        if check is None:
            continue
        if (wanted := check(value)) is not None:
            shown_value = f", not '{shorten(value)}'" if isinstance(value, str) else ""
            raise _SchemaError(f"'{keyword}' must be {wanted}{shown_value}.")
        if check in _HOLDS_SCHEMAS:
            inside += (
                _Place(found, (keyword, *way), place)
                for way, found in _subschemas(check, value)
                if isinstance(found, dict)
            )
    return inside


def _subschemas(check: KeywordCheck, value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What stands where a keyword holds schemas, and the rest of the way to it."""
    if check in (_schemas_by_name, _dependencies):
        yield from (((name,), found) for name, found in value.items())
    elif isinstance(value, list):
        yield from (((str(at),), found) for at, found in enumerate(value))
    else:
        yield (), value


def _must(wanted: str, fits: Callable[[Any], bool]) -> KeywordCheck:
    return lambda value: None if fits(value) else wanted


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in _TYPES for name in names)


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_string = _must("a string", lambda value: isinstance(value, str))
_boolean = _must("a boolean", lambda value: isinstance(value, bool))
_number = _must("a number", _is_number)
_bound = _must(
    "a number", lambda value: _is_number(value) or isinstance(value, bool)
)  # draft 4: `exclusiveMinimum: true`
_factor = _must("a number above 0", lambda value: _is_number(value) and value > 0)
_count = _must(
    "a non-negative integer", lambda value: _is_number(value) and value >= 0 and value == int(value)
)
_array = _must("an array", lambda value: isinstance(value, list))
_strings = _must("an array of strings", _are_strings)
_type = _must(f"one of {', '.join(_TYPES)}, or an array of these", _is_type)
_schema = _must("a schema", _is_schema)
_schemas_in_order = _must(
    "an array of schemas",
    lambda value: isinstance(value, list) and bool(value) and all(map(_is_schema, value)),
)
_schema_or_schemas = _must(
    "a schema",
    lambda value: _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value))),
)  # draft 7: `items` in order
_schemas_by_name = _must(
    "an object of schemas",
    lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())),
)
_dependencies = _must(
    "an object of schemas or of arrays of strings",
    lambda value: (
        isinstance(value, dict)
        and all(_is_schema(one) or _are_strings(one) for one in value.values())
    ),
)

_HOLDS_SCHEMAS = frozenset(
    (_schema, _schemas_in_order, _schema_or_schemas, _schemas_by_name, _dependencies)
)

_KEYWORDS: dict[str, KeywordCheck] = {
    "type": _type,
    "enum": _array,
    "required": _strings,
    "items": _schema_or_schemas,
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "uniqueItems": _boolean,
    "multipleOf": _factor,
    **dict.fromkeys(
        ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"),
        _schemas_by_name,
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schemas_in_order),
    **dict.fromkeys(
        ("additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"), _schema
    ),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), _schema),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count
    ),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _bound),
    **dict.fromkeys(
        (
            "$schema",
            "$id",
            "$ref",
            "$anchor",
            "$comment",
            "title",
            "description",
            "pattern",
            "format",
        ),
        _string,
    ),
}
"""keyword -> what its value must be. Others, also those of newer drafts that only annotate, may hold anything."""


# What a schema must be besides, so that a model can be held to it.

_NOT_PERMITTED = frozenset(
    (
        *(
            "allOf",
            "oneOf",
            "not",
            "if",
            "then",
            "else",
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
        ),
        *("patternProperties", "propertyNames", "unevaluatedProperties"),
    )
)
_TYPE_KEYWORDS = frozenset(("type", "$ref", "anyOf", "enum", "const"))
"""Keywords one of which every schema must have."""


class _Strict:
    """OpenAI's rules for strict schemas; where its documentation has no rule, none is made up."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._properties = 0
        self._values = 0

    def check(self, place: _Place) -> None:
        """Raises _Fault for the first rule that is broken."""
        schema = place.schema
        types = schema.get("type")
        if place.outer is None and (types != "object" or "anyOf" in schema):
            shown_type = "anyOf" if types == "object" else f'type: "{shorten(str(types))}"'
            raise _SchemaError(
                f"schema must be a JSON Schema of 'type: \"object\"', got '{shown_type}'."
            )
        for keyword in schema:
            if keyword in _NOT_PERMITTED:
                raise _SchemaError(f"'{keyword}' is not permitted.")
        if not schema.keys() & _TYPE_KEYWORDS:
            raise _SchemaError("schema must have a 'type' key.")
        if "$ref" in schema and not self._resolves(schema["$ref"]):
            raise _SchemaError(
                f"reference to component '{shorten(schema['$ref'])}' which was not found in the schema."
            )
        if types == "object" or (isinstance(types, list) and "object" in types):
            _require_closed(schema)
        if "items" not in schema and (
            types == "array" or (isinstance(types, list) and "array" in types)
        ):
            raise _SchemaError("array schema missing items.")
        self._count(schema, place)

    def _resolves(self, reference: str) -> bool:
        """Whether it points at a schema in the root; nothing else is ever looked up."""
        anchor, *steps = reference.split("/")
        target: Any = self._root if anchor == "#" else None
        for step in steps:
            target = (
                target.get(unquote(step).replace("~1", "/").replace("~0", "~"))
                if isinstance(target, dict)
                else None
            )
        return isinstance(target, dict)

    def _count(self, schema: Json, place: _Place) -> None:
        self._properties += len(schema.get("properties", ()))
        self._values += len(schema.get("enum", ()))
        for found, most, what in (
            (self._properties, MAX_PROPERTIES, "object properties in all"),
            (self._values, MAX_ENUM_VALUES, "enum values in all"),
            (place.levels, MAX_LEVELS, "levels of nesting"),
        ):
            if found > most:
                raise _SchemaError(f"the schema exceeds the limit of {most} {what}.")


def _require_closed(schema: Json) -> None:
    if schema.get("additionalProperties") is not False:
        raise _SchemaError("'additionalProperties' is required to be supplied and to be false.")
    properties, required = schema.get("properties", {}), dict.fromkeys(schema.get("required", ()))
    for name, found in properties.items():
        if name not in required:
            message = "'required' is required to be supplied and to be an array including every key in properties."
            raise _SchemaError(f"{message} Missing '{shorten(name)}'.")
        if isinstance(found, bool):
            raise _SchemaError(f"property '{shorten(name)}': schema must have a 'type' key.")
    for name in required:
        if name not in properties:
            raise _SchemaError(
                f"'required' is required to be an array of keys in properties. Extra required key '{shorten(name)}' supplied."
            )
