"""The messages of Anthropic's API become input items of a response. Pure.

Blocks of tools that Anthropic's servers run are left out: their results mean nothing to another
model, and the text after them tells what they were used for.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from models.wire.checks.basic import Array, Boolean, ByJsonType, Choice, JsonObject, Record, String
from models.wire.checks.basic import Tagged as ByType
from models.wire.encrypted_content import is_sealed_here, parse_tagged
from models.wire.events import Item

Block = dict[str, Any]

_TEXT = String()
_NAME = String(non_empty=True)
_TEXT_BLOCK = Record({"text": _TEXT})
_IMAGE_SOURCE = ByType(
    {
        "base64": Record({"data": _TEXT, "media_type": _NAME}),
        "url": Record({"url": _NAME}),
        "file": Record({"file_id": _NAME}),
    }
)
_IMAGE = Record({"source": _IMAGE_SOURCE})
_PARTS = ByJsonType(
    "a string or an array of content blocks",
    {str: _TEXT, list: Array(ByType({"text": _TEXT_BLOCK, "image": _IMAGE}))},
)
_DOCUMENT_SOURCE = ByType(
    {
        "base64": Record({"data": _TEXT, "media_type": _NAME}),
        "url": Record({"url": _NAME}),
        "file": Record({"file_id": _NAME}),
        "text": Record({"data": _TEXT}),
        "content": Record({"content": _PARTS}),
    }
)
_DOCUMENT = Record({"source": _DOCUMENT_SOURCE}, {"title": _TEXT, "context": _TEXT})
_SEARCH_RESULT = Record(
    {"title": _TEXT, "source": _TEXT, "content": Array(ByType({"text": _TEXT_BLOCK}))}
)
_SHOWN = {
    "text": _TEXT_BLOCK,
    "image": _IMAGE,
    "document": _DOCUMENT,
    "search_result": _SEARCH_RESULT,
}
_RESULT = ByJsonType(
    "a string or an array of content blocks",
    {str: _TEXT, list: Array(ByType({**_SHOWN, "tool_reference": Record({"tool_name": _NAME})}))},
)
_OF_SERVERS = dict.fromkeys(
    (
        *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result"),
        *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
        *("mcp_tool_use", "mcp_tool_result", "advisor_tool_result", "fallback"),
    ),
    Record({}),
)
_BLOCK = ByType(
    {
        **_SHOWN,
        "thinking": Record({"thinking": _TEXT}, {"signature": _TEXT}),
        "redacted_thinking": Record({"data": _TEXT}),
        "tool_use": Record({"id": _NAME, "name": _NAME, "input": JsonObject()}),
        "tool_result": Record({"tool_use_id": _NAME}, {"content": _RESULT, "is_error": Boolean()}),
        **_OF_SERVERS,
    }
)
MESSAGES = Array(
    Record(
        {
            "role": Choice("user", "assistant", "system"),
            "content": ByJsonType(
                "a string or an array of content blocks", {str: _TEXT, list: Array(_BLOCK)}
            ),
        }
    ),
    non_empty=True,
)
"""The check of `messages`."""
SYSTEM = ByJsonType(
    "a string or an array of text blocks", {str: _TEXT, list: Array(ByType({"text": _TEXT_BLOCK}))}
)
"""The check of `system`."""

_ATTRIBUTION = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")
"""Claude Code begins its system prompt with this line, and it differs in each request: no cache of
prompts would ever be hit."""
_LONGEST_CALL_ID = 64


def instructions_of(system: str | list[Block]) -> str:
    """The text of a checked `system`."""
    blocks = [system] if isinstance(system, str) else [block["text"] for block in system]
    texts = (_ATTRIBUTION.sub("", text, count=1) for text in blocks)
    return "\n\n".join(text for text in texts if text.strip())


def input_items(messages: Iterable[Mapping[str, Any]]) -> list[Item]:
    """The items of checked `messages`."""
    items: list[Item] = []
    for message in messages:
        content = message["content"]
        blocks = [_text_block(content)] if isinstance(content, str) else content
        items += _ITEMS_OF[message["role"]](blocks)
    return items


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _items_of_user(blocks: list[Block]) -> list[Item]:
    """The results of tools first: they belong to the calls before them."""
    outputs = [_output(block) for block in blocks if block["type"] == "tool_result"]
    parts = [part for block in blocks for part in _parts(block)]
    return [*outputs, _user_message(parts)] if parts else outputs


def _items_of_system(blocks: list[Block]) -> list[Item]:
    """Instructions inside the conversation, as Claude Code writes them where a model takes none:
    many templates accept a system message only at the beginning, and moved there it would change
    the beginning of each further prompt."""
    text = "\n\n".join(part["text"] for block in blocks for part in _parts(block) if "text" in part)
    return [_user_message([_input_text(f"<system-reminder>\n{text}\n</system-reminder>")])]


def _items_of_assistant(blocks: list[Block]) -> list[Item]:
    items: list[Item] = []
    for block in blocks:
        if block["type"] == "text" and block["text"]:
            part = {"type": "output_text", "text": block["text"], "annotations": []}
            if items and items[-1].get("role") == "assistant":
                items[-1]["content"].append(part)
            else:
                items.append({"type": "message", "role": "assistant", "content": [part]})
        elif block["type"] == "tool_use":
            arguments = json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))
            call = {"call_id": _call_id(block["id"]), "name": block["name"], "arguments": arguments}
            items.append({"type": "function_call", **call})
        elif block["type"] in ("thinking", "redacted_thinking"):
            items += _reasoning(
                block.get("thinking", ""), block.get("signature", block.get("data"))
            )
    return items


_ITEMS_OF: Mapping[str, Callable[[list[Block]], list[Item]]] = {
    "user": _items_of_user,
    "system": _items_of_system,
    "assistant": _items_of_assistant,
}


def _user_message(parts: list[dict[str, Any]]) -> Item:
    return {"type": "message", "role": "user", "content": parts}


def _call_id(given: str) -> str:
    """The id of a call. One that is too long for this server, from another one, becomes its
    hash."""
    is_long = len(given) > _LONGEST_CALL_ID
    return f"call_{hashlib.sha256(given.encode()).hexdigest()[:40]}" if is_long else given


def _reasoning(text: str, signature: str | None) -> list[Item]:
    """The reasoning item, if anything of it means something here. A signature of Anthropic does
    not."""
    item: Item = {"type": "reasoning", "summary": []}
    tagged = None if signature is None else parse_tagged(signature)
    if signature is not None and (tagged is not None or is_sealed_here(signature)):
        item["encrypted_content"] = signature
    if text and tagged is not None:
        item["summary"] = [{"type": "summary_text", "text": text}]
    elif text:
        item["content"] = [{"type": "reasoning_text", "text": text}]
    return [item] if len(item) > 2 else []


def _output(block: Block) -> Item:
    """The result of a tool. That it is an error is said in words: items have no field for it."""
    content = block.get("content", "")
    blocks = [_text_block(content)] if isinstance(content, str) else content
    parts = [part for inner in blocks for part in _parts(inner)]
    if block.get("is_error"):
        parts.insert(0, _input_text("The tool reports an error:"))
    output: Any = parts
    if all(part["type"] == "input_text" for part in parts):
        output = "\n".join(part["text"] for part in parts)
    return {
        "type": "function_call_output",
        "call_id": _call_id(block["tool_use_id"]),
        "output": output,
    }


def _input_text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _parts(block: Block) -> list[dict[str, Any]]:
    """The content parts of a block; none for one that is no content of a message."""
    match block["type"]:
        case "text":
            return [_input_text(block["text"])] if block["text"] else []
        case "image":
            return [{"type": "input_image", **_image(block["source"])}]
        case "document":
            return _document(block)
        case "search_result":
            texts = [inner["text"] for inner in block["content"]]
            return [_input_text("\n".join((block["title"], block["source"], *texts)))]
        case "tool_reference":
            return [_input_text(f"The tool {block['tool_name']} is available.")]
        case _:
            return []


def _image(source: Block) -> dict[str, Any]:
    match source["type"]:
        case "base64":
            return {"image_url": f"data:{source['media_type']};base64,{source['data']}"}
        case "url":
            return {"image_url": source["url"]}
        case _:
            return {"file_id": source["file_id"]}


def _document(block: Block) -> list[dict[str, Any]]:
    source = block["source"]
    about = [block[name] for name in ("title", "context") if block.get(name)]
    match source["type"]:
        case "text":
            return [_input_text("\n\n".join((*about, source["data"])))]
        case "content":
            inner = source["content"]
            blocks = [_text_block(inner)] if isinstance(inner, str) else inner
            return [*map(_input_text, about), *(part for each in blocks for part in _parts(each))]
        case "base64":
            data = f"data:{source['media_type']};base64,{source['data']}"
            file = {"filename": block.get("title") or "document.pdf", "file_data": data}
        case "url":
            file = {"file_url": source["url"]}
        case _:
            file = {"file_id": source["file_id"]}
    context = [_input_text(block["context"])] if block.get("context") else []
    return [*context, {"type": "input_file", **file}]
