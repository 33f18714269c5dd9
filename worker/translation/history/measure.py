"""Tokens of JSON for a model: items, or the body of a request. Texts are counted with a
tokenizer if there is one, else estimated."""

from collections.abc import Callable, Mapping, Sized
from typing import Any

import msgspec

TokenCounter = Callable[[str], int]
"""A text -> its number of tokens."""

IMAGE_TOKENS = 765
"""Tokens of an image: those of OpenAI's models for 1024 × 1024 pixels. Few other models differ
by more than a factor of two."""
LOW_DETAIL_IMAGE_TOKENS = 85
"""Tokens of an image with `detail: low`."""
AUDIO_BYTES_PER_SECOND = 16_000
"""Approximate bytes of base64 for a second of speech, which has ten tokens."""
FILE_BYTES_PER_TOKEN = 8
"""Bytes of base64 for a token of a file: half of a PDF is not text."""
OVERHEAD_TOKENS = 3
"""Tokens that templates add around a message, a call or an output."""

_UNCOUNTED_FIELDS = frozenset(
    (
        "id",
        "status",
        "call_id",
        "tool_call_id",
        "annotations",
        "logprobs",
        "encrypted_content",
        "turn",
        "phase",
        "index",
    )
)
"""Fields that no model is shown, or that have almost no tokens."""
_IMAGE_TYPES = frozenset(("input_image", "image_url", "computer_screenshot"))
_FILE_TYPES = frozenset(("input_file", "file"))


def estimate_tokens(text: str) -> int:
    """Estimates four bytes of UTF-8 per token: close for English and code; for Chinese three
    quarters of a token per character."""
    return -(-len(text.encode(errors="replace")) // 4)


def count_tokens(value: Any, count_text: TokenCounter = estimate_tokens) -> int:
    """The tokens of a message, an item, or a list of them. Images, audio and files count by type
    and size, whatever `count_text` is."""
    match value:
        case str():
            return count_text(value)
        case dict():
            return _count_object(value, count_text)
        case list() | tuple():
            return sum(count_tokens(element, count_text) for element in value)
        case None:
            return 0
        case _:
            return 1


def count_request_tokens(
    body: Mapping[str, Any], count_text: TokenCounter = estimate_tokens
) -> int:
    """The tokens of a request's body, Chat Completions or Responses: the conversation, the
    tools, and the output format."""
    conversation = sum(
        count_tokens(body.get(name), count_text) for name in ("instructions", "input", "messages")
    )
    schemas = [body[name] for name in ("tools", "response_format") if body.get(name)]
    text = body.get("text")
    if isinstance(text, dict) and "schema" in text.get("format", {}):
        schemas.append(text["format"])
    return (
        conversation
        + sum(count_text(msgspec.json.encode(schema).decode()) for schema in schemas)
        + OVERHEAD_TOKENS
    )


def _count_object(value: dict[str, Any], count_text: TokenCounter) -> int:
    kind = value.get("type")
    if kind in _IMAGE_TYPES:
        image = value.get("image_url")
        detail = image.get("detail") if isinstance(image, dict) else value.get("detail")
        return LOW_DETAIL_IMAGE_TOKENS if detail == "low" else IMAGE_TOKENS
    if kind in _FILE_TYPES:
        file = value.get("file", value)
        data = file.get("file_data") or ""
        size = len(data) if isinstance(data, Sized) else len(str(data))
        return size // FILE_BYTES_PER_TOKEN + OVERHEAD_TOKENS
    if kind == "input_audio":
        return (
            len(str(value["input_audio"].get("data", ""))) * 10 // AUDIO_BYTES_PER_SECOND
            + OVERHEAD_TOKENS
        )
    inside = sum(
        count_tokens(field, count_text)
        for name, field in value.items()
        if name not in _UNCOUNTED_FIELDS and name != "type"
    )
    return inside + (
        OVERHEAD_TOKENS if "role" in value or "call_id" in value or kind == "function" else 0
    )
