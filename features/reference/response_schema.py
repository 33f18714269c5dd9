"""The Response object and its usage."""

from features.reference.requests import default_response, request_parameters
from features.reference.schemas import SECONDS, STRING, array_of, one_of_texts
from models.ids import CONVERSATION_ID_PATTERN, RESPONSE_ID_PATTERN
from models.lifecycle import Status
from models.wire.api_schema import Schema, SchemaScope, const, nullable, object_schema, reference

RESPONSE_ID: Schema = {"type": "string", "pattern": f"^{RESPONSE_ID_PATTERN}$"}
CONVERSATION_ID: Schema = {"type": "string", "pattern": f"^{CONVERSATION_ID_PATTERN}$"}


def response_schema(stored: SchemaScope, *, native: bool) -> Schema:
    """Reads the keys from the function that builds a Response: all of them are always present."""
    fields = _RESPONSE_FIELDS | _echoed_parameters(stored, native=native)
    return {
        **object_schema(
            {key: fields[key] for key in default_response()},
            {
                "conversation": object_schema({"id": CONVERSATION_ID}),
                "unmet_parameter": _UNMET_PARAMETER,
            },
        ),
        "description": "The current state of a response. "
        "The terminal event of a stream has the final state.",
    }


_UNMET_PARAMETER: Schema = {
    "type": "string",
    "enum": ["tool_choice", "text.format"],
    "description": "The parameter that demanded what a `completed` response does not have: a call, "
    "or JSON. Absent otherwise.",
}
_ALWAYS_SET = (
    *("background", "frequency_penalty", "metadata", "model", "parallel_tool_calls"),
    *("presence_penalty", "store", "temperature", "tool_choice", "tools", "top_logprobs"),
    *("top_p", "truncation"),
)
"""Parameters that a Response shows with their default if the client did not set them."""

_NULL_BY_DEFAULT = (
    *("instructions", "max_output_tokens", "max_tool_calls", "prompt_cache_key"),
    *("safety_identifier", "user"),
)


def _echoed_parameters(stored: SchemaScope, *, native: bool) -> dict[str, Schema]:
    """The parameters of the request as a Response shows them."""
    parameters = request_parameters(native=native)

    def schema(name: str) -> Schema:
        return parameters[name].schema(stored)

    fields = {name: schema(name) for name in _ALWAYS_SET}
    fields |= {name: nullable(schema(name)) for name in _NULL_BY_DEFAULT}
    reasoning = schema("reasoning")["properties"]
    always_present = {name: nullable(reasoning.pop(name)) for name in ("effort", "summary")}
    fields["reasoning"] = object_schema(always_present, reasoning)
    fields["text"] = {"allOf": [schema("text"), {"required": ["format", "verbosity"]}]}
    return fields


_INCOMPLETE_REASONS = ("max_output_tokens", "content_filter", "max_messages")
_RESPONSE_FIELDS: dict[str, Schema] = {
    "id": RESPONSE_ID,
    "object": const("response"),
    "created_at": SECONDS,
    "status": one_of_texts([status.value for status in Status]),
    "completed_at": {
        **nullable(SECONDS),
        "description": "When it ended; null unless `completed`.",
    },
    "error": {
        **nullable(object_schema({"code": STRING, "message": STRING})),
        "description": "Why it `failed`; null otherwise.",
    },
    "incomplete_details": {
        **nullable(object_schema({"reason": one_of_texts(_INCOMPLETE_REASONS)})),
        "description": "Why it is `incomplete`; null otherwise.",
    },
    "output": array_of(reference("OutputItem")),
    "output_text": {"type": "string", "description": "All text of the output's messages, joined."},
    "previous_response_id": nullable(RESPONSE_ID),
    "service_tier": STRING,
    "usage": {
        **nullable(reference("Usage")),
        "description": "The upstream's counts, over all turns; null if it sent none.",
    },
}
"""The fields that are not parameters of the request."""
