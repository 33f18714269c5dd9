"""The parts that operations are made of: parameters, bodies, responses, headers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from features.reference import examples
from features.reference.meaning import HEADER_MEANINGS, PATHS, STATUSES, STREAM
from models.config.settings import Settings
from models.wire.api_schema import Schema, const, object_schema, reference
from models.wire.without_effect import HEADER as IGNORED_HEADER
from web.http.params import ORDERS, PAGE_SIZE, PAGE_SIZES
from web.http.poll_after import HEADER as POLL_HEADER
from web.http.rate_headers import RATE_HEADERS
from web.routes.input_tokens import COUNT_HEADER

Json = dict[str, Any]

JSON = "application/json"
FORM = "multipart/form-data"
EVENT_STREAM = "text/event-stream"

_RATE_SCHEMAS: dict[bool, Schema] = {
    False: {"type": "string", "pattern": "^[0-9]+$"},
    True: {"type": "string", "pattern": r"^([0-9]+h)?([0-9]+m)?[0-9]+(\.[0-9]+)?m?s$"},
}
"""Of a number, and of a duration."""
_HEADER_SCHEMAS: dict[str, Schema] = {
    "x-request-id": {"type": "string"},
    "openai-processing-ms": {"type": "string", "pattern": "^[0-9]+$"},
    "x-should-retry": {"const": "false"},
    COUNT_HEADER: {"enum": ["upstream", "tokenizer", "estimate"]},
    "retry-after": {"type": "string", "pattern": "^[1-9][0-9]*$"},
    "x-cache": {"type": "string", "enum": ["hit", "miss"]},
    "x-omitted-tools": {"type": "string"},
    IGNORED_HEADER: {"type": "string", "pattern": r"^[A-Za-z0-9_.,*\[\] ]+$"},
    POLL_HEADER: {"type": "string", "pattern": "^[1-9][0-9]*$"},
    "www-authenticate": {"const": "Bearer"},
    **{name: _RATE_SCHEMAS["reset" in name] for name in RATE_HEADERS},
}
_ALWAYS_SENT = ("x-request-id", "openai-processing-ms")
_STATUS_HEADERS = {401: ("www-authenticate",), 429: ("retry-after",), 503: ("retry-after",)}


def header_components() -> dict[str, Json]:
    """Every header of a response, as components."""
    always = {name: {"required": True} for name in _ALWAYS_SENT}
    return {
        name: {"schema": schema, "description": HEADER_MEANINGS[name], **always.get(name, {})}
        for name, schema in _HEADER_SCHEMAS.items()
    }


def error_components(settings: Settings) -> dict[str, Json]:
    """Every error response, as components."""
    meanings = STATUSES | {413: STATUSES[413] + f" The limit is {settings.limits.body} bytes."}
    return {
        f"Error{status}": _error_response(status, meaning) for status, meaning in meanings.items()
    }


def _error_response(status: int, meaning: str) -> Json:
    error = examples.ERRORS.get(status)
    example = {} if error is None else {"example": error.body()}
    return {
        "description": meaning,
        "headers": headers("x-should-retry", *_STATUS_HEADERS.get(status, ())),
        "content": {JSON: {"schema": reference("Error"), **example}},
    }


def operation(
    summary: str,
    responses: Mapping[str, Json],
    *error_statuses: int,
    parameters: Sequence[Json] = (),
    body: Json | None = None,
    public: bool = False,
) -> Json:
    """An operation. `responses` has those that are no errors of this server, by status.
    `error_statuses`: those that do not follow from the key, a body, a query or an id in the path.

    `public`: without an API key.
    """
    always = (500,) if public else (401, 403, 429, 500, 503)
    of_body = () if body is None else (400, 413, 415)
    of_query = (400,) if any(each["in"] == "query" for each in parameters) else ()
    optional: Json = {"requestBody": body, "security": [] if public else None}
    return {
        "summary": summary,
        "parameters": list(parameters),
        **{name: value for name, value in optional.items() if value is not None},
        "responses": {**_errors(*error_statuses, *of_body, *of_query, *always), **responses},
    }


def on_path(path: str, described: Json) -> Json:
    """The operation with the parameters of its path, and what follows from them."""
    names, kind = re.findall(r"\{(\w+)\}", path), tag_of(path)
    parameters = [
        _path_parameter(name, PATHS.get(f"{kind}.{name}") or PATHS[name]) for name in names
    ]
    responses = (_errors(404) if names else {}) | described["responses"]
    return {
        **described,
        "parameters": [*parameters, *described["parameters"]],
        "responses": dict(sorted(responses.items())),
    }


def _path_parameter(name: str, description: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
        "description": description,
    }


def tag_of(path: str) -> str:
    """The kind of object that the path is about."""
    return path.split("/")[2] if path.startswith("/v1/") else "health"


def _errors(*statuses: int) -> dict[str, Json]:
    return {
        str(status): {"$ref": f"#/components/responses/Error{status}"} for status in set(statuses)
    }


def headers(*names: str) -> Json:
    """The headers of a response; some are always sent, some if the project has quotas."""
    sent = (*_ALWAYS_SENT, *names, *RATE_HEADERS)
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sent}


def response(
    description: str,
    name: str,
    bodies: Mapping[str, Json] | None = None,
    *header_names: str,
    stream: bool = False,
) -> Json:
    """A JSON response: the component `name`, with examples. `stream`: or a stream of events."""
    content: Json = {JSON: {"schema": reference(name)}}
    if bodies:
        content[JSON]["examples"] = {title: {"value": value} for title, value in bodies.items()}
    if stream:
        content[EVENT_STREAM] = {
            "itemSchema": _SSE_BLOCK,
            "examples": {"a short answer": {"value": examples.stream()}},
        }
    return {"description": description, "headers": headers(*header_names), "content": content}


def request_body(name: str, bodies: Mapping[str, Json]) -> Json:
    """A JSON body: the component `name`, with examples."""
    body_examples = {title: {"value": body} for title, body in bodies.items()}
    return {
        "required": True,
        "content": {JSON: {"schema": reference(name), "examples": body_examples}},
    }


def query_parameter(name: str, schema: Schema, description: str) -> Json:
    """An optional parameter of the query."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": schema,
        "description": description,
    }


def header_parameter(name: str, schema: Schema, description: str) -> Json:
    """An optional header of the request."""
    return {**query_parameter(name, schema, description), "in": "header"}


_EVENT = {"type": "string", "contentMediaType": JSON, "contentSchema": reference("StreamEvent")}
_SSE_BLOCK: Schema = {
    "description": STREAM,
    "anyOf": [
        {
            **object_schema({"event": {"type": "string"}, "data": _EVENT}),
            "description": "An event.",
        },
        {**object_schema({"data": const("[DONE]")}), "description": "The end."},
    ],
}
"""One block of a stream, as OpenAPI 3.2 describes Server-Sent Events. FastAPI writes this into 3.1
documents too."""

PAGING = [
    query_parameter(
        "limit", {"type": "integer", **PAGE_SIZES, "default": PAGE_SIZE}, "Items on a page."
    ),
    query_parameter(
        "order",
        {"type": "string", "enum": list(ORDERS), "default": "desc"},
        "The order of the list; `desc` shows the last item first.",
    ),
    query_parameter("after", {"type": "string"}, "The id of the last item of the page before."),
]
