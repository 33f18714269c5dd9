"""RabbitMQ as the broker of the wake-ups.

Sweeps claim no fresh response for ten minutes here: a response whose message was lost would not
start in time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from models.celery.rabbitmq import RabbitMqSender
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE, RUN_RESPONSE
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, done, finish, reply, text, usage, wait_for
from tests.support.rabbitmq import RabbitMq

SLOTS = 3
"""Of a worker with two streams."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RabbitMq]:
    with RabbitMq(tmp_path) as running:
        yield running


@pytest.fixture
async def sender(broker: RabbitMq) -> AsyncIterator[RabbitMqSender]:
    sender = RabbitMqSender(broker.url, RUN_RESPONSE, (INTERACTIVE, BACKGROUND, QUARANTINE))
    yield sender
    sender.close()


@pytest.mark.long
async def test_rabbitmq_wakes_workers_and_nothing_is_lost_while_it_is_away(
    broker: RabbitMq, sender: RabbitMqSender, private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {
        "BACKBURNER_BROKER_URL": broker.url,
        "BACKBURNER_LEASE__ENQUEUE_INTERVAL": "600",
    }
    async with private_stack(streams=2, settings=settings) as own_stack:
        api = own_stack.api()
        answer = await api.create(fake.script(reply("foreground")), background=False)
        assert answer["output_text"] == "foreground"

        # A full worker leaves the messages to another one.
        gate = asyncio.Event()
        held = fake.script([text("held"), wait_for(gate), finish(), usage(), done()])
        ids = [await api.create_background(held) for _ in range(SLOTS + 2)]
        await until(lambda: len(fake.requests_for(held)) == SLOTS)
        assert (await sender.lengths())[BACKGROUND] == 2
        await own_stack.start_worker()
        await until(lambda: len(fake.requests_for(held)) == SLOTS + 2)
        redis = own_stack.redis()
        assert not await redis.exists(BACKGROUND, INTERACTIVE)
        await redis.aclose()
        gate.set()
        for response_id in ids:
            assert (await api.wait_for_end(response_id))["status"] == "completed"

        # Without a broker creates are accepted, and sweeps find them.
        broker.kill()
        response_id = await api.create_background(fake.script(reply("swept")))
        own_stack.settings["BACKBURNER_LEASE__ENQUEUE_INTERVAL"] = "1"
        sweeping = await own_stack.start_worker()
        assert (await api.wait_for_end(response_id))["output_text"] == "swept"
        await own_stack.stop(sweeping)

        # All processes connect again.
        await asyncio.to_thread(broker.start)
        response_id = await api.create_background(fake.script(reply("woken")))
        assert (await api.wait_for_end(response_id, 30))["output_text"] == "woken"
