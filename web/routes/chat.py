"""/v1/chat/completions: handed through to the model's upstream as it comes; nothing is queued, stored or translated."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import InvalidRequest, NotFound
from models.wire.checks import json_type, missing, wrong_type
from web.http.auth import Project
from web.http.body import is_large, read_json
from web.http.connection import cancel_on_disconnect
from web.state import app_state

router = APIRouter(prefix="/v1/chat/completions")


@router.post("")
async def chat(request: Request, _project: Project) -> Response:
    """Hands a chat completion through to the model's upstream, streamed or not. Client and upstream hear each other's very bytes; when the
    client leaves, the upstream's connection is closed."""
    state = app_state(request)
    body = _validate_body(await read_json(request, state.settings.limits.body))
    if not state.chat_proxy.has_route(body["model"]):
        raise NotFound(
            f"The model '{body['model']}' does not exist.", param="model", code="model_not_found"
        )
    # It may take long until the first byte: a client that leaves meanwhile takes the request along.
    return await cancel_on_disconnect(
        state.chat_proxy.forward(body, large=is_large(request.headers)),
        request.receive,
        state.grace_expired,
    )


def _validate_body(body: Any) -> dict[str, Any]:
    """What must be known to find the way; everything else is for the upstream to judge."""
    if not isinstance(body, dict):
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {json_type(body)} instead.",
            code="invalid_type",
        )
    if body.get("model") is None:
        raise missing("model")
    if not isinstance(body["model"], str):
        raise wrong_type("model", "a string", body["model"])
    return body
