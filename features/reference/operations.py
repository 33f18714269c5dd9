"""The operations of all routes: parameters, bodies and responses, with every status."""

from features.files.routes import LIST_SIZES, MAX_PAGE
from features.proxy.endpoints import ENDPOINTS, ProxiedEndpoint
from features.reference import examples
from features.reference.meaning import IDEMPOTENCY_KEY, PROXIED_RESPONSE, STATUSES
from features.reference.parts import (
    EVENT_STREAM,
    FORM,
    JSON,
    PAGING,
    Json,
    header_parameter,
    headers,
    operation,
    query_parameter,
    request_body,
    response,
)
from features.retrieval import document as retrieval
from features.tenants import document as organization
from features.webhooks import document as webhook_endpoints
from models.wire.api_schema import input_scope, reference
from models.wire.checks.parameters import INCLUDE_VALUE
from models.wire.without_effect import HEADER as IGNORED_HEADER
from web.http.poll_after import HEADER as POLL_HEADER
from web.idempotency.keys import MAX_KEY_LENGTH
from web.routes.input_tokens import COUNT_HEADER
from web.routes.responses import EVENT_NUMBERS

_UPSTREAM_STATUSES = (400, 401, 404, 408, 413, 422, 424, 429, 502, 504)
"""The status of a foreground response, not streamed, that failed before any output."""


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    described = _operations()
    for name in CREATES:
        described[name].setdefault("parameters", []).insert(0, _IDEMPOTENCY_KEY)
    return described


CREATES = (
    *("create", "compact", "create_conversation", "add_items", "create_file", "create_batch"),
    *("create_upload", "add_upload_part", "complete_upload"),
    *("create_vector_store", "add_vector_store_file", "create_vector_store_file_batch"),
    *("create_endpoint", "rotate_secret", "create_endpoint_of_project", "rotate_secret_of_project"),
    *("create_project", "create_service_account", "create_service_account_key"),
    "create_admin_key",
)
"""The routes that make something once for each `Idempotency-Key`."""


def _operations() -> dict[str, Json]:
    return {
        **_response_operations(),
        **_one_shot_operations(),
        **_conversation_operations(),
        **_conversation_item_operations(),
        **_file_operations(),
        **_upload_operations(),
        **{endpoint.name: _proxied(endpoint) for endpoint in ENDPOINTS},
        **_batch_operations(),
        **retrieval.operations(),
        **_model_operations(),
        **_process_operations(),
        **organization.operations(),
        **webhook_endpoints.operations(),
    }


def _response_operations() -> dict[str, Json]:
    return {
        "create": _create(),
        "retrieve": operation(
            "Get a response, or its events",
            {
                "200": response(
                    "The response in its current state.",
                    "Response",
                    {"ended": examples.response(ended=True)},
                    POLL_HEADER,
                    stream=True,
                )
            },
            parameters=[*_STREAM_QUERY, *_INCLUDE_IN_RESPONSE],
        ),
        "delete": operation(
            "Delete a response",
            {"200": response("Deleted, with everything stored with it.", "DeletedResponse")},
        ),
        "cancel": operation(
            "Cancel a background response",
            {"200": response("The cancelled response.", "Response", None, POLL_HEADER)},
            400,
        ),
        "input_items": operation(
            "List a response's input",
            {
                "200": response(
                    "A page of input items.", "InputItemList", {"one item": examples.input_items()}
                )
            },
            parameters=[*PAGING, *_INCLUDE],
        ),
    }


def _create() -> Json:
    return operation(
        "Create a response",
        {
            "200": response(
                "The response: as accepted (background), or after its end.",
                "Response",
                {
                    "in the background": examples.response(ended=False),
                    "ended": examples.response(ended=True),
                },
                "x-cache",
                "x-omitted-tools",
                IGNORED_HEADER,
                POLL_HEADER,
                stream=True,
            )
        },
        *_UPSTREAM_STATUSES,
        415,
        parameters=_CREATE_HEADERS,
        body=request_body("CreateResponse", examples.REQUESTS),
    )


