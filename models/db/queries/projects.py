"""Projects as processes see them while they work."""

from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from models.db.statement import Query
from models.projects.policy import DEFAULT_POLICY, ProjectPolicy


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """A project, with its policy."""

    id: UUID
    name: str
    policy: ProjectPolicy

    @classmethod
    def from_row(cls, id: UUID, name: str, policy: dict[str, Any]) -> Self:  # noqa: A002
        """The project of a row."""
        return cls(id, name, ProjectPolicy.from_json(policy) if policy else DEFAULT_POLICY)


FIND_PROJECT = Query("SELECT id, name, policy FROM projects WHERE id = :id", ProjectRow.from_row)
"""Selects a project, also an archived one."""
