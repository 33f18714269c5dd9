"""Webhook endpoints over the admin API, their metrics, and how long their deliveries are kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import openai
import pytest
from aiohttp import web

from models.egress import NOT_REACHED
from models.ids import PROJECT, admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.support import keys
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, reply, status
from tests.support.stack import Stack
from tests.support.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.webhooks import Hooks, unwrap
from tests.support.worker_rows import run_purge, settings_for


class AdminApi:
    """The routes of the webhooks of one project, for an admin."""

    def __init__(self, stack: Stack, hooks: Hooks, project: UUID) -> None:
        self.hooks = hooks
        grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
        self.api: Api = stack.api(key=keys.create(stack.dsn, "default", grant=grant))
        self.base = f"/organization/projects/{admin_id(PROJECT, project)}/webhook_endpoints"

    async def post(self, path: str = "", body: Any = None) -> Any:
        """The object that a POST returns, which must succeed."""
        answer = await self.api.call("POST", self.base + path, {} if body is None else body)
        assert answer.status == 200, answer.raw
        return answer.body

    async def get(self, path: str = "") -> Any:
        """The object at a path."""
        answer = await self.api.call("GET", self.base + path)
        assert answer.status == 200, answer.raw
        return answer.body


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as one:
        yield one


@pytest.fixture
async def admin(tool_stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[AdminApi]:
    """For a project of this test; its endpoints are deleted at the end."""
    hooks = await asyncio.to_thread(Hooks, tool_stack, request.node.name)
    [row] = await hooks.sql(f"SELECT id FROM projects WHERE name = '{hooks.project}'")
    one = await asyncio.to_thread(AdminApi, tool_stack, hooks, row["id"])
    yield one
    for endpoint in (await one.get("?limit=100"))["data"]:
        await one.api.call("DELETE", f"{one.base}/{endpoint['id']}")


async def test_few_tests_of_a_project_wait_and_end_with_their_client(
    admin: AdminApi, receiver: WebhookReceiver
) -> None:
    """Four hundred at once doubled the time of others' creates."""
    receiver.released.clear()
    path = f"{admin.base}/{(await admin.post('', {'name': 'ci', 'url': receiver.url}))['id']}/test"
    waiting = [asyncio.create_task(admin.api.call("POST", path, {})) for _ in range(20)]
    try:
        await until(lambda: sum(task.done() for task in waiting) == 4)
        refused = [task.result() for task in waiting if task.done()]
        assert {one.status for one in refused} == {429}
        assert all(one.headers["retry-after"] for one in refused)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    receiver.released.set()

    async def is_free() -> bool:
        return (await admin.api.call("POST", path, {})).status == 200

    await until(is_free)


async def test_an_admin_makes_tests_changes_and_deletes_an_endpoint(
    admin: AdminApi, receiver: WebhookReceiver, fake: FakeUpstream
) -> None:
    wanted = {"name": "ci", "url": receiver.url, "event_types": ["response.failed"]}
    made = await admin.post("", wanted)
    assert {name: made[name] for name in wanted} == wanted
    assert (made["object"], made["status"]) == ("webhook_endpoint", "enabled")
    assert made["signing_secret"].endswith(made["signing_secret_hint"][-4:])
    one = f"/{made['id']}"
    tested = await admin.post(f"{one}/test", {"event_type": "response.completed"})
    assert (tested["status_code"], tested["success"], tested["error"]) == (200, True, None)
    [hook] = receiver.hooks
    event = unwrap(hook, made["signing_secret"])
    assert (event.id, event.type) == (tested["event_id"], "response.completed")

    changed = await admin.post(one, {"name": "all", "event_types": []})
    assert (changed["name"], len(changed["event_types"]) > 3) == ("all", True)
    assert changed["updated_at"] >= made["updated_at"]
    created = await admin.hooks.api.create_background(fake.script(reply("Hello.")))
    await until(lambda: len(receiver.hooks) == 2)
    assert json.loads(receiver.hooks[1].body)["data"] == {"id": created}
    await admin.hooks.until_delivered(made["id"], 2)

    newest = await admin.get(f"{one}/deliveries?limit=1")
    assert newest["has_more"]
    [delivery] = newest["data"]
    assert (delivery["data"], delivery["status"]) == ({"id": created}, "delivered")
    rest = await admin.get(f"{one}/deliveries?limit=1&after={delivery['id']}&status=delivered")
    assert [each["id"] for each in rest["data"]] == [tested["event_id"]]
    assert (await admin.get(f"{one}/deliveries?status=failed"))["data"] == []
    resent = await admin.post(f"{one}/deliveries/{delivery['id']}/resend")
    assert resent["created_at"] == delivery["created_at"]
    await until(lambda: len(receiver.hooks) == 3)
    first, second = receiver.hooks[1:]
    assert (first.id, first.body) == (second.id, second.body)

    disabled = await admin.post(one, {"enabled": False})
    assert (disabled["status"], disabled["disabled_reason"]) == (
        "disabled",
        "it was disabled by hand",
    )
    refused = await admin.api.call("POST", f"{admin.base}{one}/test", {})
    assert (refused.status, "disabled" in refused.error["message"]) == (400, True)
    assert (await admin.post(one, {"enabled": True}))["status"] == "enabled"
    deleted = await admin.api.call("DELETE", admin.base + one)
    assert deleted.body == {
        "object": "webhook_endpoint.deleted",
        "id": made["id"],
        "deleted": True,
    }
    assert (await admin.get())["data"] == []
    rows = await admin.hooks.sql(
        f"SELECT action, key_prefix FROM audit WHERE object = '{made['id']}' ORDER BY at"
    )
    verbs = ("create", "test", "set", "disable", "enable", "delete")
    assert [row["action"] for row in rows] == [f"webhook.{verb}" for verb in verbs]
    assert all(row["key_prefix"] for row in rows)
    [entry] = await admin.hooks.sql(
        f"SELECT project, details FROM audit WHERE object = '{delivery['id']}'"
    )
    assert (entry["project"], entry["details"]) == (
        admin.hooks.project,
        {"endpoint": made["id"]},
    )