def _one_shot_operations() -> dict[str, Json]:
    history = {"a history": {"model": "demo", "previous_response_id": examples.RESPONSE_ID}}
    return {
        "compact": operation(
            "Compact a history",
            {
                "200": response(
                    "The user messages that are kept, and the compaction item.",
                    "Compaction",
                    None,
                    IGNORED_HEADER,
                )
            },
            *_UPSTREAM_STATUSES,
            415,
            body=request_body("CompactResponse", history),
        ),
        "input_tokens": operation(
            "Count a request's tokens",
            {"200": response("The count.", "InputTokens", None, COUNT_HEADER, IGNORED_HEADER)},
            *_UPSTREAM_STATUSES,
            415,
            body=request_body(
                "CountInputTokens", {"a text": {"model": "demo", "input": "Say hello."}}
            ),
        ),
    }


def _conversation_operations() -> dict[str, Json]:
    conversation = {
        "200": response(
            "The conversation.", "Conversation", {"a conversation": examples.conversation()}
        )
    }
    metadata = {"metadata": {"topic": "tides"}}
    return {
        "create_conversation": operation(
            "Create a conversation",
            conversation,
            body=request_body(
                "CreateConversation", {"with a first item": examples.ITEMS | metadata, "empty": {}}
            ),
        ),
        "retrieve_conversation": operation("Get a conversation", conversation),
        "update_conversation": operation(
            "Update a conversation",
            conversation,
            body=request_body("UpdateConversation", {"a topic": metadata}),
        ),
        "delete_conversation": operation(
            "Delete a conversation",
            {
                "200": response(
                    "Deleted. The input and output of its responses are kept.",
                    "DeletedConversation",
                )
            },
            400,
        ),
        "delete_item": operation("Remove an item from a conversation", conversation, 400),
    }


def _conversation_item_operations() -> dict[str, Json]:
    items = {
        "200": response(
            "Items, in the list envelope.",
            "ConversationItemList",
            {"one item": examples.input_items()},
        )
    }
    return {
        "add_items": operation(
            "Add items to a conversation",
            items,
            parameters=[*_INCLUDE],
            body=request_body("AddItems", {"one item": examples.ITEMS}),
        ),
        "list_items": operation(
            "List a conversation's items", items, parameters=[*PAGING, *_INCLUDE]
        ),
        "retrieve_item": operation(
            "Get an item of a conversation",
            {"200": response("The item.", "ConversationItem")},
            parameters=[*_INCLUDE],
        ),
    }


def _file_operations() -> dict[str, Json]:
    file = {"200": response("The file.", "File", {"a text": examples.stored_file()})}
    content = {
        "description": "The bytes of the file.",
        "headers": headers(),
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    }
    purpose = query_parameter("purpose", {"type": "string"}, "Only files of this purpose.")
    sizes = {"type": "integer", **LIST_SIZES, "default": LIST_SIZES["maximum"]}
    limit = query_parameter("limit", sizes, f"Files on a page; it has at most {MAX_PAGE}.")
    return {
        "create_file": operation(
            "Upload a file",
            file,
            408,
            body={
                "required": True,
                "content": {"multipart/form-data": {"schema": reference("CreateFile")}},
            },
        ),
        "list_files": operation(
            "List the files",
            {"200": response("A page of files.", "FileList")},
            parameters=[purpose, limit, *PAGING[1:]],
        ),
        "retrieve_file": operation("Get a file", file),
        "delete_file": operation(
            "Delete a file", {"200": response("Deleted, with its content.", "DeletedFile")}
        ),
        "file_content": operation(
            "Get the content of a file",
            {
                "200": content,
                "206": content | {"description": "The range of its bytes that `Range` names."},
            },
            416,
            parameters=[_RANGE],
        ),
    }


def _batch_operations() -> dict[str, Json]:
    batch = {"200": response("The batch.", "Batch", {"a batch": examples.batch()})}
    body = {"input_file_id": examples.stored_file()["id"], "endpoint": "/v1/responses"}
    return {
        "create_batch": operation(
            "Create a batch",
            batch,
            404,
            body=request_body("CreateBatch", {"a day": body | {"completion_window": "24h"}}),
        ),
        "list_batches": operation(
            "List the batches",
            {"200": response("A page of batches, the newest first.", "BatchList")},
            404,
            parameters=[PAGING[0], PAGING[2]],
        ),
        "retrieve_batch": operation("Get a batch", batch),
        "cancel_batch": operation("Cancel a batch", batch, 400),
    }


def _model_operations() -> dict[str, Json]:
    return {
        "list_models": operation(
            "List the models",
            {"200": response("The configured routes, and the upstreams' models.", "ModelList")},
            502,
        ),
        "one_model": operation("Get a model", {"200": response("The model.", "Model")}, 502),
    }


