"""Vector stores in the API document: their operations, and the schemas of bodies and objects."""

from models.retrieval.filters import MAX_COMPARISONS, MAX_VALUES
from models.wire.api_schema import (
    NULL,
    Schema,
    SchemaScope,
    const,
    nullable,
    object_schema,
    reference,
)
from models.wire.checks.file_search import MAX_RESULTS, RANKERS
from models.wire.checks.parameters import METADATA
from web.http.params import PAGE_SIZE, PAGE_SIZES
from web.http.poll_after import HEADER as POLL_HEADER
from web.openapi import examples
from web.openapi.parts import (
    Json,
    operation,
    path_parameter,
    query_parameter,
    request_body,
    response,
)
from web.openapi.response_schema import SECONDS
from web.openapi.scalars import BOOLEAN, COUNT, STRING, STRINGS
from web.retrieval import requests
from web.retrieval.entries import STATUSES

_STORE_ID = path_parameter("vector_store_id", "`vs_` and 32 hexadecimal digits.")
_FILE_ID = path_parameter("file_id", "`file-` and 32 hexadecimal digits.")
_BATCH_ID = path_parameter("batch_id", "`vsfb_` and 32 hexadecimal digits.")
_PAGING = [
    query_parameter(
        "limit", {"type": "integer", **PAGE_SIZES, "default": PAGE_SIZE}, "Objects on a page."
    ),
    query_parameter(
        "order",
        {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
        "By the time at which they were made.",
    ),
    query_parameter("after", STRING, "The id of the last object of the page before."),
    query_parameter("before", STRING, "The id of the first object of the page behind."),
]
_FILTER = query_parameter(
    "filter", {"type": "string", "enum": list(STATUSES)}, "Only files with this status."
)


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    return {**_store_operations(), **_file_operations(), **_batch_operations()}


def _store_operations() -> dict[str, Json]:
    store = {"200": response("The vector store.", "VectorStore")}
    query = {"query": "What makes bread rise?"}
    return {
        "create_vector_store": operation(
            "Make a vector store",
            store,
            *(400, 401, 404, 413, 415),
            body=request_body("CreateVectorStore", {"an empty one": {"name": "Handbook"}}),
        ),
        "list_vector_stores": operation(
            "List the vector stores",
            {"200": response("A page of vector stores.", "VectorStoreList")},
            *(400, 401, 404),
            parameters=_PAGING,
        ),
        "retrieve_vector_store": operation(
            "Get a vector store", store, *(401, 404), parameters=[_STORE_ID]
        ),
        "update_vector_store": operation(
            "Change a vector store",
            store,
            *(400, 401, 404, 413, 415),
            parameters=[_STORE_ID],
            body=request_body("UpdateVectorStore", {"a name": {"name": "Handbook"}}),
        ),
        "delete_vector_store": operation(
            "Delete a vector store",
            {"200": response("Deleted; its files stay.", "DeletedVectorStore")},
            *(401, 404),
            parameters=[_STORE_ID],
        ),
        "search_vector_store": operation(
            "Search a vector store",
            {"200": response("The chunks that fit best.", "VectorStoreSearchResults")},
            *(400, 401, 404, 413, 415),
            parameters=[_STORE_ID],
            body=request_body("SearchVectorStore", {"a question": query}),
        ),
    }


def _file_operations() -> dict[str, Json]:
    file = {"200": response("The file in the vector store.", "VectorStoreFile", None, POLL_HEADER)}
    of_file = [_STORE_ID, _FILE_ID]
    return {
        "add_vector_store_file": operation(
            "Add a file to a vector store",
            file,
            *(400, 401, 404, 413, 415),
            parameters=[_STORE_ID],
            body=request_body(
                "AddVectorStoreFile", {"a text": {"file_id": examples.stored_file()["id"]}}
            ),
        ),
        "list_vector_store_files": operation(
            "List the files of a vector store",
            {"200": response("A page of files.", "VectorStoreFileList")},
            *(400, 401, 404),
            parameters=[_STORE_ID, _FILTER, *_PAGING],
        ),
        "retrieve_vector_store_file": operation(
            "Get a file of a vector store", file, *(401, 404), parameters=of_file
        ),
        "update_vector_store_file": operation(
            "Replace the attributes of a file",
            file,
            *(400, 401, 404, 413, 415),
            parameters=of_file,
            body=request_body("UpdateVectorStoreFile", {"a year": {"attributes": {"year": 2026}}}),
        ),
        "remove_vector_store_file": operation(
            "Remove a file from a vector store",
            {"200": response("Removed; the file itself stays.", "DeletedVectorStoreFile")},
            *(401, 404),
            parameters=of_file,
        ),
        "vector_store_file_content": operation(
            "Get the chunks of a file",
            {"200": response("The texts of its chunks, in order.", "VectorStoreFileContent")},
            *(401, 404),
            parameters=of_file,
        ),
    }


def _batch_operations() -> dict[str, Json]:
    batch = {"200": response("The batch of files.", "VectorStoreFileBatch", None, POLL_HEADER)}
    of_batch = [_STORE_ID, _BATCH_ID]
    ids = {"file_ids": [examples.stored_file()["id"]]}
    return {
        "create_vector_store_file_batch": operation(
            "Add files to a vector store",
            batch,
            *(400, 401, 404, 413, 415),
            parameters=[_STORE_ID],
            body=request_body("CreateVectorStoreFileBatch", {"one file": ids}),
        ),
        "retrieve_vector_store_file_batch": operation(
            "Get a batch of files", batch, *(401, 404), parameters=of_batch
        ),
        "cancel_vector_store_file_batch": operation(
            "Cancel a batch of files", batch, *(400, 401, 404), parameters=of_batch
        ),
        "list_vector_store_file_batch_files": operation(
            "List the files of a batch",
            {"200": response("A page of files.", "VectorStoreFileList")},
            *(400, 401, 404),
            parameters=[*of_batch, _FILTER, *_PAGING],
        ),
    }


# --- schemas ---


def request_schemas(sent: SchemaScope) -> dict[str, Schema]:
    """The bodies of requests."""
    ids = {"type": "array", "maxItems": requests.MAX_BATCH, "items": STRING}
    expiry = object_schema(
        {
            "anchor": const("last_active_at"),
            "days": {"type": "integer", "minimum": 1, "maximum": requests.MAX_EXPIRY_DAYS},
        }
    )
    metadata = nullable(METADATA.schema(sent))
    name = {"type": ["string", "null"], "maxLength": 256}
    file = {"attributes": nullable(_ATTRIBUTES), "chunking_strategy": nullable(_CHUNKING)}
    change = {"name": name, "metadata": metadata, "expires_after": nullable(expiry)}
    return {
        "CreateVectorStore": _body(
            {},
            change
            | {
                "description": {"type": ["string", "null"], "maxLength": 4096},
                "file_ids": nullable(ids),
                "chunking_strategy": nullable(_CHUNKING),
            },
        ),
        "UpdateVectorStore": _body({}, change),
        "AddVectorStoreFile": _body({"file_id": STRING}, file),
        "UpdateVectorStoreFile": _body({"attributes": nullable(_ATTRIBUTES)}, {}),
        "CreateVectorStoreFileBatch": _body(
            {},
            file
            | {
                "file_ids": nullable(ids),
                "files": nullable(
                    {
                        "type": "array",
                        "maxItems": requests.MAX_BATCH,
                        "items": _body({"file_id": STRING}, file),
                    }
                ),
            },
        ),
        "SearchVectorStore": _body({"query": _QUERY}, _SEARCH_FIELDS),
        "VectorStoreFilter": _FILTERS,
    }


def object_schemas(stored: SchemaScope) -> dict[str, Schema]:
    """What the server returns."""
    return {
        "VectorStore": object_schema(
            {
                "id": {"type": "string", "pattern": "^vs_[0-9a-f]{32}$"},
                "object": const("vector_store"),
                "created_at": SECONDS,
                "name": STRING,
                "description": nullable(STRING),
                "usage_bytes": COUNT,
                "file_counts": _FILE_COUNTS,
                "status": {"type": "string", "enum": ["in_progress", "completed", "expired"]},
                "expires_after": nullable(
                    object_schema({"anchor": const("last_active_at"), "days": COUNT})
                ),
                "expires_at": nullable(SECONDS),
                "last_active_at": SECONDS,
                "metadata": METADATA.schema(stored),
            }
        ),
        "VectorStoreList": _page_of(reference("VectorStore")),
        "DeletedVectorStore": _deleted("vector_store.deleted"),
        "VectorStoreFile": object_schema(
            {
                "id": STRING,
                "object": const("vector_store.file"),
                "created_at": SECONDS,
                "vector_store_id": STRING,
                "status": {"type": "string", "enum": list(STATUSES)},
                "last_error": nullable(_LAST_ERROR),
                "usage_bytes": COUNT,
                "attributes": _ATTRIBUTES,
                "chunking_strategy": _STATIC,
            }
        ),
        "VectorStoreFileList": _page_of(reference("VectorStoreFile")),
        "DeletedVectorStoreFile": _deleted("vector_store.file.deleted"),
        "VectorStoreFileContent": _results("vector_store.file_content.page", _TEXT_PART),
        "VectorStoreFileBatch": object_schema(
            {
                "id": {"type": "string", "pattern": "^vsfb_[0-9a-f]{32}$"},
                "object": const("vector_store.files_batch"),
                "created_at": SECONDS,
                "vector_store_id": STRING,
                "status": {"type": "string", "enum": list(STATUSES)},
                "file_counts": _FILE_COUNTS,
            }
        ),
        "VectorStoreSearchResults": _results(
            "vector_store.search_results.page", _RESULT, search_query=STRINGS
        ),
    }


_VALUE: Schema = {"type": ["string", "number", "boolean"], "maxLength": requests.MAX_VALUE}
_OPTIONAL_VALUE = _VALUE | {"type": [*_VALUE["type"], "null"]}
_ATTRIBUTES: Schema = {
    "type": "object",
    "maxProperties": requests.MAX_ATTRIBUTES,
    "propertyNames": {"maxLength": requests.MAX_KEY},
    "additionalProperties": _OPTIONAL_VALUE,
}
_TOKENS: Schema = {
    "type": "integer",
    "minimum": requests.MIN_TOKENS,
    "maximum": requests.MAX_TOKENS,
}
_STATIC = object_schema(
    {
        "type": const("static"),
        "static": object_schema(
            {
                "max_chunk_size_tokens": _TOKENS,
                "chunk_overlap_tokens": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": requests.MAX_TOKENS // 2,
                    "description": "At most half of `max_chunk_size_tokens`.",
                },
            }
        ),
    }
)
_CHUNKING: Schema = {"oneOf": [object_schema({"type": const("auto")}), _STATIC]}
_FILTERS: Schema = {
    "oneOf": [
        object_schema(
            {
                "type": {"type": "string", "enum": ["eq", "ne", "gt", "gte", "lt", "lte"]},
                "key": {"type": "string", "minLength": 1, "maxLength": 64},
                "value": _VALUE,
            }
        ),
        object_schema(
            {
                "type": {"type": "string", "enum": ["in", "nin"]},
                "key": {"type": "string", "minLength": 1, "maxLength": 64},
                "value": {"type": "array", "maxItems": MAX_VALUES, "items": _VALUE},
            }
        ),
        object_schema(
            {
                "type": {"type": "string", "enum": ["and", "or"]},
                "filters": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_COMPARISONS,
                    "items": reference("VectorStoreFilter"),
                },
            }
        ),
    ]
}
_ONE_QUERY: Schema = {"type": "string", "minLength": 1, "maxLength": requests.MAX_QUERY}
_QUERY: Schema = {
    "anyOf": [
        _ONE_QUERY,
        {"type": "array", "minItems": 1, "maxItems": requests.MAX_QUERIES, "items": _ONE_QUERY},
    ]
}
_WEIGHT: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1000}
_SEARCH_FIELDS: dict[str, Schema] = {
    "filters": nullable(reference("VectorStoreFilter")),
    "max_num_results": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_RESULTS},
    "ranking_options": {
        "type": ["object", "null"],
        "properties": {
            "ranker": {"type": ["string", "null"], "enum": [*RANKERS, None]},
            "score_threshold": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "hybrid_search": {
                "type": ["object", "null"],
                "properties": {"embedding_weight": _WEIGHT, "text_weight": _WEIGHT},
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
    },
    "rewrite_query": {
        "type": ["boolean", "null"],
        "description": "The queries are rewritten, if this server has a model for it; "
        "`search_query` of the answer has what was searched.",
    },
}
_FILE_COUNTS = object_schema(dict.fromkeys((*STATUSES, "total"), COUNT))
_LAST_ERROR = object_schema(
    {
        "code": {"type": "string", "enum": ["server_error", "unsupported_file", "invalid_file"]},
        "message": STRING,
    }
)
_TEXT_PART = object_schema({"type": const("text"), "text": STRING})
_RESULT = object_schema(
    {
        "file_id": STRING,
        "filename": STRING,
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "attributes": _ATTRIBUTES,
        "content": {"type": "array", "items": _TEXT_PART},
    }
)


def _body(fields: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    """A body without other fields, unless they are null."""
    return {**object_schema(fields, optional), "additionalProperties": NULL}


def _page_of(element: Schema) -> Schema:
    return object_schema(
        {
            "object": const("list"),
            "data": {"type": "array", "items": element},
            "first_id": nullable(STRING),
            "last_id": nullable(STRING),
            "has_more": BOOLEAN,
        }
    )


def _results(kind: str, element: Schema, **more: Schema) -> Schema:
    return object_schema(
        {
            "object": const(kind),
            **more,
            "data": {"type": "array", "items": element},
            "has_more": BOOLEAN,
            "next_page": nullable(STRING),
        }
    )


def _deleted(kind: str) -> Schema:
    deleted = {"type": "boolean", "const": True}
    return object_schema({"id": STRING, "object": const(kind), "deleted": deleted})
