"""The audit log: who deleted, cancelled or changed something; and that nobody can change it."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from typer.testing import CliRunner, Result

from cli.main import app
from models.db.database import execute, open_pool
from models.db.queries.audit import RECORD, Actor, ActorKind, AuditEntry
from models.errors import MissingScope
from models.ids import parse_response_id
from tests.support import keys
from tests.support.api import JSON, Api, until
from tests.support.audit import audit_entries
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.sql import run_sql
from tests.support.stack import Databases, Stack
from tests.support.worker_rows import SeededDatabase, run_purge, settings_for
from web.http.auth import Keys, RefusedRequests, authorize_admin, bind_keys
from web.http.open_requests import OpenRequests
from web.http.request_record import RequestRecord


async def backburner(stack: Stack, *arguments: str) -> Result:
    """Runs a command, which must print neither a traceback nor a key."""
    result = await asyncio.to_thread(
        CliRunner(env=stack.environment()).invoke, app, arguments, catch_exceptions=False
    )
    assert stack.key not in result.output
    return result


async def test_a_clients_delete_is_recorded_with_its_key_address_and_request(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "audited")
    api = shared_stack.api(key=key)
    response = await api.create(fake.script(reply("Hello.")))
    deletion = await api.call("DELETE", f"/responses/{response['id']}")
    assert deletion.status == 200
    [entry] = await audit_entries(shared_stack, object=response["id"])
    assert {
        "actor": "key",
        "key_prefix": key[:8],
        "project": "audited",
        "address": "127.0.0.1",
        "action": "response.delete",
        "outcome": "done",
        "request_id": deletion.headers["x-request-id"],
        "os_user": None,
        "details": {},
    }.items() <= entry.items()
    assert (await api.call("DELETE", f"/responses/{response['id']}")).status == 404
    assert len(await audit_entries(shared_stack, object=response["id"])) == 1


async def test_a_clients_cancel_is_recorded_and_the_end_of_a_connection_is_not(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "audited cancels")
    api = shared_stack.api(key=key)
    model = fake.script([text("a"), hang()])
    running = await api.create_background(model)
    await until(lambda: bool(fake.requests_for(model)), 20)
    cancelled = await api.cancel(running)
    assert cancelled.body["status"] == "cancelled"
    assert (await api.cancel(running)).status == 200
    [entry] = await audit_entries(shared_stack, object=running)
    assert {
        "actor": "key",
        "key_prefix": key[:8],
        "project": "audited cancels",
        "action": "response.cancel",
        "outcome": "requested",
        "request_id": cancelled.headers["x-request-id"],
    }.items() <= entry.items()
    async with api.post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        left = stream.response_id
    await until(partial(_is_cancelled, shared_stack, left), 20)
    deleted = await api.create_background(model)
    assert (await api.call("DELETE", f"/responses/{deleted}")).status == 200
    assert not await audit_entries(shared_stack, object=left)
    actions = [entry["action"] for entry in await audit_entries(shared_stack, object=deleted)]
    assert actions == ["response.delete"]


async def _is_cancelled(stack: Stack, response: str) -> bool:
    query = "SELECT status = 'cancelled' FROM responses WHERE id = %s"
    return bool(await stack.value(query, parse_response_id(response)))


async def test_deleting_a_conversation_and_an_item_of_it_is_recorded(
    api: Api, shared_stack: Stack
) -> None:
    message = {"type": "message", "role": "user", "content": "secret words", "id": "msg_audit"}
    created = (await api.call("POST", "/conversations", {"items": [message]})).body["id"]
    assert (await api.call("DELETE", f"/conversations/{created}/items/msg_audit")).status == 200
    assert (await api.call("DELETE", f"/conversations/{created}")).status == 200
    entries = await audit_entries(shared_stack, object=created)
    assert [(entry["action"], entry["details"]) for entry in entries] == [
        ("conversation.item.delete", {"item": "msg_audit"}),
        ("conversation.delete", {}),
    ]
    assert "secret words" not in str(entries)


async def test_operators_actions_are_recorded_with_their_user_and_listed(
    api: Api, shared_stack: Stack, fake: FakeUpstream
) -> None:
    response = await api.create_background(fake.script([text("a"), hang()]))
    cancelled = await backburner(shared_stack, "responses", "cancel", response, "--wait", "0")
    assert cancelled.exit_code in (0, 4), cancelled.output
    refused = await backburner(shared_stack, "responses", "fail", response)
    assert refused.exit_code == 1
    [entry] = await audit_entries(shared_stack, object=response)
    assert (entry["actor"], entry["action"], entry["project"]) == (
        "operator",
        "response.cancel",
        "default",
    )
    assert entry["os_user"]
    listed = await backburner(
        shared_stack, "audit", "--since", "1h", "--action", "response", "--json"
    )
    assert response in [each.get("object") for each in json.loads(listed.stdout)]
    shown = await backburner(shared_stack, "audit", "--project", "default", "--since", "1h")
    assert f"{entry['os_user']} from" in shown.stdout
    none = await backburner(shared_stack, "audit", "--project", "nobody", "--json")
    assert json.loads(none.stdout) == []


async def test_pages_follow_each_other_and_an_export_has_one_line_an_entry(
    shared_stack: Stack,
) -> None:
    dsn, actor = shared_stack.dsn, Actor(ActorKind.SERVER, project="paged")
    entries = [AuditEntry(actor, "worker.drain", str(number)) for number in range(5)]
    async with open_pool(settings_for(dsn), "test", 1) as pool:
        for entry in entries:
            await execute(pool, RECORD, entry.values())
            await execute(pool, RECORD, entry.values())  # a statement that is sent again

    async def page(*arguments: str) -> list[JSON]:
        command = ("audit", "--project", "paged", "--limit", "2", "--json", *arguments)
        listed: list[JSON] = json.loads((await backburner(shared_stack, *command)).stdout)
        return listed

    seen = rows = await page()
    while rows := await page("--before", rows[-1]["id"]):
        seen += rows
    assert [row["object"] for row in seen] == ["4", "3", "2", "1", "0"]
    exported = await backburner(shared_stack, "audit", "export", "--project", "paged")
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [line["object"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert set(lines[0]) == {"id", "at", "actor", "project", "action", "object", "outcome"}
    unknown = await backburner(shared_stack, "audit", "--before", "nothing")
    assert (unknown.exit_code, "no entry" in unknown.output) == (1, True)


# --- the table ---


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    dsn = await database_server.create_copy()
    async with open_pool(settings_for(dsn), "test", 2) as pool:
        yield SeededDatabase(pool, dsn)


async def _add(database: SeededDatabase, days: float) -> None:
    await run_sql(
        database.pool,
        "INSERT INTO audit (id, at, actor, action, outcome) VALUES (gen_random_uuid(),"
        " now() - make_interval(secs => %(days)s * 86400), 'server', 'test.age', 'done')",
        {"days": days},
    )


async def _ages(database: SeededDatabase) -> list[int]:
    rows = await run_sql(
        database.pool,
        "SELECT (extract(epoch FROM now() - at) / 86400)::int AS age FROM audit ORDER BY at",
    )
    return [row["age"] for row in rows]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit SET outcome = 'nothing'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "SET backburner.audit_expires_before = 'infinity'; DELETE FROM audit",
    ],
)
async def test_no_statement_changes_or_removes_an_entry(
    database: SeededDatabase, change: str
) -> None:
    await _add(database, 0)
    await _add(database, 400)
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            await connection.execute(change.encode())
    assert await _ages(database) == [400, 0]


@pytest.mark.parametrize(("keep", "left"), [(None, [400, 20, 0]), (timedelta(days=10), [0])])
async def test_entries_are_deleted_by_age_only_if_that_is_set(
    database: SeededDatabase, keep: timedelta | None, left: list[int]
) -> None:
    for days in (400, 20, 0):
        await _add(database, days)
    settings = settings_for(database.dsn)
    audit = settings.audit.model_copy(update={"retention": keep})
    await run_purge(settings.model_copy(update={"audit": audit}))
    assert await _ages(database) == left


async def test_requests_without_a_valid_key_are_one_entry_an_address_and_minute(
    database: SeededDatabase,
) -> None:
    failures = RefusedRequests(database.pool)
    for number in range(3_000):
        failures.add_unauthenticated("192.0.2.1")
        failures.add_unauthenticated(f"198.51.{number // 256}.{number % 256}")
    await failures.store()
    await failures.store()
    rows: list[dict[str, Any]] = await run_sql(
        database.pool,
        "SELECT address, action, actor, (details ->> 'count')::int AS count FROM audit"
        " ORDER BY 4 DESC, 1 LIMIT 3",
    )
    assert [(row["address"], row["count"]) for row in rows[:2]] == [
        ("192.0.2.1", 3_000),
        ("others", 3_000 - 999),
    ]
    assert (rows[0]["action"], rows[0]["actor"]) == ("authentication.fail", "unknown")
    assert len(await _ages(database)) == 1_001


async def test_requests_that_lack_the_scope_of_admins_are_one_entry_a_key_and_route(
    database: SeededDatabase,
) -> None:
    key = await asyncio.to_thread(keys.create, database.dsn, "no admin")
    known, app_of_requests = Keys(database.pool, 20), FastAPI()
    bind_keys(app_of_requests, known, OpenRequests(database.pool), lambda _: {})
    for method in ("GET", "POST", "POST"):
        scope: dict[str, Any] = {
            "type": "http",
            "app": app_of_requests,
            "method": method,
            "path": "/v1/organization/projects",
            "headers": [(b"authorization", f"Bearer {key}".encode())],
            "client": ("192.0.2.7", 1),
        }
        unused: Any = None
        record = RequestRecord(scope, unused, unused, lambda _: None)
        record.direct_route = "/v1/organization/projects"
        with pytest.raises(MissingScope):
            await authorize_admin(Request(scope))
    await known.refused.store()
    rows = await run_sql(
        database.pool,
        "SELECT actor, key_prefix, project, address, action, object, outcome, details FROM audit"
        " WHERE action = 'admin.refuse' ORDER BY object",
    )
    common = {
        "actor": "key",
        "key_prefix": key[:8],
        "project": "no admin",
        "address": "192.0.2.7",
        "action": "admin.refuse",
        "outcome": "refused",
    }
    path = "/v1/organization/projects"
    assert rows == [
        {**common, "object": f"GET {path}", "details": {"count": 1}},
        {**common, "object": f"POST {path}", "details": {"count": 2}},
    ]


async def test_counts_are_kept_while_the_database_is_away(database: SeededDatabase) -> None:
    failures = RefusedRequests(database.pool)
    failures.add_unauthenticated("192.0.2.1")
    await database.pool.close()
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the pool raises
        await failures.store()
    failures.add_unauthenticated("192.0.2.1")
    async with open_pool(settings_for(database.dsn), "test", 1) as pool:
        failures._pool = pool
        await failures.store()
        rows = await run_sql(pool, "SELECT details FROM audit")
    assert [row["details"] for row in rows] == [{"count": 2}]
