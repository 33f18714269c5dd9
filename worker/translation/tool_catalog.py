"""What the model may call in a turn: every tool as one function of a chat upstream.

A chat upstream knows functions, each with one name of at most 64 characters. The client knows
functions, custom tools, built-in tools that it runs itself, and namespaces that may repeat a name.
So each tool gets a unique function name here, and the table of these names turns a call into the
right item. Tools that were added in the middle of the conversation are offered from there on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from models.wire.events import Item
from models.wire.item_types import ADDS_TOOLS
from models.wire.tools import (
    COMPUTERS,
    CallableTool,
    CallTarget,
    added_tools,
    callable_tools,
    loaded_mcp_tools,
    match_choice,
)
from worker.translation.functions import (
    ServerFunction,
    function_parameters,
    is_usable_name,
    matches_choice,
    usable_characters,
    with_hash,
)
from worker.translation.items.citations import NO_SOURCES, Sources, citation_sources
from worker.translation.items.client_tools import BUILT_IN_TOOLS, CUSTOM_TOOL_ARGUMENT
from worker.translation.items.computer_actions import ACTION_SCHEMA, display_text

Function = dict[str, Any]
"""A chat function without its name: `description`, `parameters`, `strict`."""


@dataclass(frozen=True, slots=True)
class ToolCatalog:
    """What the model may call in one turn. Names are the function names that the upstream gets."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    """The offered functions, in the order of the tools."""
    targets: Mapping[str, CallTarget] = field(default_factory=dict)
    """Function name -> the client tool that a call of it means; includes tools that are not
    offered now."""
    names: Mapping[CallTarget, str] = field(default_factory=dict)
    """The reverse of `targets`."""
    sources: Sources = NO_SOURCES
    """What the model may cite."""
    server_functions: Mapping[str, ServerFunction] = field(default_factory=dict)
    """Function name -> the function that this server runs; includes functions that are not
    offered now."""
    choice: str | dict[str, Any] | None = None
    """`tool_choice` of the chat request."""
    callable_names: frozenset[str] | None = None
    """The only names that `tool_choice` allows (docs/tools.md); None: all."""

    def name_of(self, target: CallTarget) -> str:
        """The tool's function name; for a tool that no longer exists, the name that it would
        get."""
        return self.names.get(target) or _function_name(target, ())

    def without_server_functions(self) -> "ToolCatalog":
        """The catalog once `max_tool_calls` is reached: only the client's tools are offered.

        If there are none, the functions that this server runs stay and `tool_choice` is `none`:
        some upstreams refuse a history with calls without any tools. The names stay known, so that
        a call of one is recognised and ignored.
        """
        own = {
            name: function
            for name, function in self.functions.items()
            if name not in self.server_functions
        }
        return replace(self, functions=own) if own else replace(self, choice="none")

    def to_json(self) -> dict[str, Any]:
        """`tools` and `tool_choice` of a chat request. Upstreams refuse `tool_choice` without
        `tools`."""
        if not self.functions:
            return {}
        tools = [
            {"type": "function", "function": {"name": name, **function}}
            for name, function in self.functions.items()
        ]
        return (
            {"tools": tools}
            if self.choice is None
            else {"tools": tools, "tool_choice": self.choice}
        )


def build_tool_catalog(
    parameters: Mapping[str, Any],
    history: Sequence[Item] = (),
    server_functions: Mapping[str, ServerFunction] = MappingProxyType({}),
    *,
    defers_all: bool = False,
) -> ToolCatalog:
    """The catalog of a request: its tools, its `tool_choice`, and the tools that its history adds.

    `server_functions` are the functions that this server runs, by the name that the model knows. A
    tool that is loaded on demand (`defer_loading`) is not offered while a tool search can load it,
    unless the choice names it. `defers_all`: all named tools count as such. Of two tools with the
    same name the later one counts.
    """
    adding_items = [item for item in history if item["type"] in ADDS_TOOLS]
    client_tools = {
        _override_key(tool.target): tool
        for tool in callable_tools([*parameters.get("tools", ()), *added_tools(adding_items)])
    }
    loaded = {
        id(callable_tool.tool)
        for callable_tool in callable_tools(
            added_tools(item for item in adding_items if item["type"] == "tool_search_output")
        )
    }
    names = function_names((tool.target for tool in client_tools.values()), server_functions)
    choice = _ToolChoice(parameters.get("tool_choice"), names, server_functions)
    has_search = any(target.item == "tool_search_call" for target in names) or any(
        function.is_tool_search for function in server_functions.values()
    )
    functions = {}
    for tool in client_tools.values():
        name = names[tool.target]
        is_marked = tool.tool.get("defer_loading", False) or (defers_all and tool.target.name)
        is_deferred = has_search and is_marked and id(tool.tool) not in loaded
        if choice.includes(name) and (not is_deferred or name in choice.chosen_names):
            functions[name] = _function(tool)
    found = loaded_mcp_tools(adding_items)
    functions |= {
        name: function.to_json()
        for name, function in server_functions.items()
        if choice.includes(name)
        and (
            not (has_search and (function.deferred or (defers_all and function.is_mcp)))
            or (function.tool["server_label"], function.name) in found
            or name in choice.chosen_names
        )
    }
    return ToolCatalog(
        functions=functions,
        targets={name: target for target, name in names.items()},
        names=names,
        sources=citation_sources(history),
        server_functions=server_functions,
        choice=choice.to_chat(),
        callable_names=choice.callable_names,
    )


class _ToolChoice:
    """A `tool_choice`, by the function names that the upstream gets."""

    def __init__(
        self,
        choice: str | dict[str, Any] | None,
        names: Mapping[CallTarget, str],
        server_functions: Mapping[str, ServerFunction],
    ) -> None:
        self._choice = choice
        self.chosen_names: list[str] = []
        """The functions that it names, in its order. A choice that is a string names none."""
        self._names_client_tools = False
        if choice is None or isinstance(choice, str):
            return
        entries = choice["tools"] if choice["type"] == "allowed_tools" else [choice]
        server_names = [
            name
            for name, function in server_functions.items()
            if any(matches_choice(function.tool, entry) for entry in entries)
        ]
        client_names = [names[target] for entry in entries for target in match_choice(entry, names)]
        self.chosen_names = list(dict.fromkeys([*client_names, *server_names]))
        self._names_client_tools = bool(client_names)

    def includes(self, name: str) -> bool:
        """Whether the upstream is offered the function.

        Chat servers other than OpenAI's do not know `allowed_tools`: functions that are not allowed
        are not offered. They do not know a choice of a server's tools either: then only those are
        offered.
        """
        choice = self._choice
        return (
            choice is None
            or isinstance(choice, str)
            or name in self.chosen_names
            or self._requires_one
        )

    @property
    def callable_names(self) -> frozenset[str] | None:
        """As in ToolCatalog."""
        return None if self._choice in (None, "auto", "required") else frozenset(self.chosen_names)

    @property
    def _requires_one(self) -> bool:
        """Whether it requires a call of one client tool. Others may be offered too; the upstream
        cannot call them."""
        return (
            isinstance(self._choice, dict)
            and self._choice["type"] != "allowed_tools"
            and self._names_client_tools
        )

    def to_chat(self) -> str | dict[str, Any] | None:
        """The `tool_choice` of the chat request."""
        choice = self._choice
        if choice is None or isinstance(choice, str):
            return choice
        if choice["type"] == "allowed_tools":
            mode: str = choice["mode"]
            return mode
        return (
            {"type": "function", "function": {"name": self.chosen_names[0]}}
            if self._requires_one
            else "required"
        )


def function_names(
    targets: Iterable[CallTarget], others: Iterable[str] = ()
) -> dict[CallTarget, str]:
    """A function name for each target, as upstreams take it; no two are the same, none is in
    `others`.

    Tools outside of namespaces keep their own name if it is valid.
    """
    names: dict[CallTarget, str] = {}
    taken = set(others)
    for target in sorted(
        targets, key=lambda target: (target.namespace is not None, target.item in BUILT_IN_TOOLS)
    ):
        names[target] = _function_name(target, taken)
        taken.add(names[target])
    return names


def _function_name(target: CallTarget, taken: Iterable[str]) -> str:
    """The namespace and the tool's own name; if that is no valid or free name, the start of it
    and a hash."""
    wanted = BUILT_IN_TOOLS[target.item].name if target.item in BUILT_IN_TOOLS else target.name
    if target.namespace is not None:
        wanted = f"{target.namespace}__{wanted}"
    name = usable_characters(wanted)
    tries = 0
    while name != wanted or not is_usable_name(name) or name in taken:
        seed = f"{target.item}\0{target.namespace}\0{target.name}\0{tries}"
        wanted = name = with_hash(usable_characters(wanted), seed)
        tries += 1
    return name


def _override_key(target: CallTarget) -> tuple[str | None, str, str]:
    """Two tools with the same key: the later one replaces the earlier one. The name, or the kind
    of a built-in tool."""
    return target.namespace, target.name, "" if target.name else target.item


def _function(client_tool: CallableTool) -> Function:
    tool, item = client_tool.tool, client_tool.target.item
    if item in BUILT_IN_TOOLS:
        parameters = tool.get("parameters") or BUILT_IN_TOOLS[item].parameters
        if client_tool.target.takes_one_action:
            parameters = ACTION_SCHEMA
        return {"description": _built_in_description(client_tool), "parameters": parameters}
    function: Function = {
        name: tool[name] for name in ("description", "parameters", "strict") if name in tool
    }
    if item == "custom_tool_call":
        function["parameters"] = _custom_tool_parameters(tool)
    parameters = function_parameters(function.get("parameters"))
    if function.get("strict") and not parameters["properties"]:
        # The function has no parameters. Strict upstreams want an explicit schema for that.
        parameters = {"required": [], "additionalProperties": False, **parameters}
    function["parameters"] = parameters
    namespace = client_tool.target.namespace
    if namespace is not None:
        texts = (
            function.get("description"),
            f"Part of '{namespace}': {client_tool.namespace}" if client_tool.namespace else None,
        )
        function["description"] = "\n\n".join(text for text in texts if text)
    return function


def _built_in_description(client_tool: CallableTool) -> str:
    """The client's description or ours, the display, and a list of the skills."""
    tool = client_tool.tool
    description: str = (
        tool.get("description") or BUILT_IN_TOOLS[client_tool.target.item].description
    )
    if tool["type"] in COMPUTERS:
        return description + display_text(tool)
    skills = tool.get("environment", {}).get("skills", ())
    if not skills:
        return description
    skill_list = "\n".join(
        f"- {skill.get('name')} ({skill.get('path')}): {skill.get('description')}"
        for skill in skills
    )
    return (
        f"{description}\n\n"
        "There are skills; read the SKILL.md in a skill's folder before you use it:\n"
        f"{skill_list}"
    )


def _custom_tool_parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the function that stands for a custom tool: one string, which
    worker/translation/items/client_tools.py unwraps."""
    argument = {"type": "string"}
    shape = tool.get("format", {"type": "text"})
    if shape["type"] == "grammar":
        # No chat server enforces a grammar; the model can at least read it.
        argument["description"] = (
            f"Must match this {shape['syntax']} grammar:\n{shape['definition']}"
        )
    return {
        "type": "object",
        "properties": {CUSTOM_TOOL_ARGUMENT: argument},
        "required": [CUSTOM_TOOL_ARGUMENT],
        "additionalProperties": False,
    }
