"""How many tokens JSON for a model has: items, or the body of a request. Pure; texts are measured by whoever can, else estimated."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

TokenCounter = Callable[[str], int]
"""A text -> its tokens."""

IMAGE_TOKENS = 765
"""Tokens of an image: what OpenAI's models take for one of 1024 × 1024. Others differ, few by more than a factor of two."""
LOW_DETAIL_IMAGE_TOKENS = 85
"""The same with `detail: low`."""
AUDIO_BYTES_PER_SECOND = 16_000
"""Bytes of base64 that make a second of speech, about; ten tokens a second."""
FILE_BYTES_PER_TOKEN = 8
"""Bytes of base64 for a token of a file: half of a PDF is not text."""
OVERHEAD_TOKENS = 3
"""Tokens around a message, a call or an output, which templates add."""

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
"""Fields that no model is shown, or that cost next to nothing."""
_IMAGE_TYPES = frozenset(("input_image", "image_url", "computer_screenshot"))
_FILE_TYPES = frozenset(("input_file", "file"))


def estimate_tokens(text: str) -> int:
    """Four bytes of UTF-8 a token: near for English and code, and for Chinese three quarters of a token a character."""
    return -(-len(text.encode(errors="replace")) // 4)


def count_tokens(value: Any, count_text: TokenCounter = estimate_tokens) -> int:
    """Of one value: a message, an item, or a list of them. Images, audio and files cost by kind and size, whatever `measure` says."""
    match value:
        case str():
            return count_text(value)
        case dict():
            return _count_object(value, count_text)
        case list() | tuple():
            return sum(count_tokens(each, count_text) for each in value)
        case None:
            return 0
        case _:
            return 1


def count_request_tokens(
    body: Mapping[str, Any], count_text: TokenCounter = estimate_tokens
) -> int:
    """Of a request's body, Chat Completions or Responses: what is said, what may be called, and the form of the answer."""
    said = sum(
        count_tokens(body.get(name), count_text) for name in ("instructions", "input", "messages")
    )
    shapes = [body[name] for name in ("tools", "response_format") if body.get(name)]
    form = body.get("text")
    if isinstance(form, dict) and "schema" in form.get("format", {}):
        shapes.append(form["format"])
    return (
        said
        + sum(count_text(msgspec.json.encode(shape).decode()) for shape in shapes)
        + OVERHEAD_TOKENS
    )


def _count_object(value: dict[str, Any], count_text: TokenCounter) -> int:
    kind = value.get("type")
    if kind in _IMAGE_TYPES:
        shown = value.get("image_url")
        detail = shown.get("detail") if isinstance(shown, dict) else value.get("detail")
        return LOW_DETAIL_IMAGE_TOKENS if detail == "low" else IMAGE_TOKENS
    if kind in _FILE_TYPES:
        inner = value.get("file", value)
        return len(str(inner.get("file_data") or "")) // FILE_BYTES_PER_TOKEN + OVERHEAD_TOKENS
    if kind == "input_audio":
        return (
            len(str(value["input_audio"].get("data", ""))) * 10 // AUDIO_BYTES_PER_SECOND
            + OVERHEAD_TOKENS
        )
    inside = sum(
        count_tokens(each, count_text)
        for name, each in value.items()
        if name not in _UNCOUNTED_FIELDS and name != "type"
    )
    return inside + (
        OVERHEAD_TOKENS if "role" in value or "call_id" in value or kind == "function" else 0
    )
