"""/v1/chat/completions: handed through to the model's upstream as it comes; nothing is queued, stored or translated."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import InvalidRequest, NotFound
from models.wire.checks import kind_of, missing, wrong_type
from web.http.auth import Project
from web.http.body import is_large, read_json
from web.http.connection import unless_gone
from web.state import front_of

router = APIRouter(prefix="/v1/chat/completions")


@router.post("")
async def chat(request: Request, _project: Project) -> Response:
    """Hands a chat completion through to the model's upstream, streamed or not. Client and upstream hear each other's very bytes; when the
    client leaves, the upstream's connection is closed."""
    front = front_of(request)
    body = _checked(await read_json(request, front.settings.limits.body))
    if not front.passage.knows(body["model"]):
        raise NotFound(
            f"The model '{body['model']}' does not exist.", param="model", code="model_not_found"
        )
    # It may take long until the first byte: a client that leaves meanwhile takes the request along.
    return await unless_gone(
        front.passage.answer(body, large=is_large(request.headers)), request.receive, front.drained
    )


def _checked(body: Any) -> dict[str, Any]:
    """What must be known to find the way; everything else is for the upstream to judge."""
    if not isinstance(body, dict):
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {kind_of(body)} instead.",
            code="invalid_type",
        )
    if body.get("model") is None:
        raise missing("model")
    if not isinstance(body["model"], str):
        raise wrong_type("model", "a string", body["model"])
    return body
