"""Projects, as the admin API shows and changes them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from models.db.database import (
    Jsonb,
    Pool,
    execute,
    fetch,
    fetch_idempotent,
)
from models.db.queries import organization as statements
from models.db.queries.audit import Actor
from models.db.queries.organization import ProjectDetails
from models.db.queries.webhooks import DELETE_ENDPOINTS_OF_PROJECT
from models.errors import InvalidRequest, NotFound
from models.ids import PROJECT, admin_id, new_uuid, parse_admin_id
from models.projects.changes import DEFAULT_PROJECT, BadPolicy, changed_policy
from models.projects.policy import ProjectPolicy
from models.projects.policy_routes import unconfigured_upstreams
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.organization.shapes import Json, project_object
from web.organization.statements import fetch_page, record


@dataclass(frozen=True, slots=True)
class ProjectFields:
    """What a request sets of a project. None: that stays."""

    name: str | None
    weight: int | None
    policy: Mapping[str, Any] | None

    @property
    def details(self) -> dict[str, Any]:
        """For the audit log."""
        named = {"name": self.name, "weight": self.weight, "policy": self.policy}
        return {name: value for name, value in named.items() if value is not None}


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
            action = "project.create"
            await record(connection, actor, action, name, fields.details, project=name)
            await note_made(connection, admin_id(PROJECT, rows[0].id))
        return project_object(rows[0])

    async def change(self, public_id: str, fields: ProjectFields, actor: Actor) -> Json:
        """Raises NotFound, or InvalidRequest as `create` does."""
        project = await self.find(public_id)
        try:
            async with self._pool.connection() as connection, connection.transaction():
                values = {"id": project.id}
                [locked] = await fetch(connection, statements.LOCK_PROJECT, values)
                name = locked.name
                changed = {
                    "id": locked.id,
                    "name": name if fields.name is None else fields.name,
                    "weight": locked.weight if fields.weight is None else fields.weight,
                    "policy": Jsonb(self._policy(locked.policy, fields)),
                }
                rows = await fetch(connection, statements.UPDATE_PROJECT, changed)
                action = "project.set"
                await record(connection, actor, action, name, fields.details, project=name)
        except psycopg.errors.UniqueViolation:
            raise _name_taken(fields.name or "") from None
        return project_object(rows[0])

    async def archive(self, public_id: str, actor: Actor) -> Json:
        """Makes its keys invalid and deletes its webhooks. Workers then cancel what it has open
        (worker/archived_projects.py). Raises NotFound, or InvalidRequest for the default
        project."""
        project = await self.find(public_id)
        if project.name == DEFAULT_PROJECT:
            raise InvalidRequest("The default project cannot be archived.")
        values = {"id": project.id}
        async with self._pool.connection() as connection, connection.transaction():
            [row] = await fetch(connection, statements.ARCHIVE_PROJECT, values)
            await execute(connection, DELETE_ENDPOINTS_OF_PROJECT, values)
            await record(connection, actor, "project.delete", project.name, project=project.name)
        return project_object(row)

    async def find(self, public_id: str) -> ProjectDetails:
        """Also an archived one. Raises NotFound."""
        project_id = parse_admin_id(PROJECT, public_id)
        values = {"name": None, "digits": None if project_id is None else project_id.hex}
        rows = [] if project_id is None else await self._find(values)
        if not rows:
            raise NotFound(f"No project found with id '{public_id[:100]}'.")
        return rows[0]

    async def default(self) -> ProjectDetails:
        """Raises NotFound if it was renamed."""
        rows = await self._find({"name": DEFAULT_PROJECT, "digits": None})
        if not rows:
            raise NotFound("There is no default project.")
        return rows[0]

    async def _find(self, values: Mapping[str, str | None]) -> list[ProjectDetails]:
        return await fetch_idempotent(self._pool, statements.FIND_PROJECTS, values)

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


def _bad_policy(place: str, message: str) -> InvalidRequest:
    param = f"policy.{place}" if place else "policy"
    return InvalidRequest(f"Invalid '{param}': {message}.", param=param, code="invalid_value")


def _name_taken(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'name': there is a project '{name}' already.", param="name", code="invalid_value"
    )
