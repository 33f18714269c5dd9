"""Examples, made by the same code as real responses."""

from typing import Any

from models.errors import (
    UPSTREAM_ENDED_EARLY,
    ApiError,
    IncorrectApiKey,
    InternalError,
    InvalidRequest,
    MissingScope,
    NotFound,
    RequestTooLarge,
    RunFailed,
    Unavailable,
    UnsupportedMediaType,
)
from models.wire import events
from models.wire.response import ResponseFacts, response_object
from web.http.json_responses import list_envelope

Json = dict[str, Any]

RESPONSE_ID = "resp_019abc12de347000a1b2c3d4e5f60718"
TIME = 1_790_000_000
"""When the objects were made."""
CONVERSATION_ID = "conv_019abc12de347000d1b2c3d4e5f60721"
_ITEM_ID = "msg_019abc12de357000b1b2c3d4e5f60719"
_INPUT_ID = "msg_019abc12de347000c1b2c3d4e5f60720"
_TEXT_DELTAS = ("Hello", " there.")
_INITIAL_FACTS = ResponseFacts(
    id=RESPONSE_ID,
    created_at=TIME,
    status="queued",
    model="demo",
    parameters={"metadata": {"job": "42"}},
    background=True,
)
_USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12,
}

_SHORT: Json = {"model": "demo", "input": "Say hello."}
REQUESTS: dict[str, Json] = {
    "a text": _SHORT,
    "in the background": _SHORT | {"background": True, "metadata": {"job": "42"}},
    "as a stream": _SHORT | {"stream": True},
    "in a conversation": _SHORT | {"conversation": CONVERSATION_ID},
    "a whole history": {
        "model": "demo",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "What is on this picture?"},
            {"role": "assistant", "content": "Which one?"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "This one."},
                    {
                        "type": "input_image",
                        "image_url": "data:image/png;base64,iVBORw0KGgo=",
                        "detail": "low",
                    },
                ],
            },
        ],
    },
    "a tool": {
        "model": "demo",
        "input": "What is the weather in Oslo?",
        "tools": [
            {
                "type": "function",
                "name": "weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            }
        ],
        "tool_choice": "auto",
    },
    "the output of a tool": {
        "model": "demo",
        "previous_response_id": RESPONSE_ID,
        "input": [{"type": "function_call_output", "call_id": "call_1", "output": "Rain."}],
    },
    "JSON after a schema": {
        "model": "demo",
        "input": "Two numbers.",
        "text": {
            "format": {
                "type": "json_schema",
                "name": "numbers",
                "schema": {"type": "array", "items": {"type": "number"}},
            }
        },
    },
}
"""Name -> body of a create."""

ERRORS: dict[int, ApiError] = {
    400: InvalidRequest(
        "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
    ),
    401: IncorrectApiKey(),
    403: MissingScope("responses"),
    404: NotFound(f"Response with id '{RESPONSE_ID}' not found."),
    413: RequestTooLarge("67108864 bytes"),
    415: UnsupportedMediaType(
        "Unsupported content type: 'text/plain'. Send 'Content-Type: application/json'."
    ),
    429: RunFailed(
        429,
        "The upstream refused the request: slow down",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=2,
    ),
    500: InternalError(),
    502: RunFailed(502, UPSTREAM_ENDED_EARLY, kind="server_error", code=None),
    503: Unavailable(),
}


def response(*, ended: bool) -> Json:
    """A background response: as accepted, or after its end."""
    if not ended:
        return response_object(_INITIAL_FACTS, [])
    return response_object(
        _INITIAL_FACTS.evolve(status="completed", completed_at=TIME + 2, usage=_USAGE),
        [_message(*_TEXT_DELTAS)],
    )


def input_items() -> Json:
    """A page of one item."""
    part = {"type": "input_text", "text": "Say hello."}
    item = {
        "id": _INPUT_ID,
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [part],
    }
    return list_envelope([item])


def stream() -> str:
    """A whole stream, with a comment in it."""
    frames = [events.frame(event, number) for number, event in enumerate(_events())]
    return b"".join([*frames[:3], b": keep-alive\n\n", *frames[3:], events.DONE]).decode()


def _events() -> list[events.Event]:
    opening = response(ended=False)
    place = (_ITEM_ID, 0, 0)
    running = _INITIAL_FACTS.evolve(status="in_progress")
    return [
        events.ResponseCreated(opening),
        events.ResponseQueued(opening),
        events.ResponseInProgress(response_object(running, [])),
        events.ItemAdded(0, _message() | {"status": "in_progress", "content": []}),
        events.PartAdded(*place, _part()),
        *(events.TextDelta(*place, word, []) for word in _TEXT_DELTAS),
        events.TextDone(*place, "".join(_TEXT_DELTAS), []),
        events.PartDone(*place, _part(*_TEXT_DELTAS)),
        events.ItemDone(0, _message(*_TEXT_DELTAS)),
        events.ResponseCompleted(response(ended=True)),
    ]


def _part(*words: str) -> Json:
    return {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}


def _message(*words: str) -> Json:
    return {
        "id": _ITEM_ID,
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [_part(*words)],
    }
