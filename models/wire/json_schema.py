"""Whether what a client calls a JSON Schema is one, and whether it is one that structured output can promise to obey (contract §2).

The first question is asked of every schema: do its keywords have values that some common draft (4 to 2020-12) allows? The second of those
that are to be obeyed strictly: OpenAI's documented subset, in OpenAI's words. Written by hand, because the `jsonschema` package takes 2 ms
for a small schema and 1.2 s for a large one, more than all the rest of a create; a test holds it against the meta-schema. Nothing is
fetched, compiled or recursed into: a schema is walked once, as deep as a body may be (models/wire/json_input.py).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from models.errors import InvalidRequest
from models.wire.checks import shown

Json = dict[str, Any]

MOST_PROPERTIES = 5000
MOST_LEVELS = 10
MOST_ENUM_VALUES = 1000
"""Of a strict schema, as OpenAI documents them: properties in all, objects within objects, values of all enums together."""

_SHOWN_STEPS = 20


class _Place(NamedTuple):
    """Where in the root a schema stands."""

    context: tuple[str, ...] = ()
    """As OpenAI shows it: `('properties', 'city', 'items')`."""
    objects: int = 0
    """How many objects it is inside of."""

    def inside(self, way: tuple[str, ...]) -> "_Place":
        return _Place((*self.context, *way), self.objects + (way[0] == "properties"))

    def __str__(self) -> str:
        return f"In context={tuple(map(shown, self.context[:_SHOWN_STEPS]))}, " if self.context else ""


class _Fault(Exception):
    """What is wrong with the schema at hand, in words."""


def require_schema(schema: Json, where: str, subject: str, *, code: str, strict: bool) -> None:
    """Raises InvalidRequest(param=where, code) unless the schema is one. `subject` is what it is for: `function 'look'`.

    `strict`: unless a model can be held to it as well.
    """
    held = _Strict(schema) if strict else None
    place = _Place()
    try:
        for place, found in _schemas(schema):
            _look(found)
            if held is not None:
                held.look(found, place)
    except _Fault as fault:
        raise InvalidRequest(f"Invalid schema for {subject}: {place}{fault}", param=where, code=code) from None


def _schemas(root: Json) -> Iterator[tuple[_Place, Json]]:
    """Every schema in this one, each before those inside it, in the order in which they were written."""
    waiting = [(_Place(), root)]
    while waiting:
        place, schema = waiting.pop()
        yield place, schema
        inside = [(place.inside(way), found) for way, found in _inside(schema) if isinstance(found, dict)]
        waiting += reversed(inside)


def _inside(schema: Json) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What stands where a schema holds others, once `_look` has found its keywords good."""
    for keyword, value in schema.items():
        check = _KEYWORDS.get(keyword)
        if check is _schema_or_schemas:
            check = _schemas_in_order if isinstance(value, list) else _schema
        if check is _schema:
            yield (keyword,), value
        elif check is _schemas_in_order:
            yield from (((keyword, str(at)), found) for at, found in enumerate(value))
        elif check in (_schemas_by_name, _dependencies):
            yield from (((keyword, name), found) for name, found in value.items())


# What every schema must be.


def _look(schema: Json) -> None:
    for keyword, value in schema.items():
        check = _KEYWORDS.get(keyword)
        if check is not None and (wanted := check(value)) is not None:
            said = f", not '{shown(value)}'" if isinstance(value, str) else ""
            raise _Fault(f"'{keyword}' must be {wanted}{said}.")


def _must(wanted: str, fits: Callable[[Any], bool]) -> Callable[[Any], str | None]:
    """A check that says what it wanted instead of the value, or None."""
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
_bound = _must("a number", lambda value: _is_number(value) or isinstance(value, bool))  # draft 4: `exclusiveMinimum: true`
_factor = _must("a number above 0", lambda value: _is_number(value) and value > 0)
_count = _must("a non-negative integer", lambda value: _is_number(value) and value >= 0 and value == int(value))
_array = _must("an array", lambda value: isinstance(value, list))
_strings = _must("an array of strings", _are_strings)
_type = _must(f"one of {', '.join(_TYPES)}, or an array of these", _is_type)
_schema = _must("a schema", _is_schema)
_schemas_in_order = _must("an array of schemas", lambda value: isinstance(value, list) and bool(value) and all(map(_is_schema, value)))
_schema_or_schemas = _must(
    "a schema", lambda value: _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))
)  # draft 7: `items` in order
_schemas_by_name = _must("an object of schemas", lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())))
_dependencies = _must(
    "an object of schemas or of arrays of strings",
    lambda value: isinstance(value, dict) and all(_is_schema(one) or _are_strings(one) for one in value.values()),
)

