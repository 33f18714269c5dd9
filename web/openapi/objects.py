"""What the server returns: the Response and its output items, lists, models, events, errors."""

import msgspec

from models.errors import ApiError
from models.ids import CONVERSATION_ID_PATTERN, RESPONSE_ID_PATTERN
from models.lifecycle import Status
from models.wire.api_schema import (
    Schema,
    SchemaScope,
    const,
    nullable,
    object_schema,
    one_of,
    reference,
)
from models.wire.checks.parameters import METADATA
from models.wire.events import Event
from web.openapi.meaning import CODES
from web.openapi.requests import default_response, request_parameters
from web.routes.foreground import ERROR_TYPES

_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SECONDS: Schema = {"type": "integer", "description": "Seconds since the epoch."}
_RESPONSE_ID: Schema = {"type": "string", "pattern": f"^{RESPONSE_ID_PATTERN}$"}
_CONVERSATION_ID: Schema = {"type": "string", "pattern": f"^{CONVERSATION_ID_PATTERN}$"}
_ITEM_STATUS: Schema = {"type": "string", "enum": ["in_progress", "completed", "incomplete"]}


def components(stored: SchemaScope, *, native: bool) -> dict[str, Schema]:
    """Every schema of a response. `native`: a configured upstream supports the Responses API."""
    items = one_of(_OUTPUT_ITEMS)
    return {
        "Response": _response(stored, native=native),
        "OutputItem": {"anyOf": [items, _NATIVE_ITEM]} if native else items,
        "OutputContent": one_of(_OUTPUT_CONTENT),
        "SummaryText": one_of({"summary_text": object_schema({"text": _STRING})}),
        "ReasoningText": one_of({"reasoning_text": object_schema({"text": _STRING})}),
        "Annotation": one_of(
            {
                "url_citation": object_schema(
                    {"url": _STRING, "title": _STRING, "start_index": _COUNT, "end_index": _COUNT}
                )
            }
        ),
        "Logprob": object_schema(
            {**_TOKEN, "top_logprobs": {"type": "array", "items": object_schema(_TOKEN)}}
        ),
        "Usage": _USAGE,
        **_events(),
        "InputItemList": _list(
            reference("ListedItem"),
            first_id=nullable(_STRING),
            last_id=nullable(_STRING),
            has_more=_BOOLEAN,
        ),
        "Compaction": object_schema(
            {
                "id": _RESPONSE_ID,
                "object": const("response.compaction"),
                "created_at": _SECONDS,
                "output": {
                    "type": "array",
                    "items": {"anyOf": [reference("ListedMessage"), reference("OutputItem")]},
                },
                "usage": nullable(reference("Usage")),
            }
        ),
        "InputTokens": object_schema(
            {"object": const("response.input_tokens"), "input_tokens": _COUNT}
        ),
        "Conversation": _conversation(stored),
        "ConversationItem": {"anyOf": [reference("ListedItem"), reference("OutputItem")]},
        "ConversationItemList": _list(
            reference("ConversationItem"),
            first_id=nullable(_STRING),
            last_id=nullable(_STRING),
            has_more=_BOOLEAN,
        ),
        "DeletedConversation": object_schema(
            {
                "id": _CONVERSATION_ID,
                "object": const("conversation.deleted"),
                "deleted": {"type": "boolean", "const": True},
            }
        ),
        "DeletedResponse": object_schema(
            {
                "id": _RESPONSE_ID,
                "object": const("response"),
                "deleted": {"type": "boolean", "const": True},
            }
        ),
        "Model": object_schema(
            {"id": _STRING, "object": const("model"), "created": _SECONDS, "owned_by": _STRING}
        ),
        "ModelList": _list(reference("Model")),
        "Alive": object_schema({"status": const("ok")}),
        "Readiness": _READINESS,
        "Error": _error(),
    }


