"""`tools` and `tool_choice` of a request, and the tools that items add."""

from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import Schema, SchemaScope
from models.wire.checks.basic import (
    AnyJson,
    Array,
    Boolean,
    ByJsonType,
    Check,
    Choice,
    Component,
    Integer,
    JsonObject,
    OpenObject,
    Record,
    String,
    Tagged,
    require_object,
)
from models.wire.checks.faults import missing
from models.wire.checks.json_schema import require_function_schema
from models.wire.checks.server_tools import (
    CODE_INTERPRETER_TOOL,
    CONTAINER_ENVIRONMENTS,
    FILE_SEARCH_TOOL,
    IMAGE_GENERATION_TOOL,
    FoundMcpTools,
    McpTool,
    require_distinct_labels,
    require_one_container_tool,
    require_one_search,
)
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

_NAME = String(non_empty=True, at_most=128, pattern="[a-zA-Z0-9_-]+")
_TEXT = String()
_BOOLEAN = Boolean()
_EMPTY = Record({})
_JSON_OBJECT = JsonObject()
_OPEN_OBJECT = OpenObject()

_FUNCTION = Record(
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
class _Function(Check):
    """A function. Its parameters must be a JSON Schema."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        if value.get("name") is None and type(value.get("function")) is dict:
            raise missing(f"{where}.name", _BESIDE_TYPE)
        tool = _FUNCTION(value, where)
        require_function_schema(tool, where)
        return tool

    def schema(self, scope: SchemaScope) -> Schema:
        return _FUNCTION.schema(scope)


_CUSTOM_FORMAT = Tagged(
    {
        "text": _EMPTY,
        "grammar": Record({"syntax": Choice("lark", "regex"), "definition": _TEXT}),
    },
)
_NAMED_TOOLS: dict[str, Check] = {
    "function": _Function(),
    "custom": Record(
        {"name": _NAME},
        {"description": _TEXT, "format": _CUSTOM_FORMAT, "defer_loading": _BOOLEAN},
    ),
}
_NAMESPACE = Record(
    {
        "name": _NAME,
        "description": _TEXT,
        "tools": Array(Tagged(_NAMED_TOOLS), at_most=MAX_TOOLS),
    }
)
_NOT_ADDED = "an item cannot add a tool of this type. Send it in 'tools' of the request"
_OR_NATIVE = ", or use a model whose upstream is a native one (docs/upstreams.md)"
_INSTEAD = {
    "programmatic_tool_calling": "the model calls each tool itself here. Leave this tool out",
}
"""Hosted tools -> what to use at a chat upstream."""
_HOSTED = {kind: f"{reason}{_OR_NATIVE}" for kind, reason in _INSTEAD.items()}
_TOOL_SEARCH = Record(
    {},
    {
        "execution": Choice("server", "client"),
        "description": _TEXT,
        "parameters": _JSON_OBJECT,
    },
)
_ADDED_SEARCH = Record(
    {},
    {
        **_TOOL_SEARCH.optional,
        "execution": Choice(
            "client",
            refused={
                "server": "an item cannot add a search by the server. Send it in 'tools' of the "
                "request, or set 'execution' to 'client'"
            },
        ),
    },
)
_LOCAL: dict[str, Check] = {"local": Record({}, {"skills": Array(_OPEN_OBJECT)})}
_SHELL = Record({}, {"environment": Tagged({**_LOCAL, **CONTAINER_ENVIRONMENTS})})
_LOCAL_SHELL = Record(
    {}, {"environment": Tagged(_LOCAL, dict.fromkeys(CONTAINER_ENVIRONMENTS, _NOT_ADDED))}
)
_PIXELS = Integer(1, 100_000)
_DISPLAY = {
    "display_width": _PIXELS,
    "display_height": _PIXELS,
    "environment": Choice("windows", "mac", "linux", "ubuntu", "browser"),
}
_DOMAINS = Array(String(non_empty=True, at_most=253), at_most=100)
_WEB_SEARCH = Record(
    {},
    {
        "search_context_size": Choice("low", "medium", "high"),
        "external_web_access": _BOOLEAN,
        "filters": Record({}, {"allowed_domains": _DOMAINS, "blocked_domains": _DOMAINS}),
        "user_location": Record(
            {},
            {
                "type": Choice("approximate"),
                **dict.fromkeys(("city", "country", "region", "timezone"), _TEXT),
            },
        ),
        "search_content_types": AnyJson(),
    },
)


@dataclass(frozen=True, slots=True)
class _PassthroughTool(Check):
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
        tool = require_object(value, where)
        return {name: field for name, field in tool.items() if name != "type" and field is not None}

    def schema(self, _scope: SchemaScope) -> Schema:
        return {
            "type": "object",
            "description": "Passed unchanged to the upstream, "
            "if the model's upstream supports the Responses API.",
        }


@dataclass(frozen=True, slots=True)
class _OwnOrPassed(Check):
    """A tool for a native upstream: checked if it names something of this server, a vector store or
    a container, else passed on."""

    kind: str
    own: Check

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        tool = {**value, "type": self.kind} if type(value) is dict else {"type": ""}
        if is_own_file_search(tool) or is_own_code_tool(tool):
            checked: dict[str, Any] = self.own(value, where)
            return checked
        return _PASSED(value, where)

    def schema(self, scope: SchemaScope) -> Schema:
        return _PASSED.schema(scope)


_PASSED = _PassthroughTool()

_CLIENT_TOOLS: dict[str, Check] = {
    **_NAMED_TOOLS,
    "namespace": _NAMESPACE,
    "tool_search": _TOOL_SEARCH,
    "local_shell": _EMPTY,
    "shell": _SHELL,
    "apply_patch": _EMPTY,
    **dict.fromkeys(COMPUTERS, Record({}, _DISPLAY)),
    COMPUTER_PREVIEW: Record(_DISPLAY),
    **dict.fromkeys(sorted(WEB_SEARCH), _WEB_SEARCH),
}
_SERVER_TOOLS: dict[str, Check] = {
    FILE_SEARCH: FILE_SEARCH_TOOL,
    IMAGE_GENERATION: IMAGE_GENERATION_TOOL,
    "mcp": McpTool(),
    "code_interpreter": CODE_INTERPRETER_TOOL,
}
_PASSED_ON: dict[str, Check] = {
    **dict.fromkeys((*NATIVE_ONLY_TOOLS, *COMPUTERS, "tool_search", *sorted(WEB_SEARCH)), _PASSED),
    FILE_SEARCH: _OwnOrPassed(FILE_SEARCH, FILE_SEARCH_TOOL),
    "code_interpreter": _OwnOrPassed("code_interpreter", CODE_INTERPRETER_TOOL),
    "shell": _OwnOrPassed("shell", _SHELL),
}


@dataclass(frozen=True, slots=True)
class _Tools(Check):
    """Tools without two of the same name in one namespace, because a call carries only names."""

    tools: Component
    only_direct: bool
    """No program of the model can call a tool."""

    def __call__(self, value: Any, where: str) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = self.tools(value, where)
        if self.only_direct:
            _require_direct(value, where)
        _require_distinct_names(tools, where)
        require_distinct_labels(tools, where)
        require_one_search(tools, where)
        require_one_container_tool(tools, where)
        return tools

    def schema(self, scope: SchemaScope) -> Schema:
        return self.tools.schema(scope)


def _tools(
    component: str,
    kinds: dict[str, Check],
    refused: dict[str, str],
    *,
    only_direct: bool = False,
) -> _Tools:
    tools = Array(Tagged(kinds, refused), at_most=MAX_TOOLS)
    return _Tools(Component(component, tools), only_direct)


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
    {**_ADDED, "mcp": FoundMcpTools()},
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


_NAMED = Record({"name": _NAME}, {"namespace": _NAME})
_BUILT_IN_TOOLS = (
    *sorted(WEB_SEARCH),
    *("file_search", "code_interpreter", IMAGE_GENERATION),
    *COMPUTERS,
    *("shell", "local_shell", "apply_patch", "programmatic_tool_calling", "tool_search"),
)
_CHOICES: dict[str, Check] = {
    "function": _NAMED,
    "custom": _NAMED,
    "mcp": Record({"server_label": _TEXT}, {"name": _TEXT}),
    **dict.fromkeys(_BUILT_IN_TOOLS, _EMPTY),
}
_ALLOWED: dict[str, Check] = {**_CHOICES, "namespace": Record({"name": _NAME})}
_ALLOWED_TOOLS = Record({"mode": Choice("auto", "required"), "tools": Array(Tagged(_ALLOWED))})

TOOL_CHOICE = ByJsonType(
    "a string or an object",
    {
        str: Choice("none", "auto", "required"),
        dict: Component("ToolChoiceObject", Tagged({"allowed_tools": _ALLOWED_TOOLS, **_CHOICES})),
    },
)
"""The shape of a `tool_choice`. `require_valid_choice` compares it with the tools."""
