"""What is done to files by their clients and by operators."""

from uuid import UUID

from features.files.queries import DELETE_FILE, LOCK_PROJECT
from models.config.groups import QuotaSettings
from models.db.database import Connection, Pool, fetch, fetch_idempotent
from models.db.queries.audit import Actor, AuditEntry
from models.db.queries.file_contents import STORED_FILES
from models.ids import file_id


async def exceeded_quota(
    connection: Connection,
    own: QuotaSettings,
    common: QuotaSettings,
    project: UUID,
    file: UUID,
    size: int,
) -> str | None:
    """The quota that a file of `size` bytes would exceed, such as `5 stored files`, in the
    transaction that stores it. `own`: the quotas of the project; `common`: of all others."""
    most_files = common.files if own.files is None else own.files
    most_bytes = common.file_bytes if own.file_bytes is None else own.file_bytes
    if not most_files and not most_bytes:
        return None
    values = {"project": project, "id": file}
    await fetch(connection, LOCK_PROJECT, values)
    [stored] = await fetch(connection, STORED_FILES, values)
    if most_files and stored.count + 1 > most_files:
        return f"{most_files} stored files"
    if most_bytes and stored.bytes + size > most_bytes:
        return f"{most_bytes} bytes of stored files"
    return None


async def delete(
    on: Pool | Connection, project: UUID, file: UUID, actor: Actor, project_name: str | None = None
) -> bool:
    """Deletes a file of a project: nobody sees it from now on, and the purge deletes its bytes.
    `project_name`: if it is not the project of the actor. False: the project has no such file."""
    entry = AuditEntry(actor, "file.delete", file_id(file), project=project_name)
    values = {"id": file, "project": project, **entry.values()}
    return bool(await fetch_idempotent(on, DELETE_FILE, values))
