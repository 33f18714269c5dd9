"""The checks that all others are composed of.

A check takes a value and the name that the value has in the request (`input[3].role`). It returns
the value as it is stored, or raises InvalidRequest. It keeps the fields that it knows, leaves out
the others, and never changes its argument. A field that is null is absent: a check never gets the
null of an optional field.

The same check describes what it accepts (`schema`), so the document at /openapi.json and the
parser cannot disagree.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from models.errors import InvalidRequest
from models.wire.api_schema import NULL, Schema, SchemaScope, one_of, whole
from models.wire.checks import faults

K = TypeVar("K")
Call = Callable[[Any, str], Any]
"""A check's bound `__call__`. Calling it costs half of calling the check object, so checks that
call others hold these."""

_NONE: Mapping[str, str] = MappingProxyType({})
_NOT_NULL: Schema = {"not": NULL}
"""A required field that takes any JSON: its null would mean that it is absent."""


class Check(ABC):
    """Accepts a value, or refuses it. Immutable."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, value: Any, where: str, /) -> Any:
        """The value as it is stored. Raises InvalidRequest with `where` in it."""

    @abstractmethod
    def schema(self, scope: SchemaScope, /) -> Schema:
        """The JSON Schema of what is accepted, or of what is stored."""


def calls(checks: Mapping[K, Check]) -> dict[K, Call]:
    """The `__call__` of each check."""
    return {key: check.__call__ for key, check in checks.items()}


@dataclass(frozen=True, slots=True)
class String(Check):
    """Text of at most `at_most` characters that matches the whole of `pattern`."""

    non_empty: bool = False
    at_most: int | None = None
    pattern: str | None = None
    expected: str = "a string"
    """How the error for another JSON type names it."""
    _compiled: re.Pattern[str] | None = field(init=False, repr=False)
    _has_rules: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        compiled = None if self.pattern is None else re.compile(self.pattern)
        object.__setattr__(self, "_compiled", compiled)
        has_rules = self.non_empty or self.at_most is not None or compiled is not None
        object.__setattr__(self, "_has_rules", has_rules)

    def __call__(self, value: Any, where: str) -> str:
        if type(value) is not str:
            raise faults.wrong_type(where, self.expected, value)
        if not self._has_rules:
            return value
        if not value and self.non_empty:
            raise faults.empty(where, "string")
        if self.at_most is not None and len(value) > self.at_most:
            raise faults.too_long(where, "string", self.at_most, len(value))
        if self._compiled is not None and not self._compiled.fullmatch(value):
            message = (
                f"Invalid '{where}': string does not match pattern. "
                f"Expected a string that matches the pattern '^{self.pattern}$'."
            )
            raise InvalidRequest(message, param=where, code="invalid_value")
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        schema: Schema = {"type": "string"}
        if self.non_empty:
            schema["minLength"] = 1
        if self.at_most is not None:
            schema["maxLength"] = self.at_most
        if self.pattern is not None:
            schema["pattern"] = whole(self.pattern)
        return schema


@dataclass(frozen=True, slots=True)
class Boolean(Check):
    """true or false."""

    def __call__(self, value: Any, where: str) -> bool:
        if type(value) is not bool:
            raise faults.wrong_type(where, "a boolean", value)
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Integer(Check):
    """An integer within bounds, which are allowed too."""

    minimum: int
    maximum: int

    def __call__(self, value: Any, where: str) -> int:
        if type(value) is not int:
            raise faults.wrong_type(where, "an integer", value)
        if not self.minimum <= value <= self.maximum:
            raise faults.out_of_bounds(
                where, "integer", minimum=self.minimum, maximum=self.maximum, value=value
            )
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True)
class Number(Check):
    """A number within bounds, which are allowed too."""

    minimum: int
    maximum: int

    def __call__(self, value: Any, where: str) -> float:
        if type(value) is not float and type(value) is not int:
            raise faults.wrong_type(where, "a number", value)
        if not self.minimum <= value <= self.maximum:
            raise faults.out_of_bounds(
                where, "decimal", minimum=self.minimum, maximum=self.maximum, value=value
            )
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True, init=False)
class Choice(Check):
    """One of these strings."""

    values: Mapping[str, None]
    """A dict: it keeps the order, which errors show, and finds a value at once."""
    refused: Mapping[str, str]
    """Other values that OpenAI's API has -> why they are refused, and what to do instead."""

    def __init__(self, *values: str, refused: Mapping[str, str] = _NONE) -> None:
        object.__setattr__(self, "values", dict.fromkeys(values))
        object.__setattr__(self, "refused", refused)

    def __call__(self, value: Any, where: str) -> str:
        if type(value) is not str:
            raise faults.wrong_type(where, "a string", value)
        if value in self.values:
            return value
        if value in self.refused:
            raise faults.refused_value(where, value, self.refused[value])
        raise faults.unsupported_value(where, value, self.values)

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "string", "enum": list(self.values)}


@dataclass(frozen=True, slots=True)
class Array(Check):
    """A list of at most `at_most` elements; an error names an element as `where[3]`."""

    element: Check
    at_most: int | None = None
    non_empty: bool = False
    _element: Call = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_element", self.element.__call__)

    def __call__(self, value: Any, where: str) -> list[Any]:
        if type(value) is not list:
            raise faults.wrong_type(where, "an array", value)
        if self.at_most is not None and len(value) > self.at_most:
            raise faults.too_long(where, "array", self.at_most, len(value))
        if not value and self.non_empty:
            raise faults.empty(where, "array")
        check = self._element
        return [check(element, f"{where}[{index}]") for index, element in enumerate(value)]

    def schema(self, scope: SchemaScope) -> Schema:
        schema: Schema = {"type": "array", "items": self.element.schema(scope)}
        if self.at_most is not None:
            schema["maxItems"] = self.at_most
        if self.non_empty:
            schema["minItems"] = 1
        return schema


