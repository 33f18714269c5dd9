"""The items of a Response's output, and their content."""

from models.wire.api_schema import Schema, const, object_schema, one_of, reference
from web.openapi.scalars import COUNT, STRING, STRINGS

_STATUS: Schema = {"type": "string", "enum": ["in_progress", "completed", "incomplete"]}


def output_item_components(*, native: bool) -> dict[str, Schema]:
    """`OutputItem` and the schemas that it refers to.

    `native`: a configured upstream supports the Responses API and runs tools itself.
    """
    items = one_of(_OUTPUT_ITEMS)
    return {
        "OutputItem": {"anyOf": [items, _NATIVE_ITEM]} if native else items,
        "OutputContent": one_of(_OUTPUT_CONTENT),
        "SummaryText": one_of({"summary_text": object_schema({"text": STRING})}),
        "ReasoningText": one_of({"reasoning_text": object_schema({"text": STRING})}),
        "Annotation": one_of(
            {
                "url_citation": object_schema(
                    {"url": STRING, "title": STRING, "start_index": COUNT, "end_index": COUNT}
                ),
                "file_citation": object_schema(
                    {
                        "file_id": STRING,
                        "filename": STRING,
                        "index": {**COUNT, "description": "Where it belongs in the text."},
                    }
                ),
            }
        ),
        "Logprob": object_schema(
            {**_TOKEN, "top_logprobs": {"type": "array", "items": object_schema(_TOKEN)}}
        ),
    }


LOGPROBS: Schema = {"type": "array", "items": reference("Logprob")}

_TOKEN: dict[str, Schema] = {
    "token": STRING,
    "logprob": {"type": "number"},
    "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
}

_OUTPUT_CONTENT: dict[str, Schema] = {
    "output_text": object_schema(
        {
            "text": STRING,
            "annotations": {"type": "array", "items": reference("Annotation")},
            "logprobs": LOGPROBS,
        },
    ),
    "refusal": object_schema({"refusal": STRING}),
}


def _output_item(optional: dict[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    return object_schema({"id": STRING, "status": _STATUS, **fields}, optional)


def _server_tool_item(fields: dict[str, Schema], **optional: Schema) -> Schema:
    """The item of a server tool; it can fail."""
    status = {**_STATUS, "enum": [*_STATUS["enum"], "failed"]}
    return object_schema({"id": STRING, "status": status, **fields}, optional)


_MCP_ERROR: Schema = one_of(
    {
        "mcp_protocol_error": object_schema({"code": {"type": "integer"}, "message": STRING}),
        "mcp_tool_execution_error": object_schema(
            {"content": {"type": "array", "items": {"type": "object"}}}
        ),
        "http_error": object_schema({"code": {"type": "integer"}, "message": STRING}),
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
        name=STRING,
        arguments={"type": "string", "description": "JSON, as the model wrote it."},
    ),
    "custom_tool_call": _output_item(_NAMESPACED, call_id=_CALL_ID, name=STRING, input=STRING),
    "shell_call": _output_item(
        call_id=_CALL_ID,
        action=object_schema(
            {"commands": STRINGS}, {"timeout_ms": COUNT, "max_output_length": COUNT}
        ),
    ),
    "local_shell_call": _output_item(
        call_id=_CALL_ID,
        action=object_schema(
            {
                "type": const("exec"),
                "command": STRINGS,
                "env": {"type": "object", "additionalProperties": STRING},
            },
            {"timeout_ms": COUNT, "user": STRING, "working_directory": STRING},
        ),
    ),
    "apply_patch_call": _output_item(
        call_id=_CALL_ID,
        operation=one_of(
            {
                "create_file": object_schema({"path": STRING, "diff": STRING}),
                "update_file": object_schema({"path": STRING, "diff": STRING}),
                "delete_file": object_schema({"path": STRING}),
            }
        ),
    ),
    "tool_search_call": _output_item(
        call_id=_CALL_ID, execution=const("client"), arguments={"type": "object"}
    ),
    "function_call_output": _output_item(call_id=_CALL_ID, output=STRING),
    "mcp_list_tools": _server_tool_item(
        {
            "server_label": STRING,
            "tools": {
                "type": "array",
                "items": object_schema({"name": STRING, "input_schema": {"type": "object"}}),
            },
        },
        error={
            "type": "string",
            "description": "Why the server's tools, or some of them, could not be listed.",
        },
    ),
    "mcp_call": _server_tool_item(
        {
            "server_label": STRING,
            "name": STRING,
            "arguments": {"type": "string", "description": "JSON, as the model wrote it."},
        },
        output={"type": "string", "description": "The text of the tool's result."},
        error=_MCP_ERROR,
        approval_request_id=STRING,
    ),
    "web_search_call": _server_tool_item(
        {
            "action": object_schema(
                {"type": const("search")},
                {
                    "query": STRING,
                    "queries": STRINGS,
                    "sources": {
                        "type": "array",
                        "items": object_schema({"type": const("url"), "url": STRING}),
                        "description": "The results. "
                        "Only with `web_search_call.action.sources` in `include`.",
                    },
                },
            )
        }
    ),
    "file_search_call": _server_tool_item(
        {"queries": STRINGS},
        results={
            "type": "array",
            "items": object_schema(
                {
                    "file_id": STRING,
                    "filename": STRING,
                    "score": {"type": "number", "minimum": 0, "maximum": 1},
                    "attributes": {"type": "object"},
                    "text": STRING,
                }
            ),
            "description": "Only with `file_search_call.results` in `include`.",
        },
    ),
    "mcp_approval_request": _output_item(server_label=STRING, name=STRING, arguments=STRING),
    "image_generation_call": _server_tool_item(
        {}, result={"type": "string", "description": "A picture of the model, in base64."}
    ),
}
"""type -> an item that can be in `output`."""

_NATIVE_ITEM: Schema = {
    **object_schema(
        {
            "id": STRING,
            "type": STRING,
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
        }
    ),
    "description": "An item of a tool that the upstream runs itself (`code_interpreter_call`, "
    "`image_generation_call`, …), as the upstream sent it.",
}
