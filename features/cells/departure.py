"""The source of a move: what the project has here, its rows and bytes, and when it leaves."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from uuid import UUID

from features.cells import thing_queries as things
from features.files.queries import FILE_PARTS
from models.config.groups import LeaseSettings
from models.db.arrays import Uuids
from models.db.database import Connection, Pool, execute, fetch, fetch_idempotent
from models.db.queries.retention import READ_ONE_SNAPSHOT
from models.db.statement import Query, Statement
from models.errors import InvalidRequest, NotFound
from models.files.content import read_content
from models.files.storage import FileStorage

ZERO = UUID(int=0)
_ROWS = 8
"""Of a table in memory."""
PATIENT = Statement("SET LOCAL idle_in_transaction_session_timeout = '60s'")
"""Of a transaction that waits for the other cell."""


async def window(
    pool: Pool, project: UUID, kind: str, after: UUID
) -> tuple[list[things.Thing], UUID | None]:
    """What the project has of a window behind `after`, and the end of the window; None: it is the
    last one."""
    ends = await fetch_idempotent(pool, things.END_OF_WINDOW[kind], {"after": after})
    until = ends[0] if ends else None
    values = {"project": project, "after": after, "until": until}
    return await fetch_idempotent(pool, things.LIST[kind], values), until


async def rows(pool: Pool, project: UUID, kind: str, ids: list[UUID]) -> AsyncGenerator[bytes]:
    """The rows of things, as they are at one moment: a line with their ids, then lines of a table's
    name and a row in JSON, then the line `end`."""
    async with pool.connection() as connection, connection.transaction():
        await execute(connection, READ_ONE_SNAPSHOT, {})
        await execute(connection, PATIENT, {})
        values = {"ids": Uuids(ids), "project": project}
        found = [each.id for each in await fetch(connection, things.FIND[kind], values)]
        yield b"ids " + ",".join(map(str, found)).encode() + b"\n"
        values["ids"] = Uuids(found)
        for table in things.KINDS[kind].tables:
            query = things.EXPORT[f"{kind}.{table.name}"]
            async with connection.cursor(name="rows") as cursor:
                cursor.itersize = _ROWS
                await cursor.execute(query.sql, values)
                async for (line,) in cursor:
                    yield f"{table.name} {line}\n".encode()
    yield b"end\n"


async def file(
    pool: Pool, storage: FileStorage, project: UUID, file_id: UUID
) -> AsyncGenerator[bytes]:
    """A line with the row of a file, then its bytes. Raises NotFound; StorageError later."""
    values = {"id": file_id, "project": project}
    found = await fetch_idempotent(pool, things.EXPORT_FILE, values)
    if not found:
        raise NotFound("The project has no such file.", param="ids")
    parts = await fetch_idempotent(pool, FILE_PARTS, values)

    async def content() -> AsyncGenerator[bytes]:
        yield found[0].encode() + b"\n"
        async with aclosing(read_content(storage, parts)) as chunks:
            async for chunk in chunks:
                yield chunk

    return content()


async def leave(
    pool: Pool, project: UUID, kind: str, copied: Mapping[UUID, str]
) -> tuple[list[UUID], int]:
    """Lets those of the things go whose copies, of these versions, are as they are here. From then
    on they are the other cell's. Returns which, and how many wait for another thing."""
    async with pool.connection() as connection, connection.transaction():
        values = {"project": project, "ids": Uuids(list(copied))}
        # Two statements: the versions are those after all that has waited for these locks.
        await fetch(connection, things.LOCK[kind], values)
        left: dict[UUID, None] = {}
        waiting = 0
        for thing in await fetch(connection, things.FIND[kind], values):
            if thing.version is None or copied.get(thing.id) != thing.version:
                continue
            if thing.needs is None or thing.needs in left:
                left[thing.id] = None
            else:
                waiting += 1
        await _note(connection, project, kind, list(left))
        return list(left), waiting


async def forget(pool: Pool, project: UUID, kind: str, ids: list[UUID]) -> None:
    """Deletes those of the things that have left, if no open response may need them; the purge
    deletes their bytes."""
    async with pool.connection() as connection, connection.transaction():
        values = {"project": project, "ids": Uuids(ids)}
        left = await fetch(connection, things.FIND_LEFT, values)
        values["ids"] = Uuids(left)
        await fetch(connection, things.ON_DROPPING[kind], values)


async def all_know(pool: Pool, project: UUID, run: UUID, settings: LeaseSettings) -> bool:
    """Whether all web processes know that the project has moved: the second renewal of a lease
    comes after the look-up that the first one has caused. Raises InvalidRequest if it has not."""
    lease = settings.duration + 1.2 * settings.beat
    values = {"project": project, "run": run, "lease": lease}
    found = await fetch(pool, things.BEGIN_LEAVING, values)
    if not found:
        raise InvalidRequest("The project has not moved: its policy has no 'moved_to'.")
    return found[0]


async def _note(connection: Connection, project: UUID, kind: str, left: list[UUID]) -> None:
    values = {"project": project, "ids": Uuids(left)}
    inner = await fetch(connection, things.INNER[kind], values) if kind in things.INNER else []
    await run_all(connection, things.ON_LEAVING, kind, values)
    values["ids"] = Uuids(sorted({*left, *inner}))
    await fetch(connection, things.LEAVE, values)


async def run_all(
    connection: Connection,
    statements: Mapping[str, Query[int]],
    kind: str,
    values: Mapping[str, object],
) -> None:
    """Those of the statements that are about this kind."""
    for name, statement in statements.items():
        if name.partition(".")[0] == kind:
            await fetch(connection, statement, values)
