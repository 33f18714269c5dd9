"""A newer release has migrated the database: processes of this release go on if they can."""

import asyncio

import psycopg
import pytest

from cli.database.migrate import migrate
from cli.errors import CommandFailed
from models.db.schema import newest_revision
from tests.conftest import PrivateStack
from tests.support.api import JSON
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


async def _readiness(own_stack: Stack) -> tuple[int, JSON]:
    url = f"http://127.0.0.1:{own_stack.webs[0].port}/readyz"
    async with own_stack.session.get(url) as answer:
        return answer.status, await answer.json()


async def test_processes_go_on_after_a_newer_release_has_migrated_the_database(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack() as own_stack:
        await _migrate_to(own_stack, LATER, oldest=newest_revision())
        status, readiness = await _readiness(own_stack)
        assert (status, readiness["schema"], readiness["schema_state"]) == (200, LATER, "ok")
        answer = await own_stack.api().create(fake.script(reply("fine")), background=False)
        assert answer["output_text"] == "fine"
        # Back to the release before: its `migrate` succeeds, and its processes start.
        await asyncio.to_thread(migrate, own_stack.dsn)
        await own_stack.start_worker()
        await own_stack.start_web()

        await _migrate_to(own_stack, LATER, oldest=LATER)
        status, readiness = await _readiness(own_stack)
        assert (status, readiness["ready"]) == (503, False)
        assert readiness["schema_state"].startswith("too new for this version")
        with pytest.raises(CommandFailed, match=rf"schema of the database \({LATER}\) is too new"):
            await asyncio.to_thread(migrate, own_stack.dsn)

        await _migrate_to(own_stack, "0008", oldest="0008")
        status, readiness = await _readiness(own_stack)
        assert status == 503
        assert readiness["schema_state"].startswith("too old for this version")
