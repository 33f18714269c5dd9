"""The document at /openapi.json: the operations and schemas of the core and of each feature, and
what they share. tests/contract/test_openapi.py compares it with the code, test_openapi_server.py
with the running server.

A feature with routes has a `document.py` (models/features.py):

- `operations()`: name of a route's function -> its operation.
- `components(deployment)`: name -> the schema of a body or an object.
- `PATHS`: parameter of a path -> its meaning, for this feature and those after it in the list.
- `CODES`: `error.code` -> when a client gets it.

It may have none of the last two.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from features.compact_and_count.routes import COUNT_HEADER
from features.reference import examples, schemas
from features.reference.meaning import ABOUT, CODES, STATUSES
from features.reference.schemas import (
    ADMIN,
    JSON,
    STRING,
    Deployment,
    Json,
    described,
    matching,
    one_of_texts,
)
from models.config.routes import Routes
from models.config.settings import Settings
from models.errors import ApiError
from models.features import feature_parts
from models.version import VERSION
from models.wire.api_schema import Schema, nullable, object_schema, reference
from models.wire.without_effect import HEADER as IGNORED_HEADER
from web.http.json_responses import POLL_HEADER
from web.routes.foreground import ERROR_TYPES


def document(routes: Iterable[BaseRoute], settings: Settings) -> dict[str, Any]:
    """The OpenAPI document of these routes. Raises KeyError for a route without a description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backburner", "version": VERSION, "description": ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": _paths(routes),
        "components": {
            "securitySchemes": {
                "bearer": _key("An API key of a project."),
                ADMIN: _key("An API key with the scope `admin`."),
            },
            "headers": _HEADERS,
            "responses": _errors(settings),
            "schemas": _schemas(settings),
        },
    }


def _paths(routes: Iterable[BaseRoute]) -> dict[str, Json]:
    meanings: Mapping[str, str] = {}
    described: dict[str, tuple[Json, Mapping[str, str]]] = {}
    for part in feature_parts("document"):
        meanings = {**meanings, **getattr(part, "PATHS", {})}
        described |= {name: (each, meanings) for name, each in part.operations().items()}
    paths: dict[str, Json] = {}
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            operation = {
                "operationId": route.name,
                "description": route.description,
                "tags": [_tag_of(route.path_format)],
                **_on_path(route.path_format, *described[route.name]),
            }
            methods = {method.lower(): operation for method in route.methods or ()}
            paths.setdefault(route.path_format, {}).update(methods)
    return paths


def _on_path(path: str, described: Json, meanings: Mapping[str, str]) -> Json:
    """The operation with the parameters of its path, and what follows from them."""
    names = re.findall(r"\{(\w+)\}", path)
    parameters = [schemas.path_parameter(name, meanings[name]) for name in names]
    responses = (schemas.errors(404) if names else {}) | described["responses"]
    return {
        **described,
        "parameters": [*parameters, *described["parameters"]],
        "responses": dict(sorted(responses.items())),
    }


def _tag_of(path: str) -> str:
    """The kind of object that the path is about."""
    return path.split("/")[2] if path.startswith("/v1/") else "health"


def _schemas(settings: Settings) -> dict[str, Schema]:
    routing = Routes(settings)
    native = any(upstream.api == "responses" for upstream in routing.upstreams.values())
    deployment = Deployment(native, routing.all_passthrough)
    named: dict[str, Schema] = {}
    for part in feature_parts("document"):
        named |= part.components(deployment)
    return {
        **named,
        "Error": _error(),
        **deployment.sent.components,
        **deployment.stored.components,
    }


def _key(description: str) -> dict[str, str]:
    return {"type": "http", "scheme": "bearer", "description": description}


# --- headers and errors ---

_NUMBER = matching("[1-9][0-9]*")
_COUNT = matching("[0-9]+")
_DURATION = matching(r"([0-9]+h)?([0-9]+m)?[0-9]+(\.[0-9]+)?m?s")


def _header(schema: Schema, meaning: str) -> Json:
    return {"schema": schema, "description": meaning}


_REQUIRED = {"required": True}
_HEADERS: dict[str, Json] = {
    "x-request-id": _header(STRING, "The id of this request in the server's logs.") | _REQUIRED,
    "openai-processing-ms": _REQUIRED
    | _header(_COUNT, "Milliseconds from the request's head to that of the response."),
    "x-should-retry": _header(
        {"const": "false"}, "Sent if a retry would not help. The official clients obey it."
    ),
    COUNT_HEADER: _header(
        {"enum": ["upstream", "tokenizer", "estimate"]},
        "The source of the number: the model's upstream, a tokenizer on this server, or "
        "an estimate from the length.",
    ),
    "retry-after": _header(_NUMBER, "Seconds to wait."),
    "x-cache": _header(
        one_of_texts(("hit", "miss")),
        "Sent if the request has `cache`: whether the answer is a cached one.",
    ),
    "x-omitted-tools": _header(
        STRING,
        "Sent if tools were left out because nothing can run them: their types. "
        "The operator can set BACKBURNER_WEB_SEARCH__PROVIDER.",
    ),
    IGNORED_HEADER: _header(
        matching(r"[A-Za-z0-9_.,*\[\] ]+"),
        "Sent if something in the request has no effect: its places, such as "
        "`tools[0].output_schema`, the first 20 of them. A name with unusual characters is `*`.",
    ),
    POLL_HEADER: _header(
        _NUMBER, "Sent if the response has not ended: ask again after so many milliseconds."
    ),
    "www-authenticate": _header({"const": "Bearer"}, "Sent if this server itself requires a key."),
    **{
        f"x-ratelimit-{part}-{name}": _header(
            schema, f"Sent if {name} of the project are limited: {meaning}."
        )
        for name in ("requests", "tokens")
        for part, schema, meaning in (
            ("limit", _COUNT, "how many it may use in a minute"),
            ("remaining", _COUNT, "how many are left now"),
            ("reset", _DURATION, "how long until all are left again, such as `20ms` or `6m0s`"),
        )
    },
}
"""Every header of a response, as components."""
_STATUS_HEADERS = {401: ("www-authenticate",), 429: ("retry-after",), 503: ("retry-after",)}


def _errors(settings: Settings) -> dict[str, Json]:
    """Every error response, as components."""
    meanings = STATUSES | {413: STATUSES[413] + f" The limit is {settings.limits.body} bytes."}
    return {
        f"Error{status}": _error_response(status, meaning) for status, meaning in meanings.items()
    }


def _error_response(status: int, meaning: str) -> Json:
    error = examples.ERRORS.get(status)
    example = {} if error is None else {"example": error.body()}
    content = {JSON: {"schema": reference("Error"), **example}}
    return schemas.raw_response(
        meaning, content, "x-should-retry", *_STATUS_HEADERS.get(status, ())
    )


def _error() -> Schema:
    """The body of every error, with the codes of all features."""
    known = (each.type for each in ApiError.__subclasses__())
    kinds = {ApiError.type, *known, *ERROR_TYPES.values()}
    codes = dict(CODES)
    for part in feature_parts("document"):
        codes |= getattr(part, "CODES", {})
    meanings = "\n".join(f"- `{code}`: {when}" for code, when in codes.items())
    place = "Where in the request, for example `input[3].content[0].text`."
    inside = object_schema(
        {
            "message": {"type": "string", "minLength": 1},
            "type": one_of_texts(sorted(kinds)),
            "param": described(nullable(STRING), place),
            "code": described(nullable(one_of_texts(codes)), meanings),
        }
    )
    return {**object_schema({"error": inside}), "additionalProperties": False}
