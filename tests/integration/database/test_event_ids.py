"""Events of webhooks have ids that follow from what has ended: when a failover has lost an end, its
repetition has the same one."""

import pytest

from features.batches.queries import END_BATCH
from models.db.database import fetch
from models.ids import new_uuid
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, open_seeded_database

_ENDPOINT = """
    INSERT INTO webhook_endpoints (id, project_id, url, types, secret_key_id, secrets)
    VALUES (gen_random_uuid(), %(project)s, 'https://example.com', '{}', '', '')"""
_RESPONSE = """
    INSERT INTO responses (id, project_id, status, background, store, model, parameters,
                           created_at, expires_at, deadline, enqueued_at)
    SELECT %(id)s, %(project)s, 'in_progress', true, true, 'm', '{}', t, t, t, t FROM now() AS t"""
_BATCH = """
    INSERT INTO batches (id, project_id, api_key_id, endpoint, input_file_id, completion_window,
                         expires_at, in_progress_at)
    SELECT %(id)s, %(project)s, %(id)s, '/v1/responses', %(id)s, '24h', t, t FROM now() AS t"""
_EVENTS = "SELECT type, event_id FROM webhook_deliveries ORDER BY type, event_id"


async def _end(database: SeededDatabase, kind: str, ending: str) -> None:
    """Ends the only row of this kind, and takes that back: the commit is lost."""
    table = f"{kind}s" if kind == "response" else "batches"
    if kind == "response":
        await run_sql(database.pool, f"UPDATE responses SET status = '{ending}'", {})
    else:
        await run_sql(database.pool, f"UPDATE batches SET ending = '{ending}'", {})
        [batch] = await run_sql(database.pool, "SELECT id FROM batches", {})
        assert await fetch(database.pool, END_BATCH, {"id": batch["id"]}) == [ending]
    await run_sql(database.pool, f"UPDATE {table} SET status = 'in_progress'", {})


@pytest.mark.parametrize(("kind", "insert"), [("response", _RESPONSE), ("batch", _BATCH)])
async def test_the_repetition_of_an_end_has_the_same_event(
    database_server: Databases, kind: str, insert: str
) -> None:
    async with open_seeded_database(database_server, 2) as database:
        values = {"project": database.project}
        await run_sql(database.pool, _ENDPOINT, values)
        await run_sql(database.pool, insert, values | {"id": new_uuid()})
        for ending in ("completed", "completed", "failed"):
            await _end(database, kind, ending)
        events = await run_sql(database.pool, _EVENTS, {})
        types = [event["type"] for event in events]
        assert types == [f"{kind}.completed", f"{kind}.completed", f"{kind}.failed"]
        assert len({event["event_id"] for event in events}) == 2
        assert events[0]["event_id"] == events[1]["event_id"]
