"""Calls that this server ran, as a model is told of them later: as calls of a function, whichever API its upstream speaks. Pure."""

import json
from typing import Any

from models.wire.events import Item
from worker.translation.items.text_items import is_json_object


def server_call_output(item: Item) -> Item | None:
    """What the model was told of a call that this server ran, as an output; None when that is not known."""
    told = item.get("answer")
    if told is None and item["type"] == "mcp_call" and item.get("status") != "incomplete":
        told = item.get("output")
        if told is None and item.get("error") is not None:
            told = f"Error: {_error_text(item['error'])}"
    return None if told is None else {"output": told}


def denied_call_output(item: Item) -> Item:
    """What the model is told of a call that its client did not approve; one that was approved is an item of its own."""
    reason = item.get("reason")
    return {"output": "The user refused this call." + (f" Reason: {reason}" if reason else "")}


def _error_text(error: Any) -> str:
    """The words in an error of whatever shape: a string, `{message}`, or `{content: [{text}]}` as MCP's tools give it."""
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
    """A call of a hosted tool as the function call it was for the model."""
    arguments = item.get("arguments", "")
    if item["type"] == "web_search_call":
        arguments = json.dumps(
            {"query": (item.get("action") or {}).get("query", "")}, ensure_ascii=False
        )
    # templates of local servers parse the arguments; what is no object would make them refuse the whole conversation
    return {
        "type": "function_call",
        "call_id": item["id"],
        "name": name,
        "arguments": arguments if is_json_object(arguments) else "{}",
    }
