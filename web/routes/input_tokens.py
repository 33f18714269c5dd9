"""/v1/responses/input_tokens: how many tokens a request would have; counted by a worker, which knows the upstream (docs/state.md)."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.config.routes import Routes
from models.errors import ApiError, InvalidRequest
from models.lifecycle import Status
from models.wire.checks import json_type, missing, string
from models.wire.counting import COUNTED_BY
from models.wire.purpose import Purpose
from models.wire.request import unknown_parameter
from web.http.auth import Project
from web.http.body import read_json
from web.http.json_responses import json_response
from web.routes.responses import wait_for_response
from web.state import app_state

router = APIRouter(prefix="/v1/responses")

COUNT_HEADER = "x-backburner-token-count"
SUPPORTED_PARAMETERS = (
    *(
        "model",
        "input",
        "instructions",
        "previous_response_id",
        "conversation",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
    ),
    *("text", "reasoning", "truncation"),
)
"""Parameters with the meaning that they have in a create."""
PERSONALITY = string(at_most=64)
"""The one that only OpenAI's models know."""
_DEFAULT_MODEL = "default"
"""Asked for where none is named: only who serves all models counts for that."""


@router.post("/input_tokens")
async def input_tokens(request: Request, project: Project) -> Response:
    """Counts what the model would be told; `x-backburner-token-count` says who counted."""
    state = app_state(request)
    body = to_create_body(await read_json(request, state.settings.limits.body))
    if "model" not in body:
        if not Routes(state.settings).find(_DEFAULT_MODEL):
            raise missing("model")
        body["model"] = _DEFAULT_MODEL
    accepted = await state.create_response.create(
        project, body, request.headers, purpose=Purpose.COUNT
    )
    row = await wait_for_response(state, accepted, request)
    usage = row["usage"]
    if row["status"] != Status.COMPLETED or usage is None:
        raise ApiError("The tokens could not be counted.")
    counted = {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    return json_response(counted, headers={COUNT_HEADER: usage[COUNTED_BY]})


def to_create_body(body: Any) -> dict[str, Any]:
    """The create request whose tokens are counted. Raises InvalidRequest for what the route does not take; the rest is judged as any create."""
    if type(body) is not dict:
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {json_type(body)} instead.",
            code="invalid_type",
        )
    parameters: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        if name == "personality":
            PERSONALITY(value, name)
        elif name in SUPPORTED_PARAMETERS:
            parameters[name] = value
        else:
            raise unknown_parameter(name)
    return {**parameters, "store": False}
