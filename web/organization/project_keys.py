"""The keys of a project, as the admin API shows and changes them."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from models.db.database import Pool, fetch
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.errors import InvalidRequest
from models.ids import API_KEY
from models.projects.scopes import Scope
from web.http.params import Paging
from web.organization.key_store import KeyStore
from web.organization.projects import Projects
from web.organization.shapes import Json, deleted_object, project_key_object
from web.organization.statements import fetch_page, record


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What a request changes of a key. None: that stays."""

    scopes: frozenset[Scope] | None
    allowed_models: tuple[str, ...] | None
    lifetime: timedelta | None
    """from now on"""

    def values(self, key: UUID) -> dict[str, object]:
        """For the statement that changes this key."""
        scopes, models = self.scopes, self.allowed_models
        return {
            "id": key,
            "scopes": None if scopes is None else sorted(scope.value for scope in scopes),
            "allowed_models": None if models is None else list(models),
            "lifetime": self.lifetime,
        }

    @property
    def details(self) -> dict[str, object]:
        """For the audit log."""
        seconds = None if self.lifetime is None else int(self.lifetime.total_seconds())
        named = {"scopes": self.scopes, "allowed_models": self.allowed_models}
        given = {name: sorted(value) for name, value in named.items() if value is not None}
        return given | ({} if seconds is None else {"expires_in_seconds": seconds})


class ProjectKeys:
    """The keys of projects. Every method raises NotFound for a project or key that is not there."""

    def __init__(self, pool: Pool, projects: Projects, keys: KeyStore) -> None:
        self._pool = pool
        self._projects = projects
        self._keys = keys

    async def page(self, project: str, paging: Paging) -> Json:
        """A page, the oldest first."""
        values = {"project": (await self._projects.find(project)).id}
        rows = await fetch_page(self._pool, statements.PROJECT_KEYS, paging, API_KEY, values)
        return paging.page_of([project_key_object(row) for row in rows])

    async def show(self, project: str, public_id: str) -> Json:
        """One key."""
        found = await self._projects.find(project)
        return project_key_object(await self._keys.find(public_id, found.id))

    async def change(self, project: str, public_id: str, changes: KeyChanges, actor: Actor) -> Json:
        """Changes what it may do, and until when. Raises InvalidRequest for one that has
        expired."""
        project_id = (await self._projects.find(project)).id
        found = await self._keys.find(public_id, project_id)
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, statements.UPDATE_KEY, changes.values(found.id)):
                raise InvalidRequest("The API key has expired. Create another one.")
            action = "key.update"
            await record(
                connection, actor, action, found.prefix, changes.details, project=found.project
            )
        return project_key_object(await self._keys.find(public_id, project_id))

    async def delete(self, project: str, public_id: str, actor: Actor) -> Json:
        """Makes it invalid."""
        found = await self._projects.find(project)
        await self._keys.revoke(await self._keys.find(public_id, found.id), actor)
        return deleted_object(public_id, "organization.project.api_key.deleted")
