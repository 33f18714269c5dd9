"""How often an API key is looked up."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from models.db.database import Pool, execute, fetch_idempotent
from models.db.queries.organization import CREATE_KEY
from models.db.statement import Query
from models.errors import IncorrectApiKey, TooManyUnknownKeys
from models.ids import new_uuid
from models.keys import DEFAULT_GRANT, stored_value
from tests.support.stack import Databases
from tests.support.worker_rows import open_seeded_database
from web.http import auth


async def test_requests_of_one_moment_share_the_lookup_of_their_key(
    database_server: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 800 streams that were posted at once looked its key up."""
    lookups = 0

    async def count(pool: Pool, query: Query[Any], values: Mapping[str, object]) -> list[Any]:
        nonlocal lookups
        lookups += 1
        return await fetch_idempotent(pool, query, values)

    monkeypatch.setattr(auth, "fetch_idempotent", count)
    async with open_seeded_database(database_server, 2) as database:
        new_key = {"id": new_uuid(), "project": database.project, **stored_value("a")}
        await execute(database.pool, CREATE_KEY, new_key | DEFAULT_GRANT.values)
        keys = auth.Keys(database.pool, 20)
        leaving = asyncio.create_task(keys.require("a"))
        others = [asyncio.create_task(keys.require("a")) for _ in range(20)]
        await asyncio.sleep(0)
        leaving.cancel()
        found = await asyncio.gather(*others)
        assert [key.project_id for key in found] == [database.project] * 20
        assert lookups == 1
        wrong = await asyncio.gather(
            *(keys.require("b") for _ in range(20)), return_exceptions=True
        )
        assert {type(error) for error in wrong} == {IncorrectApiKey}
        assert lookups == 2


async def test_a_valid_key_is_found_among_guesses_of_its_address(
    database_server: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 2 000 guesses is looked up, by few statements; only their answers are limited."""
    statements = 0

    async def count(pool: Pool, query: Query[Any], values: Mapping[str, object]) -> list[Any]:
        nonlocal statements
        statements += 1
        return await fetch_idempotent(pool, query, values)

    monkeypatch.setattr(auth, "fetch_idempotent", count)
    async with open_seeded_database(database_server, 2) as database:
        new_key = {"id": new_uuid(), "project": database.project, **stored_value("a")}
        await execute(database.pool, CREATE_KEY, new_key | DEFAULT_GRANT.values)
        keys, address = auth.Keys(database.pool, 20), "192.0.2.1"
        guesses = [asyncio.create_task(keys.require(f"b{n}", address)) for n in range(2_000)]
        await asyncio.sleep(0)
        assert (await keys.require("a", address)).project_id == database.project
        assert statements <= 20
        for guess in guesses:
            guess.cancel()
        refused = await asyncio.gather(*guesses, return_exceptions=True)
        assert any(isinstance(each, TooManyUnknownKeys) for each in refused)
