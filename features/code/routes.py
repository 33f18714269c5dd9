"""/v1/containers."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.code.web import Code
from features.files.content_response import ContentResponse, content_headers
from features.files.routes import begun
from features.request_bodies import counted_body
from models.redis.quota_counters import Demand
from web.http.auth import FilesKey
from web.http.body import counted_json
from web.http.json_responses import json_response
from web.http.params import paging, storable_item_id
from web.http.request_record import actor_of
from web.state import app_state

router = APIRouter(prefix="/v1/containers")


@router.post("")
async def create_container(request: Request, key: FilesKey) -> Response:
    """Makes a container, with files if there are any."""
    body = (await counted_body(request, key)).value
    access = Code.of(request).access
    make, show = partial(access.create, key, body), partial(access.show, key.project_id)
    return json_response(await app_state(request).creates.once(request, body, make, show))


@router.get("")
async def list_containers(request: Request, key: FilesKey) -> Response:
    """The containers of the project, newest first unless `order=asc`."""
    name = storable_item_id(request.query_params.get("name"))
    page = await Code.of(request).access.page(key.project_id, paging(request), name)
    return await counted_json(request, page)


@router.get("/{container_id}")
async def retrieve_container(container_id: str, request: Request, key: FilesKey) -> Response:
    """The container."""
    return json_response(await Code.of(request).access.show(key.project_id, container_id))


@router.delete("/{container_id}")
async def delete_container(container_id: str, request: Request, key: FilesKey) -> Response:
    """Deletes the container with its files."""
    await Code.of(request).access.delete(key.project_id, container_id, actor_of(request))
    return json_response({"id": container_id, "object": "container.deleted", "deleted": True})


@router.post("/{container_id}/files")
async def create_container_file(container_id: str, request: Request, key: FilesKey) -> Response:
    """Adds a file to the container: that of a multipart form, or one that JSON names."""
    access = Code.of(request).access
    if not request.headers.get("content-type", "").startswith("multipart/"):
        body = (await counted_body(request, key)).value
        return json_response(await access.add_file(key, container_id, body))
    state = app_state(request)
    state.quotas.require_rate(key)
    await state.quotas.admit_if_limited(key, Demand())
    state.count_transfer(request)
    return json_response(await access.upload(key, container_id, request))


@router.get("/{container_id}/files")
async def list_container_files(container_id: str, request: Request, key: FilesKey) -> Response:
    """The files of the container, newest first unless `order=asc`."""
    access = Code.of(request).access
    page = await access.files_page(key.project_id, container_id, paging(request))
    return await counted_json(request, page)


@router.get("/{container_id}/files/{container_file_id}")
async def retrieve_container_file(
    container_id: str, container_file_id: str, request: Request, key: FilesKey
) -> Response:
    """A file of the container, without its content."""
    access = Code.of(request).access
    return json_response(await access.show_file(key.project_id, container_id, container_file_id))


@router.delete("/{container_id}/files/{container_file_id}")
async def delete_container_file(
    container_id: str, container_file_id: str, request: Request, key: FilesKey
) -> Response:
    """Deletes a file of the container."""
    await Code.of(request).access.delete_file(key.project_id, container_id, container_file_id)
    return json_response(
        {"id": container_file_id, "object": "container.file.deleted", "deleted": True}
    )


@router.get("/{container_id}/files/{container_file_id}/content")
async def container_file_content(
    container_id: str, container_file_id: str, request: Request, key: FilesKey
) -> Response:
    """The bytes of a file of the container."""
    state, access = app_state(request), Code.of(request).access
    state.count_transfer(request)
    _, row = await access.find_file(key.project_id, container_id, container_file_id)
    chunks = await begun(await access.content(row))
    headers = content_headers(row.path.rpartition("/")[2], None, row.bytes)
    timeout = state.settings.web.send_timeout.total_seconds()
    return ContentResponse(chunks, 200, headers, timeout)


ROUTERS = (router,)
