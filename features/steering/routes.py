"""`/v1/responses/{response_id}/steer`: input for a background response that runs. An extension;
over WebSocket it is the event `response.steer`."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.request_bodies import counted_body
from features.steering.web import Steering
from web.http.auth import Key, Project
from web.http.json_responses import json_response
from web.http.params import paging
from web.state import app_state

router = APIRouter(prefix="/v1/responses")


@router.post("/{response_id}/steer")
async def steer_response(response_id: str, request: Request, key: Key) -> Response:
    """Queues user input for the response."""
    body = await counted_body(request, key, is_stored=True)
    store = Steering.of(request).store
    make = partial(store.create, key, response_id, body.value)
    show = partial(store.show, key.project_id)
    return json_response(await app_state(request).creates.once(request, body.value, make, show))


@router.get("/{response_id}/steer")
async def list_steers(response_id: str, request: Request, project: Project) -> Response:
    """What was sent to the response while it ran, and what became of it."""
    page_query = paging(request)
    store = Steering.of(request).store
    return json_response(await store.page(project, response_id, page_query))


ROUTERS = (router,)
