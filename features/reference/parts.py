"""The parts that operations are made of: parameters, bodies, responses, headers."""

from collections.abc import Mapping, Sequence
from typing import Any

from features.reference.meaning import IDEMPOTENCY_KEY
from features.reference.schemas import STRING, integer, one_of_texts, text
from models.wire.api_schema import Schema, reference
from web.http.browsers import RATE_HEADERS
from web.http.params import ORDERS, PAGE_SIZE, PAGE_SIZES
from web.idempotency.keys import MAX_KEY_LENGTH

Json = dict[str, Any]

JSON = "application/json"
FORM = "multipart/form-data"
EVENT_STREAM = "text/event-stream"
ADMIN = "admin"
"""The security scheme of operations for keys of admins only."""


def operation(
    summary: str,
    answer: Json,
    *error_statuses: int,
    others: Mapping[str, Json] | None = None,
    parameters: Sequence[Json] = (),
    body: Json | None = None,
    once: bool = False,
    public: bool = False,
) -> Json:
    """An operation. `answer`: the response of status 200. `error_statuses`: errors that do not
    follow from the key, a body, a query or an id in the path.

    `others`: responses by status, in place of an error of this server. `once`: it makes something
    once for each `Idempotency-Key`. `public`: without an API key.
    """
    always = (500,) if public else (401, 403, 429, 500, 503)
    of_body = () if body is None else (400, 413, 415)
    of_query = (400,) if any(each["in"] == "query" for each in parameters) else ()
    optional: Json = {"requestBody": body, "security": [] if public else None}
    return {
        "summary": summary,
        "parameters": [*((_IDEMPOTENCY_KEY,) if once else ()), *parameters],
        **{name: value for name, value in optional.items() if value is not None},
        "responses": {
            **errors(*error_statuses, *of_body, *of_query, *always),
            "200": answer,
            **(others or {}),
        },
    }


def errors(*statuses: int) -> dict[str, Json]:
    """Responses by status: errors of this server."""
    return {str(each): {"$ref": f"#/components/responses/Error{each}"} for each in set(statuses)}


def headers(*names: str) -> Json:
    """The headers of a response; some are always sent, some if the project has quotas."""
    sent = ("x-request-id", "openai-processing-ms", *names, *RATE_HEADERS)
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sent}


def response(
    description: str, name: str, *header_names: str, examples: Mapping[str, Json] | None = None
) -> Json:
    """A JSON response: the component `name`."""
    content: Json = {JSON: {"schema": reference(name)}}
    if examples:
        content[JSON]["examples"] = named_examples(examples)
    return raw_response(description, content, *header_names)


def raw_response(description: str, content: Json, *header_names: str) -> Json:
    """A response. `content`: media type -> what OpenAPI says of it."""
    return {"description": description, "headers": headers(*header_names), "content": content}


def request_body(name: str, examples: Mapping[str, Json], *, required: bool = True) -> Json:
    """A JSON body: the component `name`."""
    content = {"schema": reference(name), "examples": named_examples(examples)}
    return {"required": required, "content": {JSON: content}}


def form_body(name: str) -> Json:
    """A form: the component `name`."""
    return {"required": True, "content": {FORM: {"schema": reference(name)}}}


def named_examples(examples: Mapping[str, Json | str]) -> Json:
    """Title -> value, as OpenAPI writes it."""
    return {title: {"value": value} for title, value in examples.items()}


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


def path_parameter(name: str, description: str) -> Json:
    """A part of the path."""
    schema = {"type": "string", "minLength": 1}
    return {**query_parameter(name, schema, description), "in": "path", "required": True}


def about_id(prefix: str) -> str:
    """The description of an id in a path."""
    return f"`{prefix}` and 32 hexadecimal digits. Any other value is not found."


def page_size(of: str) -> Json:
    """The parameter `limit`. `of`: what is on a page."""
    return query_parameter("limit", integer(**PAGE_SIZES) | {"default": PAGE_SIZE}, of)


def page_order(meaning: str) -> Json:
    """The parameter `order`."""
    return query_parameter("order", one_of_texts(ORDERS) | {"default": "desc"}, meaning)


PAGING = [
    page_size("Items on a page."),
    page_order("The order of the list; `desc` shows the last item first."),
    query_parameter("after", STRING, "The id of the last item of the page before."),
]
_IDEMPOTENCY_KEY = header_parameter("Idempotency-Key", text(1, MAX_KEY_LENGTH), IDEMPOTENCY_KEY)
