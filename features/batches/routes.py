"""/v1/batches."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.batches.web import Batches
from features.files.web import Files
from features.request_bodies import counted_body
from web.http.auth import FilesKey, Key
from web.http.body import counted_json
from web.http.json_responses import json_response
from web.http.params import PAGE_SIZE, PAGE_SIZES, Paging, integer, storable_item_id
from web.http.request_record import actor_of
from web.state import app_state

router = APIRouter(prefix="/v1/batches")


@router.post("")
async def create_batch(request: Request, key: Key) -> Response:
    """Creates a batch of the requests in a file."""
    Files.of(request).store.require_storage(key)
    body = await counted_body(request, key)
    store = Batches.of(request).store
    make, show = partial(store.create, key, body.value), partial(store.show, key.project_id)
    creates = app_state(request).creates
    return json_response(await creates.once(request, body.value, make, show))


@router.get("")
async def list_batches(request: Request, key: FilesKey) -> Response:
    """The batches of the project, newest first."""
    limit = integer(request, "limit", **PAGE_SIZES)
    after = storable_item_id(request.query_params.get("after"))
    paging = Paging(PAGE_SIZE if limit is None else limit, "desc", after)
    page = await Batches.of(request).store.page(key.project_id, paging)
    return await counted_json(request, page)


@router.get("/{batch_id}")
async def retrieve_batch(batch_id: str, request: Request, key: FilesKey) -> Response:
    """The batch."""
    batch = await Batches.of(request).store.show(key.project_id, batch_id)
    return await counted_json(request, batch)


@router.post("/{batch_id}/cancel")
async def cancel_batch(batch_id: str, request: Request, key: Key) -> Response:
    """Begins to cancel the batch, and its responses."""
    store = Batches.of(request).store
    return json_response(await store.cancel(key.project_id, batch_id, actor_of(request)))


ROUTERS = (router,)
