"""What an operator does with projects."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from cli.errors import RequestRefused
from cli.operations.queries import Database
from cli.output import clean
from models.db.queries import organization
from models.db.queries.organization import ProjectDetails
from models.db.sync import fetch_sync
from models.operator.lookup import id_prefix

_MAX_LISTED = 10_000
_MAX_NAME = 100
"""Characters of an unknown name that are shown."""


@dataclass(frozen=True, slots=True)
class ListedProject:
    """A project. `policy`: what differs from the settings."""

    id: UUID
    name: str
    created_at: datetime
    archived_at: datetime | None
    weight: int
    policy: dict[str, Any]

    @classmethod
    def from_row(cls, row: ProjectDetails) -> Self:
        """The fact of a row."""
        return cls(row.id, row.name, row.created_at, row.archived_at, row.weight, row.policy)


def list_projects(database: Database, *, include_archived: bool) -> list[ListedProject]:
    """All projects, the oldest first."""
    values = {"include_archived": include_archived, "after": None, "max_rows": _MAX_LISTED}
    rows = fetch_sync(database, organization.LIST_PROJECTS, values)
    return [ListedProject.from_row(row) for row in rows]


def find_project(database: Database, name: str) -> ProjectDetails:
    """The project of this name, id or beginning of an id. Raises RequestRefused."""
    digits = id_prefix(name.removeprefix("proj_"))
    found = fetch_sync(database, organization.FIND_PROJECTS, {"name": name, "digits": digits})
    if not found:
        raise RequestRefused(
            f"there is no project {clean(name[:_MAX_NAME])}; `backburner projects list` lists them"
        )
    if found[0].name != name and len(found) > 1:
        raise RequestRefused(f"{clean(name)} is the beginning of several projects' ids")
    return found[0]
