"""A response becomes a message of Anthropic's API, and an error an error of it. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from features.messages.request import Thinking
from models.errors import ApiError
from models.wire.events import Item

Json = dict[str, Any]

_STOP_REASONS = {
    "max_output_tokens": "max_tokens",
    "content_filter": "refusal",
    "max_messages": "pause_turn",
}
"""Why a response is incomplete -> why the message ends."""


def message_of(response: Mapping[str, Any], thinking: Thinking) -> Json:
    """The message of a Response object that is completed or incomplete."""
    blocks = [block for item in response["output"] for block in blocks_of(item, thinking)]
    return {
        **empty_message(response["id"], response["model"]),
        "content": blocks,
        "stop_reason": stop_reason(response),
        "usage": {"input_tokens": 0, "output_tokens": 0, **usage_of(response["usage"])},
    }


def empty_message(response: str, model: str, input_tokens: int = 0) -> Json:
    """The message of a response (its id) that has not ended. `input_tokens`: an estimate."""
    return {
        "id": response,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }


def stop_reason(response: Mapping[str, Any]) -> str:
    """Why the message of a Response object ends."""
    details = response.get("incomplete_details")
    if details is not None:
        return _STOP_REASONS.get(details.get("reason"), "max_tokens")
    output = response["output"]
    if any(item["type"] == "function_call" for item in output):
        return "tool_use"
    return "refusal" if any(map(_is_refusal, output)) else "end_turn"


def usage_of(usage: Mapping[str, Any] | None) -> Json:
    """The token counts by Anthropic's sums: cached input is no part of `input_tokens`. Empty if
    they are not known."""
    if usage is None:
        return {}
    details = usage.get("input_tokens_details", {})
    read, written = details.get("cached_tokens", 0), details.get("cache_write_tokens", 0)
    return {
        "input_tokens": max(0, usage["input_tokens"] - read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": usage["output_tokens"],
    }


def blocks_of(item: Item, thinking: Thinking) -> Iterator[Json]:
    """The content blocks of an output item; none of one that has no place in a message."""
    match item["type"]:
        case "message":
            texts = (part.get("text") or part.get("refusal") for part in item["content"])
            yield from ({"type": "text", "text": text} for text in texts if text)
        case "reasoning" if thinking is not Thinking.HIDDEN:
            yield from _thinking_blocks(item, is_shown=thinking is Thinking.SHOWN)
        case "function_call":
            arguments = _arguments(item["arguments"])
            yield {**tool_use(item), "input": arguments}
        case "web_search_call":
            yield from _search_blocks(item)


def tool_use(item: Item) -> Json:
    """The block of a call, with the input that it begins with."""
    return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": {}}


def _is_refusal(item: Item) -> bool:
    return item["type"] == "message" and any(part["type"] == "refusal" for part in item["content"])


def _arguments(text: str) -> Json:
    """The input of a tool, which must be an object. What a limit has cut off is left out."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if type(value) is dict else {}


def _thinking_blocks(item: Item, *, is_shown: bool) -> Iterator[Json]:
    text = _joined(item.get("content", ()), "") or _joined(item.get("summary", ()), "\n\n")
    signature = item.get("encrypted_content", "")
    if text:
        shown = text if is_shown else ""
        yield {"type": "thinking", "thinking": shown, "signature": signature}
    elif signature:
        yield {"type": "redacted_thinking", "data": signature}


def _joined(parts: Iterable[Json], between: str) -> str:
    return between.join(part["text"] for part in parts)


def _search_blocks(item: Item) -> Iterator[Json]:
    """A search of the web, and the pages that it found. Their contents stay here."""
    action = item.get("action", {})
    name = f"srvtoolu_{item['id'].rpartition('_')[2]}"
    query = {"query": action.get("query", "")}
    yield {"type": "server_tool_use", "id": name, "name": "web_search", "input": query}
    content: Any = [
        {
            "type": "web_search_result",
            "url": source.get("url", ""),
            "title": source.get("title") or source.get("url", ""),
            "encrypted_content": "",
            "page_age": None,
        }
        for source in action.get("sources", ())
    ]
    if item.get("status") == "failed":
        content = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    yield {"type": "web_search_tool_result", "tool_use_id": name, "content": content}


_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OVERLOADED = 529
_OF_OPERATOR = "upstream_not_configured"
_TOO_LONG = "prompt is too long"
"""Words by which Claude Code recognises that it must compact its history."""


def status_of(error: ApiError) -> int:
    """The HTTP status. Anthropic has another one for a model that does not exist, and for a server
    that cannot serve the request now."""
    if error.code == "model_not_found" and error.status == 400:
        return 404
    if error.status == 503:
        return 500 if error.code == _OF_OPERATOR else _OVERLOADED
    return error.status


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body of an answer, and the data of an event."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = {} if error.code is None else {"details": {"error_code": error.code}}
    return {
        "type": "error",
        "error": {"type": kind, "message": _message(error), **details},
        "request_id": request_id,
    }


def _message(error: ApiError) -> str:
    """The message, with the place that it is about: Anthropic has no field for that."""
    if error.code == "context_length_exceeded":
        return f"{_TOO_LONG}: {error.message}"
    if error.param is None or f"'{error.param}'" in error.message:
        return error.message
    return f"{error.param}: {error.message}"
