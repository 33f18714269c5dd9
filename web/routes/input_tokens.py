"""/v1/responses/input_tokens: how many input tokens a request has; a worker counts, because it
knows the upstream (docs/state.md)."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import ApiError
from models.wire.checks.basic import String
from models.wire.checks.faults import missing
from models.wire.purpose import Purpose
from models.wire.token_counts import COUNTED_BY
from models.wire.without_effect import header_of
from web.admission import AdmittedBody
from web.http.auth import Key
from web.http.json_responses import json_response
from web.http.request_record import request_record
from web.responses.create import CreateOptions
from web.responses.unstored import UnstoredCreate, unstored_create
from web.routes.foreground import wait_for_completion
from web.state import app_state

router = APIRouter(prefix="/v1/responses")

COUNT_HEADER = "x-backburner-token-count"
SUPPORTED_PARAMETERS = (
    "model",
    "input",
    "instructions",
    "previous_response_id",
    "conversation",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "truncation",
)
"""Parameters with the meaning that they have in a create."""
PERSONALITY = String(at_most=64)
"""The check of `personality`, which only OpenAI's models have; it is ignored."""
_DEFAULT_MODEL = "default"
"""The model for a request without `model`, if there is a route for it."""
_NOT_COUNTED = "The tokens could not be counted."


@router.post("/input_tokens")
async def input_tokens(request: Request, key: Key, body: AdmittedBody) -> Response:
    """Counts the input tokens; `x-backburner-token-count` names the source of the number."""
    state = app_state(request)
    create = to_create_body(body.value)
    body.value = create.body
    if "model" not in body.value:
        if not state.routes_of(key).has_route(_DEFAULT_MODEL):
            raise missing("model")
        body.value["model"] = _DEFAULT_MODEL
    record = request_record(request)
    accepted = await state.create_response.create(
        key, body, request.headers, CreateOptions(record.id, purpose=Purpose.COUNT)
    )
    record.note_response(accepted.id)
    row = await wait_for_completion(state, accepted, request, _NOT_COUNTED)
    usage = row.usage
    if usage is None:
        raise ApiError(_NOT_COUNTED)
    counted = {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    ignored = header_of([*create.ignored, *accepted.request.ignored])
    return json_response(counted, headers={COUNT_HEADER: usage[COUNTED_BY]} | ignored)


def to_create_body(body: Any) -> UnstoredCreate:
    """The body of the create whose tokens are counted.

    Raises InvalidRequest for parameters that this route does not have; the create checks the
    others.
    """
    create = unstored_create(body, SUPPORTED_PARAMETERS, ("personality",))
    if body.get("personality") is not None:
        PERSONALITY(body["personality"], "personality")
    return create
