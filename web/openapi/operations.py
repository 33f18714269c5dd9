"""The routes: their parameters, bodies and answers, every status included."""

from collections.abc import Mapping
from typing import Any

from models.config.settings import Settings
from models.errors import ApiError
from models.wire.api_schema import Schema, const, input_scope, object_schema, reference
from models.wire.checks.parameters import INCLUDE_VALUE
from web.http.params import ORDERS, PAGE_SIZE, PAGE_SIZES
from web.openapi import examples
from web.openapi.meaning import STATUSES, STREAM
from web.responses.idempotency import MAX_KEY_LENGTH
from web.routes.input_tokens import COUNT_HEADER
from web.routes.responses import EVENT_NUMBERS

Json = dict[str, Any]

_JSON = "application/json"
_UPSTREAM_STATUSES = (400, 401, 403, 404, 408, 413, 422, 424, 429, 502, 504)
"""What a foreground response that is not streamed is answered with when its run failed before any output (design §4.9)."""

HEADERS: dict[str, Json] = {
    "x-request-id": {
        "schema": {"type": "string"},
        "description": "Names this request in the server's logs.",
        "required": True,
    },
    "x-should-retry": {
        "schema": {"const": "false"},
        "description": "Sent when trying again would not help; the official clients obey it.",
    },
    COUNT_HEADER: {
        "schema": {"enum": ["upstream", "tokenizer", "estimate"]},
        "description": "Who counted: the model's upstream, a tokenizer on this server, or nobody: an estimate from the length.",
    },
    "retry-after": {
        "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
        "description": "Seconds to wait.",
    },
    "x-cache": {
        "schema": {"type": "string", "enum": ["hit", "miss"]},
        "description": "Where the request asked for `cache`: whether the answer is a remembered one.",
    },
    "www-authenticate": {
        "schema": {"const": "Bearer"},
        "description": "Sent when it is this server that wants a key.",
    },
}
_STATUS_HEADERS = {401: ("www-authenticate",), 429: ("retry-after",), 503: ("retry-after",)}


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    return {
        "create": _operation(
            "Create a response",
            {"200": _response("The response: as accepted (background), or as it ended.", "Response", _CREATE_EXAMPLES, "x-cache", stream=True)},
            *_UPSTREAM_STATUSES, 415,
            parameters=_CREATE_HEADERS,
            requestBody=_body("CreateResponse", examples.REQUESTS),
        ),
        "retrieve": _operation(
            "Get a response, or its events",
            {"200": _response("The response as it stands.", "Response", {"ended": examples.response(ended=True)}, stream=True)},
            400, 401, 404,
            parameters=[_RESPONSE_ID, *_STREAM_QUERY, *_INCLUDE],
        ),
        "delete": _operation(
            "Delete a response", {"200": _response("It is gone, with all that was stored with it.", "DeletedResponse")}, 401, 404,
            parameters=[_RESPONSE_ID],
        ),
        "cancel": _operation(
            "Cancel a background response", {"200": _response("The cancelled response.", "Response")}, 400, 401, 404,
            parameters=[_RESPONSE_ID],
        ),
        "input_items": _operation(
            "List a response's input",
            {"200": _response("A page of input items.", "InputItemList", {"one item": examples.input_items()})},
            400, 401, 404,
            parameters=[_RESPONSE_ID, *_PAGING, *_INCLUDE],
        ),
        "compact": _operation(
            "Sum up a history", {"200": _response("The messages of users that are kept, and what stands for all.", "Compaction")},
            *_UPSTREAM_STATUSES, 415,
            requestBody=_body("CompactResponse", {"a chain": {"model": "demo", "previous_response_id": examples.RESPONSE_ID}}),
        ),
        "input_tokens": _operation(
            "Count a request's tokens", {"200": _response("The count.", "InputTokens", None, COUNT_HEADER)}, *_UPSTREAM_STATUSES, 415,
            requestBody=_body("CountInputTokens", {"a text": {"model": "demo", "input": "Say hello."}}),
        ),
        **_conversation_operations(),
        "chat": _operation(
            "Create a chat completion",
            {
                "200": {"description": _CHAT_DESCRIPTION, "headers": _headers(), "content": {_JSON: {"schema": {"type": "object"}}, "text/event-stream": _CHAT_STREAM}},
                **{str(status): _proxied_error(status) for status in (*_UPSTREAM_STATUSES, 409, 500, 503) if status not in (401, 403, 424)},
            },
            401, 403, 415,
            requestBody=_body("ChatCompletion", examples.CHATS),
        ),
        "list_models": _operation("List the models", {"200": _response("What is routed, else what the upstream offers.", "ModelList")}, 401, 502),
        "one_model": _operation(
            "Get a model", {"200": _response("The model.", "Model")}, 401, 404, 502,
            parameters=[_path("model", "A slash may come as it is or as %2F.")],
        ),
        "healthz": _operation("Whether the process answers", {"200": _response("It does.", "Alive")}, security=[]),
        "readyz": _operation(
            "Whether the process can serve",
            {"200": _response("It can.", "Readiness"), "503": _response("It cannot, or is stopping.", "Readiness")},
            security=[],
        ),
        "metrics": _operation(
            "Figures for Prometheus",
            {"200": {"description": "Prometheus' text format.", "headers": _headers(), "content": {"text/plain": {"schema": {"type": "string"}}}}},
            401, 404,
            security=[],
        ),
    }  # fmt: skip


