"""Structured output: the fields that ask an upstream for JSON, and the instructions for
upstreams that have no such field."""

from collections.abc import Collection
from typing import Any

import msgspec

from models.config.dialect import StructuredOutput
from worker.translation.tool_schemas import omit_keywords

_JSON_ONLY = "Answer with JSON alone: no word before or after it, and no code fence around it."

_JSON_OBJECT_FIELDS = {"response_format": {"type": "json_object"}}


def format_fields(
    text: dict[str, Any], mode: StructuredOutput, omitted_keywords: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of a chat request for the `text` of a create request; the schema without these
    keywords."""
    wanted = text.get("format", {})
    match wanted.get("type"), mode:
        case ("json_schema", "json_schema"):
            schema = {
                name: wanted[name]
                for name in ("name", "schema", "strict", "description")
                if name in wanted
            }
            if omitted_keywords:
                schema["schema"] = omit_keywords(schema["schema"], omitted_keywords)
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case ("json_schema", "guided_json"):
            return {"guided_json": wanted["schema"]}
        case ("json_schema", "json_object"):
            return _JSON_OBJECT_FIELDS
        case ("json_object", other) if other != "prompt":
            return _JSON_OBJECT_FIELDS
        case _:
            return {}


def format_instructions(text: dict[str, Any], mode: StructuredOutput) -> str | None:
    """Instructions for the model about the format; None if the request's fields express all of
    it."""
    wanted = text.get("format", {})
    kind = wanted.get("type")
    if kind == "json_object" and mode == "prompt":
        return f"{_JSON_ONLY} It must be one JSON object."
    if kind != "json_schema" or mode not in ("json_object", "prompt"):
        return None
    description = f" {wanted['description']}" if wanted.get("description") else ""
    schema = msgspec.json.encode(wanted["schema"]).decode()
    return (
        f"{_JSON_ONLY} It is called '{wanted['name']}'.{description} "
        f"It must obey this JSON Schema:\n{schema}"
    )


class FenceStripper:
    """Removes a code fence from a text that comes in pieces: models that get only instructions
    often put one around JSON.

    A fence is a first line that begins with three backticks and a last line that is three
    backticks, with the white space around both. Any other text passes unchanged.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._has_fence: bool | None = None
        """None until it is known."""

    def strip(self, text: str) -> str:
        """The text that this piece adds. Text that may belong to a fence is held back."""
        if self._has_fence is False:
            return text
        pending, self._buffer = self._buffer + text, ""
        if self._has_fence is None:
            content = self._strip_opening(pending)
            if content is None:
                self._buffer = pending
                return ""
            pending = content
        return self._hold_back_closing(pending) if self._has_fence else pending

    def flush(self) -> str:
        """The text that was held back when the text ended, unless it was the closing fence."""
        pending, self._buffer = self._buffer, ""
        return "" if self._has_fence and pending.strip() == _FENCE else pending

    def _strip_opening(self, text: str) -> str | None:
        """The text after the opening fence; all of the text if it has no fence; None while that
        is not known."""
        start = text.lstrip()
        if not start.startswith(_FENCE[: len(start)]):
            self._has_fence = False
            return text
        line, ended, rest = start.partition("\n")
        if ended:
            self._has_fence = True
            return rest
        if len(line) > _MAX_FENCE_LINE:
            self._has_fence = False
            return text
        return None

    def _hold_back_closing(self, text: str) -> str:
        """The text without an end that may be the closing fence: white space, backticks, white
        space."""
        end = len(text.rstrip().rstrip("`").rstrip())
        self._buffer = text[end:]
        return text[:end]


_FENCE = "```"
_MAX_FENCE_LINE = 40
"""Characters of the line that opens a fence: room for the name of a language."""
