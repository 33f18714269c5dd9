"""The tools of a chat request in the form that one upstream accepts."""

from collections.abc import Sequence
from typing import Any

from worker.translation.dialect import Dialect
from worker.translation.tool_catalog import ToolCatalog
from worker.translation.tool_schemas import omit_keywords

_ANY_ARGUMENTS = {"type": "object", "properties": {}}


def chat_tools(
    tool_catalog: ToolCatalog, messages: Sequence[dict[str, Any]], dialect: Dialect
) -> dict[str, Any]:
    """`tools` and `tool_choice`; empty where there are none. `messages` are those of the request:
    some upstreams want the functions of calls in them."""
    fields = _chosen(tool_catalog.to_json(), dialect)
    if not fields and dialect.tools_for_calls and (names := _called_names(messages)):
        stubs = [
            {"type": "function", "function": {"name": name, "parameters": _ANY_ARGUMENTS}}
            for name in names
        ]
        return {"tools": stubs, "tool_choice": "none"}
    if "tools" in fields:
        fields["tools"] = [
            {**tool, "function": _function(tool["function"], dialect)} for tool in fields["tools"]
        ]
    return fields


def _chosen(fields: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The tools and a `tool_choice` that the upstream accepts. A choice that it does not accept is
    expressed by the tools: of a named function, that one alone is offered; with `none`, no tool."""
    choice = fields.get("tool_choice")
    if choice is None or dialect.tool_choice == "named" or choice == "auto":
        return fields
    tools = fields["tools"]
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        tools = [tool for tool in tools if tool["function"]["name"] == name]
        choice = "required"
    if dialect.tool_choice == "required":
        return {"tools": tools, "tool_choice": choice}
    return {} if choice == "none" else {"tools": tools}


def _called_names(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the functions that the messages call, each once."""
    return list(
        dict.fromkeys(
            call["function"]["name"]
            for message in messages
            for call in message.get("tool_calls", ())
        )
    )


def _function(function: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    changed = dict(function)
    description = changed.get("description")
    if description is not None and not description.strip():
        del changed["description"]  # some upstreams want at least one character
    elif description is not None and dialect.description_limit is not None:
        changed["description"] = _cut(description, dialect.description_limit)
    if dialect.strict_tools == "all":
        changed["strict"] = True
    elif dialect.strict_tools == "none":
        changed.pop("strict", None)
    if dialect.omit_from_schemas:
        changed["parameters"] = omit_keywords(changed["parameters"], dialect.omit_from_schemas)
    return changed


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