async def test_the_official_client_makes_endpoints_of_its_own_project(
    admin: AdminApi, receiver: WebhookReceiver, tool_stack: Stack
) -> None:
    client = tool_stack.openai(key=admin.hooks.api.key)
    made = await client.webhooks.create(
        name="jobs", url=receiver.url, event_types=["response.completed"]
    )
    assert made.signing_secret.startswith("whsec_")
    assert [each.id async for each in client.webhooks.list(limit=1)] == [made.id]
    assert [each["id"] for each in (await admin.get())["data"]] == [made.id]
    renamed = await client.webhooks.update(made.id, name="all jobs")
    assert (await client.webhooks.retrieve(made.id)).name == renamed.name == "all jobs"
    rotated = await client.webhooks.rotate_secret(made.id)
    assert rotated.signing_secret != made.signing_secret
    tested = await client.webhooks.test(made.id, event_type="response.completed")
    assert (tested.success, tested.status_code) == (True, 200)
    assert unwrap(receiver.hooks[0], rotated.signing_secret).type == tested.event_type
    assert "batch.expired" in (await client.webhooks.event_types.list()).data
    [row] = await admin.hooks.sql(
        f"SELECT key_prefix FROM audit WHERE object = '{made.id}' AND action = 'webhook.create'"
    )
    assert row["key_prefix"]

    reads = tool_stack.openai(
        key=await asyncio.to_thread(
            keys.create,
            tool_stack.dsn,
            admin.hooks.project,
            grant=KeyGrant(frozenset((Scope.READ,)), "reads"),
        )
    )
    assert (await reads.webhooks.retrieve(made.id)).id == made.id
    with pytest.raises(openai.PermissionDeniedError):
        await reads.webhooks.delete(made.id)
    stranger = tool_stack.openai()
    for request in (stranger.webhooks.retrieve, stranger.webhooks.delete):
        with pytest.raises(openai.NotFoundError):
            await request(made.id)
    assert (await client.webhooks.delete(made.id)).deleted


async def test_a_rotation_by_an_admin_keeps_the_old_secret_only_if_that_is_wanted(
    admin: AdminApi, receiver: WebhookReceiver
) -> None:
    made = await admin.post("", {"url": receiver.url})
    one = f"/{made['id']}"
    keep = {"keep_old_secret_active_for_24_hours": True}
    second = await admin.post(f"{one}/rotate_secret", keep)
    await admin.post(f"{one}/test")
    third = await admin.post(f"{one}/rotate_secret")
    await admin.post(f"{one}/test")
    both, alone = (hook.headers["webhook-signature"].split() for hook in receiver.hooks)
    assert (len(both), len(alone)) == (2, 1)
    for secret in (made["signing_secret"], second["signing_secret"]):
        assert unwrap(receiver.hooks[0], secret)
    assert unwrap(receiver.hooks[1], third["signing_secret"])


