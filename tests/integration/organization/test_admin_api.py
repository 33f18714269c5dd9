"""The admin API, as the official client's `client.admin` uses it, and usage."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import openai
import pytest

from models.db.database import Pool, fetch_idempotent, open_pool
from models.db.queries.usage import USED_TOKENS
from models.ids import new_uuid, parse_admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.conftest import PrivateStack
from tests.integration.operator.test_operations import backburner, command_facts
from tests.support import keys
from tests.support.api import UNKNOWN_RESPONSE_ID, until
from tests.support.fake_upstream import FakeUpstream, done, finish, hang, reply, text, usage
from tests.support.stack import Stack
from tests.support.worker_rows import run_purge, settings_for


def _admin(stack: Stack) -> openai.AsyncOpenAI:
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
    client = stack.openai()
    client.admin_api_key = keys.create(stack.dsn, "default", grant=grant)
    return client


async def used_tokens(pool: Pool, project: UUID, since: datetime) -> int:
    rows = await fetch_idempotent(pool, USED_TOKENS, {"project": project, "since": since})
    return rows[0]


async def test_projects_are_made_listed_changed_and_archived(shared_stack: Stack) -> None:
    projects = _admin(shared_stack).admin.organization.projects
    policy = {"retention": "7d", "limits": {"body": 1024}}
    made = await projects.create(name="by api", extra_body={"weight": 3, "policy": policy})
    assert (made.object, made.status, made.archived_at) == ("organization.project", "active", None)
    assert made.model_extra == {"weight": 3, "policy": policy}
    patch = {"policy": {"limits": None, "zero_retention": True}}
    changed = await projects.update(made.id, name="renamed", extra_body=patch)
    assert changed.name == "renamed"
    assert changed.model_extra is not None
    assert changed.model_extra["policy"] == {"retention": "7d", "zero_retention": True}
    assert (await projects.retrieve(made.id)).name == "renamed"
    names = [project.name async for project in projects.list(limit=1)]
    assert {"default", "renamed"} <= set(names)
    assert (await projects.archive(made.id)).status == "archived"
    assert "renamed" not in [project.name async for project in projects.list(limit=100)]
    archived = projects.list(limit=100, include_archived=True)
    assert "renamed" in [project.name async for project in archived]


async def test_a_service_account_has_keys_that_work_until_they_are_deleted(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    projects = _admin(shared_stack).admin.organization.projects
    project = await projects.create(name="accounts")
    account = await projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    api = shared_stack.api(key=account.api_key.value)
    assert (await api.create(fake.script(reply("hello"))))["output_text"] == "hello"
    second = await projects.service_accounts.api_keys.create(
        account.id, project_id=project.id, name="reader", scopes=["read"], expires_in_seconds=3600
    )
    assert second.expires_at is not None
    listed = [key async for key in projects.api_keys.list(project.id, limit=1)]
    assert [key.name for key in listed] == ["ci", "reader"]
    first_key = listed[0]
    assert first_key.owner.service_account is not None
    assert first_key.owner.service_account.id == account.id
    assert account.api_key.value not in json.dumps([key.to_dict() for key in listed])
    assert first_key.last_used_at is not None
    assert (
        await projects.api_keys.retrieve(first_key.id, project_id=project.id)
    ).id == first_key.id
    changed = await projects.api_keys.update(
        first_key.id, project_id=project.id, scopes=["read"], expires_in_seconds=3600
    )
    assert changed.model_extra is not None
    assert changed.model_extra["scopes"] == ["read"]
    assert changed.expires_at is not None

    async def only_reads() -> bool:
        return (await api.call("POST", "/responses", {})).status == 403

    await until(only_reads, 5)
    assert (await api.call("GET", "/models")).status == 200
    with pytest.raises(openai.BadRequestError):
        await projects.api_keys.update(first_key.id, project_id=project.id)
    other = await projects.create(name="other accounts")
    with pytest.raises(openai.NotFoundError):
        await projects.api_keys.update(first_key.id, project_id=other.id, scopes=[])
    widened = await projects.api_keys.update(first_key.id, project_id=project.id, scopes=[])
    assert widened.model_extra is not None
    assert widened.model_extra["scopes"] == ["responses"]
    continuing = {"model": "any", "input": "x", "previous_response_id": UNKNOWN_RESPONSE_ID}
    for models, code in (([], "model_not_found"), (["*"], "previous_response_not_found")):
        await projects.api_keys.update(
            first_key.id, project_id=project.id, extra_body={"allowed_models": models}
        )

        async def gets(wanted: str = code) -> bool:
            answer = await api.call("POST", "/responses", continuing)
            return bool(answer.error["code"] == wanted)

        await until(gets, 5)
    deleted = await projects.api_keys.delete(first_key.id, project_id=project.id)
    assert deleted.deleted

    async def is_refused() -> bool:
        return (await api.call("GET", "/models")).status == 401

    await until(is_refused, 5)
    accounts = [one async for one in projects.service_accounts.list(project.id)]
    assert [one.id for one in accounts] == [account.id]
    assert (await projects.service_accounts.delete(account.id, project_id=project.id)).deleted
    assert [key async for key in projects.api_keys.list(project.id)] == []


async def test_keys_of_admins(shared_stack: Stack) -> None:
    client = _admin(shared_stack)
    admin_keys = client.admin.organization.admin_api_keys
    made = await admin_keys.create(name="second", expires_in_seconds=600)
    assert made.object == "organization.admin_api_key"
    listed = [key.id async for key in admin_keys.list(limit=1, order="asc")]
    assert listed[-1] == made.id
    assert (await admin_keys.retrieve(made.id)).redacted_value == f"{made.value[:8]}…"
    second = client.with_options(admin_api_key=made.value)
    assert (await second.admin.organization.admin_api_keys.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await admin_keys.retrieve(made.id)


async def test_the_admin_api_refuses_other_keys_and_wrong_bodies(shared_stack: Stack) -> None:
    refused = await shared_stack.api().call("GET", "/organization/projects")
    assert (refused.status, refused.error["code"]) == (403, "missing_scope")
    admin = shared_stack.api(key=_admin(shared_stack).admin_api_key)
    for method, path, body, status, code in (
        ("POST", "/organization/projects", {}, 400, "missing_required_parameter"),
        ("POST", "/organization/projects", {"name": 1}, 400, "invalid_type"),
        ("POST", "/organization/projects", {"name": "default"}, 400, "invalid_value"),
        ("POST", "/organization/projects", {"name": "x", "weight": 0}, 400, None),
        ("POST", "/organization/projects", {"name": "x", "policy": {"no": 1}}, 400, None),
        ("POST", "/organization/projects", {"name": "x", "no": 1}, 400, "unknown_parameter"),
        ("GET", "/organization/projects/proj_x", None, 404, None),
        ("GET", f"/organization/projects/proj_{'0' * 32}/api_keys", None, 404, None),
        ("GET", "/organization/projects?after=x", None, 400, "invalid_value"),
        ("GET", "/organization/usage/completions", None, 400, "missing_required_parameter"),
        ("GET", "/organization/usage/completions?start_time=0&page=x", None, 400, None),
        ("GET", "/organization/usage/completions?start_time=0&group_by=x", None, 400, None),
    ):
        answer = await admin.call(method, path, body)
        assert answer.status == status, (path, body, answer.raw)
        assert code is None or answer.error["code"] == code


async def test_lists_in_policies_and_keys_are_bounded(shared_stack: Stack) -> None:
    """A page has a hundred of them."""
    grant = KeyGrant(frozenset((Scope.ADMIN,)))
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "default", grant=grant)
    admin = shared_stack.api(key=key)
    names = ["m" * 100] * 700
    body = {"name": "p", "policy": {"models": names}}
    refused = await admin.call("POST", "/organization/projects", body)
    assert (refused.status, refused.error["param"]) == (400, "policy")
    made = await admin.call("POST", "/organization/projects", {"name": "bounded lists"})
    for given in (names, ["m"] * 1001):
        path = f"/organization/projects/{made.body['id']}/service_accounts"
        refused = await admin.call("POST", path, {"name": "a", "allowed_models": given})
        assert (refused.status, refused.error["code"]) == (400, "array_above_max_length")


async def test_usage_outlives_responses(shared_stack: Stack, fake: FakeUpstream) -> None:
    client = _admin(shared_stack)
    project = await client.admin.organization.projects.create(name="usage")
    account = await client.admin.organization.projects.service_accounts.create(
        project.id, name="counted"
    )
    assert account.api_key is not None
    api = shared_stack.api(key=account.api_key.value)
    counts = usage(prompt=100, completion=20, cached=40, reasoning_tokens=5)
    model = fake.script(*([text("x"), finish(), counts, done()] for _ in range(3)))
    background = await api.create_background(model)
    await api.wait_for_end(background)
    await api.create(model, store=False)
    assert (await api.call("DELETE", f"/responses/{background}")).status == 200
    now = int(datetime.now(UTC).timestamp())
    for width, group in (("1m", "model"), ("1h", "api_key_id"), ("1d", "project_id")):
        page = await client.admin.organization.usage.completions(
            start_time=now - 60,
            bucket_width=width,  # type: ignore[arg-type]
            group_by=[group],  # type: ignore[list-item]
            project_ids=[project.id],
        )
        results: list[Any] = [result for bucket in page.data for result in bucket.results]
        assert sum(result.num_model_requests for result in results) == 2
        assert sum(result.input_tokens for result in results) == 200
        assert sum(result.input_cached_tokens for result in results) == 80
        assert sum(result.output_tokens for result in results) == 40
        expected = {
            "model": model,
            "project_id": project.id,
            "api_key_id": account.api_key.id,
        }
        assert {getattr(result, group) for result in results} == {expected[group]}
    settings = settings_for(shared_stack.dsn)
    project_id = parse_admin_id("proj", project.id)
    assert project_id is not None
    async with open_pool(settings, "test", 2) as pool:
        for since, tokens in ((timedelta(minutes=5), 240), (timedelta(seconds=0), 0)):
            until_now = datetime.now(UTC) - since + timedelta(seconds=5) * (tokens == 0)
            assert await used_tokens(pool, project_id, until_now) == tokens
    rows = await command_facts(
        shared_stack, "usage", "--project", "usage", "--by", "model", "--by", "tier"
    )
    assert rows == [
        {
            "model": model,
            "tier": "",
            "requests": 2,
            "input_tokens": 200,
            "cached_tokens": 80,
            "output_tokens": 40,
            "reasoning_tokens": 10,
            "cost": None,
            "currency": "EUR",
            "requests_without_cost": 2,
        }
    ]
    assert "usage" in (await backburner(shared_stack, "usage", "--by", "project")).out


async def test_usage_is_apart_for_completion_windows(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    client = _admin(shared_stack)
    project = await client.admin.organization.projects.create(name="windows")
    account = await client.admin.organization.projects.service_accounts.create(
        project.id, name="counted"
    )
    assert account.api_key is not None
    api = shared_stack.api(key=account.api_key.value)
    model = fake.script(*(reply("x") for _ in range(4)))
    for window in ("soonest", "2h", "8h", "8h"):
        options = {"completion_window": window}
        await api.wait_for_end(await api.create_background(model, background_options=options))
    now = int(datetime.now(UTC).timestamp())
    page = await client.admin.organization.usage.completions(
        start_time=now - 60,
        group_by=["completion_window"],  # type: ignore[list-item]
        project_ids=[project.id],
    )
    results: list[Any] = [result for bucket in page.data for result in bucket.results]
    requests = {
        (each.completion_window, each.price_factor): each.num_model_requests for each in results
    }
    assert requests == {(None, 1): 1, ("2h", 0.75): 1, ("8h", 0.5): 2}
    rows = await command_facts(shared_stack, "usage", "--project", "windows", "--by", "window")
    assert {(row["window"], row["requests"], row["price_factor"]) for row in rows} == {
        ("", 1, 1),
        ("2h", 1, 0.75),
        ("8h", 2, 0.5),
    }


async def test_days_are_summed_up_once_and_entries_deleted_later(shared_stack: Stack) -> None:
    """The days of the past are exact before and after the purge has summed them up."""
    project = UUID(int=7)
    await shared_stack.value(
        "INSERT INTO usage_entries (project_id, ended_at, model, requests, input_tokens,"
        " cached_tokens, output_tokens, reasoning_tokens)"
        " SELECT %s, now() - interval '20 days' + n * interval '1 day', 'm', 1, 10, 0, 1, 0"
        " FROM generate_series(0, 19) n RETURNING 1",
        project,
    )
    await shared_stack.value(
        "UPDATE usage_rollup SET rolled_until = (now() AT TIME ZONE 'UTC')::date - 25 RETURNING 1"
    )
    settings = settings_for(shared_stack.dsn)
    since = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(
        days=15
    )
    async with open_pool(settings, "test", 2) as pool:
        before = await used_tokens(pool, project, since)
        assert before == 15 * 11
        left = "SELECT count(*) FROM usage_entries WHERE project_id = %s"

        async def is_purged() -> bool:
            await run_purge(settings)
            return bool(await shared_stack.value(left, project) <= 7)

        await until(is_purged, 20)
        assert await used_tokens(pool, project, since) == before
        await run_purge(settings)
        assert await used_tokens(pool, project, since) == before


async def test_counts_that_fit_into_no_sum_stop_no_roll_up(shared_stack: Stack) -> None:
    """A release stored counts as clients and upstreams gave them."""
    project, huge = UUID(int=8), 2**63 - 1
    await shared_stack.value(
        "INSERT INTO usage_entries (project_id, ended_at, model, requests, input_tokens,"
        " cached_tokens, output_tokens, reasoning_tokens, units, kind)"
        " SELECT %s, now() - interval '2 days', 'm', 1, %s, 0, %s, 0, %s, 'images'"
        " FROM generate_series(1, 2) RETURNING 1",
        *(project, huge, huge, huge),
    )
    await shared_stack.value(
        "UPDATE usage_rollup SET rolled_until = (now() AT TIME ZONE 'UTC')::date - 3 RETURNING 1"
    )
    settings = settings_for(shared_stack.dsn)
    summed = "SELECT units > 0 FROM usage_days WHERE project_id = %s"

    async def is_summed() -> bool:
        await run_purge(settings)
        return bool(await shared_stack.value(summed, project))

    await until(is_summed, 20)
    async with open_pool(settings, "test", 2) as pool:
        since = datetime.now(UTC) - timedelta(days=9)
        assert await used_tokens(pool, project, since) > 0


async def test_zero_retention_leaves_nothing_behind(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """A canary in prompts and outputs is in no table a minute after the ends."""
    async with private_stack() as running:
        canary = "canary-of-zero-retention"
        key = keys.create(running.dsn, "zero")
        await command_facts(running, "projects", "set", "zero", "--zero-retention")
        api = running.api(key=key)
        model = fake.script(*(reply(f"{canary}-output") for _ in range(3)))
        background = await api.create_background(model, input=f"{canary}-prompt")
        shown = await api.wait_for_end(background)
        assert (shown["store"], shown["output_text"]) == (False, f"{canary}-output")
        body = {"input": f"{canary}-prompt", "instructions": canary, "metadata": {"note": canary}}
        for _ in range(2):
            cached = await api.create(model, **body, cache=True)
            assert cached["output_text"] == f"{canary}-output"
        for path, refused_body in (
            ("/conversations", {}),
            ("/responses", {"model": model, "input": "x", "conversation": f"conv_{'0' * 32}"}),
        ):
            refused = await api.call("POST", path, refused_body)
            assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
        assert await _tables_with(running, canary)
        settings = settings_for(running.dsn)

        async def is_gone() -> bool:
            await run_purge(settings)
            return not await _tables_with(running, canary)

        await until(is_gone, 60, every=4)
        async with running.redis() as redis:
            for name in await redis.keys("*"):
                kind = await redis.type(name)
                if kind == b"string":
                    assert canary.encode() not in (await redis.get(name) or b"")
        rows = await command_facts(running, "usage", "--project", "zero")
        assert [row["requests"] for row in rows] == [3]


async def _tables_with(stack: Stack, needle: str) -> list[str]:
    """The tables with a row that has this text, also as bytes: what a dump would show."""
    names = await stack.value(
        "SELECT array_agg(table_name::text ORDER BY table_name) FROM information_schema.tables"
        " WHERE table_schema = current_schema()"
    )
    found = []
    for name in names:
        count = await stack.value(
            f"SELECT count(*) FROM {name} t WHERE t::text LIKE %s OR t::text LIKE %s",
            f"%{needle}%",
            f"%{needle.encode().hex()}%",
        )
        if count:
            found.append(name)
    return found


async def test_a_project_has_its_own_retention(shared_stack: Stack, fake: FakeUpstream) -> None:
    key = keys.create(shared_stack.dsn, "short")
    await command_facts(shared_stack, "projects", "set", "short", "--retention", "2h")
    api = shared_stack.api(key=key)
    response = await api.create(fake.script(reply("x")))
    seconds = await shared_stack.value(
        "SELECT extract(epoch FROM expires_at - created_at)::int FROM responses WHERE id = %s",
        UUID(hex=response["id"].removeprefix("resp_")),
    )
    assert abs(seconds - 7200) < 60
    model = fake.script([text("x"), hang()])
    await api.create_background(model)
    await until(lambda: bool(fake.requests_for(model)), 20)


async def test_proxied_chat_completions_count(shared_stack: Stack, fake: FakeUpstream) -> None:
    api = shared_stack.api(key=keys.create(shared_stack.dsn, "chat usage"))
    model = fake.script([text("x"), finish(), usage(prompt=30, completion=4), done()])
    body = {"model": model, "messages": [{"role": "user", "content": "Hi."}], "stream": True}
    answer = await api.call("POST", "/chat/completions", body)
    assert answer.status == 200

    async def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await command_facts(
            shared_stack, "usage", "--project", "chat usage", "--by", "model"
        )
        return found

    counted = await until(rows, 10)
    assert [(row["requests"], row["input_tokens"], row["output_tokens"]) for row in counted] == [
        (1, 30, 4)
    ]


async def test_a_dead_workers_journal_goes_when_its_responses_have_another_owner(
    shared_stack: Stack,
) -> None:
    worker = new_uuid()
    await shared_stack.value(
        "INSERT INTO workers (id, kind, host, pid, expires_at, dead)"
        " VALUES (%s, 'worker', 'gone', 1, now(), true) RETURNING 1",
        worker,
    )
    await shared_stack.value(
        "INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers,"
        " frames) VALUES (%s, 0, '{}', '{}', '{}', '{}', '{}') RETURNING 1",
        worker,
    )
    settings = settings_for(shared_stack.dsn)

    async def is_gone() -> bool:
        await run_purge(settings)
        left = await shared_stack.value("SELECT count(*) FROM journal WHERE worker = %s", worker)
        return bool(left == 0)

    await until(is_gone, 20)
