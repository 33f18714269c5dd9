"""The tools of a request: which of them the model can call, and which one a `tool_choice` names.

The fields of a tool are checked in models/wire/checks/tools.py.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.errors import InvalidRequest
from models.wire.item_types import ADDS_TOOLS

WEB_SEARCH = frozenset(
    ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
)
"""The types of the web search tool."""

IMAGE_GENERATION = "image_generation"
"""The type of the tool that makes and edits images."""

FILE_SEARCH = "file_search"
"""The type of the tool that searches in vector stores."""
_OWN_STORE = re.compile("vs_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")
"""The ids that this server makes for vector stores (models/ids.py): other servers do not make a
UUIDv7 of them."""

CODE_TOOLS = ("code_interpreter", "shell")
"""The types of the tools that run in a container. A shell with another environment runs at the
client."""
_IN_CONTAINER = ("container_auto", "container_reference")
_OWN_CONTAINER = re.compile("cntr_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")
"""The ids that this server makes for containers, like those of vector stores."""

_OMIT_HINT = (
    ", or BACKBURNER_WEB_SEARCH__OMIT=true, which leaves it out for clients that always send it"
)

COMPUTER_PREVIEW = "computer_use_preview"
"""The type of the older computer tool, whose calls have one action each."""
COMPUTERS = ("computer", "computer_use", COMPUTER_PREVIEW)
"""The types of the computer tool."""

CALL_ITEM_TYPES = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "tool_search": "tool_search_call",
    "local_shell": "local_shell_call",
    "shell": "shell_call",
    "apply_patch": "apply_patch_call",
    **dict.fromkeys(COMPUTERS, "computer_call"),
}
"""type of a tool -> type of its call item."""

NATIVE_ONLY_TOOLS = (
    "code_interpreter",
    IMAGE_GENERATION,
    "programmatic_tool_calling",
)
"""Tools that only a native upstream can run. They are passed to it as the client sent them. So is a
file search in vector stores of the upstream (`is_native_only`). For other upstreams this server
makes the images itself, if its settings name a model for it."""


def has_domain_secrets(value: Any) -> bool:
    """Whether a tool, or JSON in it, has secrets for its container. Tools are stored and shown."""
    if isinstance(value, dict):
        return "domain_secrets" in value or any(map(has_domain_secrets, value.values()))
    return isinstance(value, list) and any(map(has_domain_secrets, value))


def allowed_domains_of(container: Mapping[str, Any]) -> Sequence[str]:
    """The hosts that a new container's code may reach. `container`: its fields, after their
    check."""
    policy = container.get("network_policy") or {}
    domains: Sequence[str] = policy.get("allowed_domains", ())
    return domains


def is_own_file_search(tool: Mapping[str, Any]) -> bool:
    """Whether the tool searches in vector stores of this server: it names one."""
    if tool["type"] != FILE_SEARCH:
        return False
    ids = tool.get("vector_store_ids")
    return type(ids) is list and any(
        type(each) is str and _OWN_STORE.fullmatch(each) is not None for each in ids
    )


def is_own_container(container_id: Any) -> bool:
    """Whether this server made the id of a container."""
    return type(container_id) is str and _OWN_CONTAINER.fullmatch(container_id) is not None


def is_code_tool(tool: Mapping[str, Any]) -> bool:
    """Whether the tool runs in a container: of this server, or of a native upstream."""
    if tool["type"] == "shell":
        environment = tool.get("environment")
        return isinstance(environment, Mapping) and environment.get("type") in _IN_CONTAINER
    return bool(tool["type"] == "code_interpreter")


def container_of(tool: Mapping[str, Any]) -> Any:
    """The id of the container that a tool names; what it says of a new one, if it names none."""
    if tool["type"] == "shell":
        environment = tool["environment"]
        return environment.get("container_id", environment)
    return tool.get("container")


def is_own_code_tool(tool: Mapping[str, Any]) -> bool:
    """Whether the tool runs in a container of this server: it names one."""
    return is_code_tool(tool) and is_own_container(container_of(tool))


def may_run_code(tool: Mapping[str, Any]) -> bool:
    """Whether the tool may run in a container of this server: it names one, or lets one be made."""
    return is_code_tool(tool) and (
        type(container := container_of(tool)) is not str or is_own_container(container)
    )


def is_native_only(tool: Mapping[str, Any]) -> bool:
    """Whether only a native upstream can run the tool. One that lets a container be made runs here
    too, if this server runs code (`may_run_code`)."""
    kind = tool["type"]
    if is_code_tool(tool):
        return not is_own_code_tool(tool)
    return kind in NATIVE_ONLY_TOOLS or (kind == FILE_SEARCH and not is_own_file_search(tool))


TOOL_SEARCH = "tool_search"
"""The type of the tool that finds tools which are loaded on demand (`defer_loading`)."""


def is_server_search(tool: Mapping[str, Any]) -> bool:
    """Whether the tool is a search for tools that the client does not run itself."""
    return bool(tool["type"] == TOOL_SEARCH and tool.get("execution") != "client")


def is_unchecked(tool: Mapping[str, Any]) -> bool:
    """Whether a native upstream gets the tool as the client sent it, with any fields that it may
    have."""
    may_pass = is_native_only(tool) or tool["type"] in ("shell", *COMPUTERS)
    return may_pass and not is_own_code_tool(tool)


@dataclass(frozen=True, slots=True)
class CallTarget:
    """What a tool call refers to, whatever name the upstream gets for it."""

    item: str
    """The type of the call item."""
    name: str = ""
    """Empty for a built-in tool, of which there is only one."""
    namespace: str | None = None
    takes_one_action: bool = field(default=False, compare=False)
    """The client is one of the older computer tool."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that the model may call, as the client described it."""

    target: CallTarget
    tool: Mapping[str, Any]
    namespace: str = ""
    """The description of its namespace."""


