"""The parameters of a create request, and `metadata`, which conversations have too."""

import re
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import NULL, Schema, SchemaScope
from models.wire.checks.basic import (
    Array,
    Boolean,
    ByJsonType,
    Check,
    Choice,
    Component,
    Integer,
    JsonObject,
    Number,
    Record,
    String,
    Tagged,
    Unchecked,
    require_object,
)
from models.wire.checks.faults import shorten, too_long, wrong_type
from models.wire.checks.json_schema import require_format_schema
from models.wire.checks.tools import NATIVE_TOOLS, TOOL_CHOICE, TOOLS

_MAX_INTEGER = 2**31 - 1
"""The limit of counts: any upstream's integer can hold it."""

_ID = re.compile(r"[A-Za-z0-9_-]+")
_MAX_METADATA_PAIRS = 16
_MAX_METADATA_KEY = 64
_METADATA_VALUE = String(at_most=512)
_TEXT = String()
_BOOLEAN = Boolean()


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """`cache` of a request (docs/cache.md). `ttl` is in seconds; None means this server's
    default."""

    ttl: int | None = None


@dataclass(frozen=True, slots=True)
class _Metadata(Check):
    """At most 16 pairs, keys of up to 64 characters, values of up to 512."""

    def __call__(self, value: Any, where: str) -> dict[str, str]:
        pairs = {
            key: text for key, text in require_object(value, where).items() if text is not None
        }
        if len(pairs) > _MAX_METADATA_PAIRS:
            message = (
                f"Invalid '{where}': too many properties. "
                f"Expected an object with at most {_MAX_METADATA_PAIRS} properties, "
                f"but got an object with {len(pairs)} properties instead."
            )
            raise InvalidRequest(message, param=where, code="object_above_max_properties")
        for key, text in pairs.items():
            place = f"{where}.{shorten(key)}"
            if len(key) > _MAX_METADATA_KEY:
                raise too_long(place, "string", _MAX_METADATA_KEY, len(key))
            _METADATA_VALUE(text, place)
        return pairs

    def schema(self, scope: SchemaScope) -> Schema:
        return {
            "type": "object",
            "maxProperties": _MAX_METADATA_PAIRS,
            "propertyNames": {"maxLength": _MAX_METADATA_KEY},
            "additionalProperties": scope.optional(_METADATA_VALUE.schema(scope)),
        }


METADATA = _Metadata()


@dataclass(frozen=True, slots=True)
class _Id(Check):
    """An id of letters, digits, underscores and dashes. Whether it exists is checked later."""

    def __call__(self, value: Any, where: str) -> str:
        if type(value) is not str:
            raise wrong_type(where, "a string", value)
        if not _ID.fullmatch(value):
            message = (
                f"Invalid '{where}': '{shorten(value)}'. "
                "Expected an ID that contains letters, numbers, underscores, or dashes, "
                "but this value contained additional characters."
            )
            raise InvalidRequest(message, param=where, code="invalid_value")
        return value

    def schema(self, _scope: SchemaScope) -> Schema:
        return {"type": "string", "pattern": f"^{_ID.pattern}$"}


_CONVERSATION = ByJsonType("a string or an object", {str: _Id(), dict: Record({"id": _Id()})})
_CACHE = ByJsonType(
    "a boolean or an object",
    {bool: _BOOLEAN, dict: Record({}, {"ttl": Integer(1, _MAX_INTEGER)})},
)


@dataclass(frozen=True, slots=True)
class _ConversationId(Check):
    """An id, or an object that has it as `id`. The result is the id."""

    def __call__(self, value: Any, where: str) -> str:
        checked: str | dict[str, str] = _CONVERSATION(value, where)
        return checked if isinstance(checked, str) else checked["id"]

    def schema(self, scope: SchemaScope) -> Schema:
        return _CONVERSATION.schema(scope)


@dataclass(frozen=True, slots=True)
class _Cache(Check):
    """`true`, or an object with a `ttl`. The result for `false` is None."""

    def __call__(self, value: Any, where: str) -> CacheOptions | None:
        checked: bool | dict[str, int] = _CACHE(value, where)
        if isinstance(checked, bool):
            return CacheOptions() if checked else None
        return CacheOptions(checked.get("ttl"))

    def schema(self, scope: SchemaScope) -> Schema:
        return _CACHE.schema(scope)


@dataclass(frozen=True, slots=True)
class _RefusedParameter(Check):
    """A parameter that is refused."""

    reason: str
    """Why, and what to do instead."""

    def __call__(self, _value: Any, where: str) -> Any:
        message = f"'{where}' is not supported: {self.reason}."
        raise InvalidRequest(message, param=where, code="unsupported_parameter")

    def schema(self, _scope: SchemaScope) -> Schema:
        return NULL


