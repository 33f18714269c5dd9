"""One project, and what it uses of its quotas."""

from dataclasses import dataclass, field, fields
from pathlib import Path

from cli.operations.projects import ListedProject, find_project
from cli.operations.queries import Database
from cli.operations.quota_state import quota_state
from models.operator.quotas import QuotaUse
from models.projects.policy import ProjectPolicy


@dataclass(frozen=True, slots=True)
class ShownProject(ListedProject):
    """A project, and what it uses of its quotas."""

    quotas: list[QuotaUse] = field(default_factory=list)


def show_project(database: Database, name: str, data: Path | None) -> ShownProject:
    """The project of this name, id or beginning of an id. `data`: of the servers. Raises
    RequestRefused."""
    row = find_project(database, name)
    listed = ListedProject.from_row(row)
    own = ProjectPolicy.from_json(row.policy).quotas
    values = {each.name: getattr(listed, each.name) for each in fields(listed)}
    return ShownProject(**values, quotas=quota_state(database, row.id, own, data))
