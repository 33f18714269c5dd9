"""`tools` and `tool_choice` of a request, and the tools that items add."""

from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import Schema, SchemaScope
from models.wire.checks import basic, server_tools
from models.wire.checks.faults import missing
from models.wire.checks.json_schema import require_function_schema
from models.wire.tools import (
    COMPUTER_PREVIEW,
    COMPUTERS,
    FILE_SEARCH,
    IMAGE_GENERATION,
    NATIVE_ONLY_TOOLS,
    WEB_SEARCH,
    has_domain_secrets,
    is_own_code_tool,
    is_own_file_search,
)

MAX_TOOLS = 128

_NAME = basic.String(non_empty=True, at_most=128, pattern="[a-zA-Z0-9_-]+")
_TEXT = basic.String()
_BOOLEAN = basic.Boolean()
_EMPTY = basic.Record({})
_JSON_OBJECT = basic.JsonObject()
_OPEN_OBJECT = basic.OpenObject()

_FUNCTION = basic.Record(
    {"name": _NAME},
    {
        "description": _TEXT,
        "parameters": _JSON_OBJECT,
        "strict": _BOOLEAN,
        "defer_loading": _BOOLEAN,
    },
)

_BESIDE_TYPE = (
    "In the Responses API, 'name', 'description' and 'parameters' stand beside 'type', not inside "
    "'function'."
)


