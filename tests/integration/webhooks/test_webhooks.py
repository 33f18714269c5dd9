"""Webhooks: what an endpoint receives, and what becomes of a delivery that fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import openai
import pytest
from aiohttp import web

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, hang, reply, status, text
from tests.support.stack import Stack
from tests.support.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.webhooks import SEALED, Hooks, unwrap


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as one:
        yield one


@pytest.fixture
async def hooks(tool_stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Hooks]:
    """Of a project of this test; its endpoints are deleted at the end."""
    one = await asyncio.to_thread(Hooks, tool_stack, request.node.name)
    yield one
    for endpoint in await one.json("list", "--project", one.project):
        assert (await one.run("delete", endpoint["id"])).exit_code == 0


async def test_the_official_client_reads_the_event_of_each_ending(
    hooks: Hooks, receiver: WebhookReceiver, fake: FakeUpstream
) -> None:
    endpoint, secret = await hooks.create(receiver)
    completed = await hooks.api.create_background(fake.script(reply("Hello.")))
    failed = await hooks.api.create_background(fake.script([status(400, b"{}")]))
    cancelled = await hooks.api.create_background(fake.script([text("a"), hang()]))
    await hooks.api.cancel(cancelled)
    await hooks.api.create(fake.script(reply("Read by its client.")))
    await until(lambda: len(receiver.hooks) == 3)
    events = [unwrap(hook, secret) for hook in receiver.hooks]
    assert {(event.data.id, event.type) for event in events} == {
        (completed, "response.completed"),
        (failed, "response.failed"),
        (cancelled, "response.cancelled"),
    }
    assert all(hook.id == event.id for hook, event in zip(receiver.hooks, events, strict=True))
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrap(receiver.hooks[0], "whsec_" + "A" * 43 + "=")

    await hooks.until_delivered(endpoint, 3)


async def test_a_refused_create_is_no_event(hooks: Hooks, receiver: WebhookReceiver) -> None:
    """Its id was given to nobody. The statements are those of a create and of its end."""
    await hooks.create(receiver)
    await hooks.sql(
        f"""
        DO $$ BEGIN
        INSERT INTO responses (id, project_id, status, background, store, model, parameters,
                               created_at, expires_at, deadline, enqueued_at)
        SELECT gen_random_uuid(), p.id, 'queued', true, true, reason, '{{}}',
               now(), now() + interval '1 hour', now() + interval '1 hour', now()
        FROM projects p, unnest(ARRAY['create_refused', 'cancelled']) AS reason
        WHERE p.name = '{hooks.project}';
        UPDATE responses r SET status = 'cancelled', reason = r.model, completed_at = now()
        FROM projects p WHERE p.id = r.project_id AND p.name = '{hooks.project}';
        END $$
        """
    )
    waiting = await hooks.sql(
        "SELECT r.model FROM webhook_deliveries d JOIN responses r"
        " ON d.object_id = 'resp_' || replace(r.id::text, '-', '')"
    )
    assert "create_refused" not in [row["model"] for row in waiting]
    await until(lambda: receiver.hooks)


async def test_only_events_of_its_types_and_its_project_reach_an_endpoint(
    hooks: Hooks, receiver: WebhookReceiver, fake: FakeUpstream, tool_stack: Stack
) -> None:
    await hooks.create(receiver, "--event", "response.failed")
    other = await tool_stack.api().create_background(fake.script([status(400, b"{}")]))
    await tool_stack.api().wait_for_end(other)
    completed = await hooks.api.create_background(fake.script(reply("Hello.")))
    await hooks.api.wait_for_end(completed)
    failed = await hooks.api.create_background(fake.script([status(400, b"{}")]))
    await until(lambda: receiver.hooks)
    [hook] = receiver.hooks
    assert json.loads(hook.body)["data"] == {"id": failed}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: web.Response(status=500), id="500"),
        pytest.param(lambda: web.Response(status=302, headers={"location": "/hook"}), id="302"),
        pytest.param(lambda: web.Response(status=429, headers={"retry-after": "3600"}), id="429"),
    ],
)
async def test_a_failed_delivery_is_made_again_with_the_same_id(
    hooks: Hooks,
    receiver: WebhookReceiver,
    fake: FakeUpstream,
    answer: Callable[[], web.StreamResponse],
) -> None:
    receiver.answer = answer
    endpoint, secret = await hooks.create(receiver)
    await hooks.api.create_background(fake.script(reply("Hello.")))

    await hooks.until_state("failing")
    [delivery] = await hooks.deliveries(endpoint)
    code = answer().status
    assert (delivery["state"], delivery["attempts"], delivery["last_status"]) == (
        "waiting",
        1,
        code,
    )
    if code == 429:
        rows = await hooks.sql(
            "SELECT max(next_attempt_at) - now() > interval '55 min' AS kept "
            "FROM webhook_deliveries"
        )
        assert rows[0]["kept"], "Retry-After"
    receiver.answer = web.Response
    await hooks.retry_now()
    await until(lambda: len(receiver.hooks) == 2)
    first, second = receiver.hooks
    assert (first.id, first.body) == (second.id, second.body)
    assert unwrap(second, secret).type == "response.completed"

    await hooks.until_state("enabled")


async def test_gone_disables_an_endpoint_and_enabling_delivers_what_waits(
    hooks: Hooks, receiver: WebhookReceiver, fake: FakeUpstream
) -> None:
    receiver.answer = lambda: web.Response(status=410)
    endpoint, _ = await hooks.create(receiver)
    await hooks.api.create_background(fake.script(reply("Hello.")))

    await hooks.until_state("disabled")
    assert "410" in (await hooks.endpoint())["reason"]
    ignored = await hooks.api.create_background(fake.script(reply("Nobody is told.")))
    await hooks.api.wait_for_end(ignored)
    receiver.answer = web.Response
    assert (await hooks.run("enable", endpoint[:12])).exit_code == 0
    await hooks.retry_now()
    await until(lambda: len(receiver.hooks) == 2)
    assert receiver.hooks[0].id == receiver.hooks[1].id
    [delivery] = await hooks.deliveries(endpoint)
    assert delivery["object"] != ignored


async def test_a_hanging_and_a_dead_endpoint_delay_no_other(
    hooks: Hooks, receiver: WebhookReceiver, fake: FakeUpstream
) -> None:
    """The first one has answered nothing, and the second one has failed, when the third one has
    everything."""
    async with webhook_receiver() as hanging, webhook_receiver() as dead:
        hanging.released.clear()
        await dead.stop()
        await hooks.create(hanging)
        await hooks.create(dead)
        await hooks.create(receiver)
        model = fake.script(reply("Hello."))
        created = [await hooks.api.create_background(model) for _ in range(10)]
        await until(lambda: len(receiver.hooks) == 10)
        assert {json.loads(hook.body)["data"]["id"] for hook in receiver.hooks} == set(created)
        assert 1 <= len(hanging.hooks) <= 8


async def test_a_project_whose_endpoints_are_slow_leaves_tries_to_the_others(
    private_stack: PrivateStack, receiver: WebhookReceiver, fake: FakeUpstream
) -> None:
    """Its endpoints could hold all tries of the worker: 16 of them take 8 at a time. They get two
    thirds, and the rest waits when the event of another project arrives."""
    settings = {**SEALED, "BACKBURNER_WEBHOOKS__TIMEOUT": "300"}
    async with private_stack(settings=settings) as running, webhook_receiver() as slow:
        one = await asyncio.to_thread(Hooks, running, "slow")
        other = await asyncio.to_thread(Hooks, running, "other")
        slow.released.clear()
        for _ in range(16):
            made = await one.api.call("POST", "/webhook_endpoints", {"url": slow.url})
            assert made.status == 200
        await other.create(receiver)
        model = fake.script(reply("Hello."))
        for _ in range(9):
            await one.api.create_background(model)
        await until(lambda: len(slow.hooks) >= 86, 30)
        created = await other.api.create_background(model)
        await until(lambda: receiver.hooks, 30)
        assert json.loads(receiver.hooks[0].body)["data"] == {"id": created}
        assert len(slow.hooks) == 86
        slow.released.set()
        await until(lambda: len(slow.hooks) == 9 * 16, 30)


async def test_a_rotation_signs_with_both_secrets_and_a_resend_has_the_same_id(
    hooks: Hooks, receiver: WebhookReceiver
) -> None:
    endpoint, old = await hooks.create(receiver)
    new = (await hooks.json("rotate", endpoint))["secret"]
    tested = (await hooks.run("test", endpoint)).stdout.strip()
    await until(lambda: receiver.hooks)
    assert unwrap(receiver.hooks[0], old).id == unwrap(receiver.hooks[0], new).id == tested
    assert (await hooks.run("rotate", endpoint, "--overlap", "0s")).exit_code == 0
    assert (await hooks.run("resend", tested)).exit_code == 0
    await hooks.retry_now()
    await until(lambda: len(receiver.hooks) == 2)
    assert receiver.hooks[1].id == tested
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrap(receiver.hooks[1], old)
    rows = await hooks.sql("SELECT secrets FROM webhook_endpoints")
    assert all(old.encode() not in row["secrets"] for row in rows), "sealed"
    # As over the API, a secret that cannot be opened any more is replaced, without an overlap.
    other = await hooks.run("rotate", endpoint, BACKBURNER_SECRET_KEYS="B" * 43)
    assert (other.exit_code, "with the new secret only" in other.stderr) == (0, True)


async def test_what_cannot_be_done_is_refused_in_one_line(
    hooks: Hooks, receiver: WebhookReceiver
) -> None:
    here = ("--project", hooks.project)
    for arguments, words in [
        (("create", "http://10.0.0.1/hook", *here), "may not be reached"),
        (("create", "ftp://example.com/hook", *here), "may not be reached"),
        (("create", receiver.url, *here, "--event", "response.begun"), "response.incomplete"),
        (("create", receiver.url, "--project", "no such"), "there is no project no such"),
        (("disable", "whe_ffff"), "there is no endpoint whe_ffff"),
        (("resend", "evt_1"), "no id of an event"),
    ]:
        result = await hooks.run(*arguments)
        assert (result.exit_code, words in result.output) == (1, True), result.output


async def test_a_delivery_outlives_the_worker_that_made_it(
    private_stack: PrivateStack, receiver: WebhookReceiver, fake: FakeUpstream
) -> None:
    """The endpoint has the event and has not answered when the worker is killed."""
    async with private_stack(settings=SEALED) as running:
        hooks = await asyncio.to_thread(Hooks, running, "killed")
        receiver.released.clear()
        await hooks.create(receiver)
        created = await hooks.api.create_background(fake.script(reply("Hello.")))
        await until(lambda: receiver.hooks)
        running.kill(running.workers[0])
        receiver.released.set()
        await running.start_worker()
        await hooks.retry_now()  # not after the lease of 30 s
        await until(lambda: len(receiver.hooks) == 2)
        assert receiver.hooks[0].id == receiver.hooks[1].id
        assert json.loads(receiver.hooks[1].body)["data"] == {"id": created}