def _process_operations() -> dict[str, Json]:
    prometheus = {
        "description": "Prometheus' text format.",
        "headers": headers(),
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
    return {
        "healthz": operation(
            "Liveness", {"200": response("The process is alive.", "Alive")}, public=True
        ),
        "readyz": operation(
            "Readiness",
            {
                "200": response("The process can serve requests.", "Readiness"),
                "503": response("It cannot, or it is stopping.", "Readiness"),
            },
            public=True,
        ),
        "metrics": operation(
            "Metrics for Prometheus", {"200": prometheus}, *(401, 403, 404), public=True
        ),
    }


def _proxied(endpoint: ProxiedEndpoint) -> Json:
    name = "ProxiedRequest" if endpoint.default_model is None else "ProxiedRequestWithDefault"
    body = request_body(name, examples.PROXIED[endpoint.name])
    if endpoint.takes_form:
        body["content"][FORM] = {"schema": reference("ProxiedForm")}
    answer = {
        "description": PROXIED_RESPONSE,
        "headers": headers(),
        "content": _PROXIED_CONTENT | {each: {} for each in _media_ranges(endpoint)},
    }
    return operation(endpoint.summary, {**_PROXIED_ERRORS, "200": answer}, body=body)


def _media_ranges(endpoint: ProxiedEndpoint) -> list[str]:
    return [f"{each}*" if each.endswith("/") else each for each in endpoint.answer_types]


def _proxied_error(status: int) -> Json:
    """An error of this server, or of the upstream with whatever body it has."""
    content = {"schema": {"type": "object", "description": "`Error`, or the upstream's own body."}}
    return {
        "description": STATUSES.get(status, "The meaning depends on the upstream."),
        "headers": headers(),
        "content": {JSON: content, "text/plain": {}},
    }


_PROXIED_CONTENT: Json = {
    JSON: {"schema": {"type": "object"}},
    EVENT_STREAM: {
        "itemSchema": {
            "type": "object",
            "description": "A chunk as the upstream sends it; `[DONE]` comes last.",
        }
    },
    "text/plain": {},
}
_PROXIED_ERRORS = {
    str(status): _proxied_error(status)
    for status in (*_UPSTREAM_STATUSES, 409, 500, 503)
    if status not in (401, 424)
}


def _upload_operations() -> dict[str, Json]:
    upload = {"200": response("The upload.", "Upload")}
    parts = {"part_ids": ["part_019abc12de347000d1b2c3d4e5f60723"]}
    begin = {"bytes": 1200, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    return {
        "create_upload": operation(
            "Begin an upload in parts", upload, body=request_body("CreateUpload", {"a text": begin})
        ),
        "add_upload_part": operation(
            "Upload a part",
            {"200": response("The part.", "UploadPart")},
            408,
            body={
                "required": True,
                "content": {"multipart/form-data": {"schema": reference("AddUploadPart")}},
            },
        ),
        "complete_upload": operation(
            "Make a file of an upload",
            upload,
            body=request_body("CompleteUpload", {"one part": parts}),
        ),
        "cancel_upload": operation("Cancel an upload", upload, 400),
    }


_RANGE = header_parameter("Range", {"type": "string"}, "One range of bytes: `bytes=0-999`.")

_IDEMPOTENCY_KEY = header_parameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH},
    IDEMPOTENCY_KEY,
)
_CREATE_HEADERS = [header_parameter("traceparent", {"type": "string"}, "W3C trace context.")]


def _include(effect: str) -> list[Json]:
    values = {"type": "array", "items": INCLUDE_VALUE.schema(input_scope())}
    description = f"The values of `include` of a create request. {effect}"
    return [query_parameter(name, values, description) for name in ("include[]", "include")]


_INCLUDE = _include("They have no effect here.")
_INCLUDE_IN_RESPONSE = _include(
    "`reasoning.encrypted_content` shows the sealed reasoning; the others have no effect here."
)

_STREAM_QUERY = [
    query_parameter(
        "stream",
        {"type": "boolean", "default": False},
        "Stream all events, past and future. Only for a background response.",
    ),
    query_parameter(
        "starting_after",
        {"type": "integer", **EVENT_NUMBERS},
        "With `stream`: only events with a higher `sequence_number`.",
    ),
    query_parameter(
        "include_obfuscation",
        {"type": "boolean", "default": False},
        "Pad the delta events, so that their length reveals nothing about their text.",
    ),
]
