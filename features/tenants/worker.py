"""Cancels what archived projects have open: a task of every worker.

An archived project is marked once nothing of it is open and no web process can make more. So a
process that dies in between leaves the rest to another one, however much there is.
"""

from functools import partial
from typing import Final

from models.db.database import Pool, fetch
from models.db.queries.organization import ARCHIVED_WITH_OPEN, CANCEL_OF_PROJECT, MARK_CANCELLED
from models.due_work import repeat
from worker.run.resources import WorkerFeature

_POLL: Final = 1.0
"""Seconds between two looks."""
_ROWS: Final = 1_000
"""Responses of one statement: it takes a fraction of a second."""


async def cancel_archived(pool: Pool) -> None:
    """Works until it is cancelled."""
    await repeat("archived_projects", partial(_cancel_open, pool), _POLL)


class TenantTasks(WorkerFeature):
    """The cancels."""

    def start(self) -> None:
        """Begins to look for archived projects."""
        resources = self.resources
        resources.side_tasks.start(cancel_archived(resources.pool), "archived-projects")


async def _cancel_open(pool: Pool) -> None:
    for project in await fetch(pool, ARCHIVED_WITH_OPEN, {}):
        values = {"id": project, "rows": _ROWS}
        while await fetch(pool, CANCEL_OF_PROJECT, values):
            pass
        await fetch(pool, MARK_CANCELLED, {"id": project})


FEATURE = TenantTasks
