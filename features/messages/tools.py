"""The tools of Anthropic's API become tools of a response. Pure.

Tools that the client runs and whose schema only Anthropic's models know (a shell, an editor, a
computer) become functions with the schema that Anthropic documents.
"""

import re
from collections.abc import Mapping
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import Schema, SchemaScope
from models.wire.checks.basic import (
    Array,
    Boolean,
    Check,
    Integer,
    JsonObject,
    Record,
    String,
    Tagged,
    require_object,
)
from models.wire.checks.faults import shorten, wrong_type

Json = dict[str, Any]

_TEXT = String()
_NAME = String(non_empty=True, at_most=128, pattern="[a-zA-Z0-9_-]+")
_SIZE = Integer(1, 100_000)
_CUSTOM = Record(
    {"name": _NAME, "input_schema": JsonObject()}, {"description": _TEXT, "strict": Boolean()}
)
_KNOWN = Record(
    {"name": _NAME}, {"display_width_px": _SIZE, "display_height_px": _SIZE, "strict": Boolean()}
)
_DOMAINS = Array(_TEXT)
_SEARCH = Record(
    {},
    {
        "allowed_domains": _DOMAINS,
        "blocked_domains": _DOMAINS,
        "max_uses": Integer(1, 1000),
        "user_location": JsonObject(),
    },
)
TOOL_CHOICE = Tagged(
    {
        "auto": Record({}, {"disable_parallel_tool_use": Boolean()}),
        "any": Record({}, {"disable_parallel_tool_use": Boolean()}),
        "tool": Record({"name": _NAME}, {"disable_parallel_tool_use": Boolean()}),
        "none": Record({}),
    }
)
"""The check of `tool_choice`."""
_DATED = re.compile(r"([a-z_]+)_20\d{6}")
_TYPES: Mapping[str, Json] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "integers": {"type": "array", "items": {"type": "integer"}},
}


def _schema(fields: Mapping[str, str], action: str = "", *actions: str) -> Json:
    """An object with these fields: type -> names. `actions`: what the required field `action` may
    be."""
    properties: Json = {action: {"type": "string", "enum": list(actions)}} if action else {}
    for kind, names in fields.items():
        properties |= dict.fromkeys(names.split(), _TYPES[kind])
    required = {"required": [action]} if action else {}
    return {"type": "object", "properties": properties, **required}


_EDITS = ("command", "view", "create", "str_replace", "insert")
_OF_EDITS = {
    "text": "path file_text old_str new_str insert_text",
    "integer": "insert_line",
    "integers": "view_range",
}
_CLIENT_TOOLS: Mapping[str, tuple[str, Json]] = {
    "bash": (
        "Run a command in a persistent bash session. `restart` starts a new session.",
        _schema({"text": "command", "boolean": "restart"}),
    ),
    "text_editor": (
        "View, create and edit text files. For `str_replace`, `old_str` must occur exactly once.",
        _schema(_OF_EDITS, *_EDITS),
    ),
    "computer": (
        "Use the mouse and the keyboard of a computer, and take screenshots.",
        _schema(
            {
                "integers": "coordinate start_coordinate region",
                "text": "text scroll_direction",
                "integer": "scroll_amount",
                "number": "duration",
            },
            *("action", "screenshot", "left_click", "right_click", "middle_click", "double_click"),
            *("triple_click", "left_click_drag", "left_mouse_down", "left_mouse_up", "mouse_move"),
            *("cursor_position", "type", "key", "hold_key", "scroll", "wait", "zoom"),
        ),
    ),
}
"""Beginning of a type -> the description for the model, and the schema."""


class _Tool(Check):
    """A tool as a tool of a response."""

    def __call__(self, value: Any, where: str, /) -> Json:
        kind = require_object(value, where).get("type") or "custom"
        if type(kind) is not str:
            raise wrong_type(f"{where}.type", "a string", kind)
        if kind == "custom":
            return _function(_CUSTOM(value, where))
        dated = _DATED.fullmatch(kind)
        name = "" if dated is None else dated[1]
        if name in _CLIENT_TOOLS:
            return _client_tool(name, _KNOWN(value, where))
        if name == "web_search":
            return _web_search(_SEARCH(value, where))
        message = (
            f"The tool '{shorten(kind)}' of '{where}' is not supported here. Supported are "
            "tools with an 'input_schema', bash_…, text_editor_…, computer_… and "
            "web_search_…; offer another one as a tool with an 'input_schema' that you run."
        )
        raise InvalidRequest(message, param=f"{where}.type", code="unsupported_parameter")

    def schema(self, _scope: SchemaScope, /) -> Schema:
        return {"type": "object"}


TOOLS = Array(_Tool())
"""The check of `tools`: its result is for a response."""


def _function(tool: Json) -> Json:
    # Without `strict` OpenAI's own models would take a schema as a strict one.
    named: Json = {name: tool[name] for name in ("name", "description") if name in tool}
    schema, strict = tool["input_schema"], tool.get("strict", False)
    return {"type": "function", **named, "parameters": schema, "strict": strict}


def _client_tool(kind: str, tool: Json) -> Json:
    description, schema = _CLIENT_TOOLS[kind]
    if "display_width_px" in tool and "display_height_px" in tool:
        size = f"{tool['display_width_px']} x {tool['display_height_px']}"
        description = f"{description} The screen has {size} pixels."
    return _function({"name": tool["name"], "description": description, "input_schema": schema})


def _web_search(tool: Json) -> Json:
    filters = {name: tool[name] for name in ("allowed_domains", "blocked_domains") if name in tool}
    place = {"user_location": tool["user_location"]} if "user_location" in tool else {}
    uses = {"max_uses": tool["max_uses"]} if "max_uses" in tool else {}
    return {"type": "web_search", **({"filters": filters} if filters else {}), **place, **uses}


def tool_parameters(tools: list[Json], choice: Json | None) -> Json:
    """The parameters of a response for checked tools and the checked choice of one."""
    if not tools:
        return {}
    parameters: Json = {"tools": tools}
    searches = [tool for tool in tools if tool["type"] == "web_search"]
    limits = [tool.pop("max_uses") for tool in searches if "max_uses" in tool]
    if limits:
        parameters["max_tool_calls"] = limits[0]
    if searches:
        parameters["include"] = ["web_search_call.action.sources"]
    if choice is None:
        return parameters
    if choice.get("disable_parallel_tool_use"):
        parameters["parallel_tool_calls"] = False
    return {**parameters, "tool_choice": _choice(choice, bool(searches))}


def _choice(choice: Json, has_search: bool) -> Any:
    match choice["type"]:
        case "any":
            return "required"
        case "tool" if has_search and choice["name"] == "web_search":
            return {"type": "web_search"}
        case "tool":
            return {"type": "function", "name": choice["name"]}
        case kind:
            return kind
