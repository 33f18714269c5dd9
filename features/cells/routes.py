"""/v1/organization/cell: what a cell shows of itself to those who look at all cells, and how a
project gets from one to another."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from psycopg.errors import Error
from psycopg.types.json import Jsonb
from starlette.responses import Response

from features.audit import record
from features.cells.arrival import Arriving
from features.cells.moved_queries import (
    EXPORT_PROJECT,
    IMPORT_KEYS,
    IMPORT_PROJECT,
    RETURN_PROJECT,
)
from features.cells.thing_queries import UNSETTLED
from features.cells.things import named_uuid, things_router
from features.cells.views import COLUMNS, read_view
from features.tenants import service
from features.tenants.bodies import Json, project_fields, read_object
from models.db.database import Connection, Pool, fetch, fetch_idempotent, find_by_id
from models.db.queries.audit import Actor, AuditEntry
from models.db.queries.organization import PROJECT_BY_ID, ProjectDetails
from models.errors import InvalidRequest
from models.ids import PROJECT, parse_admin_id
from models.projects.changes import BadPolicy
from models.secrets import Sealer
from models.version import VERSION
from web.http.auth import Admin
from web.http.json_responses import json_response
from web.http.params import choice
from web.http.request_record import actor_of
from web.state import app_state

router = APIRouter(prefix="/v1/organization")
ROUTERS = (router, things_router)
_FIELDS = ("name", "weight", "policy")
_LISTS = ("service_accounts", "keys")


@router.get("/cell")
async def retrieve_cell(request: Request, _key: Admin) -> Response:
    """Its name, and the rows of a view."""
    view = choice(request, "view", tuple(COLUMNS)) or "projects"
    state = app_state(request)
    rows = await read_view(state.pool, view)
    return json_response(
        {"object": "cell", "name": state.settings.cell, "view": view, "data": rows}
    )


@router.get("/cell/projects/{project_id}")
async def export_project(project_id: str, request: Request, _key: Admin) -> Response:
    """What another cell needs to serve the project: its policy, and the hashes of its keys."""
    project = await service.project_of_id(app_state(request).pool, project_id)
    found = await find_by_id(app_state(request).pool, EXPORT_PROJECT, project.id)
    if found is None:
        raise InvalidRequest("The project is archived.")
    state = app_state(request)
    await _require_complete(state.pool, project.id, is_copy=True)
    made_with = {"release": VERSION, "secret_keys": state.sealer.key_ids}
    return json_response(asdict(found) | made_with)


@router.post("/cell/projects/{project_id}")
async def import_project(project_id: str, request: Request, _key: Admin) -> Response:
    """Makes the project and its keys here, with their ids; what is there already stays. A project
    that comes back gets its policy of now."""
    body = await read_object(request)
    identifier = parse_admin_id(PROJECT, project_id)
    if identifier is None:
        raise InvalidRequest("This is no id of a project.", param="project_id")
    _require_equal(body, app_state(request).sealer)
    fields = project_fields({name: body.get(name) for name in _FIELDS}, required=True)
    try:
        policy = fields.changed({}, app_state(request).routes.server.upstreams)
    except BadPolicy as bad:
        raise InvalidRequest(f"The policy cannot be used in this cell: {bad}") from bad
    values = {"name": fields.name, "weight": fields.weight or 1, "policy": Jsonb(policy)}
    keys = {name: Jsonb(_objects(body, name)) for name in _LISTS}
    await _require_complete(app_state(request).pool, identifier, is_copy=False)
    async with app_state(request).pool.connection() as connection, connection.transaction():
        made = await _import(connection, identifier, values, keys, actor_of(request))
        left = await fetch(connection, RETURN_PROJECT, {"id": identifier, **values})
    if "run" in body:
        await Arriving(app_state(request).pool, identifier, named_uuid(body, "run")).begin()
    moved_at = left[0] if left else None
    return json_response({"object": "cell.project", "keys_added": made, "moved_at": moved_at})


async def _require_complete(pool: Pool, project: UUID, *, is_copy: bool) -> None:
    """What an earlier move has begun must have ended. Raises InvalidRequest."""
    for unsettled in UNSETTLED:
        if await fetch_idempotent(pool, unsettled, {"project": project, "is_copy": is_copy}):
            raise InvalidRequest(
                "An earlier move of the project, in the other direction, is not complete: repeat "
                "it until nothing is left in its first cell."
            )


def _require_equal(body: Json, sealer: Sealer) -> None:
    """What the other cell has made must be of use here. Raises InvalidRequest."""
    if body.get("release") != VERSION:
        raise InvalidRequest("The cells run different releases.", param="release")
    keys = body.get("secret_keys")
    if not isinstance(keys, list) or any(key not in sealer.key_ids for key in keys):
        raise InvalidRequest(
            "This cell cannot read what the other one has sealed: append the keys of its "
            "BACKBURNER_SECRET_KEYS to those of this cell.",
            param="secret_keys",
        )


def _objects(body: Json, name: str) -> list[Json]:
    value = body.get(name)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest(
            f"Invalid '{name}': expected a list of objects.", param=name, code="invalid_type"
        )
    return value


async def _import(
    connection: Connection,
    project: UUID,
    values: Mapping[str, Any],
    keys: Mapping[str, Any],
    actor: Actor,
) -> int:
    """How many keys were added. Raises InvalidRequest."""
    try:
        await fetch(connection, IMPORT_PROJECT, {"id": project, **values})
        stored = await fetch(connection, PROJECT_BY_ID, {"id": project})
        _require_usable(stored, values["name"])
        added = await fetch(connection, IMPORT_KEYS, {"id": project, **keys})
    except Error as error:
        if (error.sqlstate or "")[:2] not in ("22", "23"):  # wrong values, broken references
            raise
        raise InvalidRequest("The body is no export of a project.") from error
    details = {"keys": len(added)}
    await record(
        connection,
        AuditEntry(
            actor, "project.import", values["name"], project=values["name"], details=details
        ),
    )
    return len(added)


def _require_usable(stored: list[ProjectDetails], name: str) -> None:
    if not stored:
        raise InvalidRequest(f"There is another project with the name '{name[:100]}'.")
    if stored[0].archived_at is not None:
        raise InvalidRequest("The project is archived here.")
