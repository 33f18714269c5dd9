"""/v1/vector_stores."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.files.content_response import ContentResponse
from features.files.web import Files
from features.request_bodies import counted_body
from features.retrieval.entries import STATUSES
from features.retrieval.objects import TwoWayPaging
from features.retrieval.web import Retrieval
from web.http.auth import FilesKey
from web.http.body import counted_json
from web.http.connection import cancel_on_disconnect
from web.http.json_responses import SHORTEST_POLL, json_response, poll_after
from web.http.params import choice
from web.http.request_record import actor_of
from web.state import app_state

router = APIRouter(prefix="/v1/vector_stores")


@router.post("")
async def create_vector_store(request: Request, key: FilesKey) -> Response:
    """Makes a vector store, with files if there are any."""
    body = await _body(request, key)
    stores = Retrieval.of(request).stores
    make, show = partial(stores.create, key, body), partial(stores.show, key.project_id)
    return json_response(await app_state(request).creates.once(request, body, make, show))


@router.get("")
async def list_vector_stores(request: Request, key: FilesKey) -> Response:
    """The vector stores of the project, newest first unless `order=asc`."""
    stores = Retrieval.of(request).stores
    return await counted_json(request, await stores.page(key.project_id, TwoWayPaging.of(request)))


@router.get("/{vector_store_id}")
async def retrieve_vector_store(vector_store_id: str, request: Request, key: FilesKey) -> Response:
    """The vector store."""
    stores = Retrieval.of(request).stores
    return json_response(await stores.show(key.project_id, vector_store_id))


@router.post("/{vector_store_id}")
async def update_vector_store(vector_store_id: str, request: Request, key: FilesKey) -> Response:
    """Changes name, metadata and expiry of the vector store."""
    body = await _body(request, key)
    return json_response(
        await Retrieval.of(request).stores.update(key.project_id, vector_store_id, body)
    )


@router.delete("/{vector_store_id}")
async def delete_vector_store(vector_store_id: str, request: Request, key: FilesKey) -> Response:
    """Deletes the vector store. Its files stay."""
    stores = Retrieval.of(request).stores
    await stores.delete(key.project_id, vector_store_id, actor_of(request))
    return json_response({"id": vector_store_id, "object": "vector_store.deleted", "deleted": True})


@router.post("/{vector_store_id}/search")
async def search_vector_store(vector_store_id: str, request: Request, key: FilesKey) -> Response:
    """The chunks of the vector store that fit a query best."""
    body = await _body(request, key)
    searching = Retrieval.of(request).stores.search(key, vector_store_id, body)
    stopping = app_state(request).grace_expired
    found = await cancel_on_disconnect(searching, request.receive, stopping)
    return await counted_json(request, found)


@router.post("/{vector_store_id}/files")
async def add_vector_store_file(vector_store_id: str, request: Request, key: FilesKey) -> Response:
    """Adds a file to the vector store; it is ingested in the background."""
    body = await _body(request, key)
    files = Retrieval.of(request).files
    make = partial(files.add, key, vector_store_id, body)
    show = partial(files.show, key.project_id, vector_store_id)
    return json_response(await app_state(request).creates.once(request, body, make, show))


@router.get("/{vector_store_id}/files")
async def list_vector_store_files(
    vector_store_id: str, request: Request, key: FilesKey
) -> Response:
    """The files of the vector store, newest first unless `order=asc`."""
    status = choice(request, "filter", STATUSES)
    files = Retrieval.of(request).files
    paging = TwoWayPaging.of(request)
    page = await files.page(key.project_id, vector_store_id, paging, status)
    return await counted_json(request, page)


@router.get("/{vector_store_id}/files/{file_id}")
async def retrieve_vector_store_file(
    vector_store_id: str, file_id: str, request: Request, key: FilesKey
) -> Response:
    """A file of the vector store."""
    files = Retrieval.of(request).files
    return _polled(await files.show(key.project_id, vector_store_id, file_id))


@router.post("/{vector_store_id}/files/{file_id}")
async def update_vector_store_file(
    vector_store_id: str, file_id: str, request: Request, key: FilesKey
) -> Response:
    """Replaces the attributes of a file of the vector store."""
    body = await _body(request, key)
    files = Retrieval.of(request).files
    return json_response(await files.update(key.project_id, vector_store_id, file_id, body))


@router.delete("/{vector_store_id}/files/{file_id}")
async def remove_vector_store_file(
    vector_store_id: str, file_id: str, request: Request, key: FilesKey
) -> Response:
    """Removes a file from the vector store. The file itself stays."""
    files = Retrieval.of(request).files
    await files.remove(key.project_id, vector_store_id, file_id, actor_of(request))
    return json_response({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})


@router.get("/{vector_store_id}/files/{file_id}/content")
async def vector_store_file_content(
    vector_store_id: str, file_id: str, request: Request, key: FilesKey
) -> Response:
    """The chunks of a file of the vector store."""
    state = app_state(request)
    state.count_transfer(request)
    content = await Retrieval.of(request).files.content(key.project_id, vector_store_id, file_id)
    headers = {"content-type": "application/json"}
    return ContentResponse(content, 200, headers, state.settings.web.send_timeout.total_seconds())


@router.post("/{vector_store_id}/file_batches")
async def create_vector_store_file_batch(
    vector_store_id: str, request: Request, key: FilesKey
) -> Response:
    """Adds files to the vector store; they are ingested in the background."""
    body = await _body(request, key)
    files = Retrieval.of(request).files
    make = partial(files.add_batch, key, vector_store_id, body)
    show = partial(files.show_batch, key.project_id, vector_store_id)
    return json_response(await app_state(request).creates.once(request, body, make, show))


@router.get("/{vector_store_id}/file_batches/{batch_id}")
async def retrieve_vector_store_file_batch(
    vector_store_id: str, batch_id: str, request: Request, key: FilesKey
) -> Response:
    """A batch of files."""
    files = Retrieval.of(request).files
    return _polled(await files.show_batch(key.project_id, vector_store_id, batch_id))


@router.post("/{vector_store_id}/file_batches/{batch_id}/cancel")
async def cancel_vector_store_file_batch(
    vector_store_id: str, batch_id: str, request: Request, key: FilesKey
) -> Response:
    """Cancels what is not ingested yet of a batch of files."""
    files = Retrieval.of(request).files
    cancelled = await files.cancel_batch(
        key.project_id, vector_store_id, batch_id, actor_of(request)
    )
    return json_response(cancelled)


@router.get("/{vector_store_id}/file_batches/{batch_id}/files")
async def list_vector_store_file_batch_files(
    vector_store_id: str, batch_id: str, request: Request, key: FilesKey
) -> Response:
    """The files of a batch, newest first unless `order=asc`."""
    status = choice(request, "filter", STATUSES)
    files = Retrieval.of(request).files
    paging = TwoWayPaging.of(request)
    page = await files.page(key.project_id, vector_store_id, paging, status, batch_id)
    return await counted_json(request, page)


def _polled(shown: dict[str, Any]) -> Response:
    """A file or a batch of files. The official SDK keeps the first interval until the end."""
    return json_response(
        shown, headers=poll_after(SHORTEST_POLL) if shown["status"] == "in_progress" else {}
    )


async def _body(request: Request, key: FilesKey) -> Any:
    """The body. Raises ApiError, also where there are no vector stores."""
    Files.of(request).store.require_storage(key)
    await Retrieval.of(request).access.require_available(key)
    return (await counted_body(request, key)).value


ROUTERS = (router,)
