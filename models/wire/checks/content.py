"""Content parts: of messages, and of the outputs of tools."""

from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import NULL, Schema, SchemaScope
from models.wire.checks.basic import (
    Array,
    ByJsonType,
    Check,
    Choice,
    Component,
    OpenObject,
    Record,
    String,
    Tagged,
)
from models.wire.checks.faults import missing

TEXT = String()
OPEN_OBJECT = OpenObject()

_URL_SCHEMES = ("https://", "http://", "data:")

_IMAGE = Record(
    {},
    {
        "image_url": String(expected="an image URL"),
        "file_id": TEXT,
        "detail": Choice("auto", "low", "high", "original"),
    },
)
_FILE = Record({}, {"filename": TEXT, "file_data": TEXT, "file_url": TEXT, "file_id": TEXT})
_FILE_SOURCES = ("file_data", "file_url")
_OUTPUT_TEXT = Record(
    {"text": TEXT}, {"annotations": Array(OPEN_OBJECT), "logprobs": Array(OPEN_OBJECT)}
)


@dataclass(frozen=True, slots=True)
class _Image(Check):
    """An `input_image`: an http(s) or data URL. File ids are refused: there is no file storage."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _IMAGE(value, where)
        if ("image_url" in part) == ("file_id" in part):
            message = (
                f"Invalid '{where}': an 'input_image' needs exactly one of "
                "'image_url' and 'file_id'."
            )
            raise InvalidRequest(message, param=where, code="invalid_value")
        _refuse_file_id(
            part, where, "Send the image itself in 'image_url', as a URL or a data URL."
        )
        if not part["image_url"].startswith(_URL_SCHEMES):
            message = (
                f"Invalid '{where}.image_url'. Expected a valid URL, "
                "but got a value with an invalid format."
            )
            raise InvalidRequest(message, param=f"{where}.image_url", code="invalid_value")
        return {"detail": "auto", **part}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _IMAGE.schema(scope)
        pattern = f"^({'|'.join(_URL_SCHEMES)})"
        fields = {**schema["properties"], "image_url": {"type": "string", "pattern": pattern}}
        if scope.is_input:
            fields["file_id"] = NULL
            return {**schema, "properties": fields, "required": ["image_url"]}
        del fields["file_id"]
        return {**schema, "properties": fields, "required": ["detail", "image_url"]}


@dataclass(frozen=True, slots=True)
class _File(Check):
    """An `input_file`: its data or its URL. File ids are refused: there is no file storage."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        part = _FILE(value, where)
        _refuse_file_id(
            part, where, "Send the file itself in 'file_data', or its address in 'file_url'."
        )
        if "file_data" not in part and "file_url" not in part:
            raise missing(f"{where}.file_data")
        if "file_data" in part and "file_url" in part:
            message = (
                f"Invalid '{where}': an 'input_file' needs exactly one of "
                "'file_data' and 'file_url'."
            )
            raise InvalidRequest(message, param=where, code="invalid_value")
        return part

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _FILE.schema(scope)
        fields = {name: of for name, of in schema["properties"].items() if name != "file_id"}
        if scope.is_input:
            fields["file_id"] = NULL
        exactly_one = [
            {
                "properties": {
                    source: {"type": "string"},
                    **{other: NULL for other in _FILE_SOURCES if other != source},
                },
                "required": [source],
            }
            for source in _FILE_SOURCES
        ]
        return {**schema, "properties": fields, "anyOf": exactly_one}


def _refuse_file_id(part: dict[str, Any], where: str, instead: str) -> None:
    if "file_id" in part:
        message = f"'{where}.file_id' is not supported: this server keeps no files. {instead}"
        raise InvalidRequest(message, param=f"{where}.file_id", code="unsupported_parameter")


@dataclass(frozen=True, slots=True)
class _OutputText(Check):
    """An `output_text`; its annotations are empty if the client left them out."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        return {"annotations": [], **_OUTPUT_TEXT(value, where)}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _OUTPUT_TEXT.schema(scope)
        if scope.is_input:
            return schema
        return {**schema, "required": ["annotations", *schema["required"]]}


_OUTPUT_PARTS: dict[str, Check] = {
    "input_text": Record({"text": TEXT}),
    "input_image": _Image(),
    "input_file": _File(),
}
_AUDIO = Record({"input_audio": Record({"data": TEXT, "format": Choice("mp3", "wav")})})

INPUT_CONTENT = Array(Tagged({**_OUTPUT_PARTS, "input_audio": _AUDIO}))
"""Parts of a message that is not the model's."""
ASSISTANT_CONTENT = Array(
    Tagged({"output_text": _OutputText(), "refusal": Record({"refusal": TEXT})})
)
"""Parts of a message of the model."""
TOOL_OUTPUT = ByJsonType(
    "a string or an array of content parts",
    {str: TEXT, list: Component("ResultContent", Array(Tagged(_OUTPUT_PARTS)))},
)
"""What a client's tool returned."""
