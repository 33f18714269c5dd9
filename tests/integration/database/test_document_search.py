"""A search by documents finds what is far back, in order, however often it has to stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from features.operator import document_search
from features.operator.filter import LAST_ID, Filter
from features.search import index as search_index
from features.search.index import SearchIndex
from features.search.worker import SearchDocuments
from models.config.feature_groups import SearchSettings
from models.config.settings import Settings
from models.db.database import Connection, Pool, connect, execute, fetch, open_pool
from models.db.queries.search_documents import UNFINISHED_INDEXES, WALK_STATE
from models.db.statement import Statement
from models.ids import new_uuid
from tests.support.api import until
from tests.support.stack import Databases
from tests.support.worker_rows import settings_for

HOURS = 75
"""A response for each of so many hours, and one that is open and older than all."""
_INSERT = """
    INSERT INTO responses (id, project_id, status, background, store, model, parameters, created_at,
                           expires_at, deadline, enqueued_at)
    SELECT %(id)s, p.id, %(status)s, true, true, 'm', %(parameters)s, %(at)s,
           now() + interval '1 day', now(), now()
    FROM projects p
"""


def _id_of(at: datetime) -> UUID:
    low = new_uuid().int & (2**80 - 1)
    return UUID(int=int(at.timestamp() * 1000) << 80 | low)


@asynccontextmanager
async def _searched(
    databases: Databases,
) -> AsyncIterator[tuple[Settings, Pool, Connection, list[UUID]]]:
    """A database with documents; and the responses of the user `a`, the newest first: every second
    one."""
    dsn, now, ids = await databases.create_copy(), datetime.now(UTC), list[UUID]()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("INSERT INTO projects (id, name) VALUES (gen_random_uuid(), 'p')")
        for hour in range(HOURS + 1):
            at, is_open = now - timedelta(hours=hour), hour == HOURS
            is_of_user = is_open or hour % 2 == 0
            new = _id_of(at)
            values = {
                "id": new,
                "status": "queued" if is_open else "completed",
                "parameters": '{"user": "a"}' if is_of_user else '{"user": "b"}',
                "at": at,
            }
            await connection.execute(_INSERT, values)
            if is_of_user:
                ids.append(new)
    settings = settings_for(dsn)
    pool = open_pool(settings, "search", 2)
    await pool.open()
    try:
        async with await connect(settings, "search") as database:
            yield settings, pool, database, ids
    finally:
        await pool.close()


async def _all_pages(database: Connection, wanted: Filter, budget: float) -> list[list[UUID]]:
    pages, before = list[list[UUID]](), LAST_ID
    while True:
        found = await document_search.search(
            database, wanted, before, 10, texts=True, budget=budget
        )
        pages.append([row.id for row in found.rows])
        if found.next_before is None:
            return pages
        assert found.next_before < before
        before = found.next_before


async def test_a_search_finds_everything_once_in_order(
    database_server: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_search, "NEWEST", 3)
    async with _searched(database_server) as (_, pool, database, ids):
        documents = SearchDocuments(pool, SearchSettings())
        await documents.walk()
        [state] = await fetch(database, WALK_STATE, {})
        assert state.completed_at is not None
        wanted = Filter(user="a")
        full = await _all_pages(database, wanted, 60)
        assert [len(page) for page in full] == [10, 10, 10, 9]
        stopped = await _all_pages(database, wanted, 0)
        assert len(stopped) > len(full), "without time a search stops after each range"
        for pages in (full, stopped):
            assert [each for page in pages for each in page] == ids
        recent = await _all_pages(database, Filter(user="a", since=timedelta(hours=5)), 60)
        assert recent == [ids[:3]]


async def test_the_walk_makes_what_a_killed_worker_has_not(database_server: Databases) -> None:
    """And again what somebody has deleted."""
    some = Statement("DELETE FROM search_documents WHERE response_id < :id")
    async with _searched(database_server) as (_, pool, database, ids):
        documents = SearchDocuments(pool, SearchSettings())
        await documents.walk()
        await execute(database, some, {"id": ids[2]})
        await execute(database, Statement("UPDATE search_walk SET next_at = '-infinity'"), {})
        await documents.walk()
        async with database.cursor() as cursor:
            await cursor.execute("SELECT count(*) FROM search_documents")
            assert await cursor.fetchone() == (HOURS,)


_NEW_WORDS = """
    UPDATE search_documents d SET document = array_to_tsvector(
        ARRAY(SELECT w FROM unnest(tsvector_to_array(d.document)) w WHERE w NOT LIKE 'rare%%')
        || ARRAY(SELECT 'rare' || %(round)s || md5(d.response_id::text || n)
                 FROM generate_series(1, 99) n))
"""
"""Each document gets words that no other one has, and loses those of the round before."""
_CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'REINDEX%'"
_UNFINISHED = "CREATE INDEX CONCURRENTLY unfinished ON search_documents ((1 / (has_text::int - 1)))"


async def test_an_index_full_of_words_that_are_gone_is_made_again(
    database_server: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = 256 * 1024
    monkeypatch.setattr(search_index, "_SMALL", small)
    async with _searched(database_server) as (settings, pool, database, ids):
        await SearchDocuments(pool, SearchSettings()).walk()
        with pytest.raises(psycopg.errors.DivisionByZero):
            await database.execute(_UNFINISHED)
        index, sizes = SearchIndex(pool, settings), list[int]()
        for number in range(8):
            await database.execute(_NEW_WORDS, {"round": number})
            await database.execute("VACUUM search_documents")
            await index.make_if_large()
            sizes.append(await _index_size(database))
        assert small < sizes[0], "it was made after the first round"
        assert max(sizes) < 2.5 * sizes[0], f"it has the words of all rounds: {sizes}"
        assert await fetch(database, UNFINISHED_INDEXES, {}) == []
        found = await _all_pages(database, Filter(user="a"), 60)
        assert [each for page in found for each in page] == ids


@pytest.mark.long
async def test_an_index_that_could_not_be_made_leaves_nothing_behind(
    database_server: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "_SMALL", 0)
    async with _searched(database_server) as (settings, pool, database, _):
        await SearchDocuments(pool, SearchSettings()).walk()

        async def is_unfinished() -> bool:
            return bool(await fetch(database, UNFINISHED_INDEXES, {}))

        async with pool.connection() as other:
            async with other.transaction():
                # It waits for the end of this transaction.
                await other.execute("UPDATE search_documents SET has_text = has_text")
                making = asyncio.create_task(SearchIndex(pool, settings).make_if_large())
                await until(is_unfinished)
                await database.execute(_CANCEL)
            with pytest.raises(psycopg.errors.QueryCanceled):
                await making
        assert not await is_unfinished()


async def _index_size(database: Connection) -> int:
    cursor = await database.execute("SELECT pg_relation_size('ix_search_documents_document')")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])
