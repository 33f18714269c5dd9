"""What the server answers with: the Response and its output items, lists, models, events, errors."""

import msgspec

from models.errors import ApiError
from models.lifecycle import Status
from models.wire.events import Event
from models.wire.response import ResponseFacts, response_object
from web.openapi.meaning import CODES
from web.openapi.requests import kept, parameter
from web.openapi.shapes import Schema, const, one_of, or_null, reference, thing
from web.routes.responses import KINDS

_TEXT: Schema = {"type": "string"}
_TRUTH: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SECONDS: Schema = {"type": "integer", "description": "Seconds since the epoch."}
_RESPONSE_ID: Schema = {"type": "string", "pattern": "^resp_[0-9a-f]{32}$"}
_CONVERSATION_ID: Schema = {"type": "string", "pattern": "^conv_[0-9a-f]{32}$"}
_ITEM_STATUS: Schema = {"type": "string", "enum": ["in_progress", "completed", "incomplete"]}


def components(*, native: bool) -> dict[str, Schema]:
    """Every schema of what is answered. `native`: there is an upstream that runs tools of its own."""
    items = one_of(_OUTPUT_ITEMS)
    return {
        "Response": _response(),
        "OutputItem": {"anyOf": [items, _NATIVE_ITEM]} if native else items,
        "OutputContent": one_of(_OUTPUT_CONTENT),
        "SummaryText": one_of({"summary_text": thing({"text": _TEXT})}),
        "ReasoningText": one_of({"reasoning_text": thing({"text": _TEXT})}),
        "Annotation": one_of(
            {
                "url_citation": thing(
                    {"url": _TEXT, "title": _TEXT, "start_index": _COUNT, "end_index": _COUNT}
                )
            }
        ),
        "Logprob": thing({**_TOKEN, "top_logprobs": {"type": "array", "items": thing(_TOKEN)}}),
        "Usage": _USAGE,
        **_events(),
        "InputItemList": _list(
            reference("ListedItem"),
            first_id=or_null(_TEXT),
            last_id=or_null(_TEXT),
            has_more=_TRUTH,
        ),
        "Compaction": thing(
            {
                "id": _RESPONSE_ID,
                "object": const("response.compaction"),
                "created_at": _SECONDS,
                "output": {
                    "type": "array",
                    "items": {"anyOf": [reference("ListedMessage"), reference("OutputItem")]},
                },
                "usage": or_null(reference("Usage")),
            }
        ),
        "InputTokens": thing({"object": const("response.input_tokens"), "input_tokens": _COUNT}),
        "Conversation": _CONVERSATION,
        "ConversationItem": {"anyOf": [reference("ListedItem"), reference("OutputItem")]},
        "ConversationItemList": _list(
            reference("ConversationItem"),
            first_id=or_null(_TEXT),
            last_id=or_null(_TEXT),
            has_more=_TRUTH,
        ),
        "DeletedConversation": thing(
            {
                "id": _CONVERSATION_ID,
                "object": const("conversation.deleted"),
                "deleted": {"type": "boolean", "const": True},
            }
        ),
        "DeletedResponse": thing(
            {
                "id": _RESPONSE_ID,
                "object": const("response"),
                "deleted": {"type": "boolean", "const": True},
            }
        ),
        "Model": thing(
            {"id": _TEXT, "object": const("model"), "created": _SECONDS, "owned_by": _TEXT}
        ),
        "ModelList": _list(reference("Model")),
        "Alive": thing({"status": const("ok")}),
        "Readiness": _READINESS,
        "Error": _error(),
    }


def _list(of: Schema, **more: Schema) -> Schema:
    return thing({"object": const("list"), "data": {"type": "array", "items": of}, **more})


