"""Changes of projects by commands."""

from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from cli.errors import RequestRefused
from cli.operations.audit_entries import audited, operator, record_audit
from cli.operations.projects import ListedProject, find_project
from cli.operations.queries import Database
from cli.output import clean
from models.db.queries import organization
from models.db.queries.audit import AuditEntry
from models.db.queries.webhooks import DELETE_ENDPOINTS_OF_PROJECT
from models.db.sync import execute_sync, fetch_sync
from models.ids import new_uuid
from models.projects.changes import DEFAULT_PROJECT, MAX_NAME, BadPolicy, changed_policy, is_name

_NOTICED = 1.5
"""Seconds after which every process has noticed a change, unless heartbeats are set to be rare."""


@dataclass(frozen=True, slots=True)
class ProjectChanges:
    """What a command changes of a project. None: that stays."""

    name: str | None = None
    weight: int | None = None
    policy: dict[str, Any] | None = None
    """a JSON Merge Patch"""
    routes: dict[str, Any] | None = None
    """its routes from now on, in place of those that it has"""


def create_project(database: Database, changes: ProjectChanges) -> ListedProject:
    """Raises RequestRefused if there is one of this name, or if the policy is wrong."""
    name = _checked_name(changes.name or "")
    values = {
        "id": new_uuid(),
        "name": name,
        "weight": changes.weight or 1,
        "policy": Jsonb(_policy({}, changes)),
    }
    with database.transaction():
        created = fetch_sync(database, organization.CREATE_PROJECT, values)
        if created:
            record_audit(database, _entry("create", name, changes))
    if not created:
        raise RequestRefused(f"there is a project {clean(name)} already")
    return ListedProject.from_row(created[0])


def change_project(database: Database, name: str, changes: ProjectChanges) -> ListedProject:
    """Raises RequestRefused."""
    with database.transaction():
        project = find_project(database, name)
        [locked] = fetch_sync(database, organization.LOCK_PROJECT, {"id": project.id})
        values = {
            "id": locked.id,
            "name": locked.name if changes.name is None else _checked_name(changes.name),
            "weight": locked.weight if changes.weight is None else changes.weight,
            "policy": Jsonb(_policy(locked.policy, changes)),
        }
        record_audit(database, _entry("set", locked.name, changes))
        try:
            [row] = fetch_sync(database, organization.UPDATE_PROJECT, values)
        except psycopg.errors.UniqueViolation as error:
            raise RequestRefused("another project has the name") from error
    return ListedProject.from_row(row)


def delete_project(database: Database, name: str) -> ListedProject:
    """Archives a project: its keys are invalid from now on, and its webhooks are deleted. Workers
    then cancel its open responses (worker/archived_projects.py). Raises RequestRefused."""
    project = find_project(database, name)
    if project.name == DEFAULT_PROJECT:
        raise RequestRefused("the project default cannot be deleted")
    with audited(database, _entry("delete", project.name)):
        [row] = fetch_sync(database, organization.ARCHIVE_PROJECT, {"id": project.id})
        execute_sync(database, DELETE_ENDPOINTS_OF_PROJECT, {"id": project.id})
    return ListedProject.from_row(row)


def _entry(verb: str, name: str, changes: ProjectChanges | None = None) -> AuditEntry:
    details: dict[str, object] = {}
    if changes is not None:
        details = {key: value for key, value in asdict(changes).items() if value is not None}
    return AuditEntry(operator(), f"project.{verb}", name, project=name, details=details)


def _policy(stored: dict[str, Any], changes: ProjectChanges) -> dict[str, Any]:
    patch = dict(changes.policy or {})
    if changes.routes is not None:
        stored = {name: value for name, value in stored.items() if name != "routes"}
        patch["routes"] = changes.routes
    try:
        return changed_policy(stored, patch)
    except BadPolicy as bad:
        raise RequestRefused(f"the policy is wrong: {bad}") from bad


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise RequestRefused(f"a name has 1 to {MAX_NAME} characters that can be printed")
    return name
