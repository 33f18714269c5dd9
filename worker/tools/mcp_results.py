"""The result of an MCP tool, for the item and for the model. The server's data is not trusted."""

import base64
import binascii
import json
from typing import Any

import mcp_types as types

from models.wire.json_input import clean_text
from worker.tools.provider import ToolResult

_IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""Media types of images that upstreams accept."""


def result_of(result: types.CallToolResult) -> ToolResult:
    """The call's `output` (one text) or its `error`; for the model also the images themselves.

    Text parts are joined by line breaks. Each part that is no text becomes a line that names it.
    Structured content becomes JSON if there is no text: servers should send both.
    """
    texts = [_block_text(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [clean_text(json.dumps(result.structured_content, ensure_ascii=False))]
    if result.is_error:
        content = [{"type": "text", "text": "\n".join(texts)}]
        return ToolResult(
            fields={"error": {"type": "mcp_tool_execution_error", "content": content}}, failed=True
        )
    output = "\n".join(texts)
    images = [part for block in result.content if (part := _image_part(block)) is not None]
    if not images:
        return ToolResult(fields={"output": output})
    return ToolResult(
        fields={"output": output}, tool_output=[{"type": "input_text", "text": output}, *images]
    )


def _block_text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent(text=text):
            return clean_text(text)
        case types.ImageContent(data=data, mime_type=kind):
            return clean_text(f"[image: {kind}, {len(data) * 3 // 4} bytes]")
        case types.AudioContent(data=data, mime_type=kind):
            return clean_text(f"[audio: {kind}, {len(data) * 3 // 4} bytes]")
        case types.ResourceLink(name=name, uri=uri):
            return clean_text(f"[resource: {name} at {uri}]")
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return clean_text(text)
        case types.EmbeddedResource(resource=resource):
            return clean_text(
                f"[resource: {resource.uri}, {resource.mime_type or 'of unknown type'}]"
            )


def _image_part(block: types.ContentBlock) -> dict[str, Any] | None:
    """The image as a part that upstreams accept; None if the block is no image or not a valid
    one."""
    if not isinstance(block, types.ImageContent) or block.mime_type not in _IMAGES:
        return None
    try:
        base64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return {
        "type": "input_image",
        "detail": "auto",
        "image_url": f"data:{block.mime_type};base64,{block.data}",
    }
