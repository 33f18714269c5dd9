"""What an MCP server lists and answers, as items show it and the model gets it: its tools, one by
one, or why one cannot be used; and the result of a call. The server's data is not trusted, and
whatever it sent as a result is shown."""

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import Any

from models.errors import InvalidRequest
from models.wire.json_input import clean_text, decode_body, storable_numbers
from worker.tools.provider import ToolResult

Json = dict[str, Any]

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_MAX_REASONS = 20
_MAX_NAME = 128
"""Characters of a name in a reason."""


class UnusableTool(Exception):
    """The tool cannot be offered to a model. The message says why, and names it."""

    def __init__(self, name: str | None, why: str) -> None:
        """`name`: of the tool, if it has one."""
        self.name = name
        shown = "a tool" if name is None else f"'{clean_text(name)[:_MAX_NAME]}'"
        super().__init__(f"{shown} ({why})")


def item_tool(tool: Any) -> Json:
    """A tool as the item lists it: `name`, `input_schema`, `description`, `annotations`. It can be
    stored and sent: characters, depth and numbers are checked. Raises UnusableTool."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name:
        raise UnusableTool(None, "without a name")
    listed: Json = {"name": name, "input_schema": _input_schema(tool.get("inputSchema"), name)}
    if isinstance(description := tool.get("description"), str):
        listed["description"] = description
    if isinstance(given := tool.get("annotations"), dict):
        listed["annotations"] = _annotations(given)
    try:
        checked: Json = decode_body(json.dumps(storable_numbers(listed)).encode())
    except (InvalidRequest, RecursionError):
        raise UnusableTool(name, "it cannot be stored as JSON") from None
    return checked


def left_out_text(left_out: Sequence[UnusableTool]) -> str:
    """The `error` of a listing that has other tools."""
    more = len(left_out) - _MAX_REASONS
    shown = ", ".join(map(str, left_out[:_MAX_REASONS]))
    shown += f", and {more} more" if more > 0 else ""
    return f"Tools of this server that cannot be used were left out: {shown}."


def _input_schema(schema: Any, name: str) -> Json:
    """The schema of an object; of one that does not say so, if it may be one. Raises
    UnusableTool."""
    if schema is None or schema is True:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise UnusableTool(name, "its input schema is no object")
    types = schema.get("type", "object")
    if types is not None and "object" not in (types if isinstance(types, list) else [types]):
        raise UnusableTool(name, "its input is no object")
    return {**schema, "type": "object"}


def _annotations(given: Json) -> Json:
    kept: Json = {name: given[name] for name in _HINTS if isinstance(given.get(name), bool)}
    if isinstance(title := given.get("title"), str):
        kept["title"] = title
    return kept


_IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""Media types of images that upstreams accept."""
_DATA_URL = re.compile(r"data:([^;,]{1,100})[^,]{0,100},")
_ENVELOPE = frozenset(("_meta", "content", "isError", "resultType", "structuredContent"))
"""The members of a result. Servers of old versions have others, such as `toolResult`."""


def blocks_of(result: Json) -> list[Any]:
    """The content blocks of a result: a list, or what stands in the place of one."""
    content = result.get("content")
    if content is None:
        return []
    return content if isinstance(content, list) else [content]


def result_of(result: Json) -> ToolResult:
    """The call's `output` (one text) or its `error`; for the model also the images themselves.

    Text parts are joined by line breaks. Each part that is no text becomes a line that names it, or
    its JSON. Structured content becomes JSON if there is no text: servers should send both.
    """
    blocks = blocks_of(result)
    texts = [clean_text(_block_text(block)) for block in blocks]
    if not any(texts):
        texts = _other_content(result) or texts
    output = "\n".join(texts)
    if result.get("isError") in (True, "true", "True"):
        content = [{"type": "text", "text": output}]
        return ToolResult(
            fields={"error": {"type": "mcp_tool_execution_error", "content": content}}, failed=True
        )
    images = [part for block in blocks if (part := _image_part(block)) is not None]
    if not images:
        return ToolResult(fields={"output": output})
    return ToolResult(
        fields={"output": output}, tool_output=[{"type": "input_text", "text": output}, *images]
    )


def _other_content(result: Json) -> list[str]:
    """Structured content as JSON, or what else the result has."""
    structured = result.get("structuredContent")
    if structured is None:
        structured = {name: each for name, each in result.items() if name not in _ENVELOPE}
        if not structured:
            return []
    return [clean_text(_json(structured))]


def _block_text(block: Any) -> str:
    if not isinstance(block, dict):
        return block if isinstance(block, str) else _json(block)
    match block.get("type"), block:
        case "text", {"text": str(text)}:
            return text
        case ("image" | "audio") as kind, {"data": str(data)}:
            return f"[{kind}: {_media_type(block)}, {len(data) * 3 // 4} bytes]"
        case "resource_link", {"uri": str(uri)}:
            return f"[resource: {block.get('name') or uri} at {uri}]"
        case "resource", {"resource": {"text": str(text)}}:
            return text
        case "resource", {"resource": {"uri": str(uri)} as resource}:
            return f"[resource: {uri}, {resource.get('mimeType') or 'of unknown type'}]"
    return _json(block)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _media_type(block: Json) -> str:
    found = _DATA_URL.match(block["data"])
    given = block.get("mimeType")
    return given if isinstance(given, str) else found[1] if found else "of unknown type"


def _image_part(block: Any) -> Json | None:
    """The image as a part that upstreams accept; None if the block is no image or not a valid
    one."""
    match block:
        case {"type": "image", "data": str(data)} if (kind := _media_type(block)) in _IMAGES:
            encoded = "".join(_DATA_URL.sub("", data, count=1).split())
        case _:
            return None
    try:
        base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    return {
        "type": "input_image",
        "detail": "auto",
        "image_url": f"data:{kind};base64,{encoded}",
    }