async def test_requests_that_cannot_be_done_get_an_error_and_change_nothing(
    admin: AdminApi, receiver: WebhookReceiver, tool_stack: Stack
) -> None:
    made = await admin.post("", {"url": receiver.url})
    one, url = f"/{made['id']}", receiver.url
    unknown = f"/whe_{'0' * 32}"
    wrong: tuple[tuple[str, str, Any, int, str | None], ...] = (
        ("POST", "", {}, 400, "url"),
        ("POST", "", {"url": 1}, 400, "url"),
        ("POST", "", {"url": "http://10.0.0.1/hook"}, 400, "url"),
        ("POST", "", {"url": "ftp://example.com/"}, 400, "url"),
        ("POST", "", {"url": "http://127.0.0.1/ "}, 400, "url"),
        ("POST", "", {"url": url, "event_types": ["response.begun"]}, 400, "event_types"),
        ("POST", "", {"url": url, "event_types": "response.failed"}, 400, "event_types"),
        ("POST", "", {"url": url, "name": "a\n"}, 400, "name"),
        ("POST", "", {"url": url, "secret": "whsec_x"}, 400, "secret"),
        ("POST", "", b"[]", 400, None),
        ("POST", one, {"enabled": "no"}, 400, "enabled"),
        ("POST", one, {"url": "http://10.0.0.1/hook"}, 400, "url"),
        ("POST", f"{one}/rotate_secret", {"overlap_seconds": -1}, 400, "overlap_seconds"),
        ("POST", f"{one}/test", {"event_type": "batch.begun"}, 400, "event_type"),
        ("GET", "?after=x", None, 400, "after"),
        ("GET", f"{one}/deliveries?status=lost", None, 400, "status"),
        ("POST", f"{one}/deliveries/evt_{'0' * 32}/resend", {}, 404, None),
        ("POST", f"{one}/deliveries/x/resend", {}, 404, None),
        *((method, unknown, {}, 404, None) for method in ("GET", "POST", "DELETE")),
        ("POST", "/x/rotate_secret", {}, 404, None),
        ("POST", f"{unknown}/test", {}, 404, None),
        ("GET", f"{unknown}/deliveries", None, 404, None),
    )
    for method, path, body, code, param in wrong:
        answer = await admin.api.call(method, admin.base + path, body)
        assert (answer.status, answer.error["param"]) == (code, param), (path, body, answer.raw)
    other = f"/organization/projects/proj_{'0' * 32}/webhook_endpoints"
    assert (await admin.api.call("GET", other)).status == 404
    refused = await admin.hooks.api.call("GET", admin.base)
    assert (refused.status, refused.error["code"]) == (403, "missing_scope")
    [row] = await admin.hooks.sql("SELECT id FROM projects WHERE name = 'default'")
    elsewhere = f"/organization/projects/{admin_id(PROJECT, row['id'])}/webhook_endpoints{one}"
    assert (await admin.api.call("GET", elsewhere)).status == 404, "of another project"
    assert (await admin.get(one))["updated_at"] == made["updated_at"]
    assert (await admin.get())["data"] == [await admin.get(one)]

    for _ in range(19):
        last = await admin.post("", {"url": url})
    full = await admin.api.call("POST", admin.base, {"url": url})
    assert (full.status, "20 webhook endpoints" in full.error["message"]) == (400, True)
    page = await admin.get("?limit=2")
    assert (page["data"][0]["id"], page["has_more"]) == (last["id"], True)


async def test_a_test_of_an_endpoint_that_fails_shows_why(
    admin: AdminApi, receiver: WebhookReceiver
) -> None:
    made = await admin.post("", {"url": receiver.url})
    receiver.answer = lambda: web.Response(status=307, headers={"location": receiver.url})
    tested = await admin.post(f"/{made['id']}/test")
    assert (tested["status_code"], tested["success"]) == (307, False)
    assert tested["error"] == "answered with HTTP 307; redirects are not followed"
    shown = await admin.get(f"/{made['id']}")
    assert (shown["status"], shown["failures"], shown["waiting"]) == ("failing", 1, 1)
    listed = (await admin.hooks.run("list", "--project", admin.hooks.project)).stdout
    assert "failing since" in " ".join(listed.split())
    await receiver.stop()
    # What waits is due, and would be tried first; its failure would be followed by a long pause.
    await admin.hooks.sql(
        "UPDATE webhook_deliveries SET next_attempt_at = now() - interval '1 h' "
        "WHERE next_attempt_at IS NOT NULL"
    )
    await admin.hooks.sql(
        "UPDATE webhook_endpoints SET failures = 20, paused_until = now() + interval '1 h' "
        f"WHERE id = '{UUID(made['id'][4:])}'"
    )
    tested = await admin.post(f"/{made['id']}/test")
    assert (tested["status_code"], tested["success"]) == (None, False)
    assert tested["error"] == NOT_REACHED


