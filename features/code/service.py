"""What is done to containers by clients, workers and operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from features.code import queries
from features.code.containers import ContainerFile
from features.files.objects import clean_name
from features.files.queries import COMPLETE_FILE
from models.db.arrays import Uuids
from models.db.database import Connection, fetch
from models.db.queries.audit import Actor, AuditEntry
from models.ids import CONTAINER, admin_id, new_uuid, parse_file_id

_LONGEST_NAME = 200
"""Bytes: a file system takes 255."""


@dataclass(frozen=True, slots=True)
class NewContent:
    """The content of a container's file, which is stored but not complete yet."""

    file: UUID
    """names it in the file storage"""
    path: str
    """below `/mnt/data/`"""
    bytes: int
    source: str
    """`user` or `assistant`"""
    session: str | None = None
    """the session that has it"""


async def store_content(
    connection: Connection, container: UUID, new: NewContent
) -> ContainerFile | None:
    """Gives a container a file, in a transaction of the caller; the content that the path had is
    forgotten. May be repeated. None: the container was deleted, or the content took too long."""
    complete = {"id": new.file, "bytes": new.bytes, "media_type": None, "purpose": None}
    await fetch(connection, queries.LOCK_CONTAINER, {"container": container})
    if not await fetch(connection, COMPLETE_FILE, {**complete, "lifetime": None}):
        stored = {"container": container, "files": Uuids([new.file])}
        return next(iter(await fetch(connection, queries.LINKED_FILE, stored)), None)
    values = {
        "id": new_uuid(),
        "container": container,
        "path": new.path,
        "file": new.file,
        "bytes": new.bytes,
        "source": new.source,
        "session": new.session,
    }
    return next(iter(await fetch(connection, queries.STORE_FILE, values)), None)


async def delete(connection: Connection, project: UUID, container: UUID, actor: Actor) -> bool:
    """Deletes a container and what only it has; a worker ends its session. False: it is gone."""
    entry = AuditEntry(actor, "container.delete", admin_id(CONTAINER, container))
    async with connection.transaction():
        await fetch(connection, queries.FORGET_CONTENTS, {"ids": Uuids([container])})
        values = {"id": container, "project": project, **entry.values()}
        return bool(await fetch(connection, queries.DELETE_CONTAINER, values))


async def stop(connection: Connection, container: UUID, project: str, actor: Actor) -> bool:
    """Lets a worker end the session of a container, which keeps its files. `project`: its name.
    False: it has no session."""
    entry = AuditEntry(
        actor,
        "container.stop",
        admin_id(CONTAINER, container),
        outcome="requested",
        project=project,
    )
    values = {"id": container, **entry.values()}
    return bool(await fetch(connection, queries.STOP_SESSION, values))


def link_values(project: UUID, container: UUID, file_ids: Sequence[str]) -> dict[str, object]:
    """The values of LINK_FILES for files of the project. Ids that are none are left out."""
    files = [file for each in file_ids if (file := parse_file_id(each)) is not None]
    return {
        "container": container,
        "project": project,
        "ids": Uuids([new_uuid() for _ in files]),
        "files": Uuids(files),
    }


def path_of(name: str) -> str:
    """Where a file that a client names so is in a container: LINK_FILES does the same."""
    path = clean_name(name)
    return path if len(path.encode()) <= _LONGEST_NAME else path[-(_LONGEST_NAME // 4) :]
