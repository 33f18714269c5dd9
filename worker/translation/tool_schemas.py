"""JSON schemas of tools in the form that strict upstreams accept."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

Schema = dict[str, Any]

_SCHEMAS_BY_NAME = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_SCHEMA_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_SINGLE_SCHEMAS = frozenset(
    (
        *("items", "additionalProperties", "propertyNames", "contains", "unevaluatedProperties"),
        *("not", "if", "then", "else"),
    )
)
_MAY_BE_NULL = frozenset(("default", "const"))
_MAX_DEPTH = 100
"""Levels below which a schema is sent unchanged."""


def function_parameters(schema: Any) -> Schema:
    """The `parameters` of a function: always a schema of an object with `properties`.

    OpenAI's API refuses an object without `properties`, an array without `items`, and keywords that
    are null, at any level. Objects inside may lack `properties`: they may have any. What is no
    object (null, as some clients write "no parameters") becomes an object without properties.
    """
    if not isinstance(schema, Mapping):
        return {"type": "object", "properties": {}}
    whole = dict(schema) if _is_complete(schema) else _walk(schema, _complete)
    if whole.get("type") == "object" and "properties" in whole:
        return whole
    return {**whole, "type": "object", "properties": whole.get("properties", {})}


def omit_keywords(schema: Schema, names: Collection[str]) -> Schema:
    """The schema without these keywords; a `const` that is left out becomes an `enum`."""

    def omit(inner: Schema) -> Schema:
        kept = {name: value for name, value in inner.items() if name not in names}
        if "const" in names and "const" in inner:
            kept.setdefault("enum", [inner["const"]])
        return kept

    return _walk(schema, omit)


def _is_complete(schema: Mapping[str, Any]) -> bool:
    """Whether `_complete` would change nothing at any level: true of almost all schemas, and found
    out in a tenth of the time that a copy takes."""
    remaining: list[Any] = [schema]
    while remaining:
        inner = remaining.pop()
        if type(inner) is not dict:
            continue
        if (
            None in inner.values()
            or (inner.get("type") == "array" and not ("items" in inner or "prefixItems" in inner))
            or type(inner.get("required", [])) is not list
            or type(inner.get("properties", inner)) is not dict
        ):
            return False
        for name, value in inner.items():
            if type(value) is dict:
                if name in _SCHEMAS_BY_NAME:
                    remaining += value.values()
                elif name in _SINGLE_SCHEMAS:
                    remaining.append(value)
            elif type(value) is list and name in _SCHEMA_LISTS:
                remaining += value
    return True


def _complete(schema: Schema) -> Schema:
    complete = {
        name: value
        for name, value in schema.items()
        if (value is not None or name in _MAY_BE_NULL)
        and (name != "required" or isinstance(value, list))
        and (name != "properties" or isinstance(value, Mapping))
    }
    if complete.get("type") == "array" and not {"items", "prefixItems"} & complete.keys():
        complete["items"] = {}
    return complete


def _walk(schema: Mapping[str, Any], change: Callable[[Schema], Schema], depth: int = 0) -> Schema:
    """The schema after `change` was applied to it and to every schema in it. It is not changed
    itself."""
    changed = change(dict(schema))
    if depth == _MAX_DEPTH:
        return changed

    def inner(value: Any) -> Any:
        return _walk(value, change, depth + 1) if isinstance(value, Mapping) else value

    for name in _SCHEMAS_BY_NAME:
        if isinstance(named := changed.get(name), Mapping):
            changed[name] = {key: inner(value) for key, value in named.items()}
    for name in _SCHEMA_LISTS:
        if isinstance(listed := changed.get(name), list):
            changed[name] = [inner(value) for value in listed]
    for name in _SINGLE_SCHEMAS:
        if name in changed:
            changed[name] = inner(changed[name])
    return changed