def callable_tools(tools: Iterable[Mapping[str, Any]]) -> Iterator[CallableTool]:
    """The tools that the client runs, those inside namespaces one by one.

    Other tools, such as web search and MCP servers, are left out.
    """
    for tool in tools:
        if tool["type"] == "namespace":
            for inner in tool["tools"]:
                yield CallableTool(
                    CallTarget(CALL_ITEM_TYPES[inner["type"]], inner["name"], tool["name"]),
                    inner,
                    tool["description"],
                )
        elif tool["type"] in CALL_ITEM_TYPES and not (is_server_search(tool) or is_code_tool(tool)):
            target = CallTarget(
                CALL_ITEM_TYPES[tool["type"]],
                tool.get("name", ""),
                takes_one_action=tool["type"] == COMPUTER_PREVIEW,
            )
            yield CallableTool(target, tool)


def added_tools(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The tools in items: added by the developer, or the output of a tool search."""
    for item in items:
        if item["type"] in ADDS_TOOLS:
            yield from item["tools"]


def loaded_mcp_tools(items: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """Label of the server and name of each MCP tool that tool searches have found. A compaction
    keeps these as added tools."""
    return {
        (tool["server_label"], name)
        for item in items
        if item["type"] in ADDS_TOOLS
        for tool in item["tools"]
        if tool["type"] == "mcp"
        for name in tool["allowed_tools"]
    }


def with_added_search(
    request_tools: list[dict[str, Any]], items: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The tools of a request. If none of them is a web search, the last web search among the tools
    in its items is added."""
    if any(tool["type"] in WEB_SEARCH for tool in request_tools):
        return request_tools
    return [
        *request_tools,
        *[tool for tool in added_tools(items) if tool["type"] in WEB_SEARCH][-1:],
    ]


def match_choice(chosen: dict[str, Any], targets: Iterable[CallTarget]) -> list[CallTarget]:
    """The targets that one object of a `tool_choice` names.

    A name without a namespace means the tool outside of namespaces; if there is none, the tools of
    that name in all namespaces.
    """
    if chosen["type"] == "namespace":
        return [target for target in targets if target.namespace == chosen["name"]]
    item, name = CALL_ITEM_TYPES.get(chosen["type"]), chosen.get("name", "")
    matches = [target for target in targets if (target.item, target.name) == (item, name)]
    if "namespace" in chosen:
        return [target for target in matches if target.namespace == chosen["namespace"]]
    return [target for target in matches if target.namespace is None] or matches


def require_valid_choice(
    choice: str | dict[str, Any], available: list[dict[str, Any]], *, has_web_search: bool = False
) -> None:
    """Raises InvalidRequest if the choice requires a tool that is not in `available`, or that
    cannot be run.

    `has_web_search`: this server, or the model's upstream, can search the web.
    """
    if choice == "required" and not available:
        raise _invalid_choice("Tool choice 'required' must be specified with 'tools' parameter.")
    targets = [each.target for each in callable_tools(available)]
    server_tools = [
        tool
        for tool in available
        if tool["type"] in ("mcp", FILE_SEARCH, *NATIVE_ONLY_TOOLS)
        or is_server_search(tool)
        or is_code_tool(tool)
        or (has_web_search and tool["type"] in WEB_SEARCH)
    ]
    if choice == "required" and not targets and not server_tools:
        raise _no_web_search()
    if isinstance(choice, str):
        return
    chosen_tools = choice["tools"] if choice["type"] == "allowed_tools" else [choice]
    counts = [_count_matches(tool, available, targets, server_tools) for tool in chosen_tools]
    if choice["type"] != "allowed_tools":
        _require_one_match(choice, counts[0])
    elif choice["mode"] == "required" and not any(counts):
        message = "Tool choice 'allowed_tools' with mode 'required' must name at least one tool."
        raise _no_web_search() if counts else _invalid_choice(message)


def require_no_search(
    tools: Iterable[dict[str, Any]], where: str, *, may_omit_marked: bool
) -> None:
    """Raises InvalidRequest for a web search, which neither this server nor the model's upstream
    can run. `where` is the name of the list in the request.

    Codex offers one with every request, whatever its user wants; it alone marks it with
    `external_web_access`. With `may_omit_marked` such a search is left out (docs/tools.md).
    """
    for index, tool in enumerate(tools):
        is_marked = "external_web_access" in tool
        if tool["type"] not in WEB_SEARCH or (is_marked and may_omit_marked):
            continue
        raise InvalidRequest(
            f"Nothing can run tools of the type '{tool['type']}' here: this server has no search "
            "provider. Leave the tool out, or let the server's operator set "
            f"BACKBURNER_WEB_SEARCH__PROVIDER{_OMIT_HINT if is_marked else ''}.",
            param=f"{where}[{index}]",
            code="unsupported_parameter",
        )


def require_no_images(tools: Iterable[dict[str, Any]]) -> None:
    """Raises InvalidRequest for an image generation, which neither this server nor the model's
    upstream can run."""
    for index, tool in enumerate(tools):
        if tool["type"] == IMAGE_GENERATION:
            raise InvalidRequest(
                f"Nothing can run tools of the type '{IMAGE_GENERATION}' here: the model's "
                "upstream makes no images in a response, and this server has no model for it. "
                "Leave the tool out, or let the server's operator set BACKBURNER_IMAGES__MODEL.",
                param=f"tools[{index}]",
                code="unsupported_parameter",
            )


def _require_one_match(chosen: dict[str, Any], count: int) -> None:
    if count > 1 and "name" not in chosen:
        raise _invalid_choice(f"Tool choice '{chosen['type']}' matches several tools.")
    if count > 1:
        raise _invalid_choice(
            f"Tool choice '{chosen['name']}' is in several namespaces: "
            "say which one in 'namespace'."
        )
    if not count:
        raise _no_web_search()


def _count_matches(
    chosen: dict[str, Any],
    available: list[dict[str, Any]],
    targets: list[CallTarget],
    server_tools: list[dict[str, Any]],
) -> int:
    """How many tools that can be run the choice names: 0 only for a web search without a provider.

    Raises InvalidRequest if it names no tool at all.
    """
    # The tools of an MCP server are not known yet, so the choice is valid if it names the server.
    is_server_tool = any(
        (tool["type"], tool.get("server_label")) == (chosen["type"], chosen.get("server_label"))
        for tool in server_tools
    )
    count = len(match_choice(chosen, targets)) or int(is_server_tool)
    is_search = chosen["type"] in WEB_SEARCH and any(
        tool["type"] == chosen["type"] for tool in available
    )
    if not count and not is_search:
        name = chosen.get("server_label") or chosen.get("name") or chosen["type"]
        raise _invalid_choice(f"Tool choice '{name}' not found in 'tools' parameter.")
    return count


def _no_web_search() -> InvalidRequest:
    return _invalid_choice(
        "Tool choice demands a web search, and this server has no search provider: its operator "
        "can set BACKBURNER_WEB_SEARCH__PROVIDER."
    )


def _invalid_choice(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="tool_choice", code="invalid_value")
