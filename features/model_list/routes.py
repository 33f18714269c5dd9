"""/v1/models: the models that clients can request."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.model_list.web import ModelList
from models.projects.policy import may_use
from web.http.auth import Key, require_model
from web.http.errors import model_not_found
from web.http.json_responses import json_response
from web.state import app_state

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(request: Request, key: Key) -> Response:
    """All models that the key may use."""
    state = app_state(request)
    models = await ModelList.in_state(state).catalog.models(state.routes_of(key))
    shown = [one for one in models if may_use(one["id"], key.allowed_models, key.policy.models)]
    return json_response({"object": "list", "data": shown})


@router.get("/{model:path}")
async def one_model(model: str, request: Request, key: Key) -> Response:
    """One model; a slash in its name may come as it is or as %2F."""
    state = app_state(request)
    for known in await ModelList.in_state(state).catalog.models(state.routes_of(key)):
        if known["id"] == model:
            require_model(key, model)
            return json_response(known)
    raise model_not_found(model)


ROUTERS = (router,)
