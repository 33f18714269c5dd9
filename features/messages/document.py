"""`/v1/messages` in the API document."""

from features.compact_and_count.routes import COUNT_HEADER
from features.messages.request import OPTIONAL, REQUIRED
from features.messages.routes import BACKGROUND_HEADER
from features.reference.document import UPSTREAM_STATUSES
from features.reference.schemas import (
    COUNT,
    OBJECT,
    STRING,
    Deployment,
    Json,
    array_of,
    header_parameter,
    operation,
    request_body,
    response,
)
from models.wire.api_schema import Schema, const, nullable, object_schema

_HELLO: Json = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
CODES = {
    "thread_unsupported_request": "a message of Anthropic's API asks for a `thread`: the whole "
    "conversation must be sent",
}
_STATUSES = (*UPSTREAM_STATUSES, 402, 403, 415, 500, 503, 529)


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    background = header_parameter(
        BACKGROUND_HEADER,
        {"type": "string", "enum": ["true", "false"]},
        "`true`: the answer comes at once and has only the id, for `GET /v1/responses/{id}`.",
    )
    errors = {str(status): response("Anthropic's error.", "AnthropicError") for status in _STATUSES}
    return {
        "create_message": operation(
            "Create a message with Anthropic's API",
            response("The message; with `stream` the events of Anthropic's API.", "Message"),
            others=errors,
            parameters=[background],
            body=request_body("CreateMessage", {"a greeting": {**_HELLO, "max_tokens": 100}}),
            once=True,
        ),
        "count_message_tokens": operation(
            "Count the tokens of a message",
            response("The number of input tokens.", "MessageTokenCount", COUNT_HEADER),
            others=errors,
            body=request_body("CountMessageTokens", {"a greeting": _HELLO}),
        ),
    }


def components(deployment: Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    required = {name: check.schema(deployment.sent) for name, check in REQUIRED.items()}
    optional = {name: nullable(check.schema(deployment.sent)) for name, check in OPTIONAL.items()}
    counted = {name: schema for name, schema in required.items() if name != "max_tokens"}
    return {
        "CreateMessage": object_schema(required, optional),
        "CountMessageTokens": object_schema(counted, optional),
        "Message": object_schema(
            {
                "id": STRING,
                "type": const("message"),
                "role": const("assistant"),
                "model": STRING,
                "content": array_of(OBJECT),
                "stop_reason": nullable(STRING),
                "stop_sequence": nullable(STRING),
                "usage": OBJECT,
            }
        ),
        "AnthropicError": object_schema(
            {
                "type": const("error"),
                "error": object_schema({"type": STRING, "message": STRING}, {"details": OBJECT}),
                "request_id": STRING,
            }
        ),
        "MessageTokenCount": object_schema({"input_tokens": COUNT}),
    }
