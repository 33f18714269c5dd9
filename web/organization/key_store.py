"""API keys of all owners: found, made and revoked."""

from uuid import UUID

from models.db.database import Connection, Pool, fetch, find_by_id
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.db.queries.organization import KeyDetails, ProjectDetails
from models.errors import NotFound
from models.ids import API_KEY, new_uuid, parse_admin_id
from models.keys import KEY_PREFIX_LENGTH, KeyGrant, hash_key, new_key
from web.organization.statements import record


class KeyStore:
    """The API keys of this server."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(self, public_id: str, project: UUID | None) -> KeyDetails:
        """`project`: None for the key of an admin. Raises NotFound."""
        row = await find_by_id(
            self._pool,
            statements.KEY_BY_ID,
            parse_admin_id(API_KEY, public_id),
            project=project,
            is_admin=project is None,
        )
        if row is None:
            raise NotFound(f"No API key found with id '{public_id[:100]}'.")
        return row

    async def create(
        self,
        connection: Connection,
        project: ProjectDetails,
        grant: KeyGrant,
        account: UUID | None,
        maker: UUID,
        actor: Actor,
    ) -> tuple[KeyDetails, str]:
        """In a transaction: a new key, and its value. `account`: the service account that owns it;
        None: it is that of an admin. `maker`: the id of the key that makes it. Raises NotFound for
        an archived project."""
        key, key_id = new_key(), new_uuid()
        prefix = key[:KEY_PREFIX_LENGTH]
        values = {
            "id": key_id,
            "project": project.id,
            "prefix": prefix,
            "hash": hash_key(key),
            "created_by": maker,
            "service_account": account,
            **grant.values,
        }
        details = {"scopes": sorted(scope.value for scope in grant.scopes)}
        if not await fetch(connection, statements.CREATE_KEY, values):
            raise NotFound("The project is archived.")
        await record(connection, actor, "key.create", prefix, details, project=project.name)
        is_admin = account is None
        found = {"id": key_id, "project": None if is_admin else project.id, "is_admin": is_admin}
        [made] = await fetch(connection, statements.KEY_BY_ID, found)
        return made, key

    async def revoke(self, key: KeyDetails, actor: Actor) -> None:
        """Makes it invalid."""
        async with self._pool.connection() as connection, connection.transaction():
            await fetch(connection, statements.REVOKE_KEY, {"id": key.id})
            await record(connection, actor, "key.revoke", key.prefix, project=key.project)
