"""Projects, as the admin API shows and changes them."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from features.tenants import service
from features.tenants.service import DefaultProject, NameTaken, ProjectFields
from features.tenants.shapes import Json, project_object
from models.db.database import Pool, fetch_idempotent, find_by_id
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.db.queries.organization import ProjectDetails
from models.db.statement import Query, RowT
from models.errors import InvalidRequest, NotFound
from models.ids import PROJECT, admin_id, parse_admin_id
from models.keys import DEFAULT_PROJECT
from models.projects.changes import BadPolicy
from web.http.params import Paging
from web.idempotency.creates import note_made

MadeT = TypeVar("MadeT")


async def fetch_page(
    pool: Pool, query: Query[RowT], paging: Paging, prefix: str, values: Mapping[str, object]
) -> list[RowT]:
    """The rows of a page and one more, if there is one. `prefix`: of the ids in the list. Raises
    InvalidRequest for a position that is no such id."""
    position = {"after": paging.after_id(prefix), "max_rows": paging.row_limit}
    return await fetch_idempotent(pool, query, {**position, **values})


def require_active(made: MadeT | None) -> MadeT:
    """What was made in a project. Raises NotFound for None: the project is archived."""
    if made is None:
        raise NotFound("The project is archived.")
    return made


class Projects:
    """The projects of this server."""

    def __init__(self, pool: Pool, upstreams: Collection[str]) -> None:
        """`upstreams`: the names of those that are configured."""
        self._pool = pool
        self._upstreams = upstreams

    async def page(self, paging: Paging, *, include_archived: bool) -> Json:
        """A page, the oldest first."""
        values = {"include_archived": include_archived}
        rows = await fetch_page(self._pool, statements.LIST_PROJECTS, paging, PROJECT, values)
        return paging.page_of([project_object(row) for row in rows])

    async def show(self, public_id: str) -> Json:
        """Raises NotFound."""
        return project_object(await self.find(public_id))

    async def create(self, fields: ProjectFields, actor: Actor) -> Json:
        """Raises InvalidRequest if there is one of this name, or if the policy is wrong."""
        with _refusals(fields):
            async with self._pool.connection() as connection, connection.transaction():
                made = await service.create_project(connection, fields, actor, self._upstreams)
                await note_made(connection, admin_id(PROJECT, made.id))
        return project_object(made)

    async def change(self, public_id: str, fields: ProjectFields, actor: Actor) -> Json:
        """Raises NotFound, or InvalidRequest as `create` does."""
        project = await self.find(public_id)
        with _refusals(fields):
            async with self._pool.connection() as connection:
                changed = await service.change_project(
                    connection, project.id, fields, actor, self._upstreams
                )
        return project_object(changed)

    async def archive(self, public_id: str, actor: Actor) -> Json:
        """Makes its keys invalid and deletes its webhooks. Raises NotFound, or InvalidRequest for
        the default project."""
        project = await self.find(public_id)
        try:
            async with self._pool.connection() as connection:
                return project_object(await service.archive_project(connection, project, actor))
        except DefaultProject:
            raise InvalidRequest("The default project cannot be archived.") from None

    async def find(self, public_id: str) -> ProjectDetails:
        """Also an archived one. Raises NotFound."""
        identifier = parse_admin_id(PROJECT, public_id)
        found = await find_by_id(self._pool, statements.PROJECT_BY_ID, identifier)
        if found is None:
            raise NotFound(f"No project found with id '{public_id[:100]}'.")
        return found

    async def default(self) -> ProjectDetails:
        """Raises NotFound if it was renamed."""
        values = {"name": DEFAULT_PROJECT, "digits": None}
        rows = await fetch_idempotent(self._pool, statements.FIND_PROJECTS, values)
        if not rows:
            raise NotFound("There is no default project.")
        return rows[0]


@contextmanager
def _refusals(fields: ProjectFields) -> Iterator[None]:
    """Raises InvalidRequest for what the service refuses."""
    try:
        yield
    except BadPolicy as bad:
        param = f"policy.{bad.place}" if bad.place else "policy"
        raise InvalidRequest(
            f"Invalid '{param}': {bad.message}.", param=param, code="invalid_value"
        ) from None
    except NameTaken:
        raise InvalidRequest(
            f"Invalid 'name': there is a project '{fields.name or ''}' already.",
            param="name",
            code="invalid_value",
        ) from None
