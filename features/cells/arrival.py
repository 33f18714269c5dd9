"""The target of a move: what has arrived of the project, and when it is this cell's own."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import orjson
from psycopg.errors import Error

from features.cells import thing_queries as things
from features.cells.departure import PATIENT, run_all
from models.db.arrays import Uuids
from models.db.database import Connection, Pool, execute, fetch, large_connection
from models.errors import InvalidRequest
from models.files.content import FileGone, write_part
from models.files.storage import FileStorage

_BATCH = 1024 * 1024
"""Bytes of rows that one statement stores, if no single row has more."""
_LONGEST = 256 * 1024 * 1024
"""Bytes of a row."""
_IN_THREADS = 1 << 30
"""The size of a transaction whose statements may be large."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What the source has of a kind in a window."""

    here: list[UUID]
    """what is still its own"""
    left: list[UUID]
    after: UUID
    until: UUID | None
    """None: up to the last one"""
    is_whole: bool
    """it is all that the source has in the window"""


@dataclass(frozen=True, slots=True)
class Arriving:
    """One command's move of a project to this cell."""

    pool: Pool
    project: UUID
    run: UUID

    async def begin(self) -> None:
        """What another command has begun ends."""
        await fetch(self.pool, things.BEGIN_ARRIVING, {"project": self.project, "run": self.run})

    async def compare(self, kind: str, listed: Listed) -> dict[UUID, str | None]:
        """The versions of the copies that this cell has. What has left the source is its own from
        now on; copies of what the source has no more are deleted. Raises InvalidRequest."""
        async with self.pool.connection() as connection, connection.transaction():
            await self._lock(connection)
            await self._settle(connection, kind, listed.left)
            here = {"project": self.project, "ids": Uuids(listed.here)}
            if listed.is_whole:
                window = {**here, "after": listed.after, "until": listed.until}
                gone = await fetch(connection, things.GONE[kind], window)
                values = {"project": self.project, "ids": Uuids(gone)}
                await fetch(connection, things.ON_DROPPING[kind], values)
                await fetch(connection, things.SETTLE, values)
            copies = await fetch(connection, things.COPIES[kind], here)
        return {copy.id: copy.version for copy in copies}

    async def store(self, kind: str, body: AsyncIterator[bytes]) -> None:
        """Stores the rows that `departure.rows` has sent, all of them or none. Raises
        InvalidRequest."""
        lines = _lines(body)
        head = await anext(lines, b"")
        try:
            ids = [UUID(text.decode()) for text in head.removeprefix(b"ids ").split(b",") if text]
        except ValueError:
            raise InvalidRequest("The first line has no ids.") from None
        try:
            async with (
                large_connection(self.pool, _IN_THREADS) as connection,
                connection.transaction(),
            ):
                await execute(connection, PATIENT, {})
                await self._store(connection, kind, ids, lines)
        except Error as error:
            if (error.sqlstate or "")[:2] not in ("22", "23"):  # wrong values, broken references
                raise
            raise InvalidRequest("The rows do not fit the tables of this cell.") from error

    async def store_file(
        self, storage: FileStorage, body: AsyncIterator[bytes], upload_time: timedelta
    ) -> None:
        """Stores a file that `departure.file` has sent. Raises InvalidRequest, StorageError."""
        row, content = await _first_line(body)
        try:
            file = UUID(orjson.loads(row)["id"])
            size = orjson.loads(row)["bytes"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequest("The first line is no row of a file.") from None
        values = {"project": self.project, "id": file, "row": row.decode(), "ids": Uuids([file])}
        values |= {"upload_time": upload_time, "bytes": size}
        async with self.pool.connection() as connection, connection.transaction():
            await self._begin(connection, "files", values)
            if not await fetch(connection, things.BEGIN_FILE, values):
                raise InvalidRequest("The file is of another project.")
        try:
            await write_part(self.pool, storage, file, content, number=0, upload_time=upload_time)
        except (FileGone, TimeoutError) as error:
            raise InvalidRequest("The file did not arrive in time.") from error
        async with self.pool.connection() as connection, connection.transaction():
            await self._lock(connection)
            if not await fetch(connection, things.FINISH_FILE, values):
                raise InvalidRequest("The file is not complete.")

    async def _store(
        self, connection: Connection, kind: str, ids: list[UUID], lines: AsyncIterator[bytes]
    ) -> None:
        values: dict[str, object] = {"project": self.project, "ids": Uuids(ids)}
        await self._begin(connection, kind, values)
        await run_all(connection, things.ON_REPLACING, kind, values)
        async for table, rows in _batches(lines):
            statement = things.IMPORT.get(f"{kind}.{table}")
            if statement is None:
                raise InvalidRequest(f"The table '{table[:100]}' does not travel with {kind}.")
            if table == "responses":
                await fetch(connection, things.DELETE_STALE, {**values, "rows": rows})
            strange = await fetch(connection, statement, {**values, "rows": rows})
            if strange != [0]:
                raise InvalidRequest("There are rows of another project, or of other things.")
        if kind in things.INNER:
            inner = await fetch(connection, things.INNER[kind], values)
            copies = {"project": self.project, "ids": Uuids(sorted(set(inner)))}
            await fetch(connection, things.NOTE_COPIES, copies)
        await run_all(connection, things.ON_ARRIVAL, kind, values)

    async def _begin(self, connection: Connection, kind: str, values: dict[str, object]) -> None:
        await self._lock(connection)
        strange = await fetch(connection, things.STRANGE[kind], values)
        if strange:
            raise InvalidRequest(f"This cell has {kind} of these ids already: {strange[0]}")
        if things.KINDS[kind].mark == "t.id":
            await fetch(connection, things.NOTE_COPIES, values)

    async def _lock(self, connection: Connection) -> None:
        values = {"project": self.project, "run": self.run}
        if not await fetch(connection, things.LOCK_RUN, values):
            raise InvalidRequest("Another command has begun to move this project.")

    async def _settle(self, connection: Connection, kind: str, left: list[UUID]) -> None:
        if not left or things.KINDS[kind].mark != "t.id":
            return
        values = {"project": self.project, "ids": Uuids(left)}
        inner = await fetch(connection, things.INNER[kind], values) if kind in things.INNER else []
        settling = {"project": self.project, "ids": Uuids(sorted({*left, *inner}))}
        if await fetch(connection, things.SETTLE, settling):
            await run_all(connection, things.ON_SETTLING, kind, values)


async def _lines(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The lines before the line `end`. Raises InvalidRequest if there is none."""
    rest = bytearray()
    async for chunk in body:
        rest += chunk
        if b"\n" in chunk:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in whole:
                if line == b"end":
                    async for _ in body:
                        pass
                    return
                yield line
        if len(rest) > _LONGEST:
            raise InvalidRequest(f"A row has more than {_LONGEST} bytes.")
    raise InvalidRequest("The rows have no end.")


async def _batches(lines: AsyncIterator[bytes]) -> AsyncGenerator[tuple[str, str]]:
    """A table's name, and rows of it as a JSON array."""
    table, rows, size = b"", list[bytes](), 0
    async for line in lines:
        name, _, row = line.partition(b" ")
        if rows and (name != table or size + len(row) > _BATCH):
            yield table.decode("latin-1"), _array(rows)
            rows, size = [], 0
        table, size = name, size + len(row)
        rows.append(row)
    if rows:
        yield table.decode("latin-1"), _array(rows)


def _array(rows: Iterable[bytes]) -> str:
    try:
        return "[" + b",".join(rows).decode() + "]"
    except UnicodeDecodeError:
        raise InvalidRequest("The rows are not UTF-8.") from None


async def _first_line(body: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes]]:
    """The first line, and what follows it."""
    head = bytearray()
    while b"\n" not in head:
        chunk = await anext(body, None)
        if chunk is None or len(head) > _BATCH:
            raise InvalidRequest("The body has no first line.")
        head += chunk
    line, _, rest = bytes(head).partition(b"\n")

    async def content() -> AsyncGenerator[bytes]:
        if rest:
            yield rest
        async for piece in body:
            if piece:
                yield piece

    return line, content()
