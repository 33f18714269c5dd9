"""What is done to batches by their clients and by operators."""

from uuid import UUID

from features.batches import queries as statements
from features.batches.queries import BatchRow
from models.db.database import Connection, Pool, fetch_idempotent, find_by_id
from models.db.queries.audit import Actor, AuditEntry
from models.ids import batch_id


class BatchNotCancelled(Exception):
    """A batch has ended, or ends otherwise. `status`: None if there is no such batch."""

    def __init__(self, status: str | None) -> None:
        super().__init__(status)
        self.status = status


async def cancel(
    on: Pool | Connection, project: UUID, batch: UUID, actor: Actor, project_name: str | None = None
) -> BatchRow:
    """Begins to cancel a batch of a project; a worker does the rest. One that is cancelled already
    stays as it is. `project_name`: if it is not the project of the actor. Raises
    BatchNotCancelled."""
    entry = AuditEntry(actor, "batch.cancel", batch_id(batch), project=project_name)
    values = {"id": batch, "project": project, **entry.values()}
    if cancelled := await fetch_idempotent(on, statements.CANCEL_BATCH, values):
        return cancelled[0]
    row = await find_by_id(on, statements.FIND_BATCH, batch, project=project)
    if row is None or row.status not in ("cancelling", "cancelled"):
        raise BatchNotCancelled(None if row is None else row.status)
    return row