@dataclass(frozen=True, slots=True)
class _Function(basic.Check):
    """A function. Its parameters must be a JSON Schema."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        if value.get("name") is None and type(value.get("function")) is dict:
            raise missing(f"{where}.name", _BESIDE_TYPE)
        tool = _FUNCTION(value, where)
        require_function_schema(tool, where)
        return tool

    def schema(self, scope: SchemaScope) -> Schema:
        return _FUNCTION.schema(scope)


_CUSTOM_FORMAT = basic.Tagged(
    {
        "text": _EMPTY,
        "grammar": basic.Record({"syntax": basic.Choice("lark", "regex"), "definition": _TEXT}),
    },
)
_NAMED_TOOLS: dict[str, basic.Check] = {
    "function": _Function(),
    "custom": basic.Record(
        {"name": _NAME},
        {"description": _TEXT, "format": _CUSTOM_FORMAT, "defer_loading": _BOOLEAN},
    ),
}
_NAMESPACE = basic.Record(
    {
        "name": _NAME,
        "description": _TEXT,
        "tools": basic.Array(basic.Tagged(_NAMED_TOOLS), at_most=MAX_TOOLS),
    }
)
_NOT_ADDED = "an item cannot add a tool of this type. Send it in 'tools' of the request"
_OR_NATIVE = ", or use a model whose upstream is a native one (docs/upstreams.md)"
_INSTEAD = {
    "programmatic_tool_calling": "the model calls each tool itself here. Leave this tool out",
}
"""Hosted tools -> what to use at a chat upstream."""
_HOSTED = {kind: f"{reason}{_OR_NATIVE}" for kind, reason in _INSTEAD.items()}
_TOOL_SEARCH = basic.Record(
    {},
    {
        "execution": basic.Choice("server", "client"),
        "description": _TEXT,
        "parameters": _JSON_OBJECT,
    },
)
_ADDED_SEARCH = basic.Record(
    {},
    {
        **_TOOL_SEARCH.optional,
        "execution": basic.Choice(
            "client",
            refused={
                "server": "an item cannot add a search by the server. Send it in 'tools' of the "
                "request, or set 'execution' to 'client'"
            },
        ),
    },
)
_LOCAL: dict[str, basic.Check] = {"local": basic.Record({}, {"skills": basic.Array(_OPEN_OBJECT)})}
_SHELL = basic.Record(
    {}, {"environment": basic.Tagged({**_LOCAL, **server_tools.CONTAINER_ENVIRONMENTS})}
)
_LOCAL_SHELL = basic.Record(
    {},
    {
        "environment": basic.Tagged(
            _LOCAL, dict.fromkeys(server_tools.CONTAINER_ENVIRONMENTS, _NOT_ADDED)
        )
    },
)
_PIXELS = basic.Integer(1, 100_000)
_DISPLAY = {
    "display_width": _PIXELS,
    "display_height": _PIXELS,
    "environment": basic.Choice("windows", "mac", "linux", "ubuntu", "browser"),
}
_DOMAINS = basic.Array(basic.String(non_empty=True, at_most=253), at_most=100)
_WEB_SEARCH = basic.Record(
    {},
    {
        "search_context_size": basic.Choice("low", "medium", "high"),
        "external_web_access": _BOOLEAN,
        "filters": basic.Record({}, {"allowed_domains": _DOMAINS, "blocked_domains": _DOMAINS}),
        "user_location": basic.Record(
            {},
            {
                "type": basic.Choice("approximate"),
                **dict.fromkeys(("city", "country", "region", "timezone"), _TEXT),
            },
        ),
        "search_content_types": basic.AnyJson(),
    },
)


@dataclass(frozen=True, slots=True)
class _PassthroughTool(basic.Check):
    """A tool that a native upstream runs: passed on without a check.

    Secrets for a container are refused, because tools are stored and shown.
    """

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        if has_domain_secrets(value):
            message = (
                f"'domain_secrets' inside '{where}' is not supported: "
                "this server stores and shows the tools of a response."
            )
            raise InvalidRequest(message, param=where, code="unsupported_parameter")
        tool = basic.require_object(value, where)
        return {name: field for name, field in tool.items() if name != "type" and field is not None}

    def schema(self, _scope: SchemaScope) -> Schema:
        return {
            "type": "object",
            "description": "Passed unchanged to the upstream, "
            "if the model's upstream supports the Responses API.",
        }


@dataclass(frozen=True, slots=True)
class _OwnOrPassed(basic.Check):
    """A tool for a native upstream: checked if it names something of this server, a vector store or
    a container, else passed on."""

    kind: str
    own: basic.Check

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        tool = {**value, "type": self.kind} if type(value) is dict else {"type": ""}
        if is_own_file_search(tool) or is_own_code_tool(tool):
            checked: dict[str, Any] = self.own(value, where)
            return checked
        return _PASSED(value, where)

    def schema(self, scope: SchemaScope) -> Schema:
        return _PASSED.schema(scope)


_PASSED = _PassthroughTool()

_CLIENT_TOOLS: dict[str, basic.Check] = {
    **_NAMED_TOOLS,
    "namespace": _NAMESPACE,
    "tool_search": _TOOL_SEARCH,
    "local_shell": _EMPTY,
    "shell": _SHELL,
    "apply_patch": _EMPTY,
    **dict.fromkeys(COMPUTERS, basic.Record({}, _DISPLAY)),
    COMPUTER_PREVIEW: basic.Record(_DISPLAY),
    **dict.fromkeys(sorted(WEB_SEARCH), _WEB_SEARCH),
}
_SERVER_TOOLS: dict[str, basic.Check] = {
    FILE_SEARCH: server_tools.FILE_SEARCH_TOOL,
    IMAGE_GENERATION: server_tools.IMAGE_GENERATION_TOOL,
    "mcp": server_tools.McpTool(),
    "code_interpreter": server_tools.CODE_INTERPRETER_TOOL,
}
_PASSED_ON: dict[str, basic.Check] = {
    **dict.fromkeys((*NATIVE_ONLY_TOOLS, *COMPUTERS, "tool_search", *sorted(WEB_SEARCH)), _PASSED),
    FILE_SEARCH: _OwnOrPassed(FILE_SEARCH, server_tools.FILE_SEARCH_TOOL),
    "code_interpreter": _OwnOrPassed("code_interpreter", server_tools.CODE_INTERPRETER_TOOL),
    "shell": _OwnOrPassed("shell", _SHELL),
}


@dataclass(frozen=True, slots=True)
class _Tools(basic.Check):
    """Tools without two of the same name in one namespace, because a call carries only names."""

    tools: basic.Component
    only_direct: bool
    """No program of the model can call a tool."""

    def __call__(self, value: Any, where: str) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = self.tools(value, where)
        if self.only_direct:
            _require_direct(value, where)
        _require_distinct_names(tools, where)
        server_tools.require_distinct_labels(tools, where)
        server_tools.require_one_search(tools, where)
        server_tools.require_one_container_tool(tools, where)
        return tools

    def schema(self, scope: SchemaScope) -> Schema:
        return self.tools.schema(scope)


def _tools(
    component: str,
    kinds: dict[str, basic.Check],
    refused: dict[str, str],
    *,
    only_direct: bool = False,
) -> _Tools:
    tools = basic.Array(basic.Tagged(kinds, refused), at_most=MAX_TOOLS)
    return _Tools(basic.Component(component, tools), only_direct)


TOOLS = _tools("Tools", {**_CLIENT_TOOLS, **_SERVER_TOOLS}, _HOSTED, only_direct=True)
"""`tools` of a request to a chat upstream."""

NATIVE_TOOLS = _tools("Tools", {**_CLIENT_TOOLS, **_SERVER_TOOLS, **_PASSED_ON}, {})
"""`tools` of a request to a native upstream, which runs some of them itself."""

_ADDED = {**_CLIENT_TOOLS, "shell": _LOCAL_SHELL, "tool_search": _ADDED_SEARCH}
ADDED_TOOLS = _tools("AddedTools", _ADDED, dict.fromkeys((*_HOSTED, *_SERVER_TOOLS), _NOT_ADDED))
"""`tools` of an item. Without MCP servers: their credentials must not be stored and shown as items
are."""

FOUND_TOOLS = _tools(
    "FoundTools",
    {**_ADDED, "mcp": server_tools.FoundMcpTools()},
    dict.fromkeys((*_HOSTED, *sorted(_SERVER_TOOLS.keys() - {"mcp"})), _NOT_ADDED),
)
"""`tools` of the output of a tool search: those of MCP servers by their names."""


def _require_direct(tools: list[dict[str, Any]], where: str) -> None:
    """Raises InvalidRequest for a tool that only a program of the model may call."""
    for index, tool in enumerate(tools):
        place, callers = f"{where}[{index}]", tool.get("allowed_callers")
        if type(callers) is list and callers and "direct" not in callers:
            raise InvalidRequest(
                f"'{place}.allowed_callers' lacks 'direct', and programs of the model call no "
                f"tools here. Add 'direct', or leave the tool out{_OR_NATIVE}.",
                param=f"{place}.allowed_callers",
                code="unsupported_parameter",
            )
        if tool["type"] == "namespace":
            _require_direct(tool["tools"], f"{place}.tools")


def _require_distinct_names(tools: list[dict[str, Any]], where: str) -> None:
    seen: set[tuple[str | None, str]] = set()
    for index, tool in enumerate(tools):
        if tool["type"] == "namespace":
            for position, inner in enumerate(tool["tools"]):
                place = f"{where}[{index}].tools[{position}].name"
                _require_new(tool["name"], inner["name"], seen, place)
        elif "name" in tool:
            _require_new(None, tool["name"], seen, f"{where}[{index}].name")


def _require_new(
    namespace: str | None, name: str, seen: set[tuple[str | None, str]], where: str
) -> None:
    if (namespace, name) in seen:
        message = f"Invalid '{where}': there is already a tool with the name '{name}'."
        raise InvalidRequest(message, param=where, code="invalid_value")
    seen.add((namespace, name))


_NAMED = basic.Record({"name": _NAME}, {"namespace": _NAME})
_BUILT_IN_TOOLS = (
    *sorted(WEB_SEARCH),
    *("file_search", "code_interpreter", IMAGE_GENERATION),
    *COMPUTERS,
    *("shell", "local_shell", "apply_patch", "programmatic_tool_calling", "tool_search"),
)
_CHOICES: dict[str, basic.Check] = {
    "function": _NAMED,
    "custom": _NAMED,
    "mcp": basic.Record({"server_label": _TEXT}, {"name": _TEXT}),
    **dict.fromkeys(_BUILT_IN_TOOLS, _EMPTY),
}
_ALLOWED: dict[str, basic.Check] = {**_CHOICES, "namespace": basic.Record({"name": _NAME})}
_ALLOWED_TOOLS = basic.Record(
    {"mode": basic.Choice("auto", "required"), "tools": basic.Array(basic.Tagged(_ALLOWED))}
)

TOOL_CHOICE = basic.ByJsonType(
    "a string or an object",
    {
        str: basic.Choice("none", "auto", "required"),
        dict: basic.Component(
            "ToolChoiceObject", basic.Tagged({"allowed_tools": _ALLOWED_TOOLS, **_CHOICES})
        ),
    },
)
"""The shape of a `tool_choice`. `require_valid_choice` compares it with the tools."""
