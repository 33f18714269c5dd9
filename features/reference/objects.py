"""What the server returns: Responses, lists, conversations, models, errors."""

from openai import types as sdk
from openai.types.batch_request_counts import BatchRequestCounts
from openai.types.batch_usage import BatchUsage
from openai.types.conversations import Conversation
from openai.types.responses import CompactedResponse, InputTokenCountResponse, ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails
from openai.types.uploads import UploadPart

from features.batches.lines import ENDPOINTS
from features.files.objects import FilePurpose
from features.reference.meaning import CODES
from features.reference.output_items import output_item_components
from features.reference.response_schema import CONVERSATION_ID, RESPONSE_ID, response_schema
from features.reference.schemas import (
    BOOLEAN,
    COUNT,
    SECONDS,
    STRING,
    array_of,
    deleted,
    list_of,
    one_of_texts,
    page_of,
    sdk_object,
)
from features.reference.stream_events import event_components
from features.retrieval import document as retrieval
from models.errors import ApiError
from models.wire.api_schema import (
    NULL,
    Schema,
    SchemaScope,
    const,
    nullable,
    object_schema,
    reference,
)
from models.wire.checks.parameters import METADATA
from web.routes.foreground import ERROR_TYPES


def components(stored: SchemaScope, *, native: bool) -> dict[str, Schema]:
    """Every schema of a response. `native`: a configured upstream supports the Responses API."""
    metadata = METADATA.schema(stored)
    return {
        "Response": response_schema(stored, native=native),
        **output_item_components(native=native),
        "Usage": sdk_object(
            ResponseUsage,
            input_tokens_details=sdk_object(InputTokensDetails, ("cache_write_tokens_details",)),
        ),
        **event_components(),
        "InputItemList": page_of("ListedItem"),
        "Compaction": sdk_object(
            CompactedResponse,
            ("image",),
            id=RESPONSE_ID,
            output=array_of({"anyOf": [reference("ListedMessage"), reference("OutputItem")]}),
            usage=nullable(reference("Usage")),
        ),
        "InputTokens": sdk_object(InputTokenCountResponse),
        "Conversation": sdk_object(Conversation, id=CONVERSATION_ID, metadata=metadata),
        "ConversationItem": {"anyOf": [reference("ListedItem"), reference("OutputItem")]},
        "ConversationItemList": page_of("ConversationItem"),
        "DeletedConversation": deleted("conversation.deleted", CONVERSATION_ID),
        "DeletedResponse": deleted("response", RESPONSE_ID),
        **_file_objects(),
        "Batch": sdk_object(
            sdk.Batch,
            id={"type": "string", "pattern": "^batch_[0-9a-f]{32}$"},
            endpoint=one_of_texts(ENDPOINTS),
            errors=nullable(list_of(sdk_object(sdk.BatchError, code=STRING, message=STRING))),
            input_file_id=_FILE_ID,
            output_file_id=nullable(_FILE_ID),
            error_file_id=nullable(_FILE_ID),
            request_counts=sdk_object(BatchRequestCounts),
            usage=sdk_object(BatchUsage),
            expires_at=SECONDS,
            metadata=nullable(metadata),
        ),
        "BatchList": page_of("Batch"),
        **retrieval.object_schemas(metadata),
        "Model": sdk_object(sdk.Model, ("shutdown_date",)),
        "ModelList": list_of(reference("Model")),
        "Alive": object_schema({"status": const("ok"), "version": STRING}),
        "Readiness": _READINESS,
        "Error": _error(),
    }


_FILE_ID: Schema = {"type": "string", "pattern": "^file-[0-9a-f]{32}$"}


def _file_objects() -> dict[str, Schema]:
    purpose = one_of_texts(FilePurpose)
    return {
        "File": sdk_object(
            sdk.FileObject,
            id=_FILE_ID,
            purpose=purpose,
            status=const("processed"),
            status_details=NULL,
        ),
        "FileList": page_of("File"),
        "DeletedFile": deleted("file", _FILE_ID),
        "Upload": sdk_object(sdk.Upload, purpose=purpose, file=nullable(reference("File"))),
        "UploadPart": sdk_object(UploadPart),
    }


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
