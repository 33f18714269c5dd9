"""The core in the document: responses, compaction, counts of tokens, health."""

from collections.abc import Collection, Mapping

from openai.types.responses import CompactedResponse, InputTokenCountResponse, ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails

from features.compact_and_count.routes import (
    COMPACT_PARAMETERS,
    COUNT_HEADER,
    COUNT_PARAMETERS,
    PERSONALITY,
)
from features.reference import examples
from features.reference.meaning import CREATE_BODY, IGNORED, PARAMETERS, PASSTHROUGH, STREAM
from features.reference.response_schema import RESPONSE_ID, default_response, response_components
from features.reference.schemas import (
    BOOLEAN,
    COUNT,
    EVENT_STREAM,
    JSON,
    OBJECT,
    PAGING,
    STRING,
    Deployment,
    Json,
    about_id,
    array_of,
    deleted,
    described,
    header_parameter,
    named_examples,
    operation,
    page_of,
    query_parameter,
    raw_response,
    request_body,
    response,
    sdk_object,
)
from models.wire.api_schema import (
    NULL,
    Schema,
    const,
    input_scope,
    nullable,
    object_schema,
    reference,
)
from models.wire.checks.parameters import IGNORED_PARAMETERS, INCLUDE_VALUE
from models.wire.items import input_schema, item_schemas
from models.wire.without_effect import HEADER as IGNORED_HEADER
from web.http.json_responses import POLL_HEADER
from web.routes.responses import EVENT_NUMBERS

PATHS = {"response_id": about_id("resp_"), "model": "A slash may be sent unchanged or as %2F."}
UPSTREAM_STATUSES = (400, 401, 404, 408, 413, 422, 424, 429, 502, 504)
"""The status of a foreground response, not streamed, that failed before any output."""


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    return {**_response_operations(), **_one_shot_operations(), **_process_operations()}


