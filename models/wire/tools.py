"""`tools` and `tool_choice`: what a client may offer the model, and what it may demand of it (contract §6.2)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.checks import (
    Check,
    any_json,
    array,
    boolean,
    choice,
    json_object,
    open_object,
    record,
    string,
    tagged,
    wrong_type,
)
from models.wire.json_schema import require_schema
from models.wire.mcp import mcp_tool, require_distinct_labels

WEB_SEARCH = frozenset(
    ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
)
"""Accepted because common clients always send one; where no provider is configured, left out of what the upstream sees (design §11)."""

CALL_ITEM_TYPES = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "tool_search": "tool_search_call",
    "local_shell": "local_shell_call",
    "shell": "shell_call",
    "apply_patch": "apply_patch_call",
}
"""type of a tool -> type of the item that a call of it is"""

MAX_TOOLS = 128

_NAME = string(non_empty=True, at_most=128, pattern="[a-zA-Z0-9_-]+")
_NAMED = record({"name": _NAME}, {"namespace": _NAME})
_BARE = record({})

_CUSTOM_FORMAT = tagged(
    {"text": _BARE, "grammar": record({"syntax": choice("lark", "regex"), "definition": string()})},
)
_DOMAINS = array(string(non_empty=True, at_most=253), at_most=100)
_SEARCH = record(
    {},
    {
        "search_context_size": choice("low", "medium", "high"),
        "external_web_access": boolean,
        "filters": record({}, {"allowed_domains": _DOMAINS, "blocked_domains": _DOMAINS}),
        "user_location": record(
            {},
            {
                "type": choice("approximate"),
                **dict.fromkeys(("city", "country", "region", "timezone"), string()),
            },
        ),
        "search_content_types": any_json,
    },
)
_FUNCTION = record(
    {"name": _NAME},
    {
        "description": string(),
        "parameters": json_object,
        "strict": boolean,
        "defer_loading": boolean,
    },
)


def _function(value: Any, where: str) -> dict[str, Any]:
    """A function; its parameters must be a JSON Schema, and one that can be obeyed strictly if they are to be."""
    kept: dict[str, Any] = _FUNCTION(value, where)
    if "parameters" in kept:
        subject = f"function '{kept['name']}'"
        strict = kept.get("strict", False)
        require_schema(
            kept["parameters"],
            f"{where}.parameters",
            subject,
            code="invalid_function_parameters",
            strict=strict,
        )
    return kept


_NAMED_TOOLS: dict[str, Check] = {
    "function": _function,
    "custom": record(
        {"name": _NAME},
        {"description": string(), "format": _CUSTOM_FORMAT, "defer_loading": boolean},
    ),
}
_NAMESPACE = record(
    {
        "name": _NAME,
        "description": string(),
        "tools": array(tagged(_NAMED_TOOLS), at_most=MAX_TOOLS),
    }
)
_TOOL_SEARCH = record(
    {"execution": choice("client")}, {"description": string(), "parameters": json_object}
)
_SHELL = record({}, {"environment": tagged({"local": record({}, {"skills": array(open_object)})})})
_CLIENT_TOOLS: dict[str, Check] = {
    **_NAMED_TOOLS,
    "namespace": _NAMESPACE,
    "tool_search": _TOOL_SEARCH,
    "local_shell": _BARE,
    "shell": _SHELL,
    "apply_patch": _BARE,
    **dict.fromkeys(sorted(WEB_SEARCH), _SEARCH),
}
_TOOLS = array(tagged({**_CLIENT_TOOLS, "mcp": mcp_tool}), at_most=MAX_TOOLS)
_ADDED_TOOLS = array(tagged(_CLIENT_TOOLS), at_most=MAX_TOOLS)

NATIVE_ONLY_TOOLS = (
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer",
    "computer_use",
    "computer_use_preview",
    "programmatic_tool_calling",
)
"""Tools that only an upstream which speaks the Responses API can run, or knows at all; they are handed on as the client describes them."""


def _passthrough_tool(value: Any, where: str) -> dict[str, Any]:
    """The tool as it is. What it entrusts to a container has no place here: tools are stored and shown."""
    if _contains_field(value, "domain_secrets"):
        message = f"'domain_secrets' inside '{where}' is not supported: this server stores and shows the tools of a response."
        raise InvalidRequest(message, param=where, code="unsupported_parameter")
    kept = open_object(value, where)
    kept.pop("type", None)
    return kept


def _contains_field(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return name in value or any(_contains_field(found, name) for found in value.values())
    return isinstance(value, list) and any(_contains_field(found, name) for found in value)


_NATIVE_TOOLS = array(
    tagged(
        {
            **_CLIENT_TOOLS,
            "mcp": mcp_tool,
            **dict.fromkeys(
                (*NATIVE_ONLY_TOOLS, "shell", "tool_search", *sorted(WEB_SEARCH)), _passthrough_tool
            ),
        }
    ),
    at_most=MAX_TOOLS,
)
"""What a native upstream may be offered."""

_BUILT_IN_TOOLS = (
    *sorted(WEB_SEARCH),
    *(
        "file_search",
        "code_interpreter",
        "image_generation",
        "computer",
        "computer_use",
        "computer_use_preview",
    ),
    *("shell", "local_shell", "apply_patch", "programmatic_tool_calling", "tool_search"),
)
_CHOICES: dict[str, Check] = {
    "function": _NAMED,
    "custom": _NAMED,
    "mcp": record({"server_label": string()}, {"name": string()}),
    **dict.fromkeys(_BUILT_IN_TOOLS, _BARE),
}
_ALLOWED: dict[str, Check] = {**_CHOICES, "namespace": record({"name": _NAME})}
_CHOICE_WORD = choice("none", "auto", "required")
_CHOICE_OBJECT = tagged(
    {
        "allowed_tools": record(
            {"mode": choice("auto", "required"), "tools": array(tagged(_ALLOWED))}
        ),
        **_CHOICES,
    },
)


@dataclass(frozen=True, slots=True)
class CallTarget:
    """What the model calls: told apart by these three, whatever the upstream is shown."""

    item: str
    """The type of the item that a call of it is."""
    name: str = ""
    """Empty for a built-in tool: there is one of each."""
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class CallableTool:
    """One tool that the model may call, as its client described it."""

    target: CallTarget
    tool: dict[str, Any]
    namespace: str = ""
    """What the namespace that holds it is for."""


def callable_tools(tools: Iterable[dict[str, Any]]) -> Iterator[CallableTool]:
    """The tools that can be called, those inside namespaces one by one; what nobody can call here (web search) is left out."""
    for tool in tools:
        if tool["type"] == "namespace":
            for inner in tool["tools"]:
                yield CallableTool(
                    CallTarget(CALL_ITEM_TYPES[inner["type"]], inner["name"], tool["name"]),
                    inner,
                    tool["description"],
                )
        elif tool["type"] in CALL_ITEM_TYPES:
            yield CallableTool(
                CallTarget(CALL_ITEM_TYPES[tool["type"]], tool.get("name", "")), tool
            )


def added_tools(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The tools that came into a conversation with its items: the developer's additions and what a search has found."""
    for item in items:
        if item["type"] in ("additional_tools", "tool_search_output"):
            yield from item["tools"]


