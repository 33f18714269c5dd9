"""What becomes of the schedules of a project that is archived."""

from uuid import UUID

from features.schedules.queries import DELETE_SCHEDULES_OF_PROJECT
from models.db.database import Connection, execute


async def archive(connection: Connection, project: UUID) -> None:
    """Deletes its schedules, in the transaction of the archiving."""
    await execute(connection, DELETE_SCHEDULES_OF_PROJECT, {"id": project})