_KEYWORDS: dict[str, Callable[[Any], str | None]] = {
    "type": _type,
    "enum": _array,
    "required": _strings,
    "items": _schema_or_schemas,
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "uniqueItems": _boolean,
    "multipleOf": _factor,
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _schemas_by_name),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schemas_in_order),
    **dict.fromkeys(("additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"), _schema),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), _schema),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _bound),
    **dict.fromkeys(("$schema", "$id", "$ref", "$anchor", "$comment", "title", "description", "pattern", "format"), _string),
}
"""keyword -> what its value must be. Others, also those of newer drafts that only annotate, may hold anything."""


# What a schema must be besides, so that a model can be held to it.

_NOT_PERMITTED = frozenset(
    (
        *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("patternProperties", "propertyNames", "unevaluatedProperties"),
    )
)
_SAYS_WHAT = frozenset(("type", "$ref", "anyOf", "enum", "const"))
"""Keywords one of which every schema must have."""


class _Strict:
    """OpenAI's rules for strict schemas; where its documentation has no rule, none is made up."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._properties = 0
        self._values = 0

    def look(self, schema: Json, place: _Place) -> None:
        """Raises _Fault for the first rule that is broken."""
        types = schema.get("type")
        if not place.context and (types != "object" or "anyOf" in schema):
            told = "anyOf" if types == "object" else f'type: "{shown(str(types))}"'
            raise _Fault(f"schema must be a JSON Schema of 'type: \"object\"', got '{told}'.")
        for keyword in schema:
            if keyword in _NOT_PERMITTED:
                raise _Fault(f"'{keyword}' is not permitted.")
        if not schema.keys() & _SAYS_WHAT:
            raise _Fault("schema must have a 'type' key.")
        if "$ref" in schema and not self._has(schema["$ref"]):
            raise _Fault(f"reference to component '{shown(schema['$ref'])}' which was not found in the schema.")
        if types == "object" or (isinstance(types, list) and "object" in types):
            _require_closed(schema)
        if "items" not in schema and (types == "array" or (isinstance(types, list) and "array" in types)):
            raise _Fault("array schema missing items.")
        self._count(schema, place)

    def _has(self, reference: str) -> bool:
        """Whether it points at a schema in the root; nothing else is ever looked up."""
        anchor, *steps = reference.split("/")
        target: Any = self._root if anchor == "#" else None
        for step in steps:
            target = target.get(unquote(step).replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        return isinstance(target, dict)

    def _count(self, schema: Json, place: _Place) -> None:
        self._properties += len(schema.get("properties", ()))
        self._values += len(schema.get("enum", ()))
        for found, most, what in (
            (self._properties, MOST_PROPERTIES, "object properties in all"),
            (self._values, MOST_ENUM_VALUES, "enum values in all"),
            (place.objects, MOST_LEVELS, "levels of nesting"),
        ):
            if found > most:
                raise _Fault(f"the schema exceeds the limit of {most} {what}.")


def _require_closed(schema: Json) -> None:
    if schema.get("additionalProperties") is not False:
        raise _Fault("'additionalProperties' is required to be supplied and to be false.")
    properties, required = schema.get("properties", {}), dict.fromkeys(schema.get("required", ()))
    for name, found in properties.items():
        if name not in required:
            message = "'required' is required to be supplied and to be an array including every key in properties."
            raise _Fault(f"{message} Missing '{shown(name)}'.")
        if isinstance(found, bool):
            raise _Fault(f"property '{shown(name)}': schema must have a 'type' key.")
    for name in required:
        if name not in properties:
            raise _Fault(f"'required' is required to be an array of keys in properties. Extra required key '{shown(name)}' supplied.")