def _list(of: Schema, **more: Schema) -> Schema:
    return object_schema({"object": const("list"), "data": {"type": "array", "items": of}, **more})


def _error() -> Schema:
    kinds = {
        ApiError.type,
        *ERROR_TYPES.values(),
        *(known.type for known in ApiError.__subclasses__()),
    }
    code = {
        "type": ["string", "null"],
        "enum": [*CODES, None],
        "description": "\n".join(f"- `{code}`: {when}" for code, when in CODES.items()),
    }
    inside = object_schema(
        {
            "message": {"type": "string", "minLength": 1},
            "type": {"type": "string", "enum": sorted(kinds)},
            "param": {
                "type": ["string", "null"],
                "description": "Where in the request, for example `input[3].content[0].text`.",
            },
            "code": code,
        }
    )
    return {**object_schema({"error": inside}), "additionalProperties": False}


# The Response.


def _response(stored: SchemaScope, *, native: bool) -> Schema:
    """Reads the keys from the function that builds a Response: all of them are always present."""
    fields = _RESPONSE_FIELDS | _echoed_parameters(stored, native=native)
    return {
        **object_schema(
            {key: fields[key] for key in default_response()},
            {"conversation": object_schema({"id": _CONVERSATION_ID})},
        ),
        "description": "The current state of a response. "
        "The terminal event of a stream has the final state.",
    }


_ALWAYS_SET = (
    *("background", "frequency_penalty", "metadata", "model", "parallel_tool_calls"),
    *("presence_penalty", "store", "temperature", "tool_choice", "tools", "top_logprobs"),
    *("top_p", "truncation"),
)
"""Parameters that a Response shows with their default if the client did not set them."""

_NULL_BY_DEFAULT = (
    *("instructions", "max_output_tokens", "max_tool_calls", "prompt_cache_key"),
    *("safety_identifier", "user"),
)


def _echoed_parameters(stored: SchemaScope, *, native: bool) -> dict[str, Schema]:
    """The parameters of the request as a Response shows them."""
    parameters = request_parameters(native=native)

    def schema(name: str) -> Schema:
        return parameters[name].schema(stored)

    fields = {name: schema(name) for name in _ALWAYS_SET}
    fields |= {name: nullable(schema(name)) for name in _NULL_BY_DEFAULT}
    reasoning = schema("reasoning")["properties"]
    always_present = {name: nullable(reasoning.pop(name)) for name in ("effort", "summary")}
    fields["reasoning"] = object_schema(always_present, reasoning)
    fields["text"] = {"allOf": [schema("text"), {"required": ["format", "verbosity"]}]}
    return fields


_RESPONSE_FIELDS: dict[str, Schema] = {
    "id": _RESPONSE_ID,
    "object": const("response"),
    "created_at": _SECONDS,
    "status": {"type": "string", "enum": [status.value for status in Status]},
    "completed_at": {
        **nullable(_SECONDS),
        "description": "When it ended; null unless `completed`.",
    },
    "error": {
        **nullable(object_schema({"code": _STRING, "message": _STRING})),
        "description": "Why it `failed`; null otherwise.",
    },
    "incomplete_details": {
        **nullable(
            object_schema(
                {
                    "reason": {
                        "type": "string",
                        "enum": ["max_output_tokens", "content_filter", "max_messages"],
                    }
                }
            )
        ),
        "description": "Why it is `incomplete`; null otherwise.",
    },
    "output": {"type": "array", "items": reference("OutputItem")},
    "output_text": {"type": "string", "description": "All text of the output's messages, joined."},
    "previous_response_id": nullable(_RESPONSE_ID),
    "service_tier": _STRING,
    "usage": {
        **nullable(reference("Usage")),
        "description": "The upstream's counts, over all turns; null if it sent none.",
    },
}
"""The fields that are not parameters of the request."""

_TOKEN: dict[str, Schema] = {
    "token": _STRING,
    "logprob": {"type": "number"},
    "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
}

