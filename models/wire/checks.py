"""Words for saying what a request may hold; tables of them stand in request.py, items.py and tools.py.

A check takes a value and the name it has in the request, and returns the value as we keep it. It raises InvalidRequest in the words
of contract §5.1. null never reaches a check of an optional field: it means absent (design §11). A check keeps what its table names
and leaves the rest out, and never changes what it is given.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from models.errors import InvalidRequest

Check = Callable[[Any, str], Any]

_MAX_SHOWN = 100
"""Characters of a client's own text that an error repeats."""


def missing(where: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
    )


def wrong_type(where: str, expected: str, value: Any) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid type for '{where}': expected {expected}, but got {json_type(value)} instead.",
        param=where,
        code="invalid_type",
    )


def unsupported_value(where: str, value: str, supported: Collection[str]) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value: '{shorten(value)}'. Supported values are: {_join_quoted(supported)}.",
        param=where,
        code="invalid_value",
    )


def json_type(value: Any) -> str:
    """How an error calls the type of a JSON value, with its article."""
    names = {
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        dict: "an object",
        list: "an array",
    }
    return names.get(type(value), "null")


def shorten(text: str) -> str:
    """A client's text, short enough for an error message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _join_quoted(values: Collection[str]) -> str:
    *most, last = (f"'{value}'" for value in values)
    if len(most) > 1:
        return f"{', '.join(most)}, and {last}"
    return f"{most[0]} and {last}" if most else last


def _out_of_bounds(
    where: str, kind: str, side: str, sign: str, bound: float, value: float
) -> InvalidRequest:
    shown_value = str(value) if abs(value) < 1e18 else "a value out of range"
    return InvalidRequest(
        f"Invalid '{where}': {kind} {'below minimum' if side == 'below_min' else 'above maximum'} value. "
        f"Expected a value {sign} {bound}, but got {shown_value} instead.",
        param=where,
        code=f"{kind}_{side}_value",
    )


def too_long(where: str, kind: str, limit: int, length: int) -> InvalidRequest:
    """`kind` is "string" or "array"."""
    article = "an" if kind == "array" else "a"
    return InvalidRequest(
        f"Invalid '{where}': {kind} too long. Expected {article} {kind} with maximum length {limit}, "
        f"but got {article} {kind} with length {length} instead.",
        param=where,
        code=f"{kind}_above_max_length",
    )


def empty(where: str, kind: str) -> InvalidRequest:
    """`kind` is "string" or "array"."""
    article = "an" if kind == "array" else "a"
    return InvalidRequest(
        f"Invalid '{where}': empty {kind}. Expected {article} {kind} with minimum length 1, but got an empty {kind} instead.",
        param=where,
        code=f"empty_{kind}",
    )


def string(
    *,
    at_most: int | None = None,
    non_empty: bool = False,
    pattern: str | None = None,
    expected: str = "a string",
) -> Check:
    """Text: of at most that many characters, not empty if `filled`, and wholly of the pattern."""
    shape = re.compile(pattern) if pattern else None

    def check(value: Any, where: str) -> str:
        if type(value) is not str:
            raise wrong_type(where, expected, value)
        if non_empty and not value:
            raise empty(where, "string")
        if at_most is not None and len(value) > at_most:
            raise too_long(where, "string", at_most, len(value))
        if shape is not None and not shape.fullmatch(value):
            message = f"Invalid '{where}': string does not match pattern. Expected a string that matches the pattern '^{pattern}$'."
            raise InvalidRequest(message, param=where, code="invalid_value")
        return value

    return check


def boolean(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise wrong_type(where, "a boolean", value)
    return value


def integer(low: int, high: int) -> Check:
    def check(value: Any, where: str) -> int:
        if type(value) is not int:
            raise wrong_type(where, "an integer", value)
        if value < low:
            raise _out_of_bounds(where, "integer", "below_min", ">=", low, value)
        if value > high:
            raise _out_of_bounds(where, "integer", "above_max", "<=", high, value)
        return value

    return check


def number(low: int, high: int) -> Check:
    def check(value: Any, where: str) -> float:
        if type(value) is not float and type(value) is not int:
            raise wrong_type(where, "a number", value)
        if value < low:
            raise _out_of_bounds(where, "decimal", "below_min", ">=", low, value)
        if not value <= high:  # so that NaN is refused too
            raise _out_of_bounds(where, "decimal", "above_max", "<=", high, value)
        return value

    return check


def choice(*values: str) -> Check:
    """One of these words."""
    known = dict.fromkeys(values)

    def check(value: Any, where: str) -> str:
        if type(value) is not str:
            raise wrong_type(where, "a string", value)
        if value not in known:
            raise unsupported_value(where, value, known)
        return value

    return check


def array(element: Check, *, at_most: int | None = None) -> Check:
    """A list; each element is checked under its own name, `where[3]`."""

    def check(value: Any, where: str) -> list[Any]:
        if type(value) is not list:
            raise wrong_type(where, "an array", value)
        if at_most is not None and len(value) > at_most:
            raise too_long(where, "array", at_most, len(value))
        return [element(found, f"{where}[{index}]") for index, found in enumerate(value)]

    return check


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these fields; the order of the tables is the order of the result."""
    fields = [(name, check, True) for name, check in required.items()]
    fields += [(name, check, False) for name, check in (optional or {}).items()]

    def check(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong_type(where, "an object", value)
        kept = {}
        for name, field, needed in fields:
            found = value.get(name)
            if found is not None:
                kept[name] = field(found, f"{where}.{name}")
            elif needed:
                raise missing(f"{where}.{name}")
        return kept

    return check


def tagged(kinds: Mapping[str, Check]) -> Check:
    """An object whose `type` says which check applies; `type` comes first in the result."""

    def check(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong_type(where, "an object", value)
        kind = value.get("type")
        if kind is None:
            raise missing(f"{where}.type")
        if type(kind) is not str:
            raise wrong_type(f"{where}.type", "a string", kind)
        if kind not in kinds:
            raise unsupported_value(f"{where}.type", kind, kinds)
        return {"type": kind, **kinds[kind](value, where)}

    return check


def json_object(value: Any, where: str) -> dict[str, Any]:
    """An object we do not look into, such as a JSON Schema: kept as it is, nulls included, because there they mean something."""
    if type(value) is not dict:
        raise wrong_type(where, "an object", value)
    return value


def open_object(value: Any, where: str) -> dict[str, Any]:
    """An object with whatever fields, without those that are null."""
    kept: dict[str, Any] = any_json(json_object(value, where))
    return kept


def any_json(value: Any, _where: str = "") -> Any:
    """Any JSON, without the object fields that are null."""
    if type(value) is dict:
        return {name: any_json(found) for name, found in value.items() if found is not None}
    if type(value) is list:
        return [any_json(found) for found in value]
    return value
