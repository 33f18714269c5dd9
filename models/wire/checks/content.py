"""Content parts: of messages, and of the outputs of tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import NULL, Schema, SchemaScope
from models.wire.checks import basic
from models.wire.checks.faults import missing

TEXT = basic.String()
OPEN_OBJECT = basic.OpenObject()

_URL_SCHEMES = ("https://", "http://", "data:")
FILE_ID = basic.String(at_most=64, pattern="[A-Za-z0-9_-]+")
"""The id of a file of this server, or of an upstream's account (docs/files.md)."""

_IMAGE = basic.Record(
    {},
    {
        "image_url": basic.String(expected="an image URL"),
        "file_id": FILE_ID,
        "detail": basic.Choice("auto", "low", "high", "original"),
    },
)
_IMAGE_SOURCES = ("image_url", "file_id")
_FILE = basic.Record(
    {}, {"filename": TEXT, "file_data": TEXT, "file_url": TEXT, "file_id": FILE_ID}
)
_FILE_SOURCES = ("file_data", "file_url", "file_id")
_OUTPUT_TEXT = basic.Record(
    {"text": TEXT}, {"annotations": basic.Array(OPEN_OBJECT), "logprobs": basic.Array(OPEN_OBJECT)}
)


@dataclass(frozen=True, slots=True)
class _Image(basic.Check):
    """An `input_image`: an http(s) or data URL, or the id of a file."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _IMAGE(value, where)
        _require_one_source(part, where, "an 'input_image'")
        if "image_url" in part and not part["image_url"].startswith(_URL_SCHEMES):
            message = (
                f"Invalid '{where}.image_url'. Expected a valid URL, "
                "but got a value with an invalid format."
            )
            raise InvalidRequest(message, param=f"{where}.image_url", code="invalid_value")
        return {"detail": "auto", **part}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _IMAGE.schema(scope)
        pattern = f"^({'|'.join(_URL_SCHEMES)})"
        forms = _exactly_one(_IMAGE_SOURCES)
        forms[0]["properties"]["image_url"]["pattern"] = pattern
        required = {} if scope.is_input else {"required": ["detail"]}
        return {**schema, **required, "anyOf": forms}


_SCREENSHOT = basic.Record(
    {},
    {
        "image_url": basic.String(pattern=r"(https?://|data:)\S*", expected="an image URL"),
        "file_id": FILE_ID,
    },
)


@dataclass(frozen=True, slots=True)
class Screenshot(basic.Check):
    """A `computer_screenshot`: its URL, or the id of a file."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _SCREENSHOT(value, where)
        _require_one_source(part, where, "a 'computer_screenshot'")
        return part

    def schema(self, scope: SchemaScope) -> Schema:
        return {**_SCREENSHOT.schema(scope), "anyOf": _exactly_one(_IMAGE_SOURCES)}


def _require_one_source(part: dict[str, Any], where: str, noun: str) -> None:
    if ("image_url" in part) == ("file_id" in part):
        message = f"Invalid '{where}': {noun} needs exactly one of 'image_url' and 'file_id'."
        raise InvalidRequest(message, param=where, code="invalid_value")


@dataclass(frozen=True, slots=True)
class _File(basic.Check):
    """An `input_file`: its data, its URL or its id."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _FILE(value, where)
        sources = sum(source in part for source in _FILE_SOURCES)
        if not sources:
            raise missing(f"{where}.file_data")
        if sources > 1:
            message = (
                f"Invalid '{where}': an 'input_file' needs exactly one of "
                "'file_data', 'file_url' and 'file_id'."
            )
            raise InvalidRequest(message, param=where, code="invalid_value")
        return part

    def schema(self, scope: SchemaScope) -> Schema:
        return {**_FILE.schema(scope), "anyOf": _exactly_one(_FILE_SOURCES)}


def _exactly_one(sources: Sequence[str]) -> list[Schema]:
    """The forms of an object that has one of these fields; the others are absent or null."""
    return [
        {
            "properties": {
                source: {"type": "string"},
                **{other: NULL for other in sources if other != source},
            },
            "required": [source],
        }
        for source in sources
    ]


@dataclass(frozen=True, slots=True)
class _OutputText(basic.Check):
    """An `output_text`; its annotations are empty if the client left them out."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        return {"annotations": [], **_OUTPUT_TEXT(value, where)}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _OUTPUT_TEXT.schema(scope)
        if scope.is_input:
            return schema
        return {**schema, "required": ["annotations", *schema["required"]]}


_OUTPUT_PARTS: dict[str, basic.Check] = {
    "input_text": basic.Record({"text": TEXT}),
    "input_image": _Image(),
    "input_file": _File(),
}
_AUDIO = basic.Record(
    {"input_audio": basic.Record({"data": TEXT, "format": basic.Choice("mp3", "wav")})}
)

INPUT_CONTENT = basic.Array(basic.Tagged({**_OUTPUT_PARTS, "input_audio": _AUDIO}))
"""Parts of a message that is not the model's."""
ASSISTANT_CONTENT = basic.Array(
    basic.Tagged({"output_text": _OutputText(), "refusal": basic.Record({"refusal": TEXT})})
)
"""Parts of a message of the model."""
TOOL_OUTPUT = basic.ByJsonType(
    "a string or an array of content parts",
    {str: TEXT, list: basic.Component("ResultContent", basic.Array(basic.Tagged(_OUTPUT_PARTS)))},
)
"""What a client's tool returned."""
