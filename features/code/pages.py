"""The containers in which models run code: their sessions, whose they are, and what they use."""

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.code import queries as statements
from features.code import service
from features.console.access import EVERYONE
from features.console.page import (
    Change,
    Page,
    PageError,
    Visit,
    confirmed,
    not_found,
    read_list,
)
from models.db.database import Connection, find_by_id
from models.ids import CONTAINER, admin_id, parse_admin_id


async def show(visit: Visit) -> Response:
    """The containers, the newest first."""
    project, is_open = visit.text("project"), visit.query.get("show") == "sessions"
    return visit.page(
        "containers.html",
        containers=await read_list(
            visit,
            statements.NEWEST_CONTAINERS,
            {"project": project, "is_open": is_open},
            lambda row: admin_id(CONTAINER, row.id),
            lambda text: parse_admin_id(CONTAINER, text),
        ),
        project=project,
        chosen="sessions" if is_open else None,
    )


async def _stop(visit: Visit, fields: QueryParams) -> Change:
    """Ends the session of a container."""
    public_id = fields.get("id", "")
    found = await find_by_id(
        visit.pool, statements.ANY_CONTAINER, parse_admin_id(CONTAINER, public_id)
    )
    if found is None or not visit.owns(found.project_id):
        raise not_found("container")

    async def make(connection: Connection) -> None:
        if not await service.stop(connection, found.id, found.project, visit.actor):
            raise PageError(409, "It has changed", "The container has no session that runs.")

    return Change(
        title="Stop this session?",
        meaning="Code that runs in it is ended, and its variables are lost. The container and its "
        "files stay: the next call gets a new session, and the model is told.",
        label="Stop the session",
        back="/code",
        make=make,
        done="The session is being ended.",
        facts=[("Container", public_id), ("Name", found.name), ("Project", found.project)],
    )


PAGES = (
    Page("/code", show, menu="Code", is_by_project=True, roles=EVERYONE),
    *confirmed("/code/stop", _stop),
)
