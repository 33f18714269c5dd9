"""A database with workers that exist only as rows, for tests of ownership."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from models.config.groups import LeaseSettings
from models.config.settings import Settings
from models.db.arrays import Booleans, Ints, Uuids
from models.db.database import Pool, connect, execute, fetch, open_pool
from models.db.queries import claim as claim_queries
from models.db.queries import create as create_queries
from models.db.queries import leases
from models.db.queries import run as run_queries
from models.db.queries.create import NewRow
from models.db.queries.leases import WatchedProcess
from models.db.queries.run import JournalOutcome
from models.db.statement import column
from models.files.opening import open_storage
from models.ids import new_uuid
from models.lifecycle import Status
from models.ownership.claims import Ownership
from models.ownership.lease import Kind, Lease
from models.ownership.steps import Ending, Step, Tail
from models.wire.events import ArgumentsDelta, Item, frame
from tests.support.sql import Record, run_sql
from tests.support.stack import Databases
from worker.process.purge import Purger

_WATCHED = column(f"SELECT {leases.WATCHED} AS watched", list)


def settings_for(dsn: str, *, quarantine: bool = False) -> Settings:
    """Settings with leases that do not expire during a test."""
    lease = LeaseSettings(
        duration=timedelta(seconds=600), beat=timedelta(seconds=100), caution=timedelta(seconds=300)
    )
    return Settings(
        database_url=dsn, redis_url="redis://127.0.0.1:1/0", lease=lease, quarantine=quarantine
    )


async def run_purge(settings: Settings) -> None:
    """One round of the purge."""
    async with await connect(settings, "purging") as connection:
        await Purger(settings, "purging", open_storage(settings)).purge(connection)


def frames(first: int, last: int) -> bytes:
    """Frames with these numbers and arbitrary content."""
    return b"".join(
        frame(ArgumentsDelta("fc_1", 0, f"event {number}"), number)
        for number in range(first, last + 1)
    )


class DatabaseWorker:
    """A worker as rows of the database."""

    def __init__(self, pool: Pool, settings: Settings, kind: Kind = "worker") -> None:
        self.lease = Lease(settings, kind)
        self.pool = pool
        self.ownership = Ownership(pool, self.lease, settings)

    @property
    def id(self) -> UUID:
        """Its id."""
        return self.lease.id

    async def journal(
        self, batch: int, response_id: UUID, attempt: int, first: int, last: int
    ) -> JournalOutcome:
        """Journals one block."""
        values = {
            "me": self.id,
            "batch": batch,
            "ids": [response_id],
            "attempts": [attempt],
            "firsts": [first],
            "lasts": [last],
            "frames": [frames(first, last)],
        }
        return (await fetch(self.pool, run_queries.JOURNAL, values))[0]

    async def flush(
        self, response_id: UUID, attempt: int, first: int, last: int, **trim: int
    ) -> list[UUID]:
        """Flushes one block, and deletes the journal's batches from `trimmed` to `answered`."""
        values = self.flush_values(response_id, attempt, first, last, **trim)
        return await fetch(self.pool, run_queries.FLUSH, values)

    def flush_values(
        self, response_id: UUID, attempt: int, first: int, last: int, **trim: int
    ) -> dict[str, object]:
        """The values of FLUSH for one block; `trim`: `trimmed` and `answered`, 0 if not given."""
        return {
            "me": self.id,
            "ids": [response_id],
            "attempts": [attempt],
            "firsts": [first],
            "lasts": [last],
            "frames": [frames(first, last)],
            "trimmed": 0,
            "answered": 0,
        } | trim


