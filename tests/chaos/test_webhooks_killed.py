"""Whatever dies while an event is delivered, its endpoint gets it, always with the same id.

The receiver of a webhook is the only double. A delivery that a dead worker had claimed is made
again when its lease ends, which takes some seconds: so these tests are long ones. In CI
`test_a_delivery_outlives_the_worker_that_made_it` of tests/integration/webhooks/test_webhooks.py
stands for them.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from tests.chaos.test_restarts import own_servers
from tests.support.api import until
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.webhooks import SEALED, Hooks, unwrap

pytestmark = pytest.mark.long
SETTINGS = {**SHORT_LEASES, **SEALED, "BACKBURNER_WEBHOOKS__TIMEOUT": "1"}
LEASE = 60
"""Seconds within which a delivery of a dead worker is made again."""

STEPS = {
    "the response has ended": ("models.ownership.endings:EndingWriter.store:1:kill-after", 1),
    "claimed": ("features.webhooks.worker:send:1:kill", 1),
    "answered": ("features.webhooks.worker:send:1:kill-after", 2),
    "before the row is written": ("features.webhooks.worker:Deliverer._store:1:kill", 2),
    "the row is written": ("features.webhooks.worker:Deliverer._store:1:kill-after", 1),
}
"""After which step the worker is killed, and how often the endpoint gets the event then."""


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as one:
        yield one


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A web process; each test starts its own workers."""
    folder = tmp_path_factory.mktemp("webhooks")
    async with stack(
        folder, database_server, suite_settings, fake, workers=0, settings=SETTINGS
    ) as running:
        yield running


@pytest.mark.parametrize("step", STEPS)
async def test_an_event_is_delivered_although_its_worker_was_killed(
    own_stack: Stack, receiver: WebhookReceiver, fake: FakeUpstream, step: str
) -> None:
    fault, times = STEPS[step]
    hooks = await asyncio.to_thread(Hooks, own_stack, step)
    endpoint, secret = await hooks.create(receiver)
    killed = own_stack.spawn_faulty_worker(fault)
    created = await hooks.api.create_background(fake.script(reply("Hello.")))
    await until(lambda: not killed.running(), 60)
    own_stack.forget(killed)
    survivor = await own_stack.start_worker()
    await until(lambda: len(receiver.hooks) == times, LEASE)
    await hooks.until_delivered(endpoint, 1)
    assert len({hook.id for hook in receiver.hooks}) == 1
    assert {unwrap(hook, secret).data.id for hook in receiver.hooks} == {created}
    await own_stack.stop(survivor)


def _has_received(receiver: WebhookReceiver, count: int) -> bool:
    return len(receiver.hooks) >= count


async def test_no_event_is_lost_while_workers_are_killed_again_and_again(
    own_stack: Stack, receiver: WebhookReceiver, fake: FakeUpstream
) -> None:
    hooks = await asyncio.to_thread(Hooks, own_stack, "again and again")
    answers = iter(range(10**6))
    receiver.answer = lambda: web.Response(status=500 if next(answers) % 5 == 4 else 200)
    endpoint, _ = await hooks.create(receiver)
    await own_stack.start_worker()
    created: set[str] = set()
    for round_number in range(4):
        model = fake.script(*(reply("Hello.") for _ in range(40)))
        created |= {await hooks.api.create_background(model) for _ in range(20)}
        await until(partial(_has_received, receiver, 20 * round_number + 5), LEASE)
        own_stack.kill(own_stack.workers[0])
        await own_stack.start_worker()

    async def all_delivered() -> bool:
        await hooks.retry_now()
        found = await hooks.json("deliveries", endpoint, "--limit", "100")
        return [each["state"] for each in found] == ["delivered"] * len(created)

    await until(all_delivered, 2 * LEASE, every=2)
    received: dict[str, set[str]] = {}
    for hook in receiver.hooks:
        received.setdefault(json.loads(hook.body)["data"]["id"], set()).add(hook.id)
    assert set(received) == created
    assert all(len(ids) == 1 for ids in received.values()), "duplicates carry the same id"
    await own_stack.stop(own_stack.workers[0])


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_events_are_delivered_although_postgres_was_away(
    embedded_postgres: None,
    tmp_path: Path,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    receiver: WebhookReceiver,
    *,
    crash: bool,
) -> None:
    """It stops while the endpoint has one event and has not answered, and others wait."""
    settings = {**SEALED, "BACKBURNER_WEBHOOKS__TIMEOUT": "20"}
    async with own_servers(
        tmp_path, suite_settings, fake, settings=settings, allowed_tracebacks=POSTGRES_TRACEBACKS
    ) as (running, postgres):
        hooks = await asyncio.to_thread(Hooks, running, "away")
        receiver.released.clear()
        endpoint, _ = await hooks.create(receiver)
        model = fake.script(*(reply("Hello.") for _ in range(12)))
        created = {await hooks.api.create_background(model) for _ in range(12)}
        for response in created:
            await hooks.api.wait_for_end(response)
        await until(lambda: receiver.hooks)
        if crash:
            postgres.kill()
        else:
            postgres.stop()
        receiver.released.set()
        postgres.start()
        await hooks.until_delivered(endpoint, len(created))
        bodies = {hook.id: json.loads(hook.body)["data"]["id"] for hook in receiver.hooks}
        assert set(bodies.values()) == created
        assert len(bodies) == len(created)
