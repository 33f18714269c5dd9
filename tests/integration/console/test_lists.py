"""The pages of workers, projects, webhooks, batches and files, and what may be done there."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote
from uuid import UUID

import pytest
from psycopg.types.json import Json, Jsonb

from features.webhooks.events import event_id
from models.ids import admin_id, batch_id, new_uuid, vector_store_id
from tests.support.console import (
    OPERATOR_TOKEN,
    READ_ONLY_TOKEN,
    ConsolePage,
    ConsoleUser,
    console_user,
)
from tests.support.stack import Stack

_EVIL = "<script>alert(1)</script>"
_LISTS = (
    *("activity", "workers", "upstreams", "projects", "webhooks", "batches", "files"),
    *("schedules", "code", "vector-stores", "usage"),
)


@dataclass(frozen=True, slots=True)
class Things:
    """A project with one of each, none of which a worker may touch."""

    project: UUID
    name: str
    key: UUID
    endpoint: UUID
    event: UUID
    batch: UUID
    file: UUID
    store: UUID


async def _insert(stack: Stack, table: str, **values: object) -> None:
    names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    statement = f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING 1"
    await stack.value(statement, *values.values())


@pytest.fixture(scope="module")
async def things(shared_stack: Stack) -> AsyncIterator[Things]:
    made = Things(
        *(new_uuid(), f"lists-{new_uuid().hex[:8]}{_EVIL}"), *(new_uuid() for _ in range(6))
    )
    later = datetime.now(UTC) + timedelta(days=1)
    policy = Jsonb({"quotas": {"running": 7}})
    of_project = {"project_id": made.project}
    await _insert(shared_stack, "projects", id=made.project, name=made.name, policy=policy)
    await _insert(
        shared_stack,
        "api_keys",
        **of_project,
        id=made.key,
        prefix="sk-lists",
        hash=made.key.bytes,
        name=_EVIL,
    )
    await _insert(
        shared_stack,
        "webhook_endpoints",
        **of_project,
        id=made.endpoint,
        url=f"https://127.0.0.1:9/hooks-token{_EVIL}",
        types=[],
        secret_key_id="k",
        secrets=b"secret-of-tests",
    )
    await _insert(
        shared_stack,
        "webhook_deliveries",
        id=new_uuid(),
        endpoint_id=made.endpoint,
        event_id=made.event,
        type="response.completed",
        object_id="resp_1",
        attempts=3,
        next_attempt_at=None,
        last_error=_EVIL,
    )
    await _insert(
        shared_stack,
        "batches",
        **of_project,
        id=made.batch,
        api_key_id=made.key,
        endpoint="/v1/responses",
        input_file_id=made.file,
        completion_window="24h",
        status="in_progress",
        total=10,
        completed=4,
        model=_EVIL,
        expires_at=later,
        collector_until=later,
        expander_until=later,
    )
    await _insert(
        shared_stack,
        "files",
        **of_project,
        id=made.file,
        filename=_EVIL,
        purpose="user_data",
        bytes=2048,
        completed_at=datetime.now(UTC),
    )
    await _insert(
        shared_stack,
        "vector_stores",
        **of_project,
        id=made.store,
        name=_EVIL,
        metadata=Json({}),
        language="english",
    )
    await _insert(
        shared_stack,
        "vector_store_files",
        **of_project,
        id=new_uuid(),
        store_id=made.store,
        file_id=made.file,
        attributes=Jsonb({}),
        max_chunk_tokens=800,
        chunk_overlap_tokens=400,
        status="failed",
        error_code="invalid_file",
        error_message=f"The file is no PDF {_EVIL}",
    )
    await _insert(
        shared_stack,
        "usage_entries",
        **of_project,
        model=_EVIL,
        requests=3,
        input_tokens=12_345,
        cached_tokens=0,
        output_tokens=678,
        reasoning_tokens=0,
    )
    yield made
    for table, identifier in (
        ("vector_store_files", made.store),
        ("vector_stores", made.store),
        ("usage_entries", made.project),
    ):
        name = {"vector_store_files": "store_id", "vector_stores": "id"}.get(table, "project_id")
        await shared_stack.value(f"DELETE FROM {table} WHERE {name} = %s RETURNING 1", identifier)
    await shared_stack.value("DELETE FROM batches WHERE id = %s RETURNING 1", made.batch)
    await shared_stack.value("DELETE FROM files WHERE id = %s RETURNING 1", made.file)
    await shared_stack.value("DELETE FROM projects WHERE id = %s RETURNING 1", made.project)


@pytest.fixture
async def user(shared_stack: Stack) -> AsyncIterator[ConsoleUser]:
    async with console_user(shared_stack, OPERATOR_TOKEN) as one:
        yield one


async def _shown(user: ConsoleUser, path: str) -> ConsolePage:
    page = await user.get(f"/console/{path}")
    assert page.status == 200, page.text
    assert _EVIL not in page.html
    assert "secret-of-tests" not in page.html
    return page


async def _confirmed(user: ConsoleUser, path: str, query: str, *fields: tuple[str, str]) -> None:
    """Sees the question, and answers yes."""
    question = await _shown(user, f"{path}?{query}")
    answer = await user.post(
        f"/console/{path}", [("form_token", question.form_token), *fields], follows=False
    )
    assert answer.status == 303, answer.text


async def _audited(stack: Stack, action: str, about: str) -> str:
    who = "SELECT min(os_user) FROM audit WHERE action = %s AND object = %s"
    return str(await stack.value(who, action, about))


async def test_the_processes_are_listed_with_their_slots(user: ConsoleUser) -> None:
    page = await _shown(user, "workers")
    assert re.search(r"worker live \d+ of \d+", page.text)
    assert "serves requests" in page.text
    assert "live" in page.text


async def test_a_drain_reaches_only_the_process_that_was_named(
    shared_stack: Stack, user: ConsoleUser
) -> None:
    process = new_uuid()
    later = datetime.now(UTC) + timedelta(hours=1)
    values = {"id": process, "kind": "web", "host": "of-a-test", "pid": 1, "expires_at": later}
    await _insert(shared_stack, "workers", **values)
    try:
        await _confirmed(user, "workers/drain", f"id={process}", ("id", str(process)))
        requested = "drain_requested_at IS NOT NULL AND NOT dead"
        draining = f"SELECT string_agg(host, ',') FROM workers WHERE {requested}"
        assert await shared_stack.value(draining) == "of-a-test"
        assert await _audited(shared_stack, "worker.drain", str(process)) == (
            "console (operator token)"
        )
        assert "draining" in (await _shown(user, "workers")).text
    finally:
        await shared_stack.value("DELETE FROM workers WHERE id = %s RETURNING 1", process)
    assert (await user.get(f"/console/workers/drain?id={process}")).status == 404
    assert (await user.get("/console/workers/drain?id=x")).status == 404


async def test_a_project_shows_quotas_and_keys_and_a_key_is_revoked(
    shared_stack: Stack, user: ConsoleUser, things: Things
) -> None:
    assert "lists-" in (await _shown(user, "projects?name=LISTS-")).text
    path = f"projects/{admin_id('proj', things.project)}"
    page = await _shown(user, path)
    assert "running 0 7" in page.text
    assert "12 345" in page.text
    assert "sk-lists…" in page.text
    key = admin_id("key", things.key)
    await _confirmed(user, "projects/keys/revoke", f"id={key}", ("id", key))
    assert "revoked" in (await _shown(user, path)).text
    assert await _audited(shared_stack, "key.revoke", "sk-lists") == "console (operator token)"
    assert (await user.get("/console/projects/proj_1")).status == 404


async def test_an_endpoint_shows_its_deliveries_and_is_changed(
    shared_stack: Stack, user: ConsoleUser, things: Things
) -> None:
    endpoint, event = admin_id("whe", things.endpoint), event_id(things.event)
    assert "https://127.0.0.1:9/" in (await _shown(user, "webhooks")).text
    path = f"webhooks/{endpoint}"
    for query, is_shown in (("", True), ("?state=failed", True), ("?state=delivered", False)):
        assert (event[:20] in (await _shown(user, path + query)).text) is is_shown
    assert (await user.get(f"/console/{path}?state=lost")).status == 400
    fields = ("id", endpoint), ("action", "disable")
    await _confirmed(user, "webhooks/change", f"id={endpoint}&action=disable", *fields)
    page = await _shown(user, path)
    assert "it was disabled by hand" in page.text
    assert event[:20] in page.text
    assert "/webhooks/" in (await _shown(user, "webhooks?failing=1")).html
    async with console_user(shared_stack, OPERATOR_TOKEN, web=1) as other:
        overview = await other.get("/console")
    assert re.search("Webhook endpoints: [0-9a-z, ]*disabled", overview.text)
    assert "/webhooks?failing=1" in overview.html
    resent = ("id", endpoint), ("event", event)
    await _confirmed(user, "webhooks/resend", f"id={endpoint}&event={event}", *resent)
    assert event[:20] in (await _shown(user, f"{path}?state=waiting")).text
    for action, about in (("webhook.disable", endpoint), ("webhook.resend", event)):
        assert await _audited(shared_stack, action, about) == "console (operator token)"


async def test_a_batch_shows_its_progress_and_is_cancelled(
    shared_stack: Stack, user: ConsoleUser, things: Things
) -> None:
    batch = batch_id(things.batch)
    assert "40 %" in (await _shown(user, "batches?open=1")).text
    assert "4 completed, 0 failed of 10 requests" in (await _shown(user, f"batches/{batch}")).text
    await _confirmed(user, "batches/cancel", f"id={batch}", ("id", batch))
    assert await _audited(shared_stack, "batch.cancel", batch) == "console (operator token)"
    await _confirmed(user, "batches/cancel", f"id={batch}", ("id", batch))
    page = await user.get(f"/console/batches/cancel?id={batch}")
    await shared_stack.value(
        "UPDATE batches SET status = 'completed' WHERE id = %s RETURNING status", things.batch
    )
    late = await user.post(
        "/console/batches/cancel", [("form_token", page.form_token), ("id", batch)]
    )
    assert (late.status, "The batch is completed." in late.text) == (409, True)


async def test_files_are_summed_up_by_project(user: ConsoleUser, things: Things) -> None:
    assert "2.0 KiB" in (await _shown(user, "files")).text
    assert "no file, or does not exist" in (await _shown(user, "files?project=nobodys")).text


async def test_a_vector_store_says_why_its_file_has_failed(
    user: ConsoleUser, things: Things
) -> None:
    store = vector_store_id(things.store)
    assert store[:19] in (await _shown(user, "vector-stores")).text
    page = await _shown(user, f"vector-stores/{store}?status=failed")
    assert "invalid_file : The file is no PDF" in page.text
    assert (
        "No file is completed."
        in (await _shown(user, f"vector-stores/{store}?status=completed")).text
    )
    assert (await user.get(f"/console/vector-stores/{store}?status=lost")).status == 400


async def test_usage_is_summed_up_in_groups(user: ConsoleUser, things: Things) -> None:
    project = quote(things.name)
    for group in ("day", "project", "key", "model", "upstream", "both"):
        page = await _shown(user, f"usage?by={group}&days=1&project={project}")
        assert "3 12 345 0 678" in page.text
        table = page.text.partition("Of these cached")[2]
        assert ("lists-" in table) is (group in ("project", "both"))
    assert "There is no project nobodys." in (await _shown(user, "usage?project=nobodys")).text
    assert "Nothing was used." in (await _shown(user, "usage?day=2020-01-31")).text
    for wrong in ("by=hour", "days=2", "day=yesterday"):
        assert (await user.get(f"/console/usage?{wrong}")).status == 400


async def test_an_upstream_shows_what_workers_know_of_it_and_is_checked(
    shared_stack: Stack, user: ConsoleUser
) -> None:
    page = await _shown(user, "upstreams")
    assert "default closed" in page.text
    assert re.search(r"Written by (\d+) of \1 live worker", page.text)
    fields = [("form_token", page.form_token), ("name", "default")]
    checked = await user.post("/console/upstreams/check", fields)
    assert "default answers. It lists" in checked.text
    assert await _audited(shared_stack, "upstream.check", "default") == "console (operator token)"
    unknown = [("form_token", page.form_token), ("name", "other")]
    assert (await user.post("/console/upstreams/check", unknown)).status == 404


async def test_lists_have_words_for_what_is_not_there_and_for_wrong_positions(
    user: ConsoleUser,
) -> None:
    assert "No endpoint fits." in (await _shown(user, "webhooks?project=nobodys")).text
    assert "No batch fits." in (await _shown(user, "batches?project=nobodys")).text
    for path in ("webhooks", "batches", "files", "schedules", "code", "vector-stores"):
        assert (await user.get(f"/console/{path}?before=x")).status == 400
        assert (await user.get(f"/console/{path}/x")).status == 404


async def test_who_only_looks_sees_the_lists_and_changes_nothing(
    shared_stack: Stack, things: Things
) -> None:
    async with console_user(shared_stack, READ_ONLY_TOKEN) as reader:
        for path in _LISTS:
            assert "Drain" not in (await _shown(reader, path)).text
        for path in ("webhooks", f"webhooks/{admin_id('whe', things.endpoint)}"):
            page = await _shown(reader, path)
            assert ("https://127.0.0.1:9/…" in page.text, "hooks-token" in page.html) == (True, 0)
        token = (await _shown(reader, "workers")).form_token
        for path in (
            "workers/drain",
            "projects/keys/revoke",
            "webhooks/change",
            "webhooks/resend",
            "webhooks/new",
            "webhooks/test",
            "batches/cancel",
            "batches/retry",
            "retry",
            "schedules/change",
            "code/stop",
            "upstreams/check",
        ):
            refused = await reader.post(f"/console/{path}", [("form_token", token)])
            assert refused.status == 403
        for path in ("webhooks/new", "batches/retry", "retry"):
            assert (await reader.get(f"/console/{path}")).status == 403
        shown = await reader.get(f"/console/webhooks/{admin_id('whe', things.endpoint)}")
        assert "Deliver again" not in shown.text
        assert "Send a test event" not in shown.text