class SeededDatabase:
    """One database with a project, workers and responses."""

    def __init__(self, pool: Pool, dsn: str) -> None:
        self.pool = pool
        self.dsn = dsn
        self.project = new_uuid()

    async def create_project(self) -> None:
        """Makes the project."""
        await run_sql(
            self.pool,
            "INSERT INTO projects (id, name) VALUES (%(id)s, 'house')",
            {"id": self.project},
        )

    async def create_worker(
        self, *, quarantine: bool = False, kind: Kind = "worker", lease: float = 600
    ) -> DatabaseWorker:
        """A live worker; `lease` in seconds."""
        worker = DatabaseWorker(self.pool, settings_for(self.dsn, quarantine=quarantine), kind)
        await self.register(worker, lease=lease)
        return worker

    async def register(self, worker: DatabaseWorker, *, lease: float = 600) -> None:
        """Inserts the worker's row and its marker in the journal."""
        values = {
            "me": worker.id,
            "kind": worker.lease.kind,
            "host": "test",
            "pid": 1,
            "slots": 10,
            "version": "1",
            "lease": timedelta(seconds=lease),
        }
        await execute(self.pool, leases.REGISTER, values)
        await execute(self.pool, leases.MARK_JOURNAL, {"me": worker.id})

    async def watched(self) -> list[WatchedProcess]:
        """All processes as another one sees them, whose leases last 10 s."""
        values = {"me": new_uuid(), "lease": timedelta(seconds=10), "look": leases.Look.ALL.value}
        [processes] = await fetch(self.pool, _WATCHED, values)
        return list(map(WatchedProcess.from_json, processes))

    async def declare_dead(self, worker: DatabaseWorker) -> None:
        """Declares the worker dead."""
        await execute(self.pool, leases.REAP, {"id": worker.id, "ended": "test"})

    async def create_response(
        self, *, background: bool = True, web: UUID | None = None, previous: UUID | None = None
    ) -> UUID:
        """A new response with its opening events."""
        row = self.new_row(background=background, previous=previous)
        await fetch(self.pool, create_queries.INSERT, insert_values(row, web=web))
        return row.id

    def new_row(
        self,
        *,
        background: bool = True,
        previous: UUID | None = None,
        model: str = "m",
        key: str | None = None,
    ) -> NewRow:
        """A response that an INSERT stores."""
        last = 1 if background else 0
        item = {"id": "msg_1", "type": "message", "role": "user", "content": []}
        return NewRow(
            id=new_uuid(),
            project=self.project,
            background=background,
            store=True,
            model=model,
            parameters=b"{}",
            previous=previous,
            created_at=1_800_000_000,
            waiter=None,
            items=orjson.dumps([item]),
            last=last,
            frames=frames(0, last),
            key=key,
            body_hash=None if key is None else b"body",
            key_seconds=None if key is None else 3600,
        )

    async def response_row(self, name: UUID) -> Record:
        """The whole row."""
        return (
            await run_sql(self.pool, "SELECT * FROM responses WHERE id = %(id)s", {"id": name})
        )[0]

    async def log_ranges(self, name: UUID) -> list[tuple[int, int, int]]:
        """(first, last, attempt) of each row of its event log."""
        rows = await fetch(self.pool, claim_queries.LOG_SINCE, {"id": name, "after": -1})
        return [(row.first, row.last, row.attempt) for row in rows]


def insert_values(*rows: NewRow, web: UUID | None = None) -> dict[str, object]:
    """The values of an INSERT."""
    return create_queries.insert_values(
        rows, web, timedelta(days=30), timedelta(days=3650), timedelta(minutes=10)
    )


def line_values(worker: DatabaseWorker, max_rows: int = 1, **changes: object) -> dict[str, object]:
    """The values of CLAIM_NEXT, for background responses and a worker without any."""
    return {
        "me": worker.id,
        "wall_clock": timedelta(hours=1),
        "first_attempt": 1,
        "max_rows": max_rows,
        "kinds": Booleans([True]),
        "slots": 10.0,
        "projects": Uuids([]),
        "running": Ints([]),
        "ahead": list[float](),
        "ids": Uuids([]),
        "waiting": timedelta(0),
        "only_newcomers": False,
        "flex_wait": timedelta(minutes=10),
        "cursor": UUID(int=0),
    } | changes


def ending(status: Status, first: int, last: int) -> Ending:
    """An ending whose tail has these numbers."""
    return Ending(
        status=status,
        tail=Tail(first, last, frames(first, last)),
        items=[],
        position=0,
        usage=None,
        completed_at=1_800_000_100,
    )


def turn(items: list[Item], usage: dict[str, Any] | None) -> Step:
    """A finished first turn."""
    return Step(items=items, position=0, calls=[], turns=1, usage=usage, next_output_index=1)


@asynccontextmanager
async def open_seeded_database(
    server: Databases, connections: int
) -> AsyncIterator[SeededDatabase]:
    """A new database with a project; `connections`: of its pool, at most."""
    dsn = await server.create_copy()
    async with open_pool(settings_for(dsn), "test", connections) as pool:
        database = SeededDatabase(pool, dsn)
        await database.create_project()
        yield database
