"""Checks a client's JSON Schema: whether it is one, and whether structured output can promise to
follow it (`strict`).

Every schema is checked by its keywords: each must have a value that some common draft (4 to
2020-12) allows. Where OpenAI's rules are asked for (models/wire/request.py), a strict
schema must also be within OpenAI's documented subset; the errors have OpenAI's wording
(docs/wire.md). The check is written by hand, because the `jsonschema` package
takes 2 ms for a small schema and 1.2 s for a large one, longer than the rest of a create request.
A test compares it with the meta-schema. The schema is walked once, without recursion; nothing is
fetched or compiled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from models.errors import InvalidRequest
from models.wire.checks.faults import shorten

Json = dict[str, Any]

MAX_PROPERTIES = 5000
MAX_LEVELS = 10
MAX_ENUM_VALUES = 1000
"""Limits of a strict schema, as OpenAI documents them: properties in total, objects inside
objects, values of all enums together."""

_SHOWN_STEPS = 20


class _Place:
    """A schema and its position: the steps from the schema that contains it."""

    __slots__ = ("outer", "schema", "steps")

    def __init__(
        self, schema: Json, steps: tuple[str, ...] = (), outer: "_Place | None" = None
    ) -> None:
        self.schema = schema
        self.steps = steps
        self.outer = outer

    @property
    def context(self) -> tuple[str, ...]:
        """The steps from the root, as OpenAI shows them: `('properties', 'city', 'items')`."""
        steps: tuple[str, ...] = ()
        place: _Place | None = self
        while place is not None:
            steps, place = place.steps + steps, place.outer
        return steps

    @property
    def levels(self) -> int:
        """How many objects contain this schema."""
        count = 0
        place: _Place | None = self
        while place is not None:
            count += place.steps[:1] == ("properties",)
            place = place.outer
        return count


class _SchemaError(Exception):
    """The message says what is wrong with the schema at the current place."""


def require_schema(
    schema: Json,
    where: str,
    subject: str,
    *,
    code: str,
    strict: bool,
    allows_null: bool = False,
) -> None:
    """Raises InvalidRequest(param=where, code) if this is not a JSON Schema, or not a strict one.

    `subject` names in the error what the schema belongs to: `function 'look'`. `allows_null`: a
    keyword that is null counts as absent.
    """
    strict_rules = _StrictRules(schema) if strict else None
    remaining = [_Place(schema)]
    while remaining:
        place = remaining.pop()
        try:
            inner = _check_keywords(place, allows_null=allows_null)
            if strict_rules is not None:
                strict_rules.check(place)
        except _SchemaError as fault:
            steps = tuple(map(shorten, place.context[:_SHOWN_STEPS]))
            message = f"In context={steps}, {fault}" if steps else str(fault)
            raise InvalidRequest(
                f"Invalid schema for {subject}: {message}", param=where, code=code
            ) from None
        inner.reverse()  # so that the first one is checked next
        remaining += inner


def require_format_schema(text_format: Json, where: str, *, strict: bool = False) -> None:
    """Raises InvalidRequest if the schema of a checked `text.format` is none, or not a strict
    one. `where`: the place of the format."""
    require_schema(
        text_format["schema"],
        f"{where}.schema",
        f"response_format '{text_format['name']}'",
        code="invalid_json_schema",
        strict=strict,
    )


def require_function_schema(tool: Json, where: str, *, strict: bool = False) -> None:
    """Raises InvalidRequest if the parameters of a checked function are no JSON Schema, or not a
    strict one. `where`: the place of the function."""
    if "parameters" in tool:
        require_schema(
            tool["parameters"],
            f"{where}.parameters",
            f"function '{tool['name']}'",
            code="invalid_function_parameters",
            strict=strict,
            # Some generators write `"required": null`. Upstreams that refuse it do not get it
            # (worker/translation/functions.py).
            allows_null=not strict,
        )


# What every schema must be.


def _check_keywords(place: _Place, *, allows_null: bool) -> list[_Place]:
    """The schemas inside this one. Raises _SchemaError for a value that no draft allows."""
    inner: list[_Place] = []
    for keyword, value in place.schema.items():
        rule = _KEYWORDS.get(keyword)
        if rule is None or (value is None and allows_null):
            continue
        if not rule.is_valid(value):
            shown_value = f", not '{shorten(value)}'" if isinstance(value, str) else ""
            raise _SchemaError(f"'{keyword}' must be {rule.expected}{shown_value}.")
        if rule.subschemas is not None:
            inner += [
                _Place(schema, (keyword, *steps), place)
                for steps, schema in rule.subschemas(value)
                if isinstance(schema, dict)
            ]
    return inner


def valid_schema(schema: Json) -> Json:
    """The schema without the keywords, and the members of keywords, whose value no draft allows:
    those of tool servers are not refused, but upstreams refuse all tools with one of them."""
    kept: Json = {}
    for keyword, value in schema.items():
        rule = _KEYWORDS.get(keyword)
        if rule is None:
            kept[keyword] = value
            continue
        usable = value if rule.subschemas is None else _valid_members(keyword, value)
        if rule.is_valid(usable):
            kept[keyword] = usable
    return kept


def _valid_members(keyword: str, value: Any) -> Any:
    """The value of a keyword that has schemas inside, with valid ones."""
    if isinstance(value, list):
        return [valid_schema(each) if isinstance(each, dict) else each for each in value]
    if not isinstance(value, dict):
        return value
    if keyword not in _SCHEMAS_WITH_NAMES:
        return valid_schema(value)
    return {
        name: valid_schema(each) if isinstance(each, dict) else each
        for name, each in value.items()
        if isinstance(each, dict | bool) or _is_dependency(keyword, each)
    }


def _is_dependency(keyword: str, value: Any) -> bool:
    return _KEYWORDS[keyword] is _DEPENDENCIES and _are_strings(value)


Subschemas = Iterator[tuple[tuple[str, ...], Any]]
"""The further steps to a value that may be a schema, and that value."""


def _by_name(value: Json) -> Subschemas:
    yield from (((name,), schema) for name, schema in value.items())


def _one_or_list(value: Any) -> Subschemas:
    if isinstance(value, list):
        yield from (((str(index),), schema) for index, schema in enumerate(value))
    else:
        yield (), value


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_number_or_boolean(value: Any) -> bool:
    """Draft 4 has `exclusiveMinimum: true`."""
    return type(value) in (int, float, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in _TYPES for name in names)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_schema_or_list(value: Any) -> bool:
    """Draft 7 has a list of schemas for `items`."""
    return _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))


def _is_schema_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _are_schemas_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _are_dependencies(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_schema(dependency) or _are_strings(dependency) for dependency in value.values()
    )


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the value of a keyword must be, and where it has schemas inside."""

    expected: str
    is_valid: Callable[[Any], bool]
    subschemas: Callable[[Any], Subschemas] | None = None


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_TEXT = _Rule("a string", _is_string)
_BOUND = _Rule("a number", _is_number)
_EXCLUSIVE_BOUND = _Rule("a number", _is_number_or_boolean)
_COUNT = _Rule("a non-negative integer", _is_count)
_SCHEMA = _Rule("a schema", _is_schema, _one_or_list)
_SCHEMA_LIST = _Rule("an array of schemas", _is_schema_list, _one_or_list)
_SCHEMAS_BY_NAME = _Rule("an object of schemas", _are_schemas_by_name, _by_name)
_DEPENDENCIES = _Rule("an object of schemas or of arrays of strings", _are_dependencies, _by_name)