def components(deployment: Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    sent, stored = deployment.sent, deployment.stored
    return {
        **_request_bodies(deployment),
        **response_components(deployment),
        "Usage": sdk_object(
            ResponseUsage,
            input_tokens_details=sdk_object(InputTokensDetails, ("cache_write_tokens_details",)),
        ),
        # Of the tool `file_search`. The feature that searches replaces it.
        "VectorStoreFilter": OBJECT,
        **item_schemas(sent),
        **item_schemas(stored),
        "InputItemList": page_of("ListedItem"),
        "Compaction": sdk_object(
            CompactedResponse,
            ("image",),
            id=RESPONSE_ID,
            output=array_of({"anyOf": [reference("ListedMessage"), reference("OutputItem")]}),
            usage=nullable(reference("Usage")),
        ),
        "InputTokens": sdk_object(InputTokenCountResponse),
        "DeletedResponse": deleted("response", RESPONSE_ID),
        "Alive": object_schema({"status": const("ok"), "version": STRING}),
        "Readiness": _READINESS,
    }


# --- operations ---


def _response_operations() -> dict[str, Json]:
    accepted = {"in the background": examples.response(ended=False)}
    ended = {"ended": examples.response(ended=True)}
    sent_headers = ("x-cache", "x-omitted-tools", IGNORED_HEADER, POLL_HEADER)
    page = {"one item": examples.input_items()}
    return {
        "create": operation(
            "Create a response",
            _or_stream(
                "The response: as accepted (background), or after its end.",
                accepted | ended,
                *sent_headers,
            ),
            *UPSTREAM_STATUSES,
            parameters=[header_parameter("traceparent", STRING, "W3C trace context.")],
            body=request_body("CreateResponse", examples.REQUESTS),
            once=True,
        ),
        "retrieve": operation(
            "Get a response, or its events",
            _or_stream("The response in its current state.", ended, POLL_HEADER),
            parameters=[*_STREAM_QUERY, *_INCLUDE_IN_RESPONSE],
        ),
        "delete": operation(
            "Delete a response",
            response("Deleted, with everything stored with it.", "DeletedResponse"),
        ),
        "cancel": operation(
            "Cancel a background response",
            response("The cancelled response.", "Response", POLL_HEADER),
            400,
        ),
        "input_items": operation(
            "List a response's input",
            response("A page of input items.", "InputItemList", examples=page),
            parameters=[*PAGING, *INCLUDE],
        ),
    }


def _or_stream(description: str, bodies: dict[str, Json], *header_names: str) -> Json:
    """The response that shows a Response, or streams its events."""
    shown = response(description, "Response", *header_names, examples=bodies)
    shown["content"][EVENT_STREAM] = {
        "itemSchema": _SSE_BLOCK,
        "examples": named_examples({"a short answer": examples.stream()}),
    }
    return shown


def _one_shot_operations() -> dict[str, Json]:
    history = {"a history": {"model": "demo", "previous_response_id": examples.RESPONSE_ID}}
    return {
        "compact": operation(
            "Compact a history",
            response(
                "The user messages that are kept, and the compaction item.",
                "Compaction",
                IGNORED_HEADER,
            ),
            *UPSTREAM_STATUSES,
            body=request_body("CompactResponse", history),
            once=True,
        ),
        "input_tokens": operation(
            "Count a request's tokens",
            response("The count.", "InputTokens", COUNT_HEADER, IGNORED_HEADER),
            *UPSTREAM_STATUSES,
            body=request_body("CountInputTokens", {"a text": examples.REQUESTS["a text"]}),
        ),
    }


def _process_operations() -> dict[str, Json]:
    ready = response("The process can serve requests.", "Readiness")
    unready = response("It cannot, or it is stopping.", "Readiness")
    text = {"text/plain": {"schema": STRING}}
    return {
        "healthz": operation("Liveness", response("The process is alive.", "Alive"), public=True),
        "readyz": operation("Readiness", ready, others={"503": unready}, public=True),
        "metrics": operation(
            "Metrics for Prometheus",
            raw_response("Prometheus' text format.", text),
            *(401, 403, 404),
            public=True,
        ),
    }


def _include(effect: str) -> list[Json]:
    values = array_of(INCLUDE_VALUE.schema(input_scope()))
    description = f"The values of `include` of a create request. {effect}"
    return [query_parameter(name, values, description) for name in ("include[]", "include")]


INCLUDE = _include("They have no effect here.")
_INCLUDE_IN_RESPONSE = _include(
    "`reasoning.encrypted_content` shows the sealed reasoning; the others have no effect here."
)
_STREAM_QUERY = [
    query_parameter(
        "stream",
        BOOLEAN | {"default": False},
        "Stream all events, past and future. Only for a background response.",
    ),
    query_parameter(
        "starting_after",
        {"type": "integer", **EVENT_NUMBERS},
        "With `stream`: only events with a higher `sequence_number`.",
    ),
    query_parameter(
        "include_obfuscation",
        BOOLEAN | {"default": False},
        "Pad the delta events, so that their length reveals nothing about their text.",
    ),
]
_EVENT = {"type": "string", "contentMediaType": JSON, "contentSchema": reference("StreamEvent")}
_SSE_BLOCK: Schema = {
    "description": STREAM,
    "anyOf": [
        described(object_schema({"event": STRING, "data": _EVENT}), "An event."),
        described(object_schema({"data": const("[DONE]")}), "The end."),
    ],
}
"""One block of a stream, as OpenAPI 3.2 describes Server-Sent Events. FastAPI writes this into 3.1
documents too."""

# --- schemas ---

_READINESS: Schema = object_schema(
    {
        "ready": BOOLEAN,
        "stopping": BOOLEAN,
        "database": STRING,
        "schema": described(nullable(STRING), "The migration revision of the database."),
        "schema_state": described(
            nullable(STRING), "`ok`, or why this version does not run on it."
        ),
        "lease": STRING,
        "workers": described(
            {"type": "object", "additionalProperties": COUNT},
            "Kind of process -> number of live processes.",
        ),
        "redis": described(STRING, "Only reported: without Redis the server works, but slower."),
        "redis_memory": described(
            nullable(STRING), "`ok`, or what is wrong with its limit. Null: unknown."
        ),
    }
)


# --- bodies of requests: read from the parser's checks (models/wire/checks) ---

_REQUIRED = ("model", "input")
_WITH_DEFAULT = (
    *("background", "store", "stream", "parallel_tool_calls", "temperature", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "truncation"),
    *("tools", "tool_choice", "metadata"),
)
"""Parameters whose default is shown in the Response."""


def _request_bodies(deployment: Deployment) -> dict[str, Schema]:
    """Of a create, of a compaction and of a count, which accept some of the parameters of a
    create."""
    scope, parameters = deployment.sent, deployment.parameters
    compacting = [name for name in COMPACT_PARAMETERS if name in ("input", *parameters)]
    compact_fields = _parameter_schemas(deployment, compacting)
    compact_fields |= _of_any_value(set(COMPACT_PARAMETERS) - {*compacting}, IGNORED)
    count_fields = _parameter_schemas(deployment, COUNT_PARAMETERS)
    count_fields["personality"] = nullable(PERSONALITY.schema(scope))
    input_or_previous = [
        {"required": [name], "properties": {name: {"not": NULL}}}
        for name in ("input", "previous_response_id")
    ]
    return {
        "CreateResponse": _create_body(deployment),
        "CompactResponse": {
            **_body(compact_fields),
            "required": ["model"],
            "anyOf": input_or_previous,
        },
        "CountInputTokens": _body(count_fields),
    }


def _create_body(deployment: Deployment) -> Schema:
    parameters = deployment.parameters
    fields = _parameter_schemas(deployment, (*_REQUIRED, *parameters), required=_REQUIRED)
    defaults = default_response() | {"stream": False}
    for name in _WITH_DEFAULT:
        fields[name]["default"] = defaults[name]
    fields |= _of_any_value(IGNORED_PARAMETERS - parameters.keys(), IGNORED)
    fields |= _of_any_value(deployment.passthrough, PASSTHROUGH)
    return {**_body(fields), "description": CREATE_BODY, "required": list(_REQUIRED)}


def _parameter_schemas(
    deployment: Deployment, names: Collection[str], required: Collection[str] = ()
) -> dict[str, Schema]:
    scope, parameters = deployment.sent, deployment.parameters
    fields: dict[str, Schema] = {}
    for name in names:
        schema = input_schema(scope) if name == "input" else parameters[name].schema(scope)
        shown = schema if name in required else nullable(schema)
        fields[name] = described(shown, PARAMETERS[name])
    return fields


def _of_any_value(names: Collection[str], description: str) -> dict[str, Schema]:
    return {name: {"description": description} for name in sorted(names)}


def _body(fields: Mapping[str, Schema]) -> Schema:
    """An object in which unknown fields must be null."""
    return {"type": "object", "properties": dict(fields), "additionalProperties": NULL}
