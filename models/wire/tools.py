"""`tools` and `tool_choice`: what a client may offer the model, and what it may demand of it (contract §6.2)."""

from typing import Any

from models.errors import InvalidRequest
from models.wire.checks import Check, anything, array, boolean, choice, json_object, record, string, tagged, wrong_type
from models.wire.mcp import mcp_tool, require_distinct_labels

WEB_SEARCH = frozenset(("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"))
"""Accepted because common clients always send one; left out of what the upstream sees (design §11)."""

MOST_TOOLS = 128

_NAME = string(filled=True, at_most=128, pattern="[a-zA-Z0-9_-]+")
_NAMED = record({"name": _NAME})
_BARE = record({})

_CUSTOM_FORMAT = tagged(
    {"text": _BARE, "grammar": record({"syntax": choice("lark", "regex"), "definition": string()})},
)
_SEARCH = record(
    {},
    {
        "search_context_size": choice("low", "medium", "high"),
        "external_web_access": boolean,
        "filters": anything,
        "user_location": anything,
        "search_content_types": anything,
    },
)
_TOOLS = array(
    tagged(
        {
            "function": record({"name": _NAME}, {"description": string(), "parameters": json_object, "strict": boolean}),
            "custom": record({"name": _NAME}, {"description": string(), "format": _CUSTOM_FORMAT}),
            "mcp": mcp_tool,
            **dict.fromkeys(sorted(WEB_SEARCH), _SEARCH),
        }
    ),
    at_most=MOST_TOOLS,
)

_HOSTED = (
    *sorted(WEB_SEARCH),
    *("file_search", "code_interpreter", "image_generation", "computer", "computer_use", "computer_use_preview"),
    *("shell", "local_shell", "apply_patch", "programmatic_tool_calling", "tool_search"),
)
_ALLOWED: dict[str, Check] = {
    "function": _NAMED,
    "custom": _NAMED,
    "mcp": record({"server_label": string()}, {"name": string()}),
    **dict.fromkeys(_HOSTED, _BARE),
}
_CHOICE_WORD = choice("none", "auto", "required")
_CHOICE_OBJECT = tagged(
    {"allowed_tools": record({"mode": choice("auto", "required"), "tools": array(tagged(_ALLOWED))}), **_ALLOWED},
)


def tools(value: Any, where: str) -> list[dict[str, Any]]:
    """The tools, each with its documented fields only. Names must differ, because calls come back by name alone."""
    checked: list[dict[str, Any]] = _TOOLS(value, where)
    seen: set[str] = set()
    for index, tool in enumerate(checked):
        name = tool.get("name")
        if name in seen:
            message = f"Invalid '{where}[{index}].name': there is already a tool with the name '{name}'."
            raise InvalidRequest(message, param=f"{where}[{index}].name", code="invalid_value")
        if name is not None:
            seen.add(name)
    require_distinct_labels(checked, where)
    return checked


def tool_choice(value: Any, where: str) -> str | dict[str, Any]:
    """The choice by its shape alone; `require_choosable` compares it with the tools."""
    if type(value) is str:
        word: str = _CHOICE_WORD(value, where)
        return word
    if type(value) is not dict:
        raise wrong_type(where, "a string or an object", value)
    chosen: dict[str, Any] = _CHOICE_OBJECT(value, where)
    return chosen


def require_choosable(chosen: str | dict[str, Any], offered: list[dict[str, Any]]) -> None:
    """Raises InvalidRequest when the choice demands a tool that is not offered, or that we cannot run."""
    runnable = {_identity(tool) for tool in offered if tool["type"] not in WEB_SEARCH}
    if chosen == "required" and not offered:
        raise _unchoosable("Tool choice 'required' must be specified with 'tools' parameter.")
    if chosen == "required" and not runnable:
        raise _no_search()
    if isinstance(chosen, str):
        return
    if chosen["type"] == "allowed_tools":
        _require_allowed(chosen, offered, runnable)
        return
    if chosen["type"] in WEB_SEARCH:
        raise _no_search()
    if _identity(chosen) not in runnable:
        raise _absent(chosen)


def _require_allowed(chosen: dict[str, Any], offered: list[dict[str, Any]], runnable: set[tuple[str, str]]) -> None:
    all_offered = {_identity(tool) for tool in offered}
    allowed = [_identity(tool) for tool in chosen["tools"]]
    for tool in chosen["tools"]:
        if _identity(tool) not in all_offered:
            raise _absent(tool)
    if chosen["mode"] == "required" and runnable.isdisjoint(allowed):
        raise _no_search() if allowed else _unchoosable("Tool choice 'allowed_tools' with mode 'required' must name at least one tool.")


def _identity(tool: dict[str, Any]) -> tuple[str, str]:
    # the tools of an MCP server are not known before it is asked: a choice is good when it names the server
    return tool["type"], tool.get("server_label" if tool["type"] == "mcp" else "name", "")


def _absent(tool: dict[str, Any]) -> InvalidRequest:
    return _unchoosable(f"Tool choice '{tool.get('server_label') or tool.get('name') or tool['type']}' not found in 'tools' parameter.")


def _no_search() -> InvalidRequest:
    return _unchoosable("Tool choice demands a web search, and this server has none.")


def _unchoosable(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="tool_choice", code="invalid_value")
