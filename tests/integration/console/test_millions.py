"""Each page of the console, when a million responses are stored."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from tests.support.console import CONSOLE_SETTINGS, OPERATOR_TOKEN, console_user
from tests.support.fake_upstream import FakeUpstream
from tests.support.many_responses import fill
from tests.support.stack import Databases, Stack, SuiteSettings, stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
_RESPONSES = 1_000_000
_LIMIT = 0.2
"""Seconds for a page."""
_USAGE = """
    INSERT INTO usage_entries (project_id, ended_at, model, requests, input_tokens, cached_tokens,
                               output_tokens, reasoning_tokens)
    SELECT p.id, now() - n * interval '80 ms', 'model-' || n % 20, 1, 100, 0, 50, 0
    FROM generate_series(1, 1000000) n, (SELECT id FROM projects LIMIT 1) p
"""
_HOURS = """
    WITH done AS (UPDATE usage_rollup
                  SET hours_until = to_timestamp(floor(extract(epoch FROM now()) / 600 - 1) * 600)
                  RETURNING hours_until)
    INSERT INTO usage_hours (project_id, hour, model, requests, input_tokens, cached_tokens,
                             output_tokens, reasoning_tokens, cost, unpriced)
    SELECT project_id, date_trunc('hour', ended_at), model, sum(requests), sum(input_tokens), 0,
           sum(output_tokens), 0, NULL, sum(requests)
    FROM usage_entries, done WHERE ended_at < hours_until GROUP BY 1, 2, 3
"""
_DAYS = """
    INSERT INTO usage_days (project_id, day, model, requests, input_tokens, cached_tokens,
                            output_tokens, reasoning_tokens, cost, unpriced)
    SELECT p.id, (now() AT TIME ZONE 'UTC')::date - d, 'model-' || n, 100, 1000, 0, 50, 0, n, 0
    FROM generate_series(1, 89) d, generate_series(1, 500) n, (SELECT id FROM projects LIMIT 1) p
"""
_PARTS = """
    INSERT INTO activity_parts (width, kind, begins_at, name, completed, cost)
    SELECT w, kind, to_timestamp(floor(extract(epoch FROM now()) / w) * w) - n * w * interval '1 s',
           'name-' || name, name, name
    FROM (VALUES (60), (600)) v (w), generate_series(0, 1100) n, generate_series(1, 31) name,
         (VALUES ('model'), ('upstream')) k (kind)
"""
_ACTIVITY = """
    INSERT INTO activity (width, begins_at, waiting, oldest_seconds, running, first_token_counts,
                          total_counts)
    SELECT w, to_timestamp(floor(extract(epoch FROM now()) / w) * w) - n * w * interval '1 s',
           n, n, n, array_fill(n, ARRAY[43]), array_fill(n, ARRAY[43])
    FROM (VALUES (60), (600)) v (w), generate_series(0, 1100) n
"""


class _FilledDatabases(Databases):
    """The databases of a server; each copy has a million responses."""

    def __init__(self, of: Databases) -> None:
        super().__init__(of.admin_url, None)
        self._of = of

    async def create_copy(self) -> str:
        dsn = await self._of.create_copy()
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await fill(connection, _RESPONSES)
            for statement in (_USAGE, _HOURS, _DAYS, _ACTIVITY, _PARTS, "ANALYZE"):
                await connection.execute(statement.encode())
        return dsn


@pytest.fixture
async def filled(
    tmp_path: Path, database_server: Databases, suite_settings: SuiteSettings, fake: FakeUpstream
) -> AsyncIterator[Stack]:
    of = _FilledDatabases(database_server)
    options = CONSOLE_SETTINGS | {"BACKBURNER_WORKER__PURGE_INTERVAL": "1d"}
    async with stack(tmp_path, of, suite_settings, fake, workers=0, settings=options) as one:
        yield one


async def test_each_page_answers_within_two_tenths_of_a_second(filled: Stack) -> None:
    newest = await filled.value("SELECT 'resp_' || replace(max(id::text), '-', '') FROM responses")
    project = await filled.value("SELECT 'proj_' || replace(min(id::text), '-', '') FROM projects")
    store = await filled.value(
        "SELECT 'vs_' || replace(min(id::text), '-', '') FROM vector_stores"
        " WHERE delete_requested_at IS NULL"
    )
    slow: dict[str, float] = {}
    async with console_user(filled, OPERATOR_TOKEN) as user:
        await user.reveal("/console/responses")
        for path in (
            *("", "/activity", "/activity?range=week", "/responses", "/responses?status=queued"),
            *("/responses?model=none&since=30d", "/responses?status=failed&since=30d"),
            *("/responses?window=8h&missed=yes&since=30d", "/responses?continuation=a&since=30d"),
            *("/responses?status=failed&upstream=u&since=30d", "/responses?status=retrying"),
            *("/responses?status=retrying&upstream=u&project=default",),
            *("/responses?text=w500001", "/responses?text=frequent", "/responses?user=user"),
            *("/responses?metadata=a%3Db&since=30d", f"/responses/{newest}", "/workers"),
            *(f"/responses/compare?a={newest}&b={newest}", f"/retry?id={newest}", "/webhooks/new"),
            *(
                "/upstreams",
                "/projects",
                "/projects?order=name&name=x",
                f"/projects/{project}",
                "/webhooks",
                "/batches",
                "/files",
            ),
            *("/vector-stores", f"/vector-stores/{store}?status=failed", "/usage?days=30"),
            *("/audit", "/audit?who=nobody"),
            *("/usage?days=90&by=both", "/usage?days=1&by=model", "/activity?by=model&range=week"),
        ):
            times = []
            for _ in range(4):  # the first one may read from the disk
                started = time.perf_counter()
                page = await user.get(f"/console{path}")
                times.append(time.perf_counter() - started)
                assert page.status == 200, page.text
            if min(times) > _LIMIT:
                slow[path] = min(times)
    assert not slow
