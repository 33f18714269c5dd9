"""What an API key may do, and when a change of it reaches the processes."""

import asyncio
import contextlib
import time
from datetime import timedelta
from functools import partial

import aiohttp

from models.ids import parse_response_id
from models.keys import KeyGrant
from models.lifecycle import Lane
from models.projects.scopes import Scope
from tests.integration.operator.test_operations import backburner, command_facts
from tests.support import keys
from tests.support.api import Api, until
from tests.support.batches import line, upload
from tests.support.fake_upstream import (
    FakeUpstream,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack
from tests.support.websocket_client import socket


def _api(stack: Stack, *scopes: Scope, lifetime: timedelta | None = None) -> Api:
    grant = KeyGrant(frozenset(scopes), lifetime=lifetime)
    return stack.api(key=keys.create(stack.dsn, "scopes", grant=grant))


async def test_a_key_that_only_reads_changes_nothing(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    writer, reader = (_api(shared_stack, scope) for scope in (Scope.RESPONSES, Scope.READ))
    response = await writer.create(fake.script(reply("x")))
    path = f"/responses/{response['id']}"
    assert (await reader.call("GET", path)).body["output_text"] == "x"
    assert (await reader.call("GET", f"{path}/input_items")).status == 200
    assert (await reader.call("GET", "/models")).status == 200
    for method, suffix in (("DELETE", path), ("POST", f"{path}/cancel"), ("POST", "/responses")):
        refused = await reader.call(method, suffix, {} if method == "POST" else None)
        assert (refused.status, refused.error["code"]) == (403, "missing_scope")
        assert "Missing scopes: responses." in refused.error["message"]
    assert (await writer.call("GET", path)).status == 200


async def test_a_key_for_files_runs_no_batches_and_may_see_them(shared_stack: Stack) -> None:
    writer, reader, files = (
        _api(shared_stack, scope) for scope in (Scope.RESPONSES, Scope.READ, Scope.FILES)
    )
    uploaded = await upload(shared_stack.openai(key=files.key), [line("a")])
    body = {"input_file_id": uploaded, "endpoint": "/v1/responses", "completion_window": "24h"}
    batch = (await writer.call("POST", "/batches", body)).body
    path = f"/batches/{batch['id']}"
    for api in (reader, files):
        for refused in (
            await api.call("POST", "/batches", body),
            await api.call("POST", f"{path}/cancel", {}),
        ):
            assert (refused.status, refused.error["code"]) == (403, "missing_scope")
            assert "Missing scopes: responses." in refused.error["message"]
        assert (await api.call("GET", path)).body["id"] == batch["id"]
        assert (await api.call("GET", "/batches")).status == 200


async def test_an_admins_key_reads_nothing_of_a_project(shared_stack: Stack) -> None:
    admin = _api(shared_stack, Scope.ADMIN)
    refused = await admin.call("GET", "/models")
    assert (refused.status, refused.error["code"]) == (403, "missing_scope")


async def test_a_key_expires_although_it_is_cached(shared_stack: Stack) -> None:
    api = _api(shared_stack, Scope.READ, lifetime=timedelta(seconds=1.5))
    begun = time.monotonic()
    assert (await api.call("GET", "/models")).status == 200

    async def is_refused() -> bool:
        return (await api.call("GET", "/models")).status == 401

    await until(is_refused, 10)
    assert 1.4 < time.monotonic() - begun < 3.5


async def test_a_revoked_key_is_refused_by_all_processes_within_a_second(
    shared_stack: Stack,
) -> None:
    """They cached a key for five seconds."""
    key = keys.create(shared_stack.dsn, "revoked at once")
    apis = [shared_stack.api(web, key=key) for web in range(len(shared_stack.webs))]
    for api in apis:
        assert (await api.call("GET", "/models")).status == 200
    await shared_stack.value(
        "UPDATE api_keys SET revoked_at = now() WHERE hash = %s RETURNING 1", keys.hash_key(key)
    )
    begun = time.monotonic()

    async def are_refused() -> bool:
        return [(await api.call("GET", "/models")).status for api in apis] == [401] * len(apis)

    await until(are_refused, 10)
    assert time.monotonic() - begun < 2.5, "a heartbeat is half a second"


async def test_streams_of_a_revoked_key_end_and_background_responses_go_on(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    """In all web processes: the reader of the second one did not see the revocation."""
    key = keys.create(shared_stack.dsn, "streams of a revoked key")
    released = asyncio.Event()
    model = fake.script([text("be"), wait_for(released), text("gun"), finish(), usage(), done()])
    apis = [shared_stack.api(web, key=key) for web in range(len(shared_stack.webs))]
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(apis[0].post_stream(model, background=True))
        await first.until("response.output_text.delta")
        streams = [first]
        streams += [await stack.enter_async_context(api.follow(first.response_id)) for api in apis]
        await shared_stack.value(
            "UPDATE api_keys SET revoked_at = now() WHERE hash = %s RETURNING 1",
            keys.hash_key(key),
        )
        async with asyncio.timeout(4):
            for stream in streams:
                with contextlib.suppress(aiohttp.ClientError):
                    while await stream.next() is not None:
                        pass
                assert "response.completed" not in [event["type"] for event in stream.events]
    released.set()
    ended = "SELECT status = 'completed' FROM responses WHERE id = %s"
    response_id = parse_response_id(first.response_id)
    await until(lambda: shared_stack.value(ended, response_id), 20)


async def test_a_deleted_projects_responses_are_cancelled(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    key = keys.create(shared_stack.dsn, "deleted")
    api = shared_stack.api(key=key)
    model = fake.script([text("x"), hang()])
    running = await api.create_background(model)
    await until(lambda: bool(fake.requests_for(model)), 20)
    await command_facts(shared_stack, "projects", "show", "deleted")
    deleted = await backburner(shared_stack, "projects", "delete", "deleted")
    assert (deleted.code, deleted.out) == (0, "")
    assert "workers cancel its open responses" in deleted.err
    status = "SELECT status FROM responses WHERE id = %s"

    async def is_cancelled() -> bool:
        return bool(await shared_stack.value(status, parse_response_id(running)) == "cancelled")

    await until(is_cancelled, 20)
    assert (await api.call("GET", "/models")).status == 401
    refused = await backburner(shared_stack, "keys", "create", "--project", "deleted")
    assert (refused.code, refused.err) == (1, "backburner: the project deleted was deleted\n")
    protected = await backburner(shared_stack, "projects", "delete", "default")
    assert protected.code == 1


async def test_models_of_a_key_and_of_its_project(shared_stack: Stack, fake: FakeUpstream) -> None:
    model = fake.script(reply("x"), reply("y"))
    await command_facts(shared_stack, "projects", "create", "models", "--models", "script-*")
    made = await backburner(
        shared_stack, "keys", "create", "--project", "models", "--model", model, "--model", "other"
    )
    api = shared_stack.api(key=made.out.strip())
    assert (await api.create(model))["output_text"] == "x"
    project = await command_facts(shared_stack, "projects", "show", "models")
    for path, name in (
        ("/responses", "other"),
        ("/responses", "script-elsewhere"),
        ("/chat/completions", "other"),
    ):
        body = {"model": name, ("messages" if "chat" in path else "input"): "x"}
        refused = await api.call("POST", path, body)
        assert (refused.status, refused.error["code"]) == (403, "model_not_found")
        project_id = f"proj_{project['id'].replace('-', '')}"
        assert refused.error["message"] == (
            f"Project `{project_id}` does not have access to model `{name}`"
        )
    await command_facts(shared_stack, "projects", "set", "models", "--models", "none")
    wrong = await backburner(
        shared_stack, "projects", "set", "models", "--policy", '{"limits": {"bodies": 1}}'
    )
    assert (wrong.code, wrong.err) == (
        1,
        "backburner: the policy is wrong: limits.bodies: there is no such field\n",
    )


async def test_the_highest_tier_of_a_project_lowers_that_of_its_requests(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api = shared_stack.api(key=keys.create(shared_stack.dsn, "tiers"))
    model = fake.script(reply("x"))

    async def placed(tier: str | None) -> tuple[str, int]:
        """The tier that a request for this one gets, and its lane."""
        body = {"model": model, "input": "x", "background": True, "service_tier": tier}
        made = (await api.call("POST", "/responses", body)).body
        lane = "SELECT lane FROM responses WHERE id = %s"
        return made["service_tier"], await shared_stack.value(lane, parse_response_id(made["id"]))

    async def becomes(tier: str, expected: tuple[str, int]) -> bool:
        return await placed(tier) == expected

    async def set_highest(highest: str) -> None:
        policy = f'{{"highest_tier": {highest}}}'
        await command_facts(shared_stack, "projects", "set", "tiers", "--policy", policy)

    normal, flex = ("default", Lane.DEFAULT.value), ("flex", Lane.FLEX.value)
    unset = await placed(None)
    assert unset[1] == Lane.DEFAULT.value
    assert await placed("priority") == ("priority", Lane.PRIORITY.value)
    await set_highest('"default"')
    await until(partial(becomes, "priority", normal), 10)
    assert [await placed(each) for each in ("default", "flex", None)] == [normal, flex, unset]
    await set_highest('"flex"')
    await until(partial(becomes, "priority", flex), 10)
    assert [await placed(each) for each in ("default", "flex", None)] == [flex] * 3


async def test_the_body_of_a_project_is_limited(shared_stack: Stack) -> None:
    key = keys.create(shared_stack.dsn, "small bodies")
    policy = '{"limits": {"text": "2KiB", "body": "1MiB"}}'
    await command_facts(shared_stack, "projects", "set", "small bodies", "--policy", policy)
    api = shared_stack.api(key=key)
    refused = await api.call("POST", "/responses", {"model": "m", "input": "x" * 3000})
    assert (refused.status, refused.error["code"]) == (413, "request_too_large")


async def test_an_open_websocket_follows_a_change_of_the_limits(shared_stack: Stack) -> None:
    key = keys.create(shared_stack.dsn, "small frames")
    long_text = "x" * 3000
    async with socket(shared_stack.api(key=key)) as connection:

        async def is_refused() -> bool:
            await connection.create("warm-up", input=long_text, generate=False)
            while (frame := await connection.next())["type"] != "response.completed":
                if frame["type"] == "error":
                    return bool(frame["status"] == 413)
            return False

        assert not await is_refused()
        policy = '{"limits": {"text": "2KiB"}}'
        await command_facts(shared_stack, "projects", "set", "small frames", "--policy", policy)
        await until(is_refused, 10)
        policy = '{"limits": null}'
        await command_facts(shared_stack, "projects", "set", "small frames", "--policy", policy)

        async def is_taken() -> bool:
            return not await is_refused()

        await until(is_taken, 10)


async def test_a_rotated_key_is_valid_until_the_stated_time(shared_stack: Stack) -> None:
    await command_facts(shared_stack, "projects", "create", "rotated")
    made = await backburner(
        shared_stack,
        *("keys", "create", "--project", "rotated"),
        *("--scope", "read", "--name", "ci"),
    )
    old = made.out.strip()
    rotated = await backburner(shared_stack, "keys", "rotate", old, "--overlap", "1s")
    new = rotated.out.strip()
    assert "stays valid until" in rotated.err
    assert old not in rotated.err
    assert (await shared_stack.api(key=new).call("GET", "/models")).status == 200

    async def is_refused() -> bool:
        return (await shared_stack.api(key=old).call("GET", "/models")).status == 401

    await until(is_refused, 10)
    listed = await command_facts(shared_stack, "keys", "list", "--project", "rotated")
    assert [(key["name"], key["scopes"], key["state"]) for key in listed] == [
        ("ci", ["read"], "expired"),
        ("ci", ["read"], "valid"),
    ]
    assert (await backburner(shared_stack, "keys", "rotate", old)).code == 1
