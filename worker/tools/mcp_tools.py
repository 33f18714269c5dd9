"""The tools that an MCP server lists, one by one: as the item shows them, or why one cannot be
used. The server's data is not trusted."""

import json
from collections.abc import Sequence
from typing import Any

from models.errors import InvalidRequest
from models.wire.json_input import clean_text, decode_body, storable_numbers

Json = dict[str, Any]

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_MAX_REASONS = 20
_MAX_NAME = 128
"""Characters of a name in a reason."""


class UnusableTool(Exception):
    """The tool cannot be offered to a model. The message says why, and names it."""

    def __init__(self, name: str | None, why: str) -> None:
        """`name`: of the tool, if it has one."""
        self.name = name
        shown = "a tool" if name is None else f"'{clean_text(name)[:_MAX_NAME]}'"
        super().__init__(f"{shown} ({why})")


def item_tool(tool: Any) -> Json:
    """A tool as the item lists it: `name`, `input_schema`, `description`, `annotations`. It can be
    stored and sent: characters, depth and numbers are checked. Raises UnusableTool."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name:
        raise UnusableTool(None, "without a name")
    listed: Json = {"name": name, "input_schema": _input_schema(tool.get("inputSchema"), name)}
    if isinstance(description := tool.get("description"), str):
        listed["description"] = description
    if isinstance(given := tool.get("annotations"), dict):
        listed["annotations"] = _annotations(given)
    try:
        checked: Json = decode_body(json.dumps(storable_numbers(listed)).encode())
    except (InvalidRequest, RecursionError):
        raise UnusableTool(name, "it cannot be stored as JSON") from None
    return checked


def left_out_text(left_out: Sequence[UnusableTool]) -> str:
    """The `error` of a listing that has other tools."""
    more = len(left_out) - _MAX_REASONS
    shown = ", ".join(map(str, left_out[:_MAX_REASONS]))
    shown += f", and {more} more" if more > 0 else ""
    return f"Tools of this server that cannot be used were left out: {shown}."


def _input_schema(schema: Any, name: str) -> Json:
    """The schema of an object; of one that does not say so, if it may be one. Raises
    UnusableTool."""
    if schema is None or schema is True:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise UnusableTool(name, "its input schema is no object")
    types = schema.get("type", "object")
    if types is not None and "object" not in (types if isinstance(types, list) else [types]):
        raise UnusableTool(name, "its input is no object")
    return {**schema, "type": "object"}


def _annotations(given: Json) -> Json:
    kept: Json = {name: given[name] for name in _HINTS if isinstance(given.get(name), bool)}
    if isinstance(title := given.get("title"), str):
        kept["title"] = title
    return kept
