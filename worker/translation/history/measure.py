"""How many tokens JSON for a model has: items, or the body of a request. Pure; texts are measured by whoever can, else estimated."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Measure = Callable[[str], int]
"""A text -> its tokens."""

IMAGE = 765
"""Tokens of an image: what OpenAI's models take for one of 1024 × 1024. Others differ, few by more than a factor of two."""
SMALL_IMAGE = 85
"""The same with `detail: low`."""
AUDIO_BYTES = 16_000
"""Bytes of base64 that make a second of speech, about; ten tokens a second."""
FILE_BYTES = 8
"""Bytes of base64 for a token of a file: half of a PDF is not text."""
PART = 3
"""Tokens around a message, a call or an output, which templates add."""

_UNSEEN = frozenset(
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
_IMAGES = frozenset(("input_image", "image_url", "computer_screenshot"))
_FILES = frozenset(("input_file", "file"))


def estimated(text: str) -> int:
    """Four bytes of UTF-8 a token: near for English and code, and for Chinese three quarters of a token a character."""
    return -(-len(text.encode(errors="replace")) // 4)


def tokens_of(value: Any, measure: Measure = estimated) -> int:
    """Of one value: a message, an item, or a list of them. Images, audio and files cost by kind and size, whatever `measure` says."""
    match value:
        case str():
            return measure(value)
        case dict():
            return _of_object(value, measure)
        case list() | tuple():
            return sum(tokens_of(each, measure) for each in value)
        case None:
            return 0
        case _:
            return 1


def tokens_of_request(body: Mapping[str, Any], measure: Measure = estimated) -> int:
    """Of a request's body, Chat Completions or Responses: what is said, what may be called, and the form of the answer."""
    said = sum(tokens_of(body.get(name), measure) for name in ("instructions", "input", "messages"))
    shapes = [body[name] for name in ("tools", "response_format") if body.get(name)]
    form = body.get("text")
    if isinstance(form, dict) and "schema" in form.get("format", {}):
        shapes.append(form["format"])
    return said + sum(measure(msgspec.json.encode(shape).decode()) for shape in shapes) + PART


def _of_object(value: dict[str, Any], measure: Measure) -> int:
    kind = value.get("type")
    if kind in _IMAGES:
        shown = value.get("image_url")
        detail = shown.get("detail") if isinstance(shown, dict) else value.get("detail")
        return SMALL_IMAGE if detail == "low" else IMAGE
    if kind in _FILES:
        inner = value.get("file", value)
        return len(str(inner.get("file_data") or "")) // FILE_BYTES + PART
    if kind == "input_audio":
        return len(str(value["input_audio"].get("data", ""))) * 10 // AUDIO_BYTES + PART
    inside = sum(
        tokens_of(each, measure)
        for name, each in value.items()
        if name not in _UNSEEN and name != "type"
    )
    return inside + (PART if "role" in value or "call_id" in value or kind == "function" else 0)
