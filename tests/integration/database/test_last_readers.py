"""What somebody inside still needs outlives its retention, which counts from the end.

Each case is what an outage leaves behind: no worker has run since long before the retention was
over. Then the purge comes first."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from features.batches.queries import FIND_INPUT
from features.files.queries import FIND_FILE, HIDE_EXPIRED_FILES
from features.retrieval.worker_queries import END_ENTRY
from models.db.database import fetch
from models.db.queries import end as end_queries
from models.ids import new_uuid
from models.lifecycle import Status
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    SeededDatabase,
    ending,
    frames,
    open_seeded_database,
    run_purge,
    settings_for,
)


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 2) as database:
        yield database


RETENTION = timedelta(minutes=5)
_AGE = """
    UPDATE responses SET created_at = clock_timestamp() - interval '1 hour',
           expires_at = clock_timestamp() - interval '55 minutes' WHERE id = %(id)s
"""
"""Created an hour ago, with a retention of five minutes."""
_EXPIRE = "UPDATE responses SET expires_at = clock_timestamp() - interval '1 s' WHERE id = %(id)s"
_ENDED = {"completed_at": 0, "reason": "cancelled", "number": 2, "frames": frames(2, 2)}


async def _exists(database: SeededDatabase, table: str, row: UUID) -> bool:
    return bool(
        await run_sql(database.pool, f"SELECT 1 FROM {table} WHERE id = %(id)s", {"id": row})
    )


@pytest.mark.parametrize("ends_as", ["completed", "cancelled in the queue"])
async def test_the_retention_of_a_response_counts_from_its_end(
    database: SeededDatabase, ends_as: str
) -> None:
    worker = await database.create_worker()
    response = await database.create_response()
    await run_sql(database.pool, _AGE, {"id": response})
    if ends_as == "completed":
        claim = await worker.ownership.take(response)
        assert claim is not None
        await worker.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    else:
        assert await fetch(database.pool, end_queries.CANCEL_QUEUED, _ENDED | {"id": response})
    await run_purge(settings_for(database.dsn))
    row = await database.response_row(response)
    assert row["delete_requested_at"] is None
    left = row["expires_at"] - datetime.now(UTC)
    assert abs(left - RETENTION) < timedelta(seconds=30)


async def _create_batch(database: SeededDatabase, file: UUID) -> UUID:
    batch, key = new_uuid(), new_uuid()
    values = {"batch": batch, "key": key, "file": file, "project": database.project}
    await run_sql(
        database.pool,
        "INSERT INTO api_keys (id, project_id, prefix, hash)"
        " VALUES (%(key)s, %(project)s, 'bb', %(key)s::text::bytea)",
        values,
    )
    await run_sql(
        database.pool,
        """
        INSERT INTO batches (id, project_id, api_key_id, endpoint, input_file_id,
                             completion_window, status, expires_at)
        VALUES (%(batch)s, %(project)s, %(key)s, '/v1/responses', %(file)s, '24h', 'in_progress',
                now() + interval '1 day')
        """,
        values,
    )
    return batch


@pytest.mark.parametrize("store", [True, False])
async def test_the_response_of_a_line_is_kept_until_its_result_is_written(
    database: SeededDatabase, store: bool
) -> None:
    worker, batch = await database.create_worker(), await _create_batch(database, new_uuid())
    response = await database.create_response()
    line = {"batch": batch, "response": response, "store": store}
    await run_sql(
        database.pool,
        "INSERT INTO batch_lines (batch_id, line, custom_id, expanded, response_id)"
        " VALUES (%(batch)s, 1, 'a', true, %(response)s)",
        line,
    )
    await run_sql(database.pool, "UPDATE responses SET store = %(store)s", line)
    claim = await worker.ownership.take(response)
    assert claim is not None
    await worker.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    await run_sql(database.pool, _EXPIRE, {"id": response})
    await run_purge(settings_for(database.dsn))
    assert await _exists(database, "responses", response)
    await run_sql(database.pool, "DELETE FROM batch_lines")
    await run_purge(settings_for(database.dsn))
    assert not await _exists(database, "responses", response)


async def test_the_input_of_a_batch_is_kept_until_the_batch_has_ended(
    database: SeededDatabase,
) -> None:
    file = new_uuid()
    await run_sql(
        database.pool,
        """
        INSERT INTO files (id, project_id, filename, purpose, bytes, completed_at, expires_at)
        VALUES (%(id)s, %(project)s, 'input.jsonl', 'batch', 1, now(), now() - interval '1 s')
        """,
        {"id": file, "project": database.project},
    )
    await _create_batch(database, file)
    hidden = {"rows": 10}
    assert not await fetch(database.pool, HIDE_EXPIRED_FILES, hidden)
    values = {"id": file, "project": database.project}
    assert await fetch(database.pool, FIND_INPUT, values) == [file]
    assert not await fetch(database.pool, FIND_FILE, values), "clients do not see it"
    await run_sql(database.pool, "UPDATE batches SET status = 'completed', ended_at = now()")
    assert await fetch(database.pool, HIDE_EXPIRED_FILES, hidden) == [file]


async def test_a_vector_store_expires_after_the_last_ingest(database: SeededDatabase) -> None:
    store, entry = new_uuid(), new_uuid()
    values = {"store": store, "entry": entry, "project": database.project, "file": new_uuid()}
    await run_sql(
        database.pool,
        """
        INSERT INTO vector_stores (id, project_id, name, metadata, language, expires_after_days,
                                   last_active_at, expires_at)
        VALUES (%(store)s, %(project)s, '', '{}', 'english', 1, now() - interval '60 days',
                now() - interval '59 days')
        """,
        values,
    )
    await run_sql(
        database.pool,
        """
        INSERT INTO vector_store_files (id, project_id, store_id, file_id, attributes,
                                        max_chunk_tokens, chunk_overlap_tokens)
        VALUES (%(entry)s, %(project)s, %(store)s, %(file)s, '{}', 800, 400)
        """,
        values,
    )
    await run_purge(settings_for(database.dsn))
    assert await _exists(database, "vector_store_files", entry)
    ended = dict.fromkeys(("code", "message", "chunks"))
    ended |= {"id": entry, "attempts": 0, "status": "completed"}
    assert await fetch(database.pool, END_ENTRY, ended)
    await run_purge(settings_for(database.dsn))
    [row] = await run_sql(
        database.pool, "SELECT expires_at > now() + interval '23 hours' AS later FROM vector_stores"
    )
    assert row["later"]
    await run_sql(database.pool, "UPDATE vector_stores SET expires_at = now() - interval '1 s'")
    await run_purge(settings_for(database.dsn))
    assert not await _exists(database, "vector_store_files", entry)


@pytest.mark.parametrize(
    ("attempts", "disabled", "is_kept"), [(0, False, True), (1, False, False), (0, True, False)]
)
async def test_a_delivery_that_was_never_tried_is_kept(
    database: SeededDatabase, attempts: int, disabled: bool, is_kept: bool
) -> None:
    endpoint, delivery = new_uuid(), new_uuid()
    values = {
        "endpoint": endpoint,
        "project": database.project,
        "disabled_at": datetime.now(UTC) if disabled else None,
        "id": delivery,
        "attempts": attempts,
    }
    await run_sql(
        database.pool,
        """
        INSERT INTO webhook_endpoints (id, project_id, url, types, secret_key_id, secrets,
                                       disabled_at)
        VALUES (%(endpoint)s, %(project)s, 'https://example.com', '{}', '', '', %(disabled_at)s)
        """,
        values,
    )
    await run_sql(
        database.pool,
        """
        INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id, attempts,
                                        created_at)
        VALUES (%(id)s, %(endpoint)s, %(id)s, 'response.completed', 'resp_1', %(attempts)s,
                now() - interval '40 days')
        """,
        values,
    )
    await run_purge(settings_for(database.dsn))
    assert await _exists(database, "webhook_deliveries", delivery) is is_kept
