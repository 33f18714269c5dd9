"""Projects, service accounts and keys as the admin API shows and changes them, in OpenAI's shapes.

Everything is in one statement or one transaction, with its entry in the audit log
(docs/adr/0043-usage-is-written-with-the-ending.md).
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from models.db.database import (
    DATABASE_UNAVAILABLE,
    Connection,
    Jsonb,
    Pool,
    execute,
    fetch,
    fetch_idempotent,
)
from models.db.queries import organization as statements
from models.db.queries.audit import RECORD, Actor, AuditEntry
from models.db.queries.organization import KeyDetails, ProjectDetails, ServiceAccount
from models.db.queries.webhooks import DELETE_ENDPOINTS_OF_PROJECT
from models.db.statement import Query
from models.errors import InvalidRequest, NotFound
from models.ids import API_KEY, PROJECT, SERVICE_ACCOUNT, admin_id, new_uuid, parse_admin_id
from models.keys import KEY_PREFIX_LENGTH, KeyGrant, hash_key, new_key
from models.projects.changes import DEFAULT_PROJECT, BadPolicy, changed_policy
from models.projects.policy import ProjectPolicy
from models.projects.policy_routes import unconfigured_upstreams
from models.projects.scopes import Scope
from web.http.json_responses import list_envelope
from web.http.params import Paging

Json = dict[str, Any]
RowT = TypeVar("RowT")

_NOTICED = 1.5
"""Seconds after which every process has noticed that a project was archived."""


@dataclass(frozen=True, slots=True)
class ProjectFields:
    """What a request sets of a project. None: that stays."""

    name: str | None
    weight: int | None
    policy: Mapping[str, Any] | None


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


class Organization:
    """The projects and keys of this server."""

    def __init__(self, pool: Pool, upstreams: Collection[str]) -> None:
        """`upstreams`: the names of those that are configured."""
        self._pool = pool
        self._upstreams = upstreams

    # --- projects ---

    async def list_projects(self, paging: Paging, *, include_archived: bool) -> Json:
        """A page, the oldest first."""
        values = {"include_archived": include_archived}
        rows = await self._page(statements.LIST_PROJECTS, paging, PROJECT, values)
        return _list([_project(row) for row in rows], paging)

    async def show_project(self, public_id: str) -> Json:
        """Raises NotFound."""
        return _project(await self.find_project(public_id))

    async def create_project(self, fields: ProjectFields, actor: Actor) -> Json:
        """Raises InvalidRequest if there is one of this name, or if the policy is wrong."""
        name = fields.name or ""
        values = {
            "id": new_uuid(),
            "name": name,
            "weight": fields.weight or 1,
            "policy": Jsonb(self._policy({}, fields)),
        }
        async with self._pool.connection() as connection, connection.transaction():
            rows = await fetch(connection, statements.CREATE_PROJECT, values)
            if not rows:
                raise _name_taken(name)
            await _record(connection, actor, "project.create", name, _details(fields))
        return _project(rows[0])

    async def change_project(self, public_id: str, fields: ProjectFields, actor: Actor) -> Json:
        """Raises NotFound, or InvalidRequest as `create_project` does."""
        project = await self.find_project(public_id)
        try:
            async with self._pool.connection() as connection, connection.transaction():
                values = {"id": project.id}
                [locked] = await fetch(connection, statements.LOCK_PROJECT, values)
                changed = {
                    "id": locked.id,
                    "name": locked.name if fields.name is None else fields.name,
                    "weight": locked.weight if fields.weight is None else fields.weight,
                    "policy": Jsonb(self._policy(locked.policy, fields)),
                }
                rows = await fetch(connection, statements.UPDATE_PROJECT, changed)
                await _record(connection, actor, "project.set", locked.name, _details(fields))
        except psycopg.errors.UniqueViolation:
            raise _name_taken(fields.name or "") from None
        return _project(rows[0])

    async def archive_project(self, public_id: str, actor: Actor) -> Json:
        """Makes its keys invalid, deletes its webhooks, and cancels its open responses. Raises
        NotFound, or InvalidRequest for the default project."""
        project = await self.find_project(public_id)
        if project.name == DEFAULT_PROJECT:
            raise InvalidRequest("The default project cannot be archived.")
        values = {"id": project.id}
        async with self._pool.connection() as connection, connection.transaction():
            [row] = await fetch(connection, statements.ARCHIVE_PROJECT, values)
            await execute(connection, DELETE_ENDPOINTS_OF_PROJECT, values)
            await fetch(connection, statements.CANCEL_OF_PROJECT, values)
            await _record(connection, actor, "project.delete", project.name, {})
        return _project(row)

    async def cancel_late_creates(self, public_id: str) -> None:
        """Cancels what web processes accepted for a project before they noticed that it was
        archived."""
        await asyncio.sleep(_NOTICED)
        with suppress(*DATABASE_UNAVAILABLE):
            values = {"id": parse_admin_id(PROJECT, public_id)}
            await fetch(self._pool, statements.CANCEL_OF_PROJECT, values)

    async def find_project(self, public_id: str) -> ProjectDetails:
        """Also an archived one. Raises NotFound."""
        project_id = parse_admin_id(PROJECT, public_id)
        values = {"name": None, "digits": None if project_id is None else project_id.hex}
        rows = [] if project_id is None else await self._fetch(statements.FIND_PROJECTS, values)
        if not rows:
            raise NotFound(f"No project found with id '{public_id[:100]}'.")
        return rows[0]

    # --- keys of a project ---

    async def list_keys(self, project: str, paging: Paging) -> Json:
        """A page, the oldest first. Raises NotFound."""
        values = {"project": (await self.find_project(project)).id}
        rows = await self._page(statements.PROJECT_KEYS, paging, API_KEY, values)
        return _list([_project_key(row) for row in rows], paging)

    async def show_key(self, project: str, public_id: str) -> Json:
        """Raises NotFound."""
        found = await self._find_key(public_id, (await self.find_project(project)).id)
        return _project_key(found)

    async def update_key(
        self, project: str, public_id: str, changes: KeyChanges, actor: Actor
    ) -> Json:
        """Changes what it may do, and until when. Raises NotFound, and InvalidRequest for one that
        has expired."""
        project_id = (await self.find_project(project)).id
        found = await self._find_key(public_id, project_id)
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, statements.UPDATE_KEY, changes.values(found.id)):
                raise InvalidRequest("The API key has expired. Create another one.")
            entry = AuditEntry(
                actor, "key.update", found.prefix, project=found.project, details=changes.details
            )
            await execute(connection, RECORD, entry.values())
        return _project_key(await self._find_key(public_id, project_id))

    async def delete_key(self, project: str, public_id: str, actor: Actor) -> Json:
        """Makes it invalid. Raises NotFound."""
        found = await self._find_key(public_id, (await self.find_project(project)).id)
        await self._revoke(found, actor)
        return _deleted(public_id, "organization.project.api_key.deleted")

    async def _find_key(self, public_id: str, project: UUID | None) -> KeyDetails:
        """`project`: None for the key of an admin."""
        key_id = parse_admin_id(API_KEY, public_id)
        values = {"id": key_id, "project": project, "is_admin": project is None}
        rows = [] if key_id is None else await self._fetch(statements.KEY_BY_ID, values)
        if not rows:
            raise NotFound(f"No API key found with id '{public_id[:100]}'.")
        return rows[0]

    async def _revoke(self, key: KeyDetails, actor: Actor) -> None:
        async with self._pool.connection() as connection, connection.transaction():
            await fetch(connection, statements.REVOKE_KEY, {"id": key.id})
            entry = AuditEntry(actor, "key.revoke", key.prefix, project=key.project)
            await execute(connection, RECORD, entry.values())

    # --- keys of admins ---

    async def list_admin_keys(self, paging: Paging) -> Json:
        """A page of the keys with the scope `admin`."""
        rows = await self._page(statements.ADMIN_KEYS[paging.order], paging, API_KEY, {})
        return _list([_admin_key(row) for row in rows], paging)

    async def show_admin_key(self, public_id: str) -> Json:
        """Raises NotFound."""
        return _admin_key(await self._find_key(public_id, None))

    async def create_admin_key(
        self, name: str, lifetime: timedelta | None, maker: UUID, actor: Actor
    ) -> Json:
        """A key of the default project with the scope `admin` alone. `maker`: the id of the key
        that makes it."""
        grant = KeyGrant(frozenset((Scope.ADMIN,)), name, None, lifetime)
        values = {"name": DEFAULT_PROJECT, "digits": None}
        rows = await self._fetch(statements.FIND_PROJECTS, values)
        if not rows:
            raise NotFound("There is no default project.")
        key_id, key = await self._create_key(rows[0], grant, None, maker, actor)
        return _admin_key(await self._find_key(admin_id(API_KEY, key_id), None)) | {"value": key}

    async def delete_admin_key(self, public_id: str, actor: Actor) -> Json:
        """Makes it invalid. Raises NotFound."""
        await self._revoke(await self._find_key(public_id, None), actor)
        return _deleted(public_id, "organization.admin_api_key.deleted")

    # --- service accounts ---

    async def list_accounts(self, project: str, paging: Paging) -> Json:
        """A page, the oldest first. Raises NotFound."""
        values = {"project": (await self.find_project(project)).id}
        rows = await self._page(statements.LIST_SERVICE_ACCOUNTS, paging, SERVICE_ACCOUNT, values)
        return _list([_account(row) for row in rows], paging)

    async def show_account(self, project: str, public_id: str) -> Json:
        """Raises NotFound."""
        return _account(await self._find_account(await self.find_project(project), public_id))

    async def create_account(self, project: str, name: str, actor: Actor) -> Json:
        """Raises NotFound."""
        found = await self.find_project(project)
        values = {"id": new_uuid(), "project": found.id, "name": name}
        rows = await self._fetch(statements.CREATE_SERVICE_ACCOUNT, values)
        if not rows:
            raise NotFound(f"The project '{project}' is archived.")
        async with self._pool.connection() as connection:
            await _record(connection, actor, "service_account.create", name, {}, found.name)
        return _account(rows[0])

    async def create_account_key(
        self, project: str, account: str, grant: KeyGrant, maker: UUID, actor: Actor
    ) -> Json:
        """A key of a service account, with its value, which is shown here only. Raises NotFound."""
        found = await self.find_project(project)
        owner = await self._find_account(found, account)
        key_id, key = await self._create_key(found, grant, owner.id, maker, actor)
        row = await self._find_key(admin_id(API_KEY, key_id), found.id)
        return {
            "object": "organization.project.service_account.api_key",
            "id": admin_id(API_KEY, key_id),
            "name": row.name or "",
            "value": key,
            "created_at": _seconds(row.created_at),
            "expires_at": _seconds(row.expires_at),
        }

    async def delete_account(self, project: str, public_id: str, actor: Actor) -> Json:
        """Deletes it and makes its keys invalid. Raises NotFound."""
        found = await self.find_project(project)
        account = await self._find_account(found, public_id)
        values = {"project": found.id, "id": account.id}
        async with self._pool.connection() as connection, connection.transaction():
            await fetch(connection, statements.DELETE_SERVICE_ACCOUNT, values)
            action = "service_account.delete"
            await _record(connection, actor, action, account.name, {}, found.name)
        return _deleted(public_id, "organization.project.service_account.deleted")

    async def _find_account(self, project: ProjectDetails, public_id: str) -> ServiceAccount:
        account_id = parse_admin_id(SERVICE_ACCOUNT, public_id)
        values = {"project": project.id, "id": account_id}
        rows = (
            [] if account_id is None else await self._fetch(statements.FIND_SERVICE_ACCOUNT, values)
        )
        if not rows:
            raise NotFound(f"No service account found with id '{public_id[:100]}'.")
        return rows[0]

    # --- common ---

    async def _create_key(
        self,
        project: ProjectDetails,
        grant: KeyGrant,
        account: UUID | None,
        maker: UUID,
        actor: Actor,
    ) -> tuple[UUID, str]:
        key, key_id = new_key(), new_uuid()
        values = {
            "id": key_id,
            "project": project.id,
            "prefix": key[:KEY_PREFIX_LENGTH],
            "hash": hash_key(key),
            "created_by": maker,
            "service_account": account,
            **grant.values,
        }
        details: dict[str, object] = {"scopes": sorted(scope.value for scope in grant.scopes)}
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, statements.CREATE_KEY, values):
                raise NotFound("The project is archived.")
            prefix = key[:KEY_PREFIX_LENGTH]
            await _record(connection, actor, "key.create", prefix, details, project.name)
        return key_id, key

    async def _fetch(self, query: Query[RowT], values: Mapping[str, object]) -> list[RowT]:
        return await fetch_idempotent(self._pool, query, values)

    def _policy(self, stored: Mapping[str, Any], fields: ProjectFields) -> dict[str, Any]:
        """The policy to store. Raises InvalidRequest."""
        changes = fields.policy or {}
        try:
            policy = changed_policy(stored, changes)
        except BadPolicy as bad:
            raise _bad_policy(bad.place, bad.message) from None
        if "routes" in changes:
            own = ProjectPolicy.from_json(policy).routes
            if unknown := unconfigured_upstreams(own, self._upstreams):
                raise _bad_policy("routes", f"there is no upstream '{unknown[0]}'")
        return policy

    async def _page(
        self, query: Query[RowT], paging: Paging, prefix: str, values: Mapping[str, object]
    ) -> list[RowT]:
        after = None if paging.after is None else parse_admin_id(prefix, paging.after)
        if paging.after is not None and after is None:
            raise InvalidRequest(
                f"Invalid 'after': '{paging.after[:100]}' is no id of this list.",
                param="after",
                code="invalid_value",
            )
        return await self._fetch(query, {"after": after, "max_rows": paging.row_limit, **values})


async def _record(
    connection: Connection,
    actor: Actor,
    action: str,
    name: str,
    details: dict[str, Any],
    project: str | None = None,
) -> None:
    entry = AuditEntry(actor, action, name, project=project or name, details=details)
    await execute(connection, RECORD, entry.values())


def _details(fields: ProjectFields) -> dict[str, Any]:
    named = {"name": fields.name, "weight": fields.weight, "policy": fields.policy}
    return {name: value for name, value in named.items() if value is not None}


def _bad_policy(place: str, message: str) -> InvalidRequest:
    param = f"policy.{place}" if place else "policy"
    return InvalidRequest(f"Invalid '{param}': {message}.", param=param, code="invalid_value")


def _name_taken(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'name': there is a project '{name}' already.", param="name", code="invalid_value"
    )


def _list(objects: list[Json], paging: Paging) -> Json:
    return list_envelope(objects[: paging.limit], has_more=len(objects) > paging.limit)


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def _project(row: ProjectDetails) -> Json:
    return {
        "object": "organization.project",
        "id": admin_id(PROJECT, row.id),
        "name": row.name,
        "created_at": _seconds(row.created_at),
        "archived_at": _seconds(row.archived_at),
        "status": "active" if row.archived_at is None else "archived",
        "weight": row.weight,
        "policy": row.policy,
    }


def _account(row: ServiceAccount) -> Json:
    return {
        "object": "organization.project.service_account",
        "id": admin_id(SERVICE_ACCOUNT, row.id),
        "name": row.name,
        "role": "member",
        "created_at": _seconds(row.created_at),
    }


def _key_fields(row: KeyDetails) -> Json:
    return {
        "id": admin_id(API_KEY, row.id),
        "name": row.name or "",
        "redacted_value": f"{row.prefix}…",
        "created_at": _seconds(row.created_at),
        "last_used_at": _seconds(row.last_used_at),
        "expires_at": _seconds(row.expires_at),
        "scopes": row.scopes,
        "allowed_models": row.allowed_models,
    }


def _project_key(row: KeyDetails) -> Json:
    owner: Json = {"type": "service_account"}
    if row.service_account_id is not None and row.service_account_created_at is not None:
        owner["service_account"] = {
            "id": admin_id(SERVICE_ACCOUNT, row.service_account_id),
            "name": row.service_account,
            "role": "member",
            "created_at": _seconds(row.service_account_created_at),
        }
    return {
        "object": "organization.project.api_key",
        **_key_fields(row),
        "owner": owner,
        "owner_project_access": "active",
    }


def _admin_key(row: KeyDetails) -> Json:
    return {
        "object": "organization.admin_api_key",
        **_key_fields(row),
        "owner": {"type": "service_account", "name": row.project, "role": "owner"},
    }


def _deleted(public_id: str, kind: str) -> Json:
    return {"object": kind, "id": public_id, "deleted": True}