def _conversation_operations() -> dict[str, Json]:
    conversation_response = _response(
        "The conversation.", "Conversation", {"a conversation": examples.conversation()}
    )
    items_response = _response(
        "Items, in the list envelope.", "ConversationItemList", {"one item": examples.input_items()}
    )
    return {
        "create_conversation": _operation(
            "Create a conversation", {"200": conversation_response}, 400, 401, 413, 415,
            requestBody=_body("CreateConversation", {"with a first item": examples.ITEMS | {"metadata": {"topic": "tides"}}, "empty": {}}),
        ),
        "retrieve_conversation": _operation("Get a conversation", {"200": conversation_response}, 401, 404, parameters=[_CONVERSATION_ID]),
        "update_conversation": _operation(
            "Update a conversation", {"200": conversation_response}, 400, 401, 404, 413, 415,
            parameters=[_CONVERSATION_ID], requestBody=_body("UpdateConversation", {"a topic": {"metadata": {"topic": "tides"}}}),
        ),
        "delete_conversation": _operation(
            "Delete a conversation",
            {"200": _response("It is gone; what responses were given and answered stays with them.", "DeletedConversation")}, 400, 401, 404,
            parameters=[_CONVERSATION_ID],
        ),
        "add_items": _operation(
            "Add items to a conversation", {"200": items_response}, 400, 401, 404, 413, 415,
            parameters=[_CONVERSATION_ID, *_INCLUDE], requestBody=_body("AddItems", {"one item": examples.ITEMS}),
        ),
        "list_items": _operation(
            "List a conversation's items", {"200": items_response}, 400, 401, 404, parameters=[_CONVERSATION_ID, *_PAGING, *_INCLUDE],
        ),
        "retrieve_item": _operation(
            "Get an item of a conversation", {"200": _response("The item.", "ConversationItem")}, 400, 401, 404,
            parameters=[_CONVERSATION_ID, _ITEM_ID, *_INCLUDE],
        ),
        "delete_item": _operation(
            "Take an item out of a conversation", {"200": conversation_response}, 400, 401, 404, parameters=[_CONVERSATION_ID, _ITEM_ID],
        ),
    }  # fmt: skip


def errors(settings: Settings) -> dict[str, Json]:
    """The answers that are errors, as components."""
    meanings = STATUSES | {413: STATUSES[413] + f" The limit is {settings.limits.body} bytes."}
    return {
        f"Error{status}": _error_response(status, meaning) for status, meaning in meanings.items()
    }


def _error_response(status: int, meaning: str) -> Json:
    error: ApiError | None = examples.ERRORS.get(status)
    example = {} if error is None else {"example": error.body()}
    own = _headers("x-should-retry", *_STATUS_HEADERS.get(status, ()))
    return {
        "description": meaning,
        "headers": own,
        "content": {_JSON: {"schema": reference("Error"), **example}},
    }


def _headers(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("x-request-id", *names)}


