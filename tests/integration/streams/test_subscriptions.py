"""The bus of a web process, at a real Redis: which messages its readers get."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from redis.asyncio import Redis

from models.config.settings import Settings
from models.ids import new_uuid
from models.redis.channels import events
from tests.support.api import until
from tests.support.stack import Stack
from web.stream import bus as module
from web.stream.bus import Bus
from web.stream.inboxes import Inbox


@pytest.fixture
async def redis(shared_stack: Stack) -> AsyncIterator[Redis]:
    client = shared_stack.redis()
    yield client
    await client.aclose()


@pytest.fixture
async def bus(shared_stack: Stack) -> AsyncIterator[Bus]:
    """A connected bus. Nothing here reads the log."""
    settings = Settings(database_url="postgresql://unused", redis_url=shared_stack.redis_url)
    bus = Bus(settings, new_uuid())
    running = asyncio.create_task(bus.run())
    await until(lambda: bus.healthy)
    yield bus
    running.cancel()
    await asyncio.wait({running})


async def _publish(redis: Redis, response_id: UUID, number: int) -> int:
    """How many connections got the message."""
    payload = b"1 %d %d\ndata: {}\n\n" % (number, number)
    receivers: int = await redis.publish(events(response_id), payload)
    return receivers


async def _next_number(inbox: Inbox) -> int:
    async with asyncio.timeout(10):
        block = await inbox.next()
    assert block is not None
    return block.first


async def test_a_reader_gets_what_came_after_its_inbox_was_prepared(bus: Bus, redis: Redis) -> None:
    response_id = new_uuid()
    channel = bus.prepare(response_id)
    await until(lambda: channel.is_subscribed)
    assert await _publish(redis, response_id, 1) == 1
    async with bus.subscribe(response_id) as inbox:
        assert inbox.was_prepared
        assert await _next_number(inbox) == 1
        async with bus.subscribe(response_id) as later:
            assert not later.was_prepared
            await _publish(redis, response_id, 2)
            assert [await _next_number(inbox), await _next_number(later)] == [2, 2]


async def test_a_prepared_inbox_whose_reader_does_not_come_is_dropped(
    bus: Bus, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PREPARED_SECONDS", 0.0)
    response_id = new_uuid()
    channel = bus.prepare(response_id)
    await until(lambda: channel.is_subscribed)
    bus.drop_prepared()
    assert bus.readers == 0
    async with bus.subscribe(response_id) as inbox:
        assert not inbox.was_prepared
    async with asyncio.timeout(10):
        while await _publish(redis, response_id, 1):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_reader_that_follows_another_one_at_once_misses_nothing(
    bus: Bus, redis: Redis
) -> None:
    """The confirmation of the first subscription, which has ended, is not taken for the second."""
    response_id = new_uuid()
    for number in range(50):
        leaving = asyncio.create_task(_subscribe_and_leave(bus, response_id))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        async with bus.subscribe(response_id) as inbox:
            assert await _publish(redis, response_id, number) == 1
            assert await _next_number(inbox) == number


async def _subscribe_and_leave(bus: Bus, response_id: UUID) -> None:
    async with bus.subscribe(response_id):
        pass


async def test_readers_read_the_log_after_the_bus_was_disconnected(bus: Bus, redis: Redis) -> None:
    response_id = new_uuid()
    async with bus.subscribe(response_id) as inbox:
        [client] = [
            client
            for client in await redis.client_list()
            if client["name"] == f"web-{bus._servers[0]._lease_id.hex}"
        ]
        await redis.client_kill(client["addr"])
        async with asyncio.timeout(10):
            assert await inbox.next() is None
        assert await _publish(redis, response_id, 1) == 1
        assert await _next_number(inbox) == 1
