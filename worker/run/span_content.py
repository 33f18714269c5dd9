"""What models and tools get and answer, as the attributes of spans. Only with
BACKBURNER_TRACES__CONTENT.

The form is that of OpenTelemetry's conventions for generative AI: messages with parts, as JSON.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from models.wire.events import Item

_MAX_LENGTH = 64 * 1024
"""Characters of one attribute. Of longer ones the newest messages are kept."""


def input_attributes(parameters: dict[str, Any], history: Sequence[Item]) -> dict[str, str]:
    """What a call sends to the model."""
    attributes = {"gen_ai.input.messages": _encode(_message(item) for item in reversed(history))}
    instructions = parameters.get("instructions")
    if isinstance(instructions, str):
        attributes["gen_ai.system_instructions"] = _encode(iter([_text(instructions)]))
    return attributes


def output_attributes(items: Sequence[Item], finish_reason: str) -> dict[str, str]:
    """What the model has answered."""
    parts = [part for item in items for part in _message(item)["parts"]]
    message = {"role": "assistant", "parts": parts, "finish_reason": finish_reason}
    return {"gen_ai.output.messages": _encode(iter([message]))}


def arguments_attributes(item: Item) -> dict[str, str]:
    """What a tool gets."""
    arguments = item.get("arguments") or item.get("action") or item.get("queries") or {}
    return {"gen_ai.tool.call.arguments": _limited(arguments)}


def result_attributes(result: object) -> dict[str, str]:
    """What a tool has answered."""
    return {"gen_ai.tool.call.result": _limited(result)}


def _message(item: Item) -> dict[str, Any]:
    kind: str = item["type"]
    if kind == "message":
        content = item.get("content") or []
        texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return {"role": item.get("role", "user"), "parts": [_part(part) for part in texts]}
    call_id = item.get("call_id") or item.get("id", "")
    if kind.endswith("_output"):
        result = {"type": "tool_call_response", "id": call_id, "result": item.get("output")}
        return {"role": "tool", "parts": [result]}
    if kind == "reasoning":
        summary = "\n".join(part.get("text", "") for part in item.get("summary") or ())
        return {"role": "assistant", "parts": [{"type": "reasoning", "content": summary}]}
    call = {"type": "tool_call", "id": call_id, "name": item.get("name", kind)}
    parts = [call | {"arguments": item.get("arguments") or item.get("action")}]
    if item.get("output") is not None:
        parts.append({"type": "tool_call_response", "id": call_id, "result": item["output"]})
    return {"role": "assistant", "parts": parts}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a message. Images, files and audio are named, without their data."""
    return _text(part["text"]) if "text" in part else {"type": part.get("type")}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _encode(newest_first: Iterator[dict[str, Any]]) -> str:
    """The messages as JSON, in the order of time."""
    encoded: list[str] = []
    length = 2
    for message in newest_first:
        one = _json(message)
        length += len(one) + 1
        if length > _MAX_LENGTH:
            break
        encoded.append(one)
    return f"[{','.join(reversed(encoded))}]"


def _json(value: object) -> str:
    # Not orjson: it refuses some integers, and a span must not end a response.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _limited(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text[:_MAX_LENGTH]
