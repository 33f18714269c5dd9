"""What is done to files by their clients and by operators."""

from uuid import UUID

from features.files.queries import DELETE_FILE
from models.db.database import Connection, Pool, fetch_idempotent
from models.db.queries.audit import Actor, AuditEntry
from models.ids import file_id


async def delete(
    on: Pool | Connection, project: UUID, file: UUID, actor: Actor, project_name: str | None = None
) -> bool:
    """Deletes a file of a project: nobody sees it from now on, and the purge deletes its bytes.
    `project_name`: if it is not the project of the actor. False: the project has no such file."""
    entry = AuditEntry(actor, "file.delete", file_id(file), project=project_name)
    values = {"id": file, "project": project, **entry.values()}
    return bool(await fetch_idempotent(on, DELETE_FILE, values))
