"""The keys of admins, as the admin API shows and changes them."""

from datetime import timedelta
from uuid import UUID

from models.db.database import Pool
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.ids import API_KEY, admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.organization.key_store import KeyStore
from web.organization.projects import Projects
from web.organization.shapes import Json, admin_key_object, deleted_object
from web.organization.statements import fetch_page


class AdminKeys:
    """The keys with the scope `admin`."""

    def __init__(self, pool: Pool, projects: Projects, keys: KeyStore) -> None:
        self._pool = pool
        self._projects = projects
        self._keys = keys

    async def page(self, paging: Paging) -> Json:
        """A page, in the order that it asks for."""
        query = statements.ADMIN_KEYS[paging.order]
        rows = await fetch_page(self._pool, query, paging, API_KEY, {})
        return paging.page_of([admin_key_object(row) for row in rows])

    async def show(self, public_id: str) -> Json:
        """Raises NotFound."""
        return admin_key_object(await self._keys.find(public_id, None))

    async def create(
        self, name: str, lifetime: timedelta | None, maker: UUID, actor: Actor
    ) -> Json:
        """A key of the default project with the scope `admin` alone, and its value, which is shown
        here only. `maker`: the id of the key that makes it."""
        grant = KeyGrant(frozenset((Scope.ADMIN,)), name, None, lifetime)
        project = await self._projects.default()
        async with self._pool.connection() as connection, connection.transaction():
            made, value = await self._keys.create(connection, project, grant, None, maker, actor)
            await note_made(connection, admin_id(API_KEY, made.id), {"value": value})
        return admin_key_object(made) | {"value": value}

    async def delete(self, public_id: str, actor: Actor) -> Json:
        """Makes it invalid. Raises NotFound."""
        await self._keys.revoke(await self._keys.find(public_id, None), actor)
        return deleted_object(public_id, "organization.admin_api_key.deleted")
