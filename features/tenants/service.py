"""What is done to projects, service accounts and keys. Each function is one transaction, or part of
that of its caller, with its entry in the audit log."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from features.audit import act, record
from models.db.database import Connection, Pool, fetch, find_by_id
from models.db.queries import organization as statements
from models.db.queries.audit import Actor, AuditEntry
from models.db.queries.organization import KeyDetails, ProjectDetails, ServiceAccount
from models.errors import NotFound
from models.features import feature_parts
from models.ids import PROJECT, new_uuid, parse_admin_id
from models.keys import DEFAULT_PROJECT, KeyGrant, key_prefix, new_key, stored_value
from models.projects.scopes import Scope


class NameTaken(Exception):
    """Another project has the name."""


class KeyMadeBefore(Exception):
    """The form that makes a key was sent twice."""


class DefaultProject(Exception):
    """The default project cannot be archived."""


@dataclass(frozen=True, slots=True)
class ProjectFields:
    """What is set of a project. None: that stays."""

    name: str | None = None
    weight: int | None = None
    policy: Mapping[str, Any] | None = None
    """a JSON Merge Patch"""
    routes: Mapping[str, Any] | None = None
    """its routes from now on, in place of those that it has"""

    @property
    def details(self) -> dict[str, Any]:
        """For the audit log."""
        named = {
            "name": self.name,
            "weight": self.weight,
            "policy": self.policy,
            "routes": self.routes,
        }
        return {name: value for name, value in named.items() if value is not None}

    def changed(
        self, stored: Mapping[str, Any], upstreams: Collection[str] | None
    ) -> dict[str, Any]:
        """The policy to store. `upstreams`: those that routes may name; None: any. Raises
        BadPolicy."""
        # commands for keys import this module, and policies import pydantic
        from models.projects.changes import BadPolicy, changed_policy
        from models.projects.policy import ProjectPolicy, unconfigured_upstreams

        changes = dict(self.policy or {})
        if self.routes is not None:
            stored = {name: value for name, value in stored.items() if name != "routes"}
            changes["routes"] = self.routes
        policy = changed_policy(stored, changes)
        if upstreams is not None and "routes" in changes:
            own = ProjectPolicy.from_json(policy).routes
            if unknown := unconfigured_upstreams(own, upstreams):
                raise BadPolicy("routes", f"there is no upstream '{unknown[0]}'")
        return policy


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What is changed of a key. None: that stays."""

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


async def project_of_id(pool: Pool, public_id: str) -> ProjectDetails:
    """The project with this id of the admin API, also an archived one. Raises NotFound."""
    project = await find_by_id(pool, statements.PROJECT_BY_ID, parse_admin_id(PROJECT, public_id))
    if project is None:
        raise NotFound(f"No project found with id '{public_id[:100]}'.")
    return project


async def create_project(
    connection: Connection,
    fields: ProjectFields,
    actor: Actor,
    upstreams: Collection[str] | None = None,
) -> ProjectDetails:
    """`upstreams`: as for `ProjectFields.changed`. Raises NameTaken and BadPolicy."""
    name = fields.name or ""
    values = {
        "id": new_uuid(),
        "name": name,
        "weight": fields.weight or 1,
        "policy": Jsonb(fields.changed({}, upstreams)),
    }
    entry = AuditEntry(actor, "project.create", name, project=name, details=fields.details)
    rows = await act(connection, statements.CREATE_PROJECT, values, entry)
    if not rows:
        raise NameTaken
    return rows[0]


async def change_project(
    connection: Connection,
    project: UUID,
    fields: ProjectFields,
    actor: Actor,
    upstreams: Collection[str] | None = None,
) -> ProjectDetails:
    """As `create_project`, for a project that exists."""
    async with connection.transaction():
        [locked] = await fetch(connection, statements.LOCK_PROJECT, {"id": project})
        name = locked.name
        values = {
            "id": locked.id,
            "name": name if fields.name is None else fields.name,
            "weight": locked.weight if fields.weight is None else fields.weight,
            "policy": Jsonb(fields.changed(locked.policy, upstreams)),
        }
        try:
            [row] = await fetch(connection, statements.UPDATE_PROJECT, values)
        except UniqueViolation:
            raise NameTaken from None
        entry = AuditEntry(actor, "project.set", name, project=name, details=fields.details)
        await record(connection, entry)
    return row


