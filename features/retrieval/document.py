"""Vector stores in the API document: their operations, and the schemas of bodies and objects."""

from openai import types as sdk
from openai.types.vector_store_search_response import Content
from openai.types.vector_stores import VectorStoreFile, VectorStoreFileBatch

from features.files import document as files
from features.reference import schemas
from features.retrieval import requests
from features.retrieval.chunking import LEAST_TOKENS, MOST_TOKENS
from features.retrieval.entries import STATUSES
from features.retrieval.options import MAX_COMPARISONS, MAX_VALUES
from models.ids import FILE_BATCH, VECTOR_STORE
from models.wire.api_schema import Schema, SchemaScope, const, nullable, object_schema, reference
from models.wire.checks.parameters import METADATA
from models.wire.checks.server_tools import FILE_SEARCH_TOOL
from web.http.json_responses import POLL_HEADER

PATHS = {
    "vector_store_id": schemas.about_id(f"{VECTOR_STORE}_"),
    "batch_id": schemas.about_id(f"{FILE_BATCH}_"),
}
CODES = {
    "vector_stores_not_available": "this server has no vector stores",
    "vector_store_expired": "the vector store has expired",
    "too_many_files": "the vector store would have more files than it may",
    "embedding_failed": "the query of a search could not be embedded",
}
_PAGING = [
    schemas.page_size("Objects on a page."),
    schemas.page_order("By the time at which they were made."),
    schemas.query_parameter(
        "after", schemas.STRING, "The id of the last object of the page before."
    ),
    schemas.query_parameter(
        "before", schemas.STRING, "The id of the first object of the page behind."
    ),
]
_FILTER = schemas.query_parameter(
    "filter", schemas.one_of_texts(STATUSES), "Only files with this status."
)


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    return {**_store_operations(), **_file_operations(), **_batch_operations()}


def _store_operations() -> dict[str, schemas.Json]:
    store = schemas.response("The vector store.", "VectorStore")
    query = {"query": "What makes bread rise?"}
    return {
        "create_vector_store": schemas.operation(
            "Make a vector store",
            store,
            404,
            body=schemas.request_body("CreateVectorStore", {"an empty one": {"name": "Handbook"}}),
            once=True,
        ),
        "list_vector_stores": schemas.operation(
            "List the vector stores",
            schemas.response("A page of vector stores.", "VectorStoreList"),
            404,
            parameters=_PAGING,
        ),
        "retrieve_vector_store": schemas.operation("Get a vector store", store),
        "update_vector_store": schemas.operation(
            "Change a vector store",
            store,
            body=schemas.request_body("UpdateVectorStore", {"a name": {"name": "Handbook"}}),
        ),
        "delete_vector_store": schemas.operation(
            "Delete a vector store",
            schemas.response("Deleted; its files stay.", "DeletedVectorStore"),
        ),
        "search_vector_store": schemas.operation(
            "Search a vector store",
            schemas.response("The chunks that fit best.", "VectorStoreSearchResults"),
            body=schemas.request_body("SearchVectorStore", {"a question": query}),
        ),
    }


def _file_operations() -> dict[str, schemas.Json]:
    file = schemas.response("The file in the vector store.", "VectorStoreFile", POLL_HEADER)
    return {
        "add_vector_store_file": schemas.operation(
            "Add a file to a vector store",
            file,
            body=schemas.request_body(
                "AddVectorStoreFile", {"a text": {"file_id": files.EXAMPLE["id"]}}
            ),
            once=True,
        ),
        "list_vector_store_files": schemas.operation(
            "List the files of a vector store",
            schemas.response("A page of files.", "VectorStoreFileList"),
            parameters=[_FILTER, *_PAGING],
        ),
        "retrieve_vector_store_file": schemas.operation("Get a file of a vector store", file),
        "update_vector_store_file": schemas.operation(
            "Replace the attributes of a file",
            file,
            body=schemas.request_body(
                "UpdateVectorStoreFile", {"a year": {"attributes": {"year": 2026}}}
            ),
        ),
        "remove_vector_store_file": schemas.operation(
            "Remove a file from a vector store",
            schemas.response("Removed; the file itself stays.", "DeletedVectorStoreFile"),
        ),
        "vector_store_file_content": schemas.operation(
            "Get the chunks of a file",
            schemas.response("The texts of its chunks, in order.", "VectorStoreFileContent"),
        ),
    }


def _batch_operations() -> dict[str, schemas.Json]:
    batch = schemas.response("The batch of files.", "VectorStoreFileBatch", POLL_HEADER)
    ids = {"file_ids": [files.EXAMPLE["id"]]}
    return {
        "create_vector_store_file_batch": schemas.operation(
            "Add files to a vector store",
            batch,
            body=schemas.request_body("CreateVectorStoreFileBatch", {"one file": ids}),
            once=True,
        ),
        "retrieve_vector_store_file_batch": schemas.operation("Get a batch of files", batch),
        "cancel_vector_store_file_batch": schemas.operation("Cancel a batch of files", batch, 400),
        "list_vector_store_file_batch_files": schemas.operation(
            "List the files of a batch",
            schemas.response("A page of files.", "VectorStoreFileList"),
            parameters=[_FILTER, *_PAGING],
        ),
    }


# --- schemas ---


