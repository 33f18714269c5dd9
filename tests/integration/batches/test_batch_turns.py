"""Whose batch is worked on next, and in what slices: no project waits for all work of another."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from features.batches.expander import Expander
from features.batches.queries import INSERT_BATCH
from features.batches.take_queries import (
    RELEASE_BATCH,
    RELEASE_EXPANSION,
    TAKE_BATCH,
    TAKE_TO_EXPAND,
    TakenBatch,
)
from features.batches.work import CRASHED, LEASE, MAX_CRASHES, NO_PAUSE, Outcome
from features.batches.worker import BatchProgress, Validation
from features.files import queries as files
from models.config.feature_groups import FileSettings
from models.config.settings import Settings
from models.db.database import fetch, open_pool
from models.db.statement import Query
from models.due_work import DuePoll
from models.files.content import write_part
from models.files.opening import open_storage
from models.ids import new_uuid
from models.tasks import cancel_all
from tests.support.api import until
from tests.support.batches import line
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, settings_for

HOUR = timedelta(hours=1)


class StoredBatches:
    """A database with batches of two projects, and a storage with their input."""

    def __init__(self, database: SeededDatabase, settings: Settings) -> None:
        self.pool = database.pool
        self.project = database.project
        self.other = new_uuid()
        self._settings = settings
        storage = open_storage(settings)
        assert storage is not None
        self._storage = storage

    async def add_project(self) -> None:
        """Makes the other project."""
        sql = "INSERT INTO projects (id, name) VALUES (%(id)s, 'other')"
        await run_sql(self.pool, sql, {"id": self.other})

    async def add_file(self, project: UUID, lines: int) -> UUID:
        """Stores an input of so many requests."""
        content = b"".join(orjson.dumps(line(str(nr))) + b"\n" for nr in range(lines))
        values: dict[str, Any] = dict.fromkeys(("media_type", "lifetime"))
        values |= {"id": new_uuid(), "project": project, "filename": "a.jsonl", "purpose": "batch"}
        values |= {"bytes": len(content), "upload_time": HOUR}
        [file] = await fetch(self.pool, files.INSERT_FILE, values)
        await write_part(
            self.pool, self._storage, file, _pieces(content), number=0, upload_time=HOUR
        )
        await fetch(self.pool, files.COMPLETE_FILE, values)
        return file

    async def add(self, project: UUID, file: UUID) -> UUID:
        """Makes a batch."""
        values: dict[str, Any] = dict.fromkeys(("metadata", "output_lifetime"))
        values |= {"id": new_uuid(), "project": project, "api_key": new_uuid(), "file": file}
        values |= {"endpoint": "/v1/responses", "completion_window": "24h", "window": 24 * HOUR}
        [made] = await fetch(self.pool, INSERT_BATCH, values)
        return made.id

    @asynccontextmanager
    async def processes(self) -> AsyncIterator[None]:
        """What a worker and a web process do, without Redis and without creates."""
        unused: list[Any] = [None] * 4
        expander = Expander(self._settings, self.pool, self._storage, *unused)
        progress = BatchProgress(self._settings, self.pool, unused[0], self._storage)
        poll = DuePoll(self.pool, "worker")
        tasks = [asyncio.create_task(work.run(poll)) for work in (expander, progress)]
        tasks.append(asyncio.create_task(poll.run()))
        yield
        await cancel_all(tasks)

    async def make_due(self) -> None:
        """The leases of all batches end."""
        sql = "UPDATE batches SET collector_until = now(), expander_until = now()"
        await run_sql(self.pool, sql, {})

    async def take(self) -> TakenBatch:
        """What a worker without work does."""
        [taken] = await fetch(self.pool, TAKE_BATCH, {"lease": LEASE})
        return taken

    async def validate(self, batch: TakenBatch) -> Outcome:
        """A slice of the work of a worker that has taken the batch."""
        validation = Validation(self._settings, self.pool, self._storage)
        outcome = await validation.run(batch)
        await fetch(self.pool, RELEASE_BATCH, {"id": batch.id, "pause": NO_PAUSE})
        return outcome

    async def state(self, batch: UUID) -> tuple[str, int, int]:
        """Its status, its requests as it counts them, and those that are stored."""
        sql = """
            SELECT b.status, b.total, count(l.line) AS lines
            FROM batches b LEFT JOIN batch_lines l ON l.batch_id = b.id
            WHERE b.id = %(id)s GROUP BY b.id"""
        [row] = await run_sql(self.pool, sql, {"id": batch})
        return row["status"], row["total"], row["lines"]


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


OpenBatches = Callable[[], Any]


@pytest.fixture
def open_batches(database_server: Databases, tmp_path: Path) -> OpenBatches:
    """Opens `StoredBatches` without batches."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[StoredBatches]:
        dsn = await database_server.create_copy()
        files = FileSettings(folder=tmp_path)
        settings = settings_for(dsn).model_copy(update={"files": files})
        pool = open_pool(settings, "test", 4)
        await pool.open(wait=True)
        database = SeededDatabase(pool, dsn)
        await database.create_project()
        batches = StoredBatches(database, settings)
        await batches.add_project()
        yield batches
        await pool.close()

    return opened


