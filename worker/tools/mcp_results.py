"""The result of an MCP tool, for the item and for the model. The server's data is not trusted, and
whatever it sent is shown."""

import base64
import binascii
import json
import re
from typing import Any

from models.wire.json_input import clean_text
from worker.tools.provider import ToolResult

Json = dict[str, Any]

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