_USAGE: Schema = object_schema(
    {
        "input_tokens": _COUNT,
        "input_tokens_details": object_schema(
            {"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}
        ),
        "output_tokens": _COUNT,
        "output_tokens_details": object_schema({"reasoning_tokens": _COUNT}),
        "total_tokens": _COUNT,
    }
)

_LOGPROBS: Schema = {"type": "array", "items": reference("Logprob")}

_OUTPUT_CONTENT: dict[str, Schema] = {
    "output_text": object_schema(
        {
            "text": _STRING,
            "annotations": {"type": "array", "items": reference("Annotation")},
            "logprobs": _LOGPROBS,
        },
    ),
    "refusal": object_schema({"refusal": _STRING}),
}


def _output_item(optional: dict[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    return object_schema({"id": _STRING, "status": _ITEM_STATUS, **fields}, optional)


def _server_tool_item(fields: dict[str, Schema], **optional: Schema) -> Schema:
    """The item of a server tool; it can fail."""
    status = {**_ITEM_STATUS, "enum": [*_ITEM_STATUS["enum"], "failed"]}
    return object_schema({"id": _STRING, "status": status, **fields}, optional)


_MCP_ERROR: Schema = one_of(
    {
        "mcp_protocol_error": object_schema({"code": {"type": "integer"}, "message": _STRING}),
        "mcp_tool_execution_error": object_schema(
            {"content": {"type": "array", "items": {"type": "object"}}}
        ),
        "http_error": object_schema({"code": {"type": "integer"}, "message": _STRING}),
    }
)

_CALL_ID: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "The id of the call, which its output repeats. Not the id of the item.",
}

_NAMESPACED: dict[str, Schema] = {
    "namespace": {"type": "string", "description": "The namespace that the tool belongs to."}
}
_STRINGS: Schema = {"type": "array", "items": _STRING}

_OUTPUT_ITEMS: dict[str, Schema] = {
    "compaction": _output_item(
        encrypted_content={
            "type": "string",
            "description": "Replaces the history before it. Only this server can read it.",
        }
    ),
    "message": _output_item(
        role=const("assistant"), content={"type": "array", "items": reference("OutputContent")}
    ),
    "reasoning": _output_item(
        {
            "encrypted_content": {
                "type": "string",
                "description": "The sealed reasoning. If it is sent back, "
                "the model gets it again. Only with `include`.",
            }
        },
        summary={"type": "array", "items": reference("SummaryText")},
        content={"type": "array", "items": reference("ReasoningText")},
    ),
    "function_call": _output_item(
        _NAMESPACED,
        call_id=_CALL_ID,
        name=_STRING,
        arguments={"type": "string", "description": "JSON, as the model wrote it."},
    ),
    "custom_tool_call": _output_item(_NAMESPACED, call_id=_CALL_ID, name=_STRING, input=_STRING),
    "shell_call": _output_item(
        call_id=_CALL_ID,
        action=object_schema(
            {"commands": _STRINGS}, {"timeout_ms": _COUNT, "max_output_length": _COUNT}
        ),
    ),
    "local_shell_call": _output_item(
        call_id=_CALL_ID,
        action=object_schema(
            {
                "type": const("exec"),
                "command": _STRINGS,
                "env": {"type": "object", "additionalProperties": _STRING},
            },
            {"timeout_ms": _COUNT, "user": _STRING, "working_directory": _STRING},
        ),
    ),
    "apply_patch_call": _output_item(
        call_id=_CALL_ID,
        operation=one_of(
            {
                "create_file": object_schema({"path": _STRING, "diff": _STRING}),
                "update_file": object_schema({"path": _STRING, "diff": _STRING}),
                "delete_file": object_schema({"path": _STRING}),
            }
        ),
    ),
    "tool_search_call": _output_item(
        call_id=_CALL_ID, execution=const("client"), arguments={"type": "object"}
    ),
    "function_call_output": _output_item(call_id=_CALL_ID, output=_STRING),
    "mcp_list_tools": _server_tool_item(
        {
            "server_label": _STRING,
            "tools": {
                "type": "array",
                "items": object_schema({"name": _STRING, "input_schema": {"type": "object"}}),
            },
        },
        error={"type": "string", "description": "Why the server's tools could not be listed."},
    ),
    "mcp_call": _server_tool_item(
        {
            "server_label": _STRING,
            "name": _STRING,
            "arguments": {"type": "string", "description": "JSON, as the model wrote it."},
        },
        output={"type": "string", "description": "The text of the tool's result."},
        error=_MCP_ERROR,
        approval_request_id=_STRING,
    ),
    "web_search_call": _server_tool_item(
        {
            "action": object_schema(
                {"type": const("search")},
                {
                    "query": _STRING,
                    "queries": _STRINGS,
                    "sources": {
                        "type": "array",
                        "items": object_schema({"type": const("url"), "url": _STRING}),
                        "description": "The results. "
                        "Only with `web_search_call.action.sources` in `include`.",
                    },
                },
            )
        }
    ),
    "mcp_approval_request": _output_item(server_label=_STRING, name=_STRING, arguments=_STRING),
}
"""type -> an item that can be in `output`."""

_NATIVE_ITEM: Schema = {
    **object_schema(
        {
            "id": _STRING,
            "type": _STRING,
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
        }
    ),
    "description": "An item of a tool that the upstream runs itself (`file_search_call`, "
    "`code_interpreter_call`, …), as the upstream sent it.",
}


def _conversation(stored: SchemaScope) -> Schema:
    return object_schema(
        {
            "id": _CONVERSATION_ID,
            "object": const("conversation"),
            "created_at": _SECONDS,
            "metadata": METADATA.schema(stored),
        }
    )


_READINESS: Schema = object_schema(
    {
        "ready": _BOOLEAN,
        "stopping": _BOOLEAN,
        "database": _STRING,
        "schema": nullable(
            {"type": "string", "description": "The migration revision of the database."}
        ),
        "workers": {
            "type": "object",
            "additionalProperties": _COUNT,
            "description": "Kind of process -> number of live processes.",
        },
        "redis": {
            "type": "string",
            "description": "Only reported: without Redis the server works, but slower.",
        },
    }
)

# The stream.

_EVENT_FIELDS: dict[str, Schema] = {
    "response": reference("Response"),
    "item": reference("OutputItem"),
    "part": {
        "anyOf": [reference("OutputContent"), reference("ReasoningText"), reference("SummaryText")]
    },
    "annotation": reference("Annotation"),
    "logprobs": _LOGPROBS,
}
"""Fields of events with objects -> their schema."""
_PADDING: Schema = {
    "type": "string",
    "description": "Padding without meaning. Only with `include_obfuscation`.",
}
_SCALAR_TYPES: dict[object, Schema] = {int: _COUNT, str: _STRING}


def _events() -> dict[str, Schema]:
    """A component for each event struct, and `StreamEvent` for any of them."""
    events: dict[str, Schema] = {}
    tags: dict[str, str] = {}
    for kind in Event.__subclasses__():
        tag = kind.__struct_config__.tag
        assert isinstance(tag, str)
        fields = {
            field.name: _EVENT_FIELDS.get(field.name) or _SCALAR_TYPES[field.type]
            for field in msgspec.structs.fields(kind)
        }
        name = f"{kind.__name__}Event"
        padding = {"obfuscation": _PADDING} if tag.endswith(".delta") else {}
        events[name] = object_schema(
            {"type": const(tag), **fields, "sequence_number": _COUNT}, padding
        )
        tags[tag] = reference(name)["$ref"]
    union = {
        "oneOf": [reference(name) for name in events],
        "discriminator": {"propertyName": "type", "mapping": tags},
    }
    return {"StreamEvent": union, **events}
