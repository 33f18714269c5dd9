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
from models.wire.tools import Offered, Target, added_tools, meant, offered
from worker.translation.items.built_in_tools import BUILT_IN
from worker.translation.items.citations import sources_of
from worker.translation.items.custom_tools import CUSTOM_TOOL_ARGUMENT
from worker.translation.items.server_calls import HostedFunction, is_chosen

Function = dict[str, Any]
"""A chat function without its name: `description`, `parameters`, `strict`."""

LONGEST_NAME = 64
"""Characters of a function's name that chat upstreams take."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_MARK = 8
"""Hex digits that tell apart names which would be the same."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one turn's model may call. Names are those that the upstream is told."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    """What is offered, in the order of the tools."""
    targets: Mapping[str, Target] = field(default_factory=dict)
    """What a call of each name means; also of tools that are not offered now."""
    names: Mapping[Target, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """What the model may cite: URL -> title (worker/translation/items/citations.py)."""
    hosted: Mapping[str, HostedFunction] = field(default_factory=dict)
    """What this server runs, also what is not offered now."""
    choice: str | dict[str, Any] | None = None
    """`tool_choice` in the words of chat."""
    callable_names: frozenset[str] | None = None
    """The only names that may be called, as `tool_choice` has it (contract §7.1: a hard constraint); None: any."""

    def name_of(self, target: Target) -> str:
        """What the upstream calls it; for a tool that is gone, what it would be called."""
        return self.names.get(target) or _name(target, ())

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


def offer(
    parameters: Mapping[str, Any],
    history: Sequence[Item] = (),
    hosted: Mapping[str, HostedFunction] = MappingProxyType({}),
) -> Offer:
    """What the tools and the `tool_choice` of a request offer, together with the tools that its history brings.

    `hosted` are the functions that this server runs, by the name the model is to know. A tool to be loaded on demand (`defer_loading`) is
    held back while there is a search that can load it, unless the choice names it. Of two tools with the same name the later counts.
    """
    known = {
        _place(each.target): each
        for each in offered([*parameters.get("tools", ()), *added_tools(history)])
    }
    loaded = {
        id(each.tool)
        for each in offered(
            added_tools(item for item in history if item["type"] == "tool_search_output")
        )
    }
    names = flat_names((each.target for each in known.values()), hosted)
    choice = _Choice(parameters.get("tool_choice"), names, hosted)
    searchable = any(target.item == "tool_search_call" for target in names)
    functions = {}
    for each in known.values():
        name = names[each.target]
        held_back = (
            searchable and each.tool.get("defer_loading", False) and id(each.tool) not in loaded
        )
        if choice.shows(name) and (not held_back or name in choice.named):
            functions[name] = _function(each)
    functions |= {
        name: _hosted_function(function) for name, function in hosted.items() if choice.shows(name)
    }
    return Offer(
        functions=functions,
        targets={name: target for target, name in names.items()},
        names=names,
        sources=sources_of(history),
        hosted=hosted,
        choice=choice.to_chat(),
        callable_names=choice.callable_names,
    )


class _Choice:
    """A `tool_choice` in the names that the upstream is told."""

    def __init__(
        self,
        choice: str | dict[str, Any] | None,
        names: Mapping[Target, str],
        hosted: Mapping[str, HostedFunction],
    ) -> None:
        self._choice = choice
        self.named: list[str] = []
        """The tools it names, in its order; a word names none."""
        self._named_by_client = False
        if choice is None or isinstance(choice, str):
            return
        chosen = choice["tools"] if choice["type"] == "allowed_tools" else [choice]
        ours = [
            name
            for name, function in hosted.items()
            if any(is_chosen(function.tool, one) for one in chosen)
        ]
        found = [names[target] for one in chosen for target in meant(one, names)]
        self.named = list(dict.fromkeys([*found, *ours]))
        self._named_by_client = bool(found)

    def shows(self, name: str) -> bool:
        """Whether the upstream is shown the tool. Chat servers other than OpenAI's know no allowed tools: what is not allowed is not
        offered. Nor do they know a demand for one of a server's tools: then those alone are offered."""
        choice = self._choice
        return choice is None or isinstance(choice, str) or name in self.named or self._demands_one

    @property
    def callable_names(self) -> frozenset[str] | None:
        """See Offer."""
        return None if self._choice in (None, "auto", "required") else frozenset(self.named)

    @property
    def _demands_one(self) -> bool:
        """Whether it demands one tool that the client runs: others may be shown, they cannot be called."""
        return (
            isinstance(self._choice, dict)
            and self._choice["type"] != "allowed_tools"
            and self._named_by_client
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
            {"type": "function", "function": {"name": self.named[0]}}
            if self._demands_one
            else "required"
        )


def flat_names(targets: Iterable[Target], others: Iterable[str] = ()) -> dict[Target, str]:
    """A name for each target: at most 64 of the characters that chat upstreams take, no two the same and none of `others`.

    Tools outside of namespaces keep theirs, if it is short enough.
    """
    names: dict[Target, str] = {}
    taken = set(others)
    for target in sorted(
        targets, key=lambda target: (target.namespace is not None, target.item in BUILT_IN)
    ):
        names[target] = _name(target, taken)
        taken.add(names[target])
    return names


def _name(target: Target, taken: Iterable[str]) -> str:
    """The tool's own name, its namespace before it; where that cannot be used, as much of it as there is room for, and a mark."""
    wanted = BUILT_IN[target.item].name if target.item in BUILT_IN else target.name
    if target.namespace is not None:
        wanted = f"{target.namespace}__{wanted}"
    name = _FOREIGN.sub("_", wanted)
    tries = 0
    while name != wanted or len(name) > LONGEST_NAME or name in taken:
        mark = hashlib.sha256(
            f"{target.item}\0{target.namespace}\0{target.name}\0{tries}".encode()
        ).hexdigest()[:_MARK]
        wanted = name = f"{_FOREIGN.sub('_', wanted)[: LONGEST_NAME - _MARK - 1]}_{mark}"
        tries += 1
    return name


def _place(target: Target) -> tuple[str | None, str, str]:
    """Where a later tool takes an earlier one's place: under the same name, or as the same built-in tool."""
    return target.namespace, target.name, "" if target.name else target.item


def _hosted_function(function: HostedFunction) -> Function:
    described = {} if function.description is None else {"description": function.description}
    return {**described, "parameters": function.parameters}


def _function(each: Offered) -> Function:
    tool, item = each.tool, each.target.item
    if item in BUILT_IN:
        known = BUILT_IN[item]
        return {
            "description": _built_in_description(each),
            "parameters": tool.get("parameters") or known.parameters,
        }
    function: Function = {
        name: tool[name] for name in ("description", "parameters", "strict") if name in tool
    }
    if item == "custom_tool_call":
        function["parameters"] = _one_text(tool)
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


def _built_in_description(each: Offered) -> str:
    """The client's own words, or ours; what skills there are."""
    description: str = each.tool.get("description") or BUILT_IN[each.target.item].description
    skills = each.tool.get("environment", {}).get("skills", ())
    if not skills:
        return description
    told = "\n".join(
        f"- {skill.get('name')} ({skill.get('path')}): {skill.get('description')}"
        for skill in skills
    )
    return f"{description}\n\nThere are skills; read the SKILL.md in a skill's folder before you use it:\n{told}"


def _one_text(tool: dict[str, Any]) -> dict[str, Any]:
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