def with_added_search(
    request_tools: list[dict[str, Any]], items: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A request's tools, and the web search that came with its items if it names none itself: the last, should there be several."""
    if any(tool["type"] in WEB_SEARCH for tool in request_tools):
        return request_tools
    return [
        *request_tools,
        *[tool for tool in added_tools(items) if tool["type"] in WEB_SEARCH][-1:],
    ]


def match_choice(chosen: dict[str, Any], targets: Iterable[CallTarget]) -> list[CallTarget]:
    """Those of the targets that one object of a `tool_choice` names. A bare name means the tool outside of namespaces, if there is one."""
    if chosen["type"] == "namespace":
        return [target for target in targets if target.namespace == chosen["name"]]
    item, name = CALL_ITEM_TYPES.get(chosen["type"]), chosen.get("name", "")
    found = [target for target in targets if (target.item, target.name) == (item, name)]
    if "namespace" in chosen:
        return [target for target in found if target.namespace == chosen["namespace"]]
    return [target for target in found if target.namespace is None] or found


def tools(value: Any, where: str) -> list[dict[str, Any]]:
    """The tools, each with its documented fields only. Names must differ within a namespace, because calls come back by name alone."""
    return _distinct(_TOOLS(value, where), where)


def native_tools(value: Any, where: str) -> list[dict[str, Any]]:
    """The same for a model whose upstream speaks the Responses API and runs tools of its own."""
    return _distinct(_NATIVE_TOOLS(value, where), where)


def _distinct(checked: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    _require_distinct_names(checked, where)
    require_distinct_labels(checked, where)
    return checked


def item_tools(value: Any, where: str) -> list[dict[str, Any]]:
    """Tools that come as part of an item. MCP servers are none of these: items are stored and shown, and their credentials must not be."""
    checked: list[dict[str, Any]] = _ADDED_TOOLS(value, where)
    _require_distinct_names(checked, where)
    return checked


def _require_distinct_names(checked: list[dict[str, Any]], where: str) -> None:
    seen: set[tuple[str | None, str]] = set()
    for index, tool in enumerate(checked):
        if tool["type"] == "namespace":
            for position, inner in enumerate(tool["tools"]):
                _require_new(
                    tool["name"], inner["name"], seen, f"{where}[{index}].tools[{position}].name"
                )
        elif "name" in tool:
            _require_new(None, tool["name"], seen, f"{where}[{index}].name")


def _require_new(
    namespace: str | None, name: str, seen: set[tuple[str | None, str]], where: str
) -> None:
    if (namespace, name) in seen:
        message = f"Invalid '{where}': there is already a tool with the name '{name}'."
        raise InvalidRequest(message, param=where, code="invalid_value")
    seen.add((namespace, name))


def tool_choice(value: Any, where: str) -> str | dict[str, Any]:
    """The choice by its shape alone; `require_choosable` compares it with the tools."""
    if type(value) is str:
        word: str = _CHOICE_WORD(value, where)
        return word
    if type(value) is not dict:
        raise wrong_type(where, "a string or an object", value)
    chosen: dict[str, Any] = _CHOICE_OBJECT(value, where)
    return chosen


def require_valid_choice(
    chosen: str | dict[str, Any], available: list[dict[str, Any]], *, has_web_search: bool = False
) -> None:
    """Raises InvalidRequest when the choice demands a tool that is not offered, or that we cannot run.

    `searches`: whether this server, or the model's upstream, can search the web.
    """
    if chosen == "required" and not available:
        raise _invalid_choice("Tool choice 'required' must be specified with 'tools' parameter.")
    targets = [each.target for each in callable_tools(available)]
    runnable = [
        tool
        for tool in available
        if tool["type"] in ("mcp", *NATIVE_ONLY_TOOLS)
        or (has_web_search and tool["type"] in WEB_SEARCH)
    ]
    if chosen == "required" and not targets and not runnable:
        raise _no_search()
    if isinstance(chosen, str):
        return
    one_by_one = chosen["tools"] if chosen["type"] == "allowed_tools" else [chosen]
    found = [_count_matches(one, available, targets, runnable) for one in one_by_one]
    if chosen["type"] != "allowed_tools":
        if found[0] > 1:
            raise _invalid_choice(
                f"Tool choice '{chosen['name']}' is in several namespaces: say which one in 'namespace'."
            )
        if not found[0]:
            raise _no_search()
    elif chosen["mode"] == "required" and not any(found):
        message = "Tool choice 'allowed_tools' with mode 'required' must name at least one tool."
        raise _no_search() if found else _invalid_choice(message)


def _count_matches(
    one: dict[str, Any],
    available: list[dict[str, Any]],
    targets: list[CallTarget],
    runnable: list[dict[str, Any]],
) -> int:
    """How many tools that can be called this names; 0 only for a search that nobody can run. Raises InvalidRequest when it names nothing."""
    # the tools of an MCP server are not known before it is asked: a choice is good when it names the server
    ours = sum(
        (tool["type"], tool.get("server_label")) == (one["type"], one.get("server_label"))
        for tool in runnable
    )
    found = len(match_choice(one, targets)) or min(ours, 1)
    is_search = one["type"] in WEB_SEARCH and any(tool["type"] == one["type"] for tool in available)
    if not found and not is_search:
        raise _choice_not_found(one)
    return found


def _choice_not_found(tool: dict[str, Any]) -> InvalidRequest:
    return _invalid_choice(
        f"Tool choice '{tool.get('server_label') or tool.get('name') or tool['type']}' not found in 'tools' parameter."
    )


def _no_search() -> InvalidRequest:
    return _invalid_choice("Tool choice demands a web search, and this server has none.")


def _invalid_choice(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="tool_choice", code="invalid_value")