def components(deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    return {
        **_request_bodies(deployment.sent),
        **_objects(METADATA.schema(deployment.stored)),
    }


def _request_bodies(sent: SchemaScope) -> dict[str, Schema]:
    expiry = object_schema(
        {"anchor": const("last_active_at"), "days": schemas.integer(1, requests.MAX_EXPIRY_DAYS)}
    )
    change = {"name": _at_most(256), "metadata": METADATA.schema(sent), "expires_after": expiry}
    chunking = {"chunking_strategy": {"oneOf": [object_schema({"type": const("auto")}), _STATIC]}}
    file = {"attributes": _ATTRIBUTES, **chunking}
    new_file = schemas.strict({"file_id": schemas.STRING}, file)
    ids = schemas.array_of(schemas.STRING, at_most=requests.MAX_BATCH)
    many = {"file_ids": ids, "files": schemas.array_of(new_file, at_most=requests.MAX_BATCH)}
    return {
        "CreateVectorStore": schemas.strict(
            {}, {**change, "description": _at_most(4096), "file_ids": ids, **chunking}
        ),
        "UpdateVectorStore": schemas.strict({}, change),
        "AddVectorStoreFile": new_file,
        "UpdateVectorStoreFile": schemas.strict({"attributes": nullable(_ATTRIBUTES)}),
        "CreateVectorStoreFileBatch": schemas.strict({}, file | many),
        "SearchVectorStore": _search(sent),
        "VectorStoreFilter": _filter(),
    }


def _search(sent: SchemaScope) -> Schema:
    """With the options of the tool `file_search`, where unknown ones have no effect."""
    tool = FILE_SEARCH_TOOL.schema(sent)["properties"]
    ranking = tool["ranking_options"]
    for each in (ranking, ranking["properties"]["hybrid_search"]):
        each["additionalProperties"] = False
    query = schemas.text(1, requests.MAX_QUERY)
    rewrite = schemas.described(
        schemas.BOOLEAN,
        "The queries are rewritten, if this server has a model for it; `search_query` of the "
        "answer has what was searched.",
    )
    body = schemas.strict(
        {"query": {"anyOf": [query, schemas.array_of(query, 1, requests.MAX_QUERIES)]}},
        {"rewrite_query": rewrite},
    )
    for name in ("filters", "max_num_results", "ranking_options"):
        body["properties"][name] = tool[name]
    return body


def _filter() -> Schema:
    key = schemas.text(1, 64)
    values = schemas.array_of(_VALUE, at_most=MAX_VALUES)
    filters = schemas.array_of(reference("VectorStoreFilter"), 1, MAX_COMPARISONS)
    comparison = schemas.one_of_texts(("eq", "ne", "gt", "gte", "lt", "lte"))
    return {
        "oneOf": [
            object_schema({"type": comparison, "key": key, "value": _VALUE}),
            object_schema(
                {"type": schemas.one_of_texts(("in", "nin")), "key": key, "value": values}
            ),
            object_schema({"type": schemas.one_of_texts(("and", "or")), "filters": filters}),
        ]
    }


def _objects(metadata: Schema) -> dict[str, Schema]:
    status = schemas.one_of_texts(STATUSES)
    return {
        "VectorStore": schemas.sdk_object(
            sdk.VectorStore,
            id=schemas.id_of(f"{VECTOR_STORE}_"),
            description=nullable(schemas.STRING),
            last_active_at=schemas.SECONDS,
            metadata=metadata,
        ),
        "VectorStoreList": schemas.page_of("VectorStore"),
        "DeletedVectorStore": schemas.deleted("vector_store.deleted"),
        "VectorStoreFile": schemas.sdk_object(
            VectorStoreFile, status=status, attributes=_ATTRIBUTES, chunking_strategy=_STATIC
        ),
        "VectorStoreFileList": schemas.page_of("VectorStoreFile"),
        "DeletedVectorStoreFile": schemas.deleted("vector_store.file.deleted"),
        "VectorStoreFileContent": schemas.numbered_page_of(
            schemas.sdk_object(Content), "vector_store.file_content.page"
        ),
        "VectorStoreFileBatch": schemas.sdk_object(
            VectorStoreFileBatch, id=schemas.id_of(f"{FILE_BATCH}_"), status=status
        ),
        "VectorStoreSearchResults": schemas.numbered_page_of(
            schemas.sdk_object(
                sdk.VectorStoreSearchResponse, attributes=_ATTRIBUTES, score=schemas.SHARE
            ),
            "vector_store.search_results.page",
            search_query=schemas.STRINGS,
        ),
    }


def _at_most(characters: int) -> Schema:
    return {"type": "string", "maxLength": characters}


_VALUE: Schema = {"type": ["string", "number", "boolean"], "maxLength": requests.MAX_VALUE}
_ATTRIBUTES: Schema = {
    "type": "object",
    "maxProperties": requests.MAX_ATTRIBUTES,
    "propertyNames": {"maxLength": requests.MAX_KEY},
    "additionalProperties": _VALUE | {"type": [*_VALUE["type"], "null"]},
}
_STATIC = object_schema(
    {
        "type": const("static"),
        "static": object_schema(
            {
                "max_chunk_size_tokens": schemas.integer(LEAST_TOKENS, MOST_TOKENS),
                "chunk_overlap_tokens": schemas.described(
                    schemas.integer(0, MOST_TOKENS // 2), "At most half of `max_chunk_size_tokens`."
                ),
            }
        ),
    }
)