def _operation(summary: str, responses: dict[str, Json], *error_statuses: int, **more: Any) -> Json:
    always = (500, 503) if "security" not in more else (500,)
    error_responses = {
        str(status): {"$ref": f"#/components/responses/Error{status}"}
        for status in sorted({*error_statuses, *always})
    }
    return {
        "summary": summary,
        **more,
        "responses": {
            **responses,
            **{
                status: error_responses[status]
                for status in error_responses
                if status not in responses
            },
        },
    }


def _proxied_error(status: int) -> Json:
    """A refusal of this server's, or of the upstream's in whatever words it has."""
    content = {"schema": {"type": "object", "description": "`Error`, or the upstream's own body."}}
    return {
        "description": STATUSES.get(status, "What the upstream says."),
        "headers": _headers(),
        "content": {_JSON: content, "text/plain": {}},
    }


def _response(
    description: str,
    name: str,
    bodies: Mapping[str, Json] | None = None,
    *headers: str,
    stream: bool = False,
) -> Json:
    content: Json = {_JSON: {"schema": reference(name)}}
    if bodies:
        content[_JSON]["examples"] = {title: {"value": value} for title, value in bodies.items()}
    if stream:
        content["text/event-stream"] = {
            "itemSchema": _SSE_BLOCK,
            "examples": {"a short answer": {"value": examples.stream()}},
        }
    return {"description": description, "headers": _headers(*headers), "content": content}


def _body(name: str, bodies: Mapping[str, Json]) -> Json:
    body_examples = {title: {"value": body} for title, body in bodies.items()}
    return {
        "required": True,
        "content": {_JSON: {"schema": reference(name), "examples": body_examples}},
    }


def _query(name: str, schema: Schema, description: str) -> Json:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": schema,
        "description": description,
    }


def _header(name: str, schema: Schema, description: str) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "schema": schema,
        "description": description,
    }


def _path(name: str, description: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
        "description": description,
    }


_CREATE_EXAMPLES = {
    "in the background": examples.response(ended=False),
    "ended": examples.response(ended=True),
}

_EVENT = {"type": "string", "contentMediaType": _JSON, "contentSchema": reference("StreamEvent")}
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
"""One block of a stream, in OpenAPI 3.2's words for Server-Sent Events, which FastAPI writes into 3.1 documents as well."""

_CHAT_DESCRIPTION = "What the upstream answers, byte for byte. Its own refusals come with its own status and body, whatever that looks like."
_CHAT_STREAM: Json = {
    "itemSchema": {
        "type": "object",
        "description": "A chunk as the upstream sends it; `[DONE]` comes last.",
    }
}

_RESPONSE_ID = _path(
    "response_id", "`resp_` and 32 hexadecimal digits; whatever else it is, is not found."
)

_CONVERSATION_ID = _path(
    "conversation_id", "`conv_` and 32 hexadecimal digits; whatever else it is, is not found."
)
_ITEM_ID = _path("item_id", "The id of one of its items.")

_CREATE_HEADERS = [
    _header(
        "Idempotency-Key",
        {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH},
        "The same key with the same body within 24 hours gets the first request's response instead of a second one, as JSON or as a "
        "stream; with another body it is 400 `idempotency_key_reused`. Retries of the official SDKs are recognised without it, by "
        "`x-stainless-retry-count` and their body, for a minute.",
    ),
    _header("traceparent", {"type": "string"}, "W3C trace context."),
]

_INCLUDE = [
    _query(
        name,
        {"type": "array", "items": INCLUDE_VALUE.schema(input_scope())},
        "As `include` of a create; checked, and without effect here.",
    )
    for name in ("include[]", "include")
]

_STREAM_QUERY = [
    _query(
        "stream",
        {"type": "boolean", "default": False},
        "Answer with the events, those so far and those to come; only of a background response.",
    ),
    _query(
        "starting_after",
        {"type": "integer", **EVENT_NUMBERS},
        "With `stream`: only events with a higher `sequence_number`.",
    ),
    _query(
        "include_obfuscation",
        {"type": "boolean", "default": False},
        "Pad the events of deltas, so that their length tells nothing of what they say.",
    ),
]

_PAGING = [
    _query("limit", {"type": "integer", **PAGE_SIZES, "default": PAGE_SIZE}, "Items on a page."),
    _query(
        "order",
        {"type": "string", "enum": list(ORDERS), "default": "desc"},
        "By place in the list; `desc` shows the last one first.",
    ),
    _query("after", {"type": "string"}, "The id of the item after which the page begins."),
]