async def test_an_endpoint_that_fails_for_days_is_disabled_and_old_events_are_given_up(
    admin: AdminApi, receiver: WebhookReceiver, tool_stack: Stack
) -> None:
    made = await admin.post("", {"url": receiver.url})
    receiver.answer = lambda: web.Response(status=500)
    await admin.post(f"/{made['id']}/test")
    endpoint = UUID(made["id"].removeprefix("whe_"))
    await admin.hooks.sql(
        "UPDATE webhook_endpoints SET failing_since = now() - interval '6 d' "
        f"WHERE id = '{endpoint}'"
    )
    await admin.hooks.sql(
        "UPDATE webhook_deliveries SET created_at = now() - interval '4 d' "
        f"WHERE endpoint_id = '{endpoint}'"
    )
    await admin.hooks.retry_now()
    await admin.hooks.until_state("disabled")
    shown = await admin.get(f"/{made['id']}")
    assert shown["disabled_reason"] == "all tries have failed for days"
    assert (await admin.hooks.endpoint())["reason"] == shown["disabled_reason"]
    [given_up] = (await admin.get(f"/{made['id']}/deliveries?status=failed"))["data"]
    lines = [json.loads(line) for line in tool_stack.workers[0].log.read_text().splitlines()]
    logged = {line["event"] for line in lines if line.get("endpoint") == made["id"]}
    assert logged == {"webhook_failed", "webhook_endpoint_disabled", "webhook_given_up"}

    receiver.answer = web.Response
    assert (await admin.post(f"/{made['id']}", {"enabled": True}))["status"] == "enabled"
    await admin.post(f"/{made['id']}/deliveries/{given_up['id']}/resend")
    await admin.hooks.until_delivered(made["id"], 1)


async def test_deliveries_are_deleted_after_their_retention_and_with_their_endpoint(
    admin: AdminApi, receiver: WebhookReceiver, tool_stack: Stack, fake: FakeUpstream
) -> None:
    made = await admin.post("", {"url": receiver.url})
    receiver.answer = lambda: web.Response(status=500)
    for _ in range(2):
        await admin.post(f"/{made['id']}/test")
    old, waiting = (await admin.get(f"/{made['id']}/deliveries"))["data"]
    for event, age in ((old["id"], 31), (waiting["id"], 29)):
        await admin.hooks.sql(
            f"UPDATE webhook_deliveries SET created_at = now() - interval '{age} d' "
            f"WHERE event_id = '{UUID(event.removeprefix('evt_'))}'"
        )
    await run_purge(settings_for(tool_stack.dsn))
    kept = (await admin.get(f"/{made['id']}/deliveries"))["data"]
    assert [each["id"] for each in kept] == [waiting["id"]]
    other = await admin.post("", {"url": receiver.url})
    await admin.post(f"/{other['id']}/test")
    assert (await admin.hooks.run("delete", made["id"])).exit_code == 0
    left = await admin.hooks.sql(
        f"SELECT secrets, url FROM webhook_endpoints WHERE id = '{UUID(made['id'][4:])}'"
    )
    assert [(row["secrets"], row["url"]) for row in left] == [(b"", "")]
    await admin.hooks.sql(
        "UPDATE webhook_endpoints SET deleted_at = now() - interval '2 h' "
        "WHERE deleted_at IS NOT NULL"
    )
    await run_purge(settings_for(tool_stack.dsn))
    rows = await admin.hooks.sql(
        "SELECT e.id, (SELECT count(*) FROM webhook_deliveries d WHERE d.endpoint_id = e.id) AS n "
        f"FROM webhook_endpoints e JOIN projects p ON p.id = e.project_id "
        f"WHERE p.name = '{admin.hooks.project}'"
    )
    assert [(admin_id("whe", row["id"]), row["n"]) for row in rows] == [(other["id"], 1)]

    receiver.answer = web.Response
    sent = len(receiver.hooks)
    running = await admin.hooks.api.create_background(fake.script([status(400, b"{}")]))
    await admin.hooks.api.wait_for_end(running)
    await until(lambda: len(receiver.hooks) > sent)
    project = admin.base.removesuffix("/webhook_endpoints")
    assert (await admin.api.call("POST", f"{project}/archive")).status == 200
    assert (await admin.get())["data"] == [], "archived with its project"
