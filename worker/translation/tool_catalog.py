"""What the model may call in a turn: every tool as one function of a chat upstream, and back again (contract §7.1).

A chat upstream knows functions, each under one name of at most 64 characters. The client knows functions, free text tools, built-in
tools that it runs itself, and namespaces in which names may occur again. So each tool gets a name of its own here, and the table of
these names is what turns a call back into the right item. Tools that came in the middle of the conversation are offered from there on.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from models.wire.events import Item
from models.wire.tools import CallableTool, CallTarget, added_tools, callable_tools, match_choice
from worker.translation.items.built_in_tools import BUILT_IN_TOOLS
from worker.translation.items.citations import citation_sources
from worker.translation.items.custom_tools import CUSTOM_TOOL_ARGUMENT
from worker.translation.items.server_calls import ServerFunction, matches_choice

Function = dict[str, Any]
"""A chat function without its name: `description`, `parameters`, `strict`."""

MAX_FUNCTION_NAME = 64
"""Characters of a function's name that chat upstreams take."""

_UNUSABLE_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_LENGTH = 8
"""Hex digits that tell apart names which would be the same."""


@dataclass(frozen=True, slots=True)
class ToolCatalog:
    """What one turn's model may call. Names are those that the upstream is told."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    """What is offered, in the order of the tools."""
    targets: Mapping[str, CallTarget] = field(default_factory=dict)
    """What a call of each name means; also of tools that are not offered now."""
    names: Mapping[CallTarget, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """What the model may cite: URL -> title (worker/translation/items/citations.py)."""
    server_functions: Mapping[str, ServerFunction] = field(default_factory=dict)
    """What this server runs, also what is not offered now."""
    choice: str | dict[str, Any] | None = None
    """`tool_choice` in the words of chat."""
    callable_names: frozenset[str] | None = None
    """The only names that may be called, as `tool_choice` has it (contract §7.1: a hard constraint); None: any."""

    def name_of(self, target: CallTarget) -> str:
        """What the upstream calls it; for a tool that is gone, what it would be called."""
        return self.names.get(target) or _function_name(target, ())

    def to_json(self) -> dict[str, Any]:
        """`tools` and `tool_choice` of a chat request: upstreams refuse the second without the first."""
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
) -> ToolCatalog:
    """What the tools and the `tool_choice` of a request offer, together with the tools that its history brings.

    `hosted` are the functions that this server runs, by the name the model is to know. A tool to be loaded on demand (`defer_loading`) is
    held back while there is a search that can load it, unless the choice names it. Of two tools with the same name the later counts.
    """
    known = {
        _override_key(each.target): each
        for each in callable_tools([*parameters.get("tools", ()), *added_tools(history)])
    }
    loaded = {
        id(each.tool)
        for each in callable_tools(
            added_tools(item for item in history if item["type"] == "tool_search_output")
        )
    }
    names = function_names((each.target for each in known.values()), server_functions)
    choice = _ToolChoice(parameters.get("tool_choice"), names, server_functions)
    searchable = any(target.item == "tool_search_call" for target in names)
    functions = {}
    for each in known.values():
        name = names[each.target]
        held_back = (
            searchable and each.tool.get("defer_loading", False) and id(each.tool) not in loaded
        )
        if choice.includes(name) and (not held_back or name in choice.chosen_names):
            functions[name] = _function(each)
    functions |= {
        name: _server_function(function)
        for name, function in server_functions.items()
        if choice.includes(name)
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
    """A `tool_choice` in the names that the upstream is told."""

    def __init__(
        self,
        choice: str | dict[str, Any] | None,
        names: Mapping[CallTarget, str],
        server_functions: Mapping[str, ServerFunction],
    ) -> None:
        self._choice = choice
        self.chosen_names: list[str] = []
        """The tools it names, in its order; a word names none."""
        self._names_client_tools = False
        if choice is None or isinstance(choice, str):
            return
        chosen = choice["tools"] if choice["type"] == "allowed_tools" else [choice]
        ours = [
            name
            for name, function in server_functions.items()
            if any(matches_choice(function.tool, one) for one in chosen)
        ]
        found = [names[target] for one in chosen for target in match_choice(one, names)]
        self.chosen_names = list(dict.fromkeys([*found, *ours]))
        self._names_client_tools = bool(found)

    def includes(self, name: str) -> bool:
        """Whether the upstream is shown the tool. Chat servers other than OpenAI's know no allowed tools: what is not allowed is not
        offered. Nor do they know a demand for one of a server's tools: then those alone are offered."""
        choice = self._choice
        return (
            choice is None
            or isinstance(choice, str)
            or name in self.chosen_names
            or self._requires_one
        )

    @property
    def callable_names(self) -> frozenset[str] | None:
        """See Offer."""
        return None if self._choice in (None, "auto", "required") else frozenset(self.chosen_names)

    @property
    def _requires_one(self) -> bool:
        """Whether it demands one tool that the client runs: others may be shown, they cannot be called."""
        return (
            isinstance(self._choice, dict)
            and self._choice["type"] != "allowed_tools"
            and self._names_client_tools
        )

    def to_chat(self) -> str | dict[str, Any] | None:
        """The choice in the words of chat."""
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
    """A name for each target: at most 64 of the characters that chat upstreams take, no two the same and none of `others`.

    Tools outside of namespaces keep theirs, if it is short enough.
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
    """The tool's own name, its namespace before it; where that cannot be used, as much of it as there is room for, and a mark."""
    wanted = BUILT_IN_TOOLS[target.item].name if target.item in BUILT_IN_TOOLS else target.name
    if target.namespace is not None:
        wanted = f"{target.namespace}__{wanted}"
    name = _UNUSABLE_CHARACTER.sub("_", wanted)
    tries = 0
    while name != wanted or len(name) > MAX_FUNCTION_NAME or name in taken:
        mark = hashlib.sha256(
            f"{target.item}\0{target.namespace}\0{target.name}\0{tries}".encode()
        ).hexdigest()[:_HASH_LENGTH]
        wanted = name = (
            f"{_UNUSABLE_CHARACTER.sub('_', wanted)[: MAX_FUNCTION_NAME - _HASH_LENGTH - 1]}_{mark}"
        )
        tries += 1
    return name


