"""What becomes of the webhooks of a project that is archived."""

from uuid import UUID

from features.webhooks.queries import DELETE_ENDPOINTS_OF_PROJECT
from models.db.database import Connection, execute


async def archive(connection: Connection, project: UUID) -> None:
    """Deletes its endpoints, in the transaction of the archiving."""
    await execute(connection, DELETE_ENDPOINTS_OF_PROJECT, {"id": project})
