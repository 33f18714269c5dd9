"""Calls of server tools in a history: the function calls and outputs that a model is shown for
them."""

import json
from typing import Any

from models.wire.events import Item
from worker.translation.history.call_arguments import object_arguments
from worker.translation.items.file_citations import passages_of, passages_text


def server_call_output(item: Item) -> Item | None:
    """The output of a call that this server ran, as the model got it; None if it is not known."""
    output = item.get("answer")
    if output is None and (passages := passages_of(item)) is not None:
        output = passages_text(passages)
    if output is None and item["type"] == "mcp_call" and item.get("status") != "incomplete":
        output = item.get("output")
        if output is None and item.get("error") is not None:
            output = f"Error: {_error_text(item['error'])}"
    return None if output is None else {"output": output}


def denied_call_output(item: Item) -> Item:
    """The output of a call that its client did not approve. An approved call is an item itself."""
    reason = item.get("reason")
    return {"output": "The user refused this call." + (f" Reason: {reason}" if reason else "")}


def _error_text(error: Any) -> str:
    """The text of an error of any shape: a string, `{message}`, or `{content: [{text}]}` as MCP
    tools send it."""
    if isinstance(error, dict):
        content = error.get("content")
        texts = (
            [part["text"] for part in content if isinstance(part, dict) and "text" in part]
            if isinstance(content, list)
            else []
        )
        error = "\n".join(map(str, texts)) or error.get("message") or json.dumps(error)
    return str(error)


def as_function_call(item: Item, name: str) -> Item:
    """A call of a server tool as the function call that the model made."""
    arguments = item.get("arguments", "")
    if item["type"] == "web_search_call":
        arguments = json.dumps(
            {"query": (item.get("action") or {}).get("query", "")}, ensure_ascii=False
        )
    if item["type"] == "file_search_call":
        arguments = json.dumps({"queries": item.get("queries") or []}, ensure_ascii=False)
    return {
        "type": "function_call",
        "call_id": item["id"],
        "name": name,
        "arguments": object_arguments(arguments),
    }
