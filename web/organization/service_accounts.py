"""The service accounts of a project, as the admin API shows and changes them."""

from uuid import UUID

from models.db.database import Pool, fetch, find_by_id
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.db.queries.organization import ProjectDetails, ServiceAccount
from models.errors import NotFound
from models.ids import API_KEY, SERVICE_ACCOUNT, admin_id, new_uuid, parse_admin_id
from models.keys import KeyGrant
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.organization.key_store import KeyStore
from web.organization.projects import Projects
from web.organization.shapes import Json, account_object, deleted_object, made_key_object
from web.organization.statements import fetch_page, record


class ServiceAccounts:
    """Service accounts and their keys. Every method raises NotFound for a project or account that
    is not there."""

    def __init__(self, pool: Pool, projects: Projects, keys: KeyStore) -> None:
        self._pool = pool
        self._projects = projects
        self._keys = keys

    async def page(self, project: str, paging: Paging) -> Json:
        """A page, the oldest first."""
        values = {"project": (await self._projects.find(project)).id}
        query = statements.LIST_SERVICE_ACCOUNTS
        rows = await fetch_page(self._pool, query, paging, SERVICE_ACCOUNT, values)
        return paging.page_of([account_object(row) for row in rows])

    async def show(self, project: str, public_id: str) -> Json:
        """One account."""
        return account_object(await self._find(await self._projects.find(project), public_id))

    async def create(
        self, project: str, name: str, grant: KeyGrant | None, maker: UUID, actor: Actor
    ) -> Json:
        """An account with a key, whose value is shown here only. `grant` None: without a key.
        `maker`: the id of the key that makes it."""
        found = await self._projects.find(project)
        values = {"id": new_uuid(), "project": found.id, "name": name}
        async with self._pool.connection() as connection, connection.transaction():
            rows = await fetch(connection, statements.CREATE_SERVICE_ACCOUNT, values)
            if not rows:
                raise NotFound(f"The project '{project}' is archived.")
            await record(connection, actor, "service_account.create", name, project=found.name)
            secret = None
            if grant is not None:
                made, value = await self._keys.create(
                    connection, found, grant, rows[0].id, maker, actor
                )
                secret = {"api_key": made_key_object(made) | {"value": value}}
            await note_made(connection, admin_id(SERVICE_ACCOUNT, rows[0].id), secret)
        return account_object(rows[0]) | (secret or {})

    async def create_key(
        self, project: str, account: str, grant: KeyGrant, maker: UUID, actor: Actor
    ) -> Json:
        """A key of an account, with its value, which is shown here only. `maker`: the id of the key
        that makes it."""
        found = await self._projects.find(project)
        owner = await self._find(found, account)
        async with self._pool.connection() as connection, connection.transaction():
            made, value = await self._keys.create(connection, found, grant, owner.id, maker, actor)
            await note_made(connection, admin_id(API_KEY, made.id), {"value": value})
        return made_key_object(made) | {"value": value}

    async def show_key(self, project: str, public_id: str) -> Json:
        """The answer of `create_key`, without the value."""
        found = await self._projects.find(project)
        return made_key_object(await self._keys.find(public_id, found.id))

    async def delete(self, project: str, public_id: str, actor: Actor) -> Json:
        """Deletes it and makes its keys invalid."""
        found = await self._projects.find(project)
        account = await self._find(found, public_id)
        values = {"project": found.id, "id": account.id}
        async with self._pool.connection() as connection, connection.transaction():
            await fetch(connection, statements.DELETE_SERVICE_ACCOUNT, values)
            action = "service_account.delete"
            await record(connection, actor, action, account.name, project=found.name)
        return deleted_object(public_id, "organization.project.service_account.deleted")

    async def _find(self, project: ProjectDetails, public_id: str) -> ServiceAccount:
        row = await find_by_id(
            self._pool,
            statements.FIND_SERVICE_ACCOUNT,
            parse_admin_id(SERVICE_ACCOUNT, public_id),
            project=project.id,
        )
        if row is None:
            raise NotFound(f"No service account found with id '{public_id[:100]}'.")
        return row