def _error() -> Schema:
    kinds = {ApiError.type, *KINDS.values(), *(known.type for known in ApiError.__subclasses__())}
    code = {
        "type": ["string", "null"],
        "enum": [*CODES, None],
        "description": "\n".join(f"- `{code}`: {when}" for code, when in CODES.items()),
    }
    inside = thing(
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
    return {**thing({"error": inside}), "additionalProperties": False}


# The Response.


def _response() -> Schema:
    """Its keys, and that all are always there, are read from the function that builds it."""
    keys = response_object(
        ResponseFacts(id="", created_at=0, status="completed", model="", parameters={}), []
    )
    fields = _OWN_FIELDS | _echoes()
    return {
        **thing(
            {key: fields[key] for key in keys}, {"conversation": thing({"id": _CONVERSATION_ID})}
        ),
        "description": "A response as it stands: a snapshot; the stream's terminal event carries the last.",
    }


def _echoes() -> dict[str, Schema]:
    """What a client set, or its default, as it was kept."""
    reading = kept()
    always = (
        "background",
        "frequency_penalty",
        "metadata",
        "model",
        "parallel_tool_calls",
        "presence_penalty",
        "store",
        "temperature",
    )
    perhaps = (
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    )
    told = {
        name: parameter(name, reading)
        for name in (*always, "tool_choice", "tools", "top_logprobs", "top_p", "truncation")
    }
    told |= {name: or_null(parameter(name, reading)) for name in perhaps}
    reasoning = parameter("reasoning", reading)["properties"]
    always_there = {name: or_null(reasoning.pop(name)) for name in ("effort", "summary")}
    told["reasoning"] = thing(always_there, reasoning)
    told["text"] = {"allOf": [parameter("text", reading), {"required": ["format", "verbosity"]}]}
    return told


_OWN_FIELDS: dict[str, Schema] = {
    "id": _RESPONSE_ID,
    "object": const("response"),
    "created_at": _SECONDS,
    "status": {"type": "string", "enum": [status.value for status in Status]},
    "completed_at": {**or_null(_SECONDS), "description": "When it ended; null unless `completed`."},
    "error": {
        **or_null(thing({"code": _TEXT, "message": _TEXT})),
        "description": "Why it `failed`; null otherwise.",
    },
    "incomplete_details": {
        **or_null(
            thing(
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
    "previous_response_id": or_null(_RESPONSE_ID),
    "service_tier": _TEXT,
    "usage": {
        **or_null(reference("Usage")),
        "description": "What the upstream counted, over all turns; null when it sent no count.",
    },
}
"""The fields that are no echo."""

_TOKEN: dict[str, Schema] = {
    "token": _TEXT,
    "logprob": {"type": "number"},
    "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
}

_USAGE: Schema = thing(
    {
        "input_tokens": _COUNT,
        "input_tokens_details": thing({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}),
        "output_tokens": _COUNT,
        "output_tokens_details": thing({"reasoning_tokens": _COUNT}),
        "total_tokens": _COUNT,
    }
)

_LOGPROBS: Schema = {"type": "array", "items": reference("Logprob")}

_OUTPUT_CONTENT: dict[str, Schema] = {
    "output_text": thing(
        {
            "text": _TEXT,
            "annotations": {"type": "array", "items": reference("Annotation")},
            "logprobs": _LOGPROBS,
        },
    ),
    "refusal": thing({"refusal": _TEXT}),
}


def _output_item(optional: dict[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    return thing({"id": _TEXT, "status": _ITEM_STATUS, **fields}, optional)


def _hosted_item(fields: dict[str, Schema], **optional: Schema) -> Schema:
    """The item of a tool that this server runs; it can fail."""
    status = {**_ITEM_STATUS, "enum": [*_ITEM_STATUS["enum"], "failed"]}
    return thing({"id": _TEXT, "status": status, **fields}, optional)


_MCP_ERROR: Schema = one_of(
    {
        "mcp_protocol_error": thing({"code": {"type": "integer"}, "message": _TEXT}),
        "mcp_tool_execution_error": thing(
            {"content": {"type": "array", "items": {"type": "object"}}}
        ),
        "http_error": thing({"code": {"type": "integer"}, "message": _TEXT}),
    }
)

_CALL_ID: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "Names the call in its output; not the item's id.",
}

_NAMESPACED: dict[str, Schema] = {
    "namespace": {"type": "string", "description": "The namespace that the tool was offered in."}
}
_WORDS: Schema = {"type": "array", "items": _TEXT}

_OUTPUT_ITEMS: dict[str, Schema] = {
    "compaction": _output_item(
        encrypted_content={
            "type": "string",
            "description": "What stands for the history before it; only this server can read it.",
        }
    ),
    "message": _output_item(
        role=const("assistant"), content={"type": "array", "items": reference("OutputContent")}
    ),
    "reasoning": _output_item(
        {
            "encrypted_content": {
                "type": "string",
                "description": "The reasoning, sealed: sent back, it reaches the model again. Only where `include` asks for it.",
            }
        },
        summary={"type": "array", "items": reference("SummaryText")},
        content={"type": "array", "items": reference("ReasoningText")},
    ),
    "function_call": _output_item(
        _NAMESPACED,
        call_id=_CALL_ID,
        name=_TEXT,
        arguments={"type": "string", "description": "JSON, as the model wrote it."},
    ),
    "custom_tool_call": _output_item(_NAMESPACED, call_id=_CALL_ID, name=_TEXT, input=_TEXT),
    "shell_call": _output_item(
        call_id=_CALL_ID,
        action=thing({"commands": _WORDS}, {"timeout_ms": _COUNT, "max_output_length": _COUNT}),
    ),
    "local_shell_call": _output_item(
        call_id=_CALL_ID,
        action=thing(
            {
                "type": const("exec"),
                "command": _WORDS,
                "env": {"type": "object", "additionalProperties": _TEXT},
            },
            {"timeout_ms": _COUNT, "user": _TEXT, "working_directory": _TEXT},
        ),
    ),
    "apply_patch_call": _output_item(
        call_id=_CALL_ID,
        operation=one_of(
            {
                "create_file": thing({"path": _TEXT, "diff": _TEXT}),
                "update_file": thing({"path": _TEXT, "diff": _TEXT}),
                "delete_file": thing({"path": _TEXT}),
            }
        ),
    ),
    "tool_search_call": _output_item(
        call_id=_CALL_ID, execution=const("client"), arguments={"type": "object"}
    ),
    "function_call_output": _output_item(call_id=_CALL_ID, output=_TEXT),
    "mcp_list_tools": _hosted_item(
        {
            "server_label": _TEXT,
            "tools": {
                "type": "array",
                "items": thing({"name": _TEXT, "input_schema": {"type": "object"}}),
            },
        },
        error={"type": "string", "description": "Why the server's tools could not be listed."},
    ),
    "mcp_call": _hosted_item(
        {
            "server_label": _TEXT,
            "name": _TEXT,
            "arguments": {"type": "string", "description": "JSON, as the model wrote it."},
        },
        output={"type": "string", "description": "The text of the tool's result."},
        error=_MCP_ERROR,
        approval_request_id=_TEXT,
    ),
    "web_search_call": _hosted_item(
        {
            "action": thing(
                {"type": const("search")},
                {
                    "query": _TEXT,
                    "queries": _WORDS,
                    "sources": {
                        "type": "array",
                        "items": thing({"type": const("url"), "url": _TEXT}),
                        "description": 'What the search has found; only with `include: ["web_search_call.action.sources"]`.',
                    },
                },
            )
        }
    ),
    "mcp_approval_request": _output_item(server_label=_TEXT, name=_TEXT, arguments=_TEXT),
}
"""type -> what the model can put into `output`."""

_NATIVE_ITEM: Schema = {
    **thing(
        {
            "id": _TEXT,
            "type": _TEXT,
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
        }
    ),
    "description": "An item of a tool that the upstream itself runs (`file_search_call`, `code_interpreter_call`, …), as it tells it.",
}

_CONVERSATION: Schema = thing(
    {
        "id": _CONVERSATION_ID,
        "object": const("conversation"),
        "created_at": _SECONDS,
        "metadata": parameter("metadata", kept()),
    }
)

_READINESS: Schema = thing(
    {
        "ready": _TRUTH,
        "stopping": _TRUTH,
        "database": _TEXT,
        "schema": or_null(
            {"type": "string", "description": "The revision that the database was migrated to."}
        ),
        "workers": {
            "type": "object",
            "additionalProperties": _COUNT,
            "description": "Kind of process -> how many are alive.",
        },
        "redis": {
            "type": "string",
            "description": "Only reported: the server works on without Redis, slower.",
        },
    }
)

# The stream.

_FIELDS: dict[str, Schema] = {
    "response": reference("Response"),
    "item": reference("OutputItem"),
    "part": {
        "anyOf": [reference("OutputContent"), reference("ReasoningText"), reference("SummaryText")]
    },
    "annotation": reference("Annotation"),
    "logprobs": _LOGPROBS,
}
"""Fields of events that hold objects -> what they hold."""
_PADDING: Schema = {
    "type": "string",
    "description": "Only with `include_obfuscation`: means nothing.",
}
_SIMPLE: dict[object, Schema] = {int: _COUNT, str: _TEXT}


def _events() -> dict[str, Schema]:
    """A component for each event struct, and `StreamEvent` for any of them."""
    events: dict[str, Schema] = {}
    tags: dict[str, str] = {}
    for kind in Event.__subclasses__():
        tag = kind.__struct_config__.tag
        assert isinstance(tag, str)
        fields = {
            field.name: _FIELDS.get(field.name) or _SIMPLE[field.type]
            for field in msgspec.structs.fields(kind)
        }
        name = f"{kind.__name__}Event"
        padding = {"obfuscation": _PADDING} if tag.endswith(".delta") else {}
        events[name] = thing({"type": const(tag), **fields, "sequence_number": _COUNT}, padding)
        tags[tag] = reference(name)["$ref"]
    union = {
        "oneOf": [reference(name) for name in events],
        "discriminator": {"propertyName": "type", "mapping": tags},
    }
    return {"StreamEvent": union, **events}
