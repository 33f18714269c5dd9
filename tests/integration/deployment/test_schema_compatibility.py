"""A newer release has migrated the database: processes of this release go on if they can."""

import asyncio

import psycopg
import pytest

from cli.database.migrate import migrate
from cli.errors import CommandFailed
from models.db.schema import newest_revision
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

LATER = "9998"
"""A revision that this release does not know."""


async def _migrate_to(own_stack: Stack, revision: str, oldest: str) -> None:
    """Does what a migration of another release does to the database."""
    async with await psycopg.AsyncConnection.connect(own_stack.dsn, autocommit=True) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = %s", [revision])
        await connection.execute("UPDATE schema_compatibility SET oldest_revision = %s", [oldest])
        await connection.execute("ALTER TABLE responses ADD COLUMN IF NOT EXISTS later text")


async def _readiness(own_stack: Stack, schema: str, state: str) -> tuple[int, bool]:
    """Status and `ready`, as soon as the look at the database is not an older one."""
    url = f"http://127.0.0.1:{own_stack.webs[0].port}/readyz"
    shown: list[tuple[int, bool]] = []

    async def is_new() -> bool:
        async with own_stack.session.get(url) as answer:
            report = await answer.json()
            shown.append((answer.status, report["ready"]))
            is_schema: bool = report["schema"] == schema
            return is_schema and str(report["schema_state"]).startswith(state)

    await until(is_new)
    return shown[-1]


async def test_processes_go_on_after_a_newer_release_has_migrated_the_database(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack() as own_stack:
        await _migrate_to(own_stack, LATER, oldest=newest_revision())
        assert await _readiness(own_stack, LATER, "ok") == (200, True)
        answer = await own_stack.api().create(fake.script(reply("fine")), background=False)
        assert answer["output_text"] == "fine"
        # Back to the release before: its `migrate` succeeds, and its processes start.
        await asyncio.to_thread(migrate, own_stack.dsn)
        await own_stack.start_worker()
        await own_stack.start_web()

        await _migrate_to(own_stack, LATER, oldest=LATER)
        too_new = "of another version: start the newer one"
        assert await _readiness(own_stack, LATER, too_new) == (503, False)
        with pytest.raises(CommandFailed, match=rf"database \({LATER}\) is of another version"):
            await asyncio.to_thread(migrate, own_stack.dsn)

        await _migrate_to(own_stack, "0000", oldest="0000")
        too_old = "too old for this version"
        assert await _readiness(own_stack, "0000", too_old) == (503, False)
