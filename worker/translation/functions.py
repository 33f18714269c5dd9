"""The functions that a model is offered, in the form that every upstream takes: their names, the
JSON schemas of their parameters, and which function stands for a tool of this server.

A name has at most 64 letters, digits, `_` and `-`, of which the first is a letter or `_` (Gemini
wants that), and no two are the same in one request. Client tools
(worker/translation/tool_catalog.py) get their names from here too.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.wire.events import Item
from worker.translation.items.server_calls import OpenCallFactory

MAX_FUNCTION_NAME = 64
"""Characters."""

_HASH_LENGTH = 8
"""Hex digits that keep apart names which would otherwise be the same."""

_USABLE_NAME = re.compile(rf"[a-zA-Z_][a-zA-Z0-9_-]{{0,{MAX_FUNCTION_NAME - 1}}}")
_USABLE_START = re.compile(r"[a-zA-Z_]")
_UNUSABLE_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


def is_usable_name(name: str) -> bool:
    """Whether an upstream takes this name unchanged."""
    return _USABLE_NAME.fullmatch(name) is not None


def usable_characters(name: str) -> str:
    """The name with `_` in the place of each character that upstreams refuse, and before a start
    that they refuse. Never empty."""
    usable = _UNUSABLE_CHARACTER.sub("_", name)
    return usable if _USABLE_START.match(usable) else f"_{usable}"


def with_hash(name: str, seed: str) -> str:
    """The name, cut to leave room for a hash of `seed`: 64 characters at most.

    The same seed always gives the same hash.
    """
    digest = hashlib.sha256(seed.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: MAX_FUNCTION_NAME - _HASH_LENGTH - 1]}_{digest}"


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


@dataclass(frozen=True, slots=True)
class ServerFunction:
    """A function that the model may call and this server runs."""

    tool: Mapping[str, str]
    """What `tool_choice` calls it: `{"type": "mcp", "server_label": …, "name": …}`, `{"type":
    "web_search"}`."""
    name: str
    """The tool's own name. The model may know it under another one (`model_tool_names`)."""
    open_call: OpenCallFactory
    description: str | None = None
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """JSON schema."""
    deferred: bool = False
    """It is offered once a tool search has found it, if there is such a search."""

    @property
    def is_mcp(self) -> bool:
        """Whether it is a tool of an MCP server."""
        return self.tool["type"] == "mcp"

    @property
    def is_tool_search(self) -> bool:
        """Whether it is the search that finds other tools."""
        return self.tool["type"] == "tool_search"

    def to_json(self) -> dict[str, Any]:
        """`description` and `parameters` of the function that stands for the tool."""
        described = {} if self.description is None else {"description": self.description}
        return {**described, "parameters": function_parameters(self.parameters)}


def model_tool_names(
    functions: Iterable[ServerFunction], client_names: Collection[str]
) -> dict[str, ServerFunction]:
    """The name under which the model calls each function, in order: its own if that is free, else
    with its server's label before it.

    `client_names` are the names of the client's own functions. The same functions always get the
    same names.
    """
    offered = list(functions)
    own = [function.name for function in offered]
    names: dict[str, ServerFunction] = {}
    for function in offered:
        is_free = (
            function.name not in client_names
            and own.count(function.name) == 1
            and is_usable_name(function.name)
        )
        name = function.name if is_free else _with_label(function)
        while name in client_names or name in names or (not is_free and name in own):
            name = with_hash(name, _seed(name, function))
        names[name] = function
    return names


def model_tool_name(item: Item, server_functions: Mapping[str, ServerFunction]) -> str:
    """The name under which a model is shown a call from the history, also when its tool is no
    longer offered.
    """
    for name, function in server_functions.items():
        if matches_choice(function.tool, _tool_choice_of(item)):
            return name
    name = str(item.get("name") or item["type"].removesuffix("_call"))
    return usable_characters(name)[:MAX_FUNCTION_NAME]


def matches_choice(tool: Mapping[str, str], choice: Mapping[str, Any]) -> bool:
    """Whether an entry of `tool_choice` means this tool.

    A field that the entry leaves out matches every value.
    """
    return choice.get("type") == tool["type"] and all(
        choice.get(key, value) == value for key, value in tool.items()
    )


def _tool_choice_of(item: Item) -> dict[str, Any]:
    tool: dict[str, Any] = {key: item[key] for key in ("server_label", "name") if key in item}
    tool["type"] = item["type"].removesuffix("_call")
    return tool


def _with_label(function: ServerFunction) -> str:
    name = f"{function.tool.get('server_label', function.tool['type'])}__{function.name}"
    if is_usable_name(name):
        return name
    usable = usable_characters(name)
    return with_hash(usable, _seed(usable, function))


def _seed(name: str, function: ServerFunction) -> str:
    return repr((name, sorted(function.tool.items()), function.name))
