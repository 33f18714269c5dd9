"""What the server returns: Responses, lists, conversations, models, errors."""

from models.batches.lines import ENDPOINTS
from models.errors import ApiError
from models.wire.api_schema import Schema, SchemaScope, const, nullable, object_schema, reference
from models.wire.checks.parameters import METADATA
from web.files.objects import FilePurpose
from web.openapi import retrieval
from web.openapi.meaning import CODES
from web.openapi.output_items import output_item_components
from web.openapi.response_schema import (
    CONVERSATION_ID,
    RESPONSE_ID,
    SECONDS,
    USAGE,
    response_schema,
)
from web.openapi.scalars import BOOLEAN, COUNT, STRING
from web.openapi.stream_events import event_components
from web.routes.foreground import ERROR_TYPES


def components(stored: SchemaScope, *, native: bool) -> dict[str, Schema]:
    """Every schema of a response. `native`: a configured upstream supports the Responses API."""
    return {
        "Response": response_schema(stored, native=native),
        **output_item_components(native=native),
        "Usage": USAGE,
        **event_components(),
        "InputItemList": _page_of(reference("ListedItem")),
        "Compaction": _compaction(),
        "InputTokens": object_schema(
            {"object": const("response.input_tokens"), "input_tokens": COUNT}
        ),
        "Conversation": _conversation(stored),
        "ConversationItem": {"anyOf": [reference("ListedItem"), reference("OutputItem")]},
        "ConversationItemList": _page_of(reference("ConversationItem")),
        "DeletedConversation": _deleted(CONVERSATION_ID, "conversation.deleted"),
        "DeletedResponse": _deleted(RESPONSE_ID, "response"),
        "File": _FILE,
        "FileList": _page_of(reference("File")),
        "Upload": _UPLOAD,
        "UploadPart": object_schema(
            {
                "id": STRING,
                "object": const("upload.part"),
                "created_at": SECONDS,
                "upload_id": STRING,
            }
        ),
        "DeletedFile": _deleted(_FILE_ID, "file"),
        "Batch": _batch(stored),
        "BatchList": _page_of(reference("Batch")),
        **retrieval.object_schemas(stored),
        "Model": object_schema(
            {"id": STRING, "object": const("model"), "created": SECONDS, "owned_by": STRING}
        ),
        "ModelList": _list_of(reference("Model")),
        "Alive": object_schema({"status": const("ok"), "version": STRING}),
        "Readiness": _READINESS,
        "Error": _error(),
    }


def _list_of(element: Schema, **more: Schema) -> Schema:
    data = {"type": "array", "items": element}
    return object_schema({"object": const("list"), "data": data, **more})


def _page_of(element: Schema) -> Schema:
    ids = {"first_id": nullable(STRING), "last_id": nullable(STRING)}
    return _list_of(element, **ids, has_more=BOOLEAN)


def _deleted(object_id: Schema, kind: str) -> Schema:
    deleted = {"type": "boolean", "const": True}
    return object_schema({"id": object_id, "object": const(kind), "deleted": deleted})


def _compaction() -> Schema:
    output = {"anyOf": [reference("ListedMessage"), reference("OutputItem")]}
    return object_schema(
        {
            "id": RESPONSE_ID,
            "object": const("response.compaction"),
            "created_at": SECONDS,
            "output": {"type": "array", "items": output},
            "usage": nullable(reference("Usage")),
        }
    )


def _conversation(stored: SchemaScope) -> Schema:
    return object_schema(
        {
            "id": CONVERSATION_ID,
            "object": const("conversation"),
            "created_at": SECONDS,
            "metadata": METADATA.schema(stored),
        }
    )


_FILE_ID: Schema = {"type": "string", "pattern": "^file-[0-9a-f]{32}$"}
_FILE: Schema = object_schema(
    {
        "id": _FILE_ID,
        "object": const("file"),
        "bytes": COUNT,
        "created_at": SECONDS,
        "expires_at": nullable(SECONDS),
        "filename": STRING,
        "purpose": {"type": "string", "enum": list(FilePurpose)},
        "status": const("processed"),
        "status_details": {"type": "null"},
    }
)

_UPLOAD: Schema = object_schema(
    {
        "id": STRING,
        "object": const("upload"),
        "bytes": COUNT,
        "created_at": SECONDS,
        "expires_at": SECONDS,
        "filename": STRING,
        "purpose": {"type": "string", "enum": list(FilePurpose)},
        "status": {"type": "string", "enum": ["pending", "completed", "cancelled", "expired"]},
        "file": nullable(reference("File")),
    }
)

_BATCH_TIMES = (
    *("in_progress_at", "finalizing_at", "cancelling_at"),
    *("completed_at", "failed_at", "expired_at", "cancelled_at"),
)
_BATCH_STATUSES = (
    *("validating", "failed", "in_progress", "finalizing"),
    *("completed", "expired", "cancelling", "cancelled"),
)


def _batch(stored: SchemaScope) -> Schema:
    text = nullable(STRING)
    error = object_schema(
        {"code": STRING, "line": nullable(COUNT), "message": STRING, "param": text}
    )
    usage = {
        "input_tokens": COUNT,
        "input_tokens_details": object_schema({"cached_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": object_schema({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
    return object_schema(
        {
            "id": {"type": "string", "pattern": "^batch_[0-9a-f]{32}$"},
            "object": const("batch"),
            "endpoint": {"type": "string", "enum": list(ENDPOINTS)},
            "model": text,
            "errors": nullable(_list_of(error)),
            "input_file_id": _FILE_ID,
            "completion_window": STRING,
            "status": {"type": "string", "enum": list(_BATCH_STATUSES)},
            "output_file_id": nullable(_FILE_ID),
            "error_file_id": nullable(_FILE_ID),
            "created_at": SECONDS,
            "expires_at": SECONDS,
            **dict.fromkeys(_BATCH_TIMES, nullable(SECONDS)),
            "request_counts": object_schema({"total": COUNT, "completed": COUNT, "failed": COUNT}),
            "usage": object_schema(usage),
            "metadata": nullable(METADATA.schema(stored)),
        }
    )


_READINESS: Schema = object_schema(
    {
        "ready": BOOLEAN,
        "stopping": BOOLEAN,
        "database": STRING,
        "schema": nullable(
            {"type": "string", "description": "The migration revision of the database."}
        ),
        "schema_state": nullable(
            {"type": "string", "description": "`ok`, or why this version does not run on it."}
        ),
        "lease": STRING,
        "workers": {
            "type": "object",
            "additionalProperties": COUNT,
            "description": "Kind of process -> number of live processes.",
        },
        "redis": {
            "type": "string",
            "description": "Only reported: without Redis the server works, but slower.",
        },
        "redis_memory": nullable(
            {
                "type": "string",
                "description": "`ok`, or what is wrong with its limit. Null: unknown.",
            }
        ),
    }
)


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
