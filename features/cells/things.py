"""/v1/organization/cell/projects/{id}/things: how what a project has gets to another cell."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.audit import record
from features.cells import departure
from features.cells.arrival import Arriving, Listed
from features.cells.thing_queries import KINDS
from features.files.content_response import ContentResponse
from features.files.store import storage_unavailable
from features.tenants import service
from features.tenants.bodies import Json, read_object
from models.db.queries.audit import AuditEntry
from models.errors import InvalidRequest
from models.files.storage import FileStorage, StorageError
from web.http.auth import Admin
from web.http.body import body_pieces
from web.http.json_responses import json_response
from web.http.params import choice
from web.http.request_record import actor_of
from web.state import AppState, app_state

# Not in the API document: only cells of the same release speak to each other so.
things_router = APIRouter(
    prefix="/v1/organization/cell/projects/{project_id}/things", include_in_schema=False
)
_PAGE = 1000
"""Most ids of a request."""
_NO_LIMIT = 1 << 62
"""Bytes of an import: it is read as it comes."""


@things_router.get("")
async def list_things(project_id: str, request: Request, _key: Admin) -> Response:
    """What the project has here of a kind, in a window behind `after`."""
    state = app_state(request)
    project = await service.project_of_id(state.pool, project_id)
    after = _uuid(request.query_params.get("after", str(departure.ZERO)), "after")
    found, until = await departure.window(state.pool, project.id, _kind(request), after)
    things = [{"id": str(t.id), "version": t.version, "has_left": t.has_left} for t in found]
    return json_response({"data": things, "until": _text(until)})


@things_router.post("/{step}")
async def take_step(project_id: str, step: str, request: Request, _key: Admin) -> Response:
    """A step of a move: `export`, `leave` and `forget` in the source, `compare` in the target."""
    if step not in _STEPS:
        raise InvalidRequest(f"There is no step '{step[:100]}'.", param="step")
    state, body = app_state(request), await read_object(request)
    project, kind = await service.project_of_id(state.pool, project_id), _named_kind(body)
    if step == "export":  # this key can read what clients have stored
        entry = AuditEntry(
            actor_of(request),
            "project.export",
            project.name,
            project=project.name,
            details={"kind": kind},
        )
        async with state.pool.connection() as connection:
            await record(connection, entry)
    return await _STEPS[step](state, project.id, kind, body)


async def _export(state: AppState, project: UUID, kind: str, body: Json) -> Response:
    """The rows of things; of one file its row and its bytes."""
    ids = _ids(body, "ids")
    if kind == "files":
        if len(ids) != 1:
            raise InvalidRequest("Files travel one by one.", param="ids")
        content = await departure.file(state.pool, _storage(state), project, ids[0])
    else:
        content = departure.rows(state.pool, project, kind, ids)
    headers = {"content-type": "application/octet-stream"}
    timeout = state.settings.web.send_timeout.total_seconds()
    return ContentResponse(content, 200, headers, timeout)


async def _leave(state: AppState, project: UUID, kind: str, body: Json) -> Response:
    """Things become the other cell's, if its copies have these versions."""
    copies = body.get("versions")
    if not isinstance(copies, dict) or KINDS[kind].mark != "t.id":
        raise InvalidRequest("Invalid 'versions': expected an object.", param="versions")
    versions = {_uuid(name, "versions"): str(version) for name, version in copies.items()}
    run, lease = named_uuid(body, "run"), state.settings.lease
    known = await departure.all_know(state.pool, project, run, lease)
    if not known:
        return json_response({"all_know": False, "data": [], "waiting": 0})
    left, waiting = await departure.leave(state.pool, project, kind, versions)
    ids = [str(each) for each in left]
    return json_response({"all_know": True, "data": ids, "waiting": waiting})


async def _forget(state: AppState, project: UUID, kind: str, body: Json) -> Response:
    """Deletes here what has left."""
    await departure.forget(state.pool, project, kind, _ids(body, "ids"))
    return json_response({})


async def _compare(state: AppState, project: UUID, kind: str, body: Json) -> Response:
    """The versions of the copies that this cell has."""
    until = body.get("until")
    listed = Listed(
        _ids(body, "here"),
        _ids(body, "left"),
        named_uuid(body, "after"),
        None if until is None else _uuid(until, "until"),
        is_whole=body.get("is_whole") is True,
    )
    copies = await Arriving(state.pool, project, named_uuid(body, "run")).compare(kind, listed)
    return json_response({"versions": {str(name): each for name, each in copies.items()}})


_STEPS: dict[str, Callable[[AppState, UUID, str, Json], Awaitable[Response]]] = {
    "export": _export,
    "leave": _leave,
    "forget": _forget,
    "compare": _compare,
}


@things_router.put("")
async def import_things(project_id: str, request: Request, _key: Admin) -> Response:
    """Stores what another cell has exported."""
    run = _uuid(request.query_params.get("run", ""), "run")
    state, kind, body = app_state(request), _kind(request), body_pieces(request, _NO_LIMIT)
    project = await service.project_of_id(state.pool, project_id)
    arriving = Arriving(state.pool, project.id, run)
    try:
        if kind == "files":
            upload_time = state.settings.files.upload_time
            await arriving.store_file(_storage(state), body, upload_time)
        else:
            await arriving.store(kind, body)
    except StorageError as error:
        raise storage_unavailable(error) from error
    return json_response({})


def _storage(state: AppState) -> FileStorage:
    if state.storage is None:
        raise InvalidRequest("This cell stores no files.", code="files_not_stored")
    return state.storage


def _kind(request: Request) -> str:
    return choice(request, "kind", tuple(KINDS)) or "files"


def _named_kind(body: Json) -> str:
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidRequest(f"Invalid 'kind': expected one of {', '.join(KINDS)}.", param="kind")
    return kind


def _ids(body: Json, name: str) -> list[UUID]:
    ids = body.get(name)
    if not isinstance(ids, list) or len(ids) > _PAGE:
        raise InvalidRequest(f"Invalid '{name}': expected at most {_PAGE} ids.", param=name)
    return [_uuid(each, name) for each in ids]


def named_uuid(body: Json, name: str) -> UUID:
    """The UUID in a body. Raises InvalidRequest."""
    return _uuid(body.get(name), name)


def _uuid(value: Any, name: str) -> UUID:
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidRequest(f"Invalid '{name}': expected a UUID.", param=name) from None


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)