async def archive_project(
    connection: Connection, project: ProjectDetails, actor: Actor
) -> ProjectDetails:
    """Makes its keys invalid, for ever, and deletes its webhooks. Workers then cancel what it has
    open (features/tenants/worker.py). Raises DefaultProject."""
    if project.name == DEFAULT_PROJECT:
        raise DefaultProject
    values = {"id": project.id}
    async with connection.transaction():
        [row] = await fetch(connection, statements.ARCHIVE_PROJECT, values)
        for part in feature_parts("archive"):
            await part.archive(connection, project.id)
        entry = AuditEntry(actor, "project.delete", project.name, project=project.name)
        await record(connection, entry)
    return row


async def find_or_create_project(connection: Connection, name: str, actor: Actor) -> ProjectDetails:
    """The project of that name, also an archived one, which is made if there is none."""
    try:
        return await create_project(connection, ProjectFields(name), actor)
    except NameTaken:
        found = await fetch(connection, statements.FIND_PROJECTS, {"name": name, "digits": None})
        return found[0]


async def create_account(
    connection: Connection, project: ProjectDetails, name: str, actor: Actor
) -> ServiceAccount | None:
    """A service account. None: the project is archived."""
    values = {"id": new_uuid(), "project": project.id, "name": name}
    entry = AuditEntry(actor, "service_account.create", name, project=project.name)
    rows = await act(connection, statements.CREATE_SERVICE_ACCOUNT, values, entry)
    return rows[0] if rows else None


async def delete_account(
    connection: Connection, project: ProjectDetails, account: ServiceAccount, actor: Actor
) -> None:
    """Deletes a service account and makes its keys invalid."""
    values = {"project": project.id, "id": account.id}
    entry = AuditEntry(actor, "service_account.delete", account.name, project=project.name)
    await act(connection, statements.DELETE_SERVICE_ACCOUNT, values, entry)


async def create_key(
    connection: Connection,
    project: ProjectDetails,
    grant: KeyGrant,
    actor: Actor,
    account: UUID | None = None,
    key: UUID | None = None,
) -> tuple[KeyDetails, str] | None:
    """A new key, and its value, which cannot be read later. `account`: the service account that
    owns it. `key`: its id, if that was chosen before. None: the project is archived. Raises
    KeyMadeBefore."""
    value, key = new_key(await own_cell(connection)), key or new_uuid()
    values = {
        "id": key,
        "project": project.id,
        **stored_value(value),
        **grant.values,
        "created_by": actor.key_id,
        "service_account": account,
    }
    details: dict[str, object] = {"scopes": sorted(scope.value for scope in grant.scopes)}
    entry = AuditEntry(
        actor, "key.create", key_prefix(value), project=project.name, details=details
    )
    try:
        if not await act(connection, statements.CREATE_KEY, values, entry):
            return None
    except UniqueViolation:
        raise KeyMadeBefore from None
    [made] = await fetch(connection, statements.KEY_OF_ANY_PROJECT, {"id": key})
    return made, value


async def own_cell(connection: Connection) -> str:
    """The cell that new keys name; empty: none."""
    found = await fetch(connection, statements.OWN_CELL, {})
    return found[0] if found else ""


async def change_key(
    connection: Connection, key: KeyDetails, changes: KeyChanges, actor: Actor
) -> bool:
    """Changes what a key may do, and until when. False: it was revoked or has expired."""
    entry = _entry(actor, "update", key, changes.details)
    return bool(await act(connection, statements.UPDATE_KEY, changes.values(key.id), entry))


async def revoke_key(connection: Connection, key: KeyDetails, actor: Actor) -> None:
    """Makes a key invalid, for ever. One that was revoked before stays as it is."""
    await act(connection, statements.REVOKE_KEY, {"id": key.id}, _entry(actor, "revoke", key))


async def rotate_key(
    connection: Connection, key: KeyDetails, overlap: timedelta, actor: Actor
) -> str:
    """The value of a new key that may do what this one may do, which stays valid for `overlap`."""
    value = new_key(await own_cell(connection))
    values = {"id": key.id, "new_id": new_uuid(), "overlap": overlap, **stored_value(value)}
    await act(connection, statements.ROTATE_KEY, values, _entry(actor, "rotate", key))
    return value


def _entry(
    actor: Actor, verb: str, key: KeyDetails, details: dict[str, object] | None = None
) -> AuditEntry:
    return AuditEntry(actor, f"key.{verb}", key.prefix, project=key.project, details=details or {})
