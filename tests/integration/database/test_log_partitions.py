"""The purge makes partitions of the event log, and drops those whose responses have expired."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from models.db.database import fetch
from models.db.queries import end, log_partitions, retention
from models.db.queries.log_partitions import LogPartition
from models.ids import first_id_at, new_uuid, unix_seconds
from tests.support.audit import AUDITED
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    SeededDatabase,
    open_seeded_database,
    run_purge,
    settings_for,
)
from worker.process import log_partitions as partitions_module
from worker.process.log_partitions import LogPartitions

DAY = timedelta(days=1)
RETENTION = 30 * DAY
"""That of the settings; a partition has three days."""
ENDED, ENDS_SOON, NEWER = "event_log_ended", "event_log_ends_soon", "event_log_newer"
_AGES = {ENDED: 31 * DAY, ENDS_SOON: 28 * DAY, NEWER: DAY}
"""Of the ends of partitions."""


def _id(age: timedelta) -> UUID:
    """Of a response that was made so long ago."""
    made_at = first_id_at((datetime.now(UTC) - age).timestamp())
    return UUID(int=made_at.int | new_uuid().int & (2**80 - 1))


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    """With three partitions, each three days long."""
    async with open_seeded_database(database_server, 4) as database:
        await run_sql(database.pool, "ALTER TABLE event_log DETACH PARTITION event_log_first")
        await run_sql(database.pool, "DROP TABLE event_log_first")
        for name, age in _AGES.items():
            now = datetime.now(UTC)
            begins, ends = (first_id_at((now - each).timestamp()) for each in (age + 3 * DAY, age))
            values = {"name": name, "begins": begins, "ends": ends}
            assert await fetch(database.pool, log_partitions.ADD, values) == [True]
        yield database


_INSERT = """
    WITH made AS (
        INSERT INTO responses (id, project_id, status, background, store, model, parameters,
                               created_at, completed_at, expires_at, deadline, enqueued_at)
        VALUES (%(id)s, %(project)s, 'completed', true, true, 'm', '{}', now(), now(),
                now() + interval '1 s' * %(seconds)s, now(), now()) RETURNING id)
    INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
    SELECT id, n, n, 1, 'frame' FROM made CROSS JOIN generate_series(0, 2) n
