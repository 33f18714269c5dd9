"""/v1/models: the models that clients can request."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from web.http.auth import Project
from web.http.errors import model_not_found
from web.http.json_responses import json_response
from web.state import app_state

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(request: Request, _project: Project) -> Response:
    """All models."""
    models = await app_state(request).model_catalog.models()
    return json_response({"object": "list", "data": models})


@router.get("/{model:path}")
async def one_model(model: str, request: Request, _project: Project) -> Response:
    """One model; a slash in its name may come as it is or as %2F."""
    for known in await app_state(request).model_catalog.models():
        if known["id"] == model:
            return json_response(known)
    raise model_not_found(model)