def _override_key(target: CallTarget) -> tuple[str | None, str, str]:
    """Where a later tool takes an earlier one's place: under the same name, or as the same built-in tool."""
    return target.namespace, target.name, "" if target.name else target.item


def _server_function(function: ServerFunction) -> Function:
    described = {} if function.description is None else {"description": function.description}
    return {**described, "parameters": function.parameters}


def _function(each: CallableTool) -> Function:
    tool, item = each.tool, each.target.item
    if item in BUILT_IN_TOOLS:
        known = BUILT_IN_TOOLS[item]
        return {
            "description": _built_in_description(each),
            "parameters": tool.get("parameters") or known.parameters,
        }
    function: Function = {
        name: tool[name] for name in ("description", "parameters", "strict") if name in tool
    }
    if item == "custom_tool_call":
        function["parameters"] = _custom_tool_parameters(tool)
    if (
        "parameters" not in function
    ):  # one that takes none, which strict upstreams want to hear in full
        closed = {"required": [], "additionalProperties": False} if function.get("strict") else {}
        function["parameters"] = {"type": "object", "properties": {}, **closed}
    if each.target.namespace is not None:
        words = (
            function.get("description"),
            f"Part of '{each.target.namespace}': {each.namespace}" if each.namespace else None,
        )
        function["description"] = "\n\n".join(word for word in words if word)
    return function


def _built_in_description(each: CallableTool) -> str:
    """The client's own words, or ours; what skills there are."""
    description: str = each.tool.get("description") or BUILT_IN_TOOLS[each.target.item].description
    skills = each.tool.get("environment", {}).get("skills", ())
    if not skills:
        return description
    told = "\n".join(
        f"- {skill.get('name')} ({skill.get('path')}): {skill.get('description')}"
        for skill in skills
    )
    return f"{description}\n\nThere are skills; read the SKILL.md in a skill's folder before you use it:\n{told}"


def _custom_tool_parameters(tool: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a function that stands for a custom tool: one string (worker/translation/items/custom_tools.py takes it out again)."""
    argument = {"type": "string"}
    shape = tool.get("format", {"type": "text"})
    if shape["type"] == "grammar":
        # no chat server holds a model to a grammar; it can at least be told
        argument["description"] = (
            f"Must match this {shape['syntax']} grammar:\n{shape['definition']}"
        )
    return {
        "type": "object",
        "properties": {CUSTOM_TOOL_ARGUMENT: argument},
        "required": [CUSTOM_TOOL_ARGUMENT],
        "additionalProperties": False,
    }
