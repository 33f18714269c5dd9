"""The functions of server tools: which function the model is offered for each, and under which
name.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.wire.events import Item
from worker.translation.items.function_names import (
    MAX_FUNCTION_NAME,
    is_usable_name,
    usable_characters,
    with_hash,
)
from worker.translation.items.server_calls import OpenCallFactory
from worker.translation.tool_schemas import function_parameters


@dataclass(frozen=True, slots=True)
class ServerFunction:
    """A function that the model may call and this server runs."""

    tool: Mapping[str, str]
    """What `tool_choice` calls it: `{"type": "mcp", "server_label": …, "name": …}`, `{"type":
    "web_search"}`."""
    name: str
    """The tool's own name. The model may know it under another one (`model_tool_names`)."""
    open_call: OpenCallFactory
    description: str | None = None
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """JSON schema."""

    def to_json(self) -> dict[str, Any]:
        """`description` and `parameters` of the function that stands for the tool."""
        described = {} if self.description is None else {"description": self.description}
        return {**described, "parameters": function_parameters(self.parameters)}


def model_tool_names(
    functions: Iterable[ServerFunction], client_names: Collection[str]
) -> dict[str, ServerFunction]:
    """The name under which the model calls each function, in order: its own if that is free, else
    with its server's label before it.

    `client_names` are the names of the client's own functions. The same functions always get the
    same names.
    """
    offered = list(functions)
    own = [function.name for function in offered]
    names: dict[str, ServerFunction] = {}
    for function in offered:
        is_free = (
            function.name not in client_names
            and own.count(function.name) == 1
            and is_usable_name(function.name)
        )
        name = function.name if is_free else _with_label(function)
        while name in client_names or name in names or (not is_free and name in own):
            name = with_hash(name, _seed(name, function))
        names[name] = function
    return names


def model_tool_name(item: Item, server_functions: Mapping[str, ServerFunction]) -> str:
    """The name under which a model is shown a call from the history, also when its tool is no
    longer offered.
    """
    for name, function in server_functions.items():
        if matches_choice(function.tool, _tool_choice_of(item)):
            return name
    name = str(item.get("name") or item["type"].removesuffix("_call"))
    return usable_characters(name)[:MAX_FUNCTION_NAME]


def matches_choice(tool: Mapping[str, str], choice: Mapping[str, Any]) -> bool:
    """Whether an entry of `tool_choice` means this tool.

    A field that the entry leaves out matches every value.
    """
    return choice.get("type") == tool["type"] and all(
        choice.get(key, value) == value for key, value in tool.items()
    )


def _tool_choice_of(item: Item) -> dict[str, Any]:
    tool: dict[str, Any] = {key: item[key] for key in ("server_label", "name") if key in item}
    tool["type"] = item["type"].removesuffix("_call")
    return tool


def _with_label(function: ServerFunction) -> str:
    name = f"{function.tool.get('server_label', function.tool['type'])}__{function.name}"
    if is_usable_name(name):
        return name
    usable = usable_characters(name)
    return with_hash(usable, _seed(usable, function))


def _seed(name: str, function: ServerFunction) -> str:
    return repr((name, sorted(function.tool.items()), function.name))
