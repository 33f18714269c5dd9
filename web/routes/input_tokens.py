"""/v1/responses/input_tokens: how many tokens a request would have; counted by a worker, which knows the upstream (docs/state.md)."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.config.routes import Routes
from models.errors import ApiError, InvalidRequest
from models.lifecycle import Status
from models.wire.checks import kind_of, missing, string
from models.wire.counting import COUNTED_BY
from models.wire.request import unknown_parameter
from web.http.auth import Project
from web.http.body import read_json
from web.http.json_responses import json_answer
from web.routes.responses import ended_row
from web.state import front_of

router = APIRouter(prefix="/v1/responses")

COUNT_HEADER = "x-backburner-token-count"
TAKEN = (
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
_ANY_MODEL = "default"
"""Asked for where none is named: only who serves all models counts for that."""


@router.post("/input_tokens")
async def input_tokens(request: Request, project: Project) -> Response:
    """Counts what the model would be told; `x-backburner-token-count` says who counted."""
    front = front_of(request)
    body = as_create(await read_json(request, front.settings.limits.body))
    if "model" not in body:
        if not Routes(front.settings).find(_ANY_MODEL):
            raise missing("model")
        body["model"] = _ANY_MODEL
    accepted = await front.intake.accept(project, body, request.headers, counted=True)
    row = await ended_row(front, accepted, request)
    usage = row["usage"]
    if row["status"] != Status.COMPLETED or usage is None:
        raise ApiError("The tokens could not be counted.")
    counted = {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    return json_answer(counted, headers={COUNT_HEADER: usage[COUNTED_BY]})


def as_create(body: Any) -> dict[str, Any]:
    """The create request whose tokens are counted. Raises InvalidRequest for what the route does not take; the rest is judged as any create."""
    if type(body) is not dict:
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {kind_of(body)} instead.",
            code="invalid_type",
        )
    asked: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        if name == "personality":
            PERSONALITY(value, name)
        elif name in TAKEN:
            asked[name] = value
        else:
            raise unknown_parameter(name)
    return {**asked, "store": False}
