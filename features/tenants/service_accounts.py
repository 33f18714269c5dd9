"""The service accounts of a project, as the admin API shows and changes them."""

from features.tenants import service
from features.tenants.keys import find_key
from features.tenants.projects import Projects, fetch_page, require_active
from features.tenants.shapes import Json, account_object, deleted_object, made_key_object
from models.db.database import Pool, find_by_id
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.db.queries.organization import ProjectDetails, ServiceAccount
from models.errors import NotFound
from models.ids import API_KEY, SERVICE_ACCOUNT, admin_id, parse_admin_id
from models.keys import KeyGrant
from web.http.params import Paging
from web.idempotency.creates import note_made


class ServiceAccounts:
    """Service accounts and their keys. Every method raises NotFound for a project or account that
    is not there."""

    def __init__(self, pool: Pool, projects: Projects) -> None:
        self._pool = pool
        self._projects = projects

    async def page(self, project: str, paging: Paging) -> Json:
        """A page, the oldest first."""
        values = {"project": (await self._projects.find(project)).id}
        query = statements.LIST_SERVICE_ACCOUNTS
        rows = await fetch_page(self._pool, query, paging, SERVICE_ACCOUNT, values)
        return paging.page_of([account_object(row) for row in rows])

    async def show(self, project: str, public_id: str) -> Json:
        """One account."""
        return account_object(await self._find(await self._projects.find(project), public_id))

    async def create(self, project: str, name: str, grant: KeyGrant | None, actor: Actor) -> Json:
        """An account with a key, whose value is shown here only. `grant` None: without a key."""
        found = await self._projects.find(project)
        async with self._pool.connection() as connection, connection.transaction():
            account = await service.create_account(connection, found, name, actor)
            if account is None:
                raise NotFound(f"The project '{project}' is archived.")
            secret = None
            if grant is not None:
                made, value = require_active(
                    await service.create_key(connection, found, grant, actor, account.id)
                )
                secret = {"api_key": made_key_object(made) | {"value": value}}
            await note_made(connection, admin_id(SERVICE_ACCOUNT, account.id), secret)
        return account_object(account) | (secret or {})

    async def create_key(self, project: str, account: str, grant: KeyGrant, actor: Actor) -> Json:
        """A key of an account, with its value, which is shown here only."""
        found = await self._projects.find(project)
        owner = await self._find(found, account)
        async with self._pool.connection() as connection, connection.transaction():
            made, value = require_active(
                await service.create_key(connection, found, grant, actor, owner.id)
            )
            await note_made(connection, admin_id(API_KEY, made.id), {"value": value})
        return made_key_object(made) | {"value": value}

    async def show_key(self, project: str, public_id: str) -> Json:
        """The answer of `create_key`, without the value."""
        found = await self._projects.find(project)
        return made_key_object(await find_key(self._pool, public_id, found.id))

    async def delete(self, project: str, public_id: str, actor: Actor) -> Json:
        """Deletes it and makes its keys invalid."""
        found = await self._projects.find(project)
        account = await self._find(found, public_id)
        async with self._pool.connection() as connection:
            await service.delete_account(connection, found, account, actor)
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
