"""The keys of projects and of admins, as the admin API shows and changes them."""

from datetime import timedelta
from uuid import UUID

from features.tenants import service
from features.tenants.projects import Projects, fetch_page, require_active
from features.tenants.service import KeyChanges
from features.tenants.shapes import Json, admin_key_object, deleted_object, project_key_object
from models.db.database import Pool, find_by_id
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.db.queries.organization import KeyDetails
from models.errors import InvalidRequest, NotFound
from models.ids import API_KEY, admin_id, parse_admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from web.http.params import Paging
from web.idempotency.creates import note_made


async def find_key(pool: Pool, public_id: str, project: UUID | None) -> KeyDetails:
    """A key that is not revoked. `project`: None for the key of an admin. Raises NotFound."""
    row = await find_by_id(
        pool,
        statements.KEY_BY_ID,
        parse_admin_id(API_KEY, public_id),
        project=project,
        is_admin=project is None,
    )
    if row is None:
        raise NotFound(f"No API key found with id '{public_id[:100]}'.")
    return row


class ProjectKeys:
    """The keys of projects. Every method raises NotFound for a project or key that is not there."""

    def __init__(self, pool: Pool, projects: Projects) -> None:
        self._pool = pool
        self._projects = projects

    async def page(self, project: str, paging: Paging) -> Json:
        """A page, the oldest first."""
        values = {"project": (await self._projects.find(project)).id}
        rows = await fetch_page(self._pool, statements.PROJECT_KEYS, paging, API_KEY, values)
        return paging.page_of([project_key_object(row) for row in rows])

    async def show(self, project: str, public_id: str) -> Json:
        """One key."""
        return project_key_object(await self._find(project, public_id))

    async def change(self, project: str, public_id: str, changes: KeyChanges, actor: Actor) -> Json:
        """Changes what it may do, and until when. Raises InvalidRequest for one that has
        expired."""
        found = await self._find(project, public_id)
        async with self._pool.connection() as connection:
            if not await service.change_key(connection, found, changes, actor):
                raise InvalidRequest("The API key has expired. Create another one.")
        return project_key_object(await find_key(self._pool, public_id, found.project_id))

    async def delete(self, project: str, public_id: str, actor: Actor) -> Json:
        """Makes it invalid."""
        found = await self._find(project, public_id)
        async with self._pool.connection() as connection:
            await service.revoke_key(connection, found, actor)
        return deleted_object(public_id, "organization.project.api_key.deleted")

    async def _find(self, project: str, public_id: str) -> KeyDetails:
        return await find_key(self._pool, public_id, (await self._projects.find(project)).id)


class AdminKeys:
    """The keys with the scope `admin`."""

    def __init__(self, pool: Pool, projects: Projects) -> None:
        self._pool = pool
        self._projects = projects

    async def page(self, paging: Paging) -> Json:
        """A page, in the order that it asks for."""
        query = statements.ADMIN_KEYS[paging.order]
        rows = await fetch_page(self._pool, query, paging, API_KEY, {})
        return paging.page_of([admin_key_object(row) for row in rows])

    async def show(self, public_id: str) -> Json:
        """Raises NotFound."""
        return admin_key_object(await find_key(self._pool, public_id, None))

    async def create(self, name: str, lifetime: timedelta | None, actor: Actor) -> Json:
        """A key of the default project with the scope `admin` alone, and its value, which is shown
        here only."""
        grant = KeyGrant(frozenset((Scope.ADMIN,)), name, None, lifetime)
        project = await self._projects.default()
        async with self._pool.connection() as connection, connection.transaction():
            made, value = require_active(
                await service.create_key(connection, project, grant, actor)
            )
            await note_made(connection, admin_id(API_KEY, made.id), {"value": value})
        return admin_key_object(made) | {"value": value}

    async def delete(self, public_id: str, actor: Actor) -> Json:
        """Makes it invalid. Raises NotFound."""
        found = await find_key(self._pool, public_id, None)
        async with self._pool.connection() as connection:
            await service.revoke_key(connection, found, actor)
        return deleted_object(public_id, "organization.admin_api_key.deleted")
