"""/v1/uploads."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.files.web import Files
from models.redis.quota_counters import Demand
from web.http.auth import FilesKey
from web.http.body import read_json
from web.http.connection import cancel_on_disconnect
from web.http.json_responses import json_response
from web.http.request_record import actor_of
from web.state import app_state

router = APIRouter(prefix="/v1/uploads")


@router.post("")
async def create_upload(request: Request, key: FilesKey) -> Response:
    """Begins an upload in parts."""
    state = app_state(request)
    state.quotas.require_rate(key)
    body = await read_json(request, state.body_limits_of(key))
    await state.quotas.admit_if_limited(key, Demand())
    uploads = Files.of(request).uploads
    make, show = partial(uploads.create, key, body.value), partial(uploads.show, key)
    unused = partial(uploads.show_unused, key)
    return json_response(await state.creates.once(request, body.value, make, show, unused))


@router.post("/{upload_id}/parts")
async def add_upload_part(upload_id: str, request: Request, key: FilesKey) -> Response:
    """Stores a part, while it arrives."""
    state = app_state(request)
    state.quotas.require_rate(key)
    await state.quotas.admit_if_limited(key, Demand())
    state.count_transfer(request)
    uploads = Files.of(request).uploads
    once = partial(state.creates.once, request, show=partial(uploads.show_part, upload_id))
    return json_response(await uploads.add_part(key, upload_id, request, once))


@router.post("/{upload_id}/complete")
async def complete_upload(upload_id: str, request: Request, key: FilesKey) -> Response:
    """Makes a file of the parts. They are read, which counts as an upload."""
    state = app_state(request)
    state.quotas.require_rate(key)
    body = await read_json(request, state.body_limits_of(key))
    await state.quotas.admit_if_limited(key, Demand())
    state.count_transfer(request)
    uploads = Files.of(request).uploads

    async def make() -> dict[str, Any]:
        completing = uploads.complete(key, upload_id, body.value)
        return await cancel_on_disconnect(completing, request.receive, state.grace_expired)

    show = partial(uploads.show, key)
    return json_response(await state.creates.once(request, body.value, make, show))


@router.post("/{upload_id}/cancel")
async def cancel_upload(upload_id: str, request: Request, key: FilesKey) -> Response:
    """Ends an upload without a file."""
    uploads = Files.of(request).uploads
    return json_response(await uploads.cancel(key, upload_id, actor_of(request)))