_KEYWORDS: dict[str, _Rule] = {
    "type": _Rule(f"one of {', '.join(_TYPES)}, or an array of these", _is_type),
    "enum": _Rule("an array", _is_list),
    "required": _Rule("an array of strings", _are_strings),
    "items": _Rule("a schema", _is_schema_or_list, _one_or_list),
    "dependencies": _DEPENDENCIES,
    "dependentRequired": _DEPENDENCIES,
    "uniqueItems": _Rule("a boolean", _is_boolean),
    "multipleOf": _Rule("a number above 0", _is_positive),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _SCHEMAS_BY_NAME),
    **dict.fromkeys(("$defs", "definitions"), _SCHEMAS_BY_NAME),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMA_LIST),
    **dict.fromkeys(("additionalProperties", "propertyNames", "contains"), _SCHEMA),
    **dict.fromkeys(("not", "if", "then", "else"), _SCHEMA),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), _SCHEMA),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _BOUND),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _EXCLUSIVE_BOUND),
    **dict.fromkeys(("$schema", "$id", "$ref", "$anchor", "$comment"), _TEXT),
    **dict.fromkeys(("title", "description", "pattern", "format"), _TEXT),
}
"""keyword -> what its value must be. Other keywords, such as annotations of newer drafts, may have
any value."""
_SCHEMAS_WITH_NAMES = frozenset(
    keyword for keyword, rule in _KEYWORDS.items() if rule.subschemas is _by_name
)