"""


async def _store(database: SeededDatabase, partition: str, *, is_expired: bool) -> UUID:
    """A response of the partition, with three rows of its log."""
    response = _id(_AGES[partition] + DAY)
    seconds = -1 if is_expired else 3600
    values = {"id": response, "project": database.project, "seconds": seconds}
    await run_sql(database.pool, _INSERT, values)
    return response


async def _homes(database: SeededDatabase, response: UUID) -> list[str]:
    """The partitions that have rows of its log."""
    query = (
        "SELECT tableoid::regclass::text AS home, count(*) AS n FROM event_log"
        " WHERE response_id = %(id)s GROUP BY 1"
    )
    rows = await run_sql(database.pool, query, {"id": response})
    assert all(row["n"] == 3 for row in rows)
    return [row["home"] for row in rows]


async def _partitions(database: SeededDatabase) -> list[LogPartition]:
    return await fetch(database.pool, log_partitions.PARTITIONS, {})


async def test_a_partition_goes_with_its_logs_and_those_of_kept_responses_stay(
    database: SeededDatabase,
) -> None:
    kept = await _store(database, ENDED, is_expired=False)
    ended = await _store(database, ENDED, is_expired=True)
    soon = await _store(database, ENDS_SOON, is_expired=True)
    newer = await _store(database, NEWER, is_expired=True)
    await run_purge(settings_for(database.dsn))
    rows = await run_sql(database.pool, "SELECT id FROM responses")
    assert [row["id"] for row in rows] == [kept]
    # Row by row; with its partition; with its partition, later.
    assert await _homes(database, newer) == []
    assert await _homes(database, ended) == []
    assert await _homes(database, soon) == [ENDS_SOON]
    assert await _homes(database, kept) == ["event_log_rest"]
    present = await _partitions(database)
    assert [each.name for each in present[:2]] == [ENDS_SOON, NEWER]
    assert unix_seconds(present[-1].ends) > (datetime.now(UTC) + 3 * DAY).timestamp()
    # The log of a new response is in none of them yet: their purge was too late.
    created = await database.create_response()
    query = "SELECT tableoid::regclass::text AS home FROM event_log WHERE response_id = %(id)s"
    [row] = await run_sql(database.pool, query, {"id": created})
    assert row["home"] == "event_log_rest"

    await run_sql(database.pool, "UPDATE responses SET expires_at = now() - interval '1 s'")
    await run_purge(settings_for(database.dsn))
    assert await _homes(database, kept) == []
    assert await _partitions(database) == present


async def test_a_partition_with_too_many_kept_logs_stays_without_what_was_left(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_module, "_MAX_ROWS", 4)
    kept = [await _store(database, ENDED, is_expired=False) for _ in range(2)]
    left = [await _store(database, ENDED, is_expired=True) for _ in range(3)]
    await run_purge(settings_for(database.dsn))
    assert [await _homes(database, each) for each in (*kept, *left)] == [[ENDED]] * 5

    shorter = settings_for(database.dsn).model_copy(update={"retention": 27 * DAY})
    await run_purge(shorter)
    assert [await _homes(database, each) for each in left] == [[]] * 3
    assert [await _homes(database, each) for each in kept] == [[ENDED]] * 2
    await run_sql(
        database.pool,
        "UPDATE responses SET expires_at = now() - interval '1 s' WHERE id = %(id)s",
        {"id": kept[0]},
    )
    await run_purge(shorter)
    assert await _homes(database, kept[0]) == []
    assert await _homes(database, kept[1]) == ["event_log_rest"]


async def test_what_a_client_deletes_or_does_not_store_is_not_left_to_its_partition(
    database: SeededDatabase,
) -> None:
    deleted, hidden = [await _store(database, ENDS_SOON, is_expired=False) for _ in range(2)]
    values = {"id": deleted, "project": database.project}
    assert await fetch(database.pool, retention.DELETE_ENDED, values) == [deleted]
    assert await _homes(database, deleted) == []
    await fetch(database.pool, end.REQUEST_DELETE, values | {"id": hidden} | AUDITED)
    unstored = await _store(database, ENDS_SOON, is_expired=True)
    not_stored = "UPDATE responses SET store = false WHERE id = %(id)s"
    await run_sql(database.pool, not_stored, {"id": unstored})
    await run_purge(settings_for(database.dsn))
    assert await _homes(database, hidden) == []
    assert await _homes(database, unstored) == []


async def test_a_drop_waits_for_no_other_session_and_is_done_whole_or_not(
    database: SeededDatabase,
) -> None:
    kept = await _store(database, ENDED, is_expired=False)
    before = await _partitions(database)
    ended = before[0]
    values = {"name": ended.name, "begins": ended.begins, "ends": ended.ends}
    async with database.pool.connection() as other, other.transaction():
        await other.execute(b"SELECT 1 FROM event_log LIMIT 1")
        assert await fetch(database.pool, log_partitions.DROP, values) == [False]
    async with (
        database.pool.connection() as killed,
        killed.transaction(force_rollback=True),
    ):
        assert await fetch(killed, log_partitions.DROP, values) == [True]
    assert await _partitions(database) == before
    assert await _homes(database, kept) == [ENDED]
    assert await fetch(database.pool, log_partitions.DROP, values) == [True]
    assert await _partitions(database) == before[1:]
    assert await _homes(database, kept) == ["event_log_rest"]


async def test_a_log_that_a_wrong_clock_has_put_into_the_future_moves_to_its_partition(
    database: SeededDatabase,
) -> None:
    early = _id(-5 * DAY)
    values = {"id": early, "project": database.project, "seconds": 3600}
    await run_sql(database.pool, _INSERT, values)
    assert await _homes(database, early) == ["event_log_rest"]
    begins, ends = (first_id_at(unix_seconds(_id(-age * DAY))) for age in (4, 7))
    partition = {"name": "event_log_later", "begins": begins, "ends": ends}
    assert await fetch(database.pool, log_partitions.ADD, partition) == [True]
    assert await _homes(database, early) == ["event_log_later"]


def test_partitions_become_wider_where_old_ones_are_kept() -> None:
    now = datetime(2026, 11, 28, 12, 30, tzinfo=UTC)

    def partition(ends: datetime) -> LogPartition:
        return LogPartition(str(ends), UUID(int=0), first_id_at(ends.timestamp()))

    def following(*ends: datetime) -> tuple[datetime, datetime] | None:
        made = LogPartitions([partition(each) for each in ends], RETENTION, now).next()
        if made is None:
            return None
        begins, ends_at = (
            datetime.fromtimestamp(unix_seconds(each), UTC) for each in (made.begins, made.ends)
        )
        return begins, ends_at

    hour = datetime(2026, 11, 28, 14, tzinfo=UTC)
    assert following(hour + 2 * DAY) == (hour + 2 * DAY, hour + 5 * DAY)
    assert following(hour + 2 * DAY, hour + 5 * DAY) is None
    # None was made for long: no response may have an id in the new one.
    assert following(hour - 2 * DAY) == (hour, hour + 3 * DAY)
    assert following(hour - 400 * DAY, hour + DAY) == (hour + DAY, hour + 21 * DAY)
