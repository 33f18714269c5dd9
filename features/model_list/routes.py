"""/v1/models: the models that clients can request."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.model_list.web import ModelList, ModelObject
from models.projects.policy import may_use
from web.http.auth import Key, require_model
from web.http.errors import model_not_found
from web.http.json_responses import json_response
from web.state import app_state

_ANTHROPIC = "anthropic-version"
"""A header of Anthropic's clients, which get the list in their form."""

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(request: Request, key: Key) -> Response:
    """All models that the key may use."""
    state = app_state(request)
    models = await ModelList.in_state(state).catalog.models(state.routes_of(key))
    shown = [one for one in models if may_use(one["id"], key.allowed_models, key.policy.models)]
    if _ANTHROPIC in request.headers:
        return json_response(_anthropic_list(shown))
    return json_response({"object": "list", "data": shown})


@router.get("/{model:path}")
async def one_model(model: str, request: Request, key: Key) -> Response:
    """One model; a slash in its name may come as it is or as %2F."""
    state = app_state(request)
    for known in await ModelList.in_state(state).catalog.models(state.routes_of(key)):
        if known["id"] == model:
            require_model(key, model)
            return json_response(
                _anthropic_model(known) if _ANTHROPIC in request.headers else known
            )
    raise model_not_found(model)


def _anthropic_list(models: list[ModelObject]) -> dict[str, Any]:
    """All on one page."""
    data = [_anthropic_model(model) for model in models]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def _anthropic_model(model: ModelObject) -> dict[str, Any]:
    created = datetime.fromtimestamp(model["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    named = {"id": model["id"], "display_name": model["id"], "created_at": created}
    return {"type": "model", **named, "lifecycle": "active"}


ROUTERS = (router,)