async def test_a_small_batch_waits_for_a_slice_of_anothers_input_and_not_for_all_of_them(
    open_batches: OpenBatches,
) -> None:
    """The process that has checked the first slice is killed while it checks the second one."""
    async with open_batches() as batches:
        large = await batches.add_file(batches.project, 2500)
        many = [await batches.add(batches.project, large) for _ in range(3)]
        small = await batches.add(batches.other, await batches.add_file(batches.other, 1))

        first = await batches.take()
        assert first.id == many[0]
        assert await batches.validate(first) is Outcome.MORE
        assert await batches.state(first.id) == ("validating", 2000, 2000)
        turn = await batches.take()
        assert turn.id == small
        assert await batches.validate(turn) is Outcome.WAITS
        assert await batches.state(small) == ("in_progress", 1, 1)

        killed = [await batches.take() for _ in range(4)]
        assert {batch.id for batch in killed} == {small, *many}
        ended = "UPDATE batches SET collector_until = now() WHERE id = %(id)s"
        await run_sql(batches.pool, ended, {"id": first.id})
        again = await batches.take()
        assert (again.id, again.validated_lines) == (first.id, 2000)
        assert await batches.validate(again) is Outcome.WAITS
        assert await batches.state(first.id) == ("in_progress", 2500, 2500)


async def test_projects_take_turns_at_the_work_on_their_batches(open_batches: OpenBatches) -> None:
    async with open_batches() as batches:
        file = new_uuid()
        for _ in range(3):
            await batches.add(batches.project, file)
        await batches.add(batches.other, file)
        valid = "UPDATE batches SET status = 'in_progress', in_progress_at = now(), total = 1"
        await run_sql(batches.pool, valid, {})
        works: list[tuple[Query[Any], Query[UUID]]] = [
            (TAKE_BATCH, RELEASE_BATCH),
            (TAKE_TO_EXPAND, RELEASE_EXPANSION),
        ]
        for take, release in works:
            seen = []
            for _ in range(6):
                [taken] = await fetch(batches.pool, take, {"lease": LEASE})
                await fetch(batches.pool, release, {"id": taken.id, "pause": NO_PAUSE})
                seen.append(taken)
            turns = [batch.project_id for batch in seen]
            assert turns == [batches.project, batches.other] * 3
            assert len({batch.id for batch in seen}) == 4
            at_once = [await fetch(batches.pool, take, {"lease": LEASE}) for _ in range(5)]
            assert [len(taken) for taken in at_once] == [1, 1, 1, 1, 0]
            assert len({batch.project_id for [batch] in at_once[:2]}) == 2


@pytest.mark.parametrize("work", ["validation", "expansion", "collection"])
async def test_a_batch_that_kills_each_process_that_has_it_is_given_up(
    open_batches: OpenBatches, work: str
) -> None:
    """The lease is twice as long each time; what is stored, and what is given back, counts
    again from the start."""
    async with open_batches() as batches:
        file = await batches.add_file(batches.project, 2)
        batch = await batches.add(batches.project, file)
        if work != "validation":
            assert await batches.validate(await batches.take()) is Outcome.WAITS
        if work == "collection":
            await run_sql(batches.pool, "UPDATE batch_lines SET expanded = true", {})
        take: Query[Any] = TAKE_TO_EXPAND if work == "expansion" else TAKE_BATCH
        column = "expander_until" if work == "expansion" else "collector_until"
        lease = f"SELECT round(extract(epoch FROM {column} - now())) AS s FROM batches"
        leases = []
        for crashes in range(MAX_CRASHES):
            await batches.make_due()
            [taken] = await fetch(batches.pool, take, {"lease": LEASE})
            assert (taken.id, taken.crashes) == (batch, crashes)
            [row] = await run_sql(batches.pool, lease, {})
            leases.append(int(row["s"]))
        assert leases == [10, 20, 40, 80, 160]
        await batches.make_due()

        async def is_given_up() -> bool:
            status, *_ = await batches.state(batch)
            return bool(status == "failed")

        async with batches.processes():
            await until(is_given_up, 20)
        [row] = await run_sql(batches.pool, "SELECT errors FROM batches", {})
        assert row["errors"] == [CRASHED]
        assert (await batches.state(batch))[2] == 0