@dataclass(frozen=True, slots=True)
class Record(Check):
    """An object with these fields. The result has them in the order of the tables."""

    required: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)
    _required: tuple[tuple[str, str, Call], ...] = field(init=False, repr=False)
    _optional: tuple[tuple[str, str, Call], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_required", _field_calls(self.required))
        object.__setattr__(self, "_optional", _field_calls(self.optional))

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise faults.wrong_type(where, "an object", value)
        get = value.get
        result = {}
        for name, suffix, check in self._required:
            field_value = get(name)
            if field_value is None:
                raise faults.missing(where + suffix)
            result[name] = check(field_value, where + suffix)
        for name, suffix, check in self._optional:
            field_value = get(name)
            if field_value is not None:
                result[name] = check(field_value, where + suffix)
        return result

    def schema(self, scope: SchemaScope) -> Schema:
        fields = {name: check.schema(scope) or _NOT_NULL for name, check in self.required.items()}
        fields |= {
            name: scope.optional(check.schema(scope)) for name, check in self.optional.items()
        }
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": fields, **required}


def _field_calls(checks: Mapping[str, Check]) -> tuple[tuple[str, str, Call], ...]:
    """For each field: its name, what it adds to the place in an error, its check."""
    return tuple((name, f".{name}", check.__call__) for name, check in checks.items())


@dataclass(frozen=True, slots=True)
class Tagged(Check):
    """An object whose `type` selects the check for its fields. `type` is first in the result."""

    kinds: Mapping[str, Check]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Other types that OpenAI's API has -> why they are refused, and what to do instead."""
    _calls: Mapping[str, Call] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_calls", calls(self.kinds))

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise faults.wrong_type(where, "an object", value)
        kind = value.get("type")
        if kind is None:
            raise faults.missing(f"{where}.type")
        if type(kind) is not str:
            raise faults.wrong_type(f"{where}.type", "a string", kind)
        check = self._calls.get(kind)
        if check is None and kind in self.refused:
            raise faults.refused_value(f"{where}.type", kind, self.refused[kind])
        if check is None:
            raise faults.unsupported_value(f"{where}.type", kind, self.kinds)
        return {"type": kind, **check(value, where)}

    def schema(self, scope: SchemaScope) -> Schema:
        return one_of({kind: check.schema(scope) for kind, check in self.kinds.items()})


@dataclass(frozen=True, slots=True)
class ByJsonType(Check):
    """A value that may have one of several JSON types (`str`, `bool`, `list`, `dict`)."""

    expected: str
    """How the error for another JSON type names them."""
    checks: Mapping[type, Check]
    _calls: Mapping[type, Call] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_calls", calls(self.checks))

    def __call__(self, value: Any, where: str) -> Any:
        check = self._calls.get(type(value))
        if check is None:
            raise faults.wrong_type(where, self.expected, value)
        return check(value, where)

    def schema(self, scope: SchemaScope) -> Schema:
        return {"anyOf": [check.schema(scope) for check in self.checks.values()]}


@dataclass(frozen=True, slots=True)
class Component(Check):
    """A check whose schema is a component of the document, under this name."""

    name: str
    check: Check
    _call: Call = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_call", self.check.__call__)

    def __call__(self, value: Any, where: str) -> Any:
        return self._call(value, where)

    def schema(self, scope: SchemaScope) -> Schema:
        return scope.component(self.name, self.check)


@dataclass(frozen=True, slots=True)
class JsonObject(Check):
    """An object that is stored unchanged, such as a JSON Schema. Its nulls have a meaning."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        return require_object(value, where)

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, slots=True)
class OpenObject(Check):
    """An object with any fields; fields that are null are left out, at every level."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        stored: dict[str, Any] = without_nulls(require_object(value, where))
        return stored

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, slots=True)
class AnyJson(Check):
    """Any JSON; object fields that are null are left out, at every level."""

    def __call__(self, value: Any, _where: str) -> Any:
        return without_nulls(value)

    def schema(self, _scope: SchemaScope) -> Schema:
        return {}


@dataclass(frozen=True, slots=True)
class Unchecked(Check):
    """Any JSON, unchanged."""

    def __call__(self, value: Any, _where: str) -> Any:
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {}


def require_object(value: Any, where: str) -> dict[str, Any]:
    """The value if it is an object. Raises InvalidRequest."""
    if type(value) is not dict:
        raise faults.wrong_type(where, "an object", value)
    return value


def known_fields(body: Any, names: Collection[str]) -> dict[str, Any]:
    """The body of a request if it is an object with no other fields than these; one that is null is
    absent. Raises InvalidRequest."""
    if type(body) is not dict:
        raise faults.not_an_object(body)
    for name, value in body.items():
        if name not in names and value is not None:
            raise faults.unknown_parameter(name)
    return body


def checked_fields(
    body: Any, checks: Mapping[str, Check], required: Sequence[str] = ()
) -> dict[str, Any]:
    """The fields of the body of a request, without those that are null. Raises InvalidRequest, also
    for a field without a check, and for one that is required and absent."""
    fields = known_fields(body, checks)
    for name in required:
        if fields.get(name) is None:
            raise faults.missing(name)
    return {
        name: check(fields[name], name)
        for name, check in checks.items()
        if fields.get(name) is not None
    }


def without_nulls(value: Any) -> Any:
    """JSON without the object fields that are null, at every level."""
    if type(value) is dict:
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if type(value) is list:
        return [without_nulls(inner) for inner in value]
    return value