_SUMMARY = Choice("auto", "concise", "detailed")
_OLD_SUMMARY = "generate_summary"
_REASONING = Record(
    {},
    {
        "effort": Choice("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "summary": _SUMMARY,
        _OLD_SUMMARY: _SUMMARY,
        "context": Choice("auto", "current_turn", "all_turns"),
        "mode": _TEXT,
    },
)


@dataclass(frozen=True, slots=True)
class _Reasoning(Check):
    """Options of reasoning. `generate_summary` is the old name of `summary`."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        options = _REASONING(value, where)
        summary = options.pop(_OLD_SUMMARY, None)
        return options if summary is None else {"summary": summary, **options}

    def schema(self, scope: SchemaScope) -> Schema:
        schema = _REASONING.schema(scope)
        if not scope.is_input:
            del schema["properties"][_OLD_SUMMARY]
        return schema


_FORMAT = Record(
    {"name": String(non_empty=True, at_most=64, pattern="[a-zA-Z0-9_-]+"), "schema": JsonObject()},
    {"description": _TEXT, "strict": _BOOLEAN},
)


@dataclass(frozen=True, slots=True)
class _JsonSchemaFormat(Check):
    """`text.format` with a JSON Schema, which must be valid."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        options = _FORMAT(value, where)
        require_format_schema(options, where)
        return options

    def schema(self, scope: SchemaScope) -> Schema:
        return _FORMAT.schema(scope)


_TEXT_FORMAT = Tagged(
    {"text": Record({}), "json_object": Record({}), "json_schema": _JsonSchemaFormat()}
)
_CONTEXT_EDITS = Tagged(
    {"compaction": Record({}, {"compact_threshold": Integer(1000, _MAX_INTEGER)})}
)

LONG_WINDOWS = ("2h", "8h")
"""The values of `completion_window` in which a response waits behind others."""
MAX_CONTINUATION_ID = 256
"""Characters."""

INCLUDE_VALUE = Choice(
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)
INCLUDE = Array(INCLUDE_VALUE)

_MODERATION_MODE = Record({"mode": Choice("score", "block")}, {})
_MODERATION_POLICY = Record({}, {"input": _MODERATION_MODE, "output": _MODERATION_MODE})

PARAMETERS: dict[str, Check] = {
    "model": String(non_empty=True, at_most=512),
    "instructions": _TEXT,
    "previous_response_id": _Id(),
    "conversation": _ConversationId(),
    "store": _BOOLEAN,
    "background": _BOOLEAN,
    "background_options": Component(
        "BackgroundOptions",
        Record(
            {},
            {
                "completion_window": Choice("soonest", *LONG_WINDOWS),
                "continuation_id": String(non_empty=True, at_most=MAX_CONTINUATION_ID),
            },
        ),
    ),
    "stream": _BOOLEAN,
    "stream_options": Record({}, {"include_obfuscation": _BOOLEAN}),
    "include": INCLUDE,
    "tools": TOOLS,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": _BOOLEAN,
    "max_tool_calls": Integer(1, _MAX_INTEGER),
    "max_output_tokens": Integer(16, _MAX_INTEGER),
    "temperature": Number(0, 2),
    "top_p": Number(0, 1),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "top_logprobs": Integer(0, 20),
    "text": Component(
        "TextSettings",
        Record({}, {"format": _TEXT_FORMAT, "verbosity": Choice("low", "medium", "high")}),
    ),
    "reasoning": _Reasoning(),
    "truncation": Choice("auto", "disabled"),
    "context_management": Array(_CONTEXT_EDITS, non_empty=True),
    "metadata": METADATA,
    "service_tier": Choice("auto", "default", "flex", "priority", "fast", "scale", "ultrafast"),
    "user": _TEXT,
    "safety_identifier": String(at_most=128),
    "prompt_cache_key": _TEXT,
    "cache": _Cache(),
    "wait_for_previous": _BOOLEAN,
    "prompt": _RefusedParameter(
        "this server keeps no prompt templates. Send the text in 'instructions' and 'input'"
    ),
    "moderation": Component("Moderation", Record({"model": _TEXT}, {"policy": _MODERATION_POLICY})),
    "image": Record(
        {},
        {
            "context_compression": Choice(
                "auto",
                "disabled",
                refused={
                    "enabled": "nothing compresses images here. Leave it out, or send smaller ones"
                },
            )
        },
    ),
}
"""Parameters of a create request -> their checks. `input` is not here: its check also makes ids
(models/wire/items.py)."""

NATIVE_ONLY_PARAMETERS = (
    *("access_programs", "image", "moderation"),
    *("prompt_cache_options", "prompt_cache_retention"),
)
"""Parameters that only an upstream can serve: one with the Responses API, or one whose
`passthrough` lists them. It gets them unchanged."""

NATIVE_PARAMETERS: dict[str, Check] = {
    **PARAMETERS,
    "tools": NATIVE_TOOLS,
    **dict.fromkeys(NATIVE_ONLY_PARAMETERS, Unchecked()),
}
"""The same for a model whose upstream supports the Responses API."""

IGNORED_PARAMETERS = frozenset(
    (*NATIVE_ONLY_PARAMETERS, "client_metadata")  # codex sends the last
)
"""Parameters that are accepted and have no effect, unless the upstream serves them."""
