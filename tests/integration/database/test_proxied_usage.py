"""The usage of proxied requests is inserted once, also when the reply to its insert was lost."""

from collections.abc import Mapping

import psycopg
import pytest

from features.proxy import web as usage
from models.db.database import Pool, execute, fetch
from models.db.queries.api_keys import ApiKey
from models.db.statement import Statement, column
from models.ids import new_uuid
from models.wire.token_counts import NO_TOKENS
from tests.support.stack import Databases
from tests.support.worker_rows import open_seeded_database

COUNT = column("SELECT count(*) FROM usage_entries WHERE model = :model", int)


async def test_an_insert_whose_reply_was_lost_counts_once(
    database_server: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = [psycopg.OperationalError("the reply was lost")]

    async def lose(pool: Pool, statement: Statement, values: Mapping[str, object]) -> None:
        await execute(pool, statement, values)
        if losses:
            raise losses.pop()

    monkeypatch.setattr(usage, "execute", lose)
    async with open_seeded_database(database_server, 1) as database:
        key = ApiKey(new_uuid(), database.project, "house", "bb", b"")
        written = usage.ProxiedUsage(database.pool)
        for model in ("first", "second"):
            written.add_tokens(key, model, "upstream", NO_TOKENS)
            await written.store()
        for model in ("first", "second"):
            assert await fetch(database.pool, COUNT, {"model": model}) == [1]