# What a strict schema must be besides.

_NOT_PERMITTED = frozenset(
    (
        *("allOf", "oneOf", "not", "if", "then", "else"),
        *("dependentRequired", "dependentSchemas", "dependencies"),
        *("patternProperties", "propertyNames", "unevaluatedProperties"),
    )
)
_TYPE_KEYWORDS = frozenset(("type", "$ref", "anyOf", "enum", "const"))
"""Every schema must have one of these."""


class _StrictRules:
    """The rules that OpenAI documents for strict schemas; no others are added."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._properties = 0
        self._values = 0

    def check(self, place: _Place) -> None:
        """Raises _SchemaError for the first rule that the schema at this place breaks."""
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
                f"reference to component '{shorten(schema['$ref'])}' "
                "which was not found in the schema."
            )
        if _has_type(types, "object"):
            _require_closed(schema)
        if "items" not in schema and _has_type(types, "array"):
            raise _SchemaError("array schema missing items.")
        self._count(schema, place)

    def _resolves(self, reference: str) -> bool:
        """Whether it points to a schema in the root. References to elsewhere never resolve."""
        anchor, *steps = reference.split("/")
        target: Any = self._root if anchor == "#" else None
        for step in steps:
            if not isinstance(target, dict):
                return False
            target = target.get(unquote(step).replace("~1", "/").replace("~0", "~"))
        return isinstance(target, dict)

    def _count(self, schema: Json, place: _Place) -> None:
        self._properties += len(schema.get("properties", ()))
        self._values += len(schema.get("enum", ()))
        for count, limit, what in (
            (self._properties, MAX_PROPERTIES, "object properties in all"),
            (self._values, MAX_ENUM_VALUES, "enum values in all"),
            (place.levels, MAX_LEVELS, "levels of nesting"),
        ):
            if count > limit:
                raise _SchemaError(f"the schema exceeds the limit of {limit} {what}.")


def _has_type(types: Any, name: str) -> bool:
    """Whether a `type` keyword allows values of this type."""
    return types == name or (isinstance(types, list) and name in types)


def _require_closed(schema: Json) -> None:
    """An object must forbid other properties, and require all of its own."""
    if schema.get("additionalProperties") is not False:
        raise _SchemaError("'additionalProperties' is required to be supplied and to be false.")
    properties, required = schema.get("properties", {}), dict.fromkeys(schema.get("required", ()))
    for name, inner in properties.items():
        if name not in required:
            raise _SchemaError(
                "'required' is required to be supplied and to be an array including every key "
                f"in properties. Missing '{shorten(name)}'."
            )
        if isinstance(inner, bool):
            raise _SchemaError(f"property '{shorten(name)}': schema must have a 'type' key.")
    for name in required:
        if name not in properties:
            raise _SchemaError(
                "'required' is required to be an array of keys in properties. "
                f"Extra required key '{shorten(name)}' supplied."
            )
