"""Vector stores in the API document: their operations, and the schemas of bodies and objects."""

from openai import types as sdk
from openai.types.vector_store_search_response import Content
from openai.types.vector_stores import VectorStoreFile, VectorStoreFileBatch

from features.reference import examples
from features.reference.parts import Json, operation, query_parameter, request_body, response
from features.reference.schemas import (
    SECONDS,
    SHARE,
    STRING,
    STRINGS,
    deleted,
    numbered_page_of,
    one_of_texts,
    page_of,
    sdk_object,
    strict,
)
from features.retrieval import requests
from features.retrieval.entries import STATUSES
from features.retrieval.filters import MAX_COMPARISONS, MAX_VALUES
from models.wire.api_schema import Schema, SchemaScope, const, nullable, object_schema, reference
from models.wire.checks.file_search import MAX_RESULTS, RANKERS
from models.wire.checks.parameters import METADATA
from web.http.params import PAGE_SIZE, PAGE_SIZES
from web.http.poll_after import HEADER as POLL_HEADER

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
            404,
            body=request_body("CreateVectorStore", {"an empty one": {"name": "Handbook"}}),
        ),
        "list_vector_stores": operation(
            "List the vector stores",
            {"200": response("A page of vector stores.", "VectorStoreList")},
            404,
            parameters=_PAGING,
        ),
        "retrieve_vector_store": operation("Get a vector store", store),
        "update_vector_store": operation(
            "Change a vector store",
            store,
            body=request_body("UpdateVectorStore", {"a name": {"name": "Handbook"}}),
        ),
        "delete_vector_store": operation(
            "Delete a vector store",
            {"200": response("Deleted; its files stay.", "DeletedVectorStore")},
        ),
        "search_vector_store": operation(
            "Search a vector store",
            {"200": response("The chunks that fit best.", "VectorStoreSearchResults")},
            body=request_body("SearchVectorStore", {"a question": query}),
        ),
    }


def _file_operations() -> dict[str, Json]:
    file = {"200": response("The file in the vector store.", "VectorStoreFile", None, POLL_HEADER)}
    return {
        "add_vector_store_file": operation(
            "Add a file to a vector store",
            file,
            body=request_body(
                "AddVectorStoreFile", {"a text": {"file_id": examples.stored_file()["id"]}}
            ),
        ),
        "list_vector_store_files": operation(
            "List the files of a vector store",
            {"200": response("A page of files.", "VectorStoreFileList")},
            parameters=[_FILTER, *_PAGING],
        ),
        "retrieve_vector_store_file": operation("Get a file of a vector store", file),
        "update_vector_store_file": operation(
            "Replace the attributes of a file",
            file,
            body=request_body("UpdateVectorStoreFile", {"a year": {"attributes": {"year": 2026}}}),
        ),
        "remove_vector_store_file": operation(
            "Remove a file from a vector store",
            {"200": response("Removed; the file itself stays.", "DeletedVectorStoreFile")},
        ),
        "vector_store_file_content": operation(
            "Get the chunks of a file",
            {"200": response("The texts of its chunks, in order.", "VectorStoreFileContent")},
        ),
    }


def _batch_operations() -> dict[str, Json]:
    batch = {"200": response("The batch of files.", "VectorStoreFileBatch", None, POLL_HEADER)}
    ids = {"file_ids": [examples.stored_file()["id"]]}
    return {
        "create_vector_store_file_batch": operation(
            "Add files to a vector store",
            batch,
            body=request_body("CreateVectorStoreFileBatch", {"one file": ids}),
        ),
        "retrieve_vector_store_file_batch": operation("Get a batch of files", batch),
        "cancel_vector_store_file_batch": operation("Cancel a batch of files", batch, 400),
        "list_vector_store_file_batch_files": operation(
            "List the files of a batch",
            {"200": response("A page of files.", "VectorStoreFileList")},
            parameters=[_FILTER, *_PAGING],
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
        "CreateVectorStore": strict(
            {},
            change
            | {
                "description": {"type": ["string", "null"], "maxLength": 4096},
                "file_ids": nullable(ids),
                "chunking_strategy": nullable(_CHUNKING),
            },
        ),
        "UpdateVectorStore": strict({}, change),
        "AddVectorStoreFile": strict({"file_id": STRING}, file),
        "UpdateVectorStoreFile": strict({"attributes": nullable(_ATTRIBUTES)}, {}),
        "CreateVectorStoreFileBatch": strict(
            {},
            file
            | {
                "file_ids": nullable(ids),
                "files": nullable(
                    {
                        "type": "array",
                        "maxItems": requests.MAX_BATCH,
                        "items": strict({"file_id": STRING}, file),
                    }
                ),
            },
        ),
        "SearchVectorStore": strict({"query": _QUERY}, _SEARCH_FIELDS),
        "VectorStoreFilter": _FILTERS,
    }


def object_schemas(metadata: Schema) -> dict[str, Schema]:
    """What the server returns. `metadata`: of a vector store."""
    one_of_statuses = one_of_texts(STATUSES)
    return {
        "VectorStore": sdk_object(
            sdk.VectorStore,
            id={"type": "string", "pattern": "^vs_[0-9a-f]{32}$"},
            description=nullable(STRING),
            last_active_at=SECONDS,
            metadata=metadata,
        ),
        "VectorStoreList": page_of("VectorStore"),
        "DeletedVectorStore": deleted("vector_store.deleted"),
        "VectorStoreFile": sdk_object(
            VectorStoreFile,
            status=one_of_statuses,
            attributes=_ATTRIBUTES,
            chunking_strategy=_STATIC,
        ),
        "VectorStoreFileList": page_of("VectorStoreFile"),
        "DeletedVectorStoreFile": deleted("vector_store.file.deleted"),
        "VectorStoreFileContent": numbered_page_of(
            sdk_object(Content), "vector_store.file_content.page"
        ),
        "VectorStoreFileBatch": sdk_object(
            VectorStoreFileBatch,
            id={"type": "string", "pattern": "^vsfb_[0-9a-f]{32}$"},
            status=one_of_statuses,
        ),
        "VectorStoreSearchResults": numbered_page_of(
            sdk_object(sdk.VectorStoreSearchResponse, attributes=_ATTRIBUTES, score=SHARE),
            "vector_store.search_results.page",
            search_query=STRINGS,
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
            "score_threshold": nullable(SHARE),
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
