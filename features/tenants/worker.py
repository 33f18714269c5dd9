"""Cancels what archived projects have open: a task of every worker.

An archived project is marked once nothing of it is open and no web process can make more. So a
process that dies in between leaves the rest to another one, however much there is.
"""

import asyncio
from functools import partial
from typing import Final

from models.db.database import Pool, fetch
from models.db.queries.organization import (
    ARCHIVED_IS_DUE,
    ARCHIVED_WITH_OPEN,
    CANCEL_OF_PROJECT,
    MARK_CANCELLED,
)
from models.due_work import DuePoll, repeat
from worker.run.resources import WorkerFeature

_POLL: Final = 60.0
"""Seconds between two looks, if none is found to be due before."""
_ROWS: Final = 1_000
"""Responses of one statement: it takes a fraction of a second."""


async def cancel_archived(pool: Pool, poll: DuePoll) -> None:
    """Works until it is cancelled. `poll`: finds archived projects."""
    wake = asyncio.Event()
    poll.add(ARCHIVED_IS_DUE, wake.set)
    await repeat("archived_projects", partial(_cancel_open, pool), _POLL, wake)


class TenantTasks(WorkerFeature):
    """The cancels."""

    def start(self) -> None:
        """Begins to look for archived projects."""
        resources = self.resources
        resources.side_tasks.start(
            cancel_archived(resources.pool, resources.due_poll), "archived-projects"
        )


async def _cancel_open(pool: Pool) -> None:
    for project in await fetch(pool, ARCHIVED_WITH_OPEN, {}):
        values = {"id": project, "rows": _ROWS}
        while await fetch(pool, CANCEL_OF_PROJECT, values):
            pass
        await fetch(pool, MARK_CANCELLED, {"id": project})


FEATURE = TenantTasks
