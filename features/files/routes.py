"""/v1/files and /v1/uploads."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.files.content_response import ByteRange, ContentResponse, content_headers, parse_range
from features.files.store import storage_unavailable
from features.files.web import Files
from features.request_bodies import counted_body
from models.files.storage import StorageError
from models.redis.quota_counters import Demand
from web.http.auth import FilesKey
from web.http.body import counted_json
from web.http.connection import cancel_on_disconnect
from web.http.json_responses import json_response
from web.http.params import ORDERS, Paging, choice, integer, storable_item_id
from web.http.request_record import actor_of
from web.state import app_state

file_router = APIRouter(prefix="/v1/files")
upload_router = APIRouter(prefix="/v1/uploads")

LIST_SIZES = {"minimum": 1, "maximum": 10_000}
MAX_PAGE = 1000
"""Files on a page, whatever its `limit`."""


@file_router.post("")
async def create_file(request: Request, key: FilesKey) -> Response:
    """Stores a file, while it arrives."""
    state = app_state(request)
    Files.of(request).store.require_storage(key)
    state.quotas.require_rate(key)
    await state.quotas.admit_if_limited(key, Demand())
    state.count_transfer(request)
    show = partial(Files.of(request).store.show, key.project_id)
    once = partial(state.creates.once, request, show=show)
    return json_response(await Files.of(request).store.create(key, request, once))


@file_router.get("")
async def list_files(request: Request, key: FilesKey) -> Response:
    """The files of the project, newest first unless `order=asc`."""
    limit = integer(request, "limit", **LIST_SIZES)
    order = choice(request, "order", ORDERS) or "desc"
    after = storable_item_id(request.query_params.get("after"))
    purpose = storable_item_id(request.query_params.get("purpose"))
    query = Paging(min(limit or MAX_PAGE, MAX_PAGE), order, after)
    page = await Files.of(request).store.page(key.project_id, purpose, query)
    return await counted_json(request, page)


@file_router.get("/{file_id}")
async def retrieve_file(file_id: str, request: Request, key: FilesKey) -> Response:
    """The file, without its content."""
    return json_response(await Files.of(request).store.show(key.project_id, file_id))


@file_router.delete("/{file_id}")
async def delete_file(file_id: str, request: Request, key: FilesKey) -> Response:
    """Deletes the file."""
    await Files.of(request).store.delete(key.project_id, file_id, actor_of(request))
    return json_response({"id": file_id, "object": "file", "deleted": True})


@file_router.get("/{file_id}/content")
async def file_content(file_id: str, request: Request, key: FilesKey) -> Response:
    """The bytes of the file, or a range of them."""
    state = app_state(request)
    state.count_transfer(request)
    row = await Files.of(request).store.find(key.project_id, file_id)
    parts = await Files.of(request).store.parts(row)
    wanted = parse_range(request.headers.get("range"), row.bytes)
    part = wanted or ByteRange(0, row.bytes)
    chunks = await begun(Files.of(request).store.read(parts, part.start, part.length))
    headers = content_headers(row.filename, row.media_type, part.length)
    if wanted is not None:
        last = part.start + part.length - 1
        headers["content-range"] = f"bytes {part.start}-{last}/{row.bytes}"
    return ContentResponse(
        chunks,
        200 if wanted is None else 206,
        headers,
        state.settings.web.send_timeout.total_seconds(),
    )


@upload_router.post("")
async def create_upload(request: Request, key: FilesKey) -> Response:
    """Begins an upload in parts."""
    body = await counted_body(request, key)
    uploads = Files.of(request).uploads
    make, show = partial(uploads.create, key, body.value), partial(uploads.show, key)
    unused = partial(uploads.show_unused, key)
    creates = app_state(request).creates
    return json_response(await creates.once(request, body.value, make, show, unused))


@upload_router.post("/{upload_id}/parts")
async def add_upload_part(upload_id: str, request: Request, key: FilesKey) -> Response:
    """Stores a part, while it arrives."""
    state = app_state(request)
    state.quotas.require_rate(key)
    await state.quotas.admit_if_limited(key, Demand())
    state.count_transfer(request)
    uploads = Files.of(request).uploads
    once = partial(state.creates.once, request, show=partial(uploads.show_part, upload_id))
    return json_response(await uploads.add_part(key, upload_id, request, once))


@upload_router.post("/{upload_id}/complete")
async def complete_upload(upload_id: str, request: Request, key: FilesKey) -> Response:
    """Makes a file of the parts. They are read, which counts as an upload."""
    state = app_state(request)
    body = await counted_body(request, key)
    state.count_transfer(request)
    uploads = Files.of(request).uploads

    async def make() -> dict[str, Any]:
        completing = uploads.complete(key, upload_id, body.value)
        return await cancel_on_disconnect(completing, request.receive, state.grace_expired)

    show = partial(uploads.show, key)
    return json_response(await state.creates.once(request, body.value, make, show))


@upload_router.post("/{upload_id}/cancel")
async def cancel_upload(upload_id: str, request: Request, key: FilesKey) -> Response:
    """Ends an upload without a file."""
    uploads = Files.of(request).uploads
    return json_response(await uploads.cancel(key, upload_id, actor_of(request)))


async def begun(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The content. Its first chunk is read before the head of the response is sent: an object that
    cannot be read is an error. Raises Unavailable."""
    try:
        first = await anext(chunks, b"")
    except StorageError as error:
        raise storage_unavailable(error) from error
    return _behind(first, chunks)


async def _behind(first: bytes, others: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(others):
        yield first
        async for chunk in others:
            yield chunk


ROUTERS = (file_router, upload_router)
