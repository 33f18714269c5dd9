"""A Redis that is full, or evicts what it likes, costs latency and nothing else (I8)."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from models.config.settings import Settings
from models.ids import new_uuid
from models.redis.answer_cache import AnswerCache, CachedAnswer
from tests.support.api import Api, until
from tests.support.chaos.tracebacks import REDIS_TRACEBACKS
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, done, finish, reply, text, usage, wait_for
from tests.support.stack import Databases, Stack, SuiteSettings, stack

pytestmark = pytest.mark.usefixtures("embedded_redis")


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment whose Redis is full. Sweeps claim what was not enqueued after a second."""
    async with stack(
        tmp_path_factory.mktemp("redis-full"),
        database_server,
        suite_settings,
        fake,
        settings={"BACKBURNER_LEASE__ENQUEUE_INTERVAL": "1", "BACKBURNER_LEASE__SWEEP": "0.5"},
        allowed_tracebacks=REDIS_TRACEBACKS,
    ) as running:
        yield running


@pytest.fixture
async def redis(own_stack: Stack) -> AsyncIterator[Redis]:
    """Its Redis; after the test it has room again."""
    client = own_stack.redis()
    yield client
    await client.config_set("maxmemory", "256mb")
    await client.config_set("maxmemory-policy", "volatile-ttl")
    await client.delete("junk")
    await client.aclose()


async def _live_through(api: Api, fake: FakeUpstream) -> None:
    """A background response, a foreground one and a stream, from the create to the end."""
    gate = asyncio.Event()
    model = fake.script([text("a"), wait_for(gate), text("b"), finish(), usage(), done()])
    queued = await api.create_background(fake.script(reply("queued")))
    cached = await api.create(fake.script(reply("cached")), cache=True)
    async with api.post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        gate.set()
        await stream.to_end()
    assert_stream_obeys_contract(stream.events)
    assert stream.final["output_text"] == "ab"
    assert cached["output_text"] == "cached"
    assert (await api.wait_for_end(queued))["output_text"] == "queued"


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
async def test_responses_live_through_a_full_redis(
    own_stack: Stack, redis: Redis, fake: FakeUpstream, policy: str
) -> None:
    await redis.set("junk", b"x" * 1_000_000)
    await redis.config_set("maxmemory-policy", policy)
    await redis.config_set("maxmemory", "1mb")
    await _live_through(own_stack.api(), fake)
    if policy == "noeviction":
        assert (await own_stack.readyz())["redis_memory"] == "ok"
        started = await own_stack.start_worker()
        await own_stack.stop(own_stack.workers[0])
        await _live_through(own_stack.api(), fake)
        assert started.running()
    if policy == "allkeys-lru":
        assert "evicts queues" in (await own_stack.readyz())["redis_memory"]


async def test_each_project_has_a_share_of_the_cache(own_stack: Stack, redis: Redis) -> None:
    settings = Settings(
        database_url="postgresql://unused",
        redis_url=own_stack.redis_url,
        cache={"project_bytes": 100_000, "project_answers": 20},
    )
    cache = AnswerCache(settings, "test")
    greedy, modest = new_uuid(), new_uuid()
    answer = CachedAnswer([{"type": "message", "content": "x" * 9_000}])
    kept = b"kept"
    await cache.store(modest, kept, 600, answer)
    for number in range(60):
        await cache.store(greedy, b"%d" % number, 600 + number, answer)
    stored = [key async for key in redis.scan_iter("cache:*")]
    assert len(stored) == 12, "eleven of the greedy project, and one of the other"
    assert await cache.find(modest, kept) == answer
    assert await cache.find(greedy, b"59") == answer
    assert await cache.find(greedy, b"0") is None

    small = CachedAnswer([{"type": "message", "content": "x"}])
    for number in range(60, 100):
        await cache.store(greedy, b"%d" % number, 600 + number, small)
    assert len([key async for key in redis.scan_iter("cache:*")]) == 21
    await cache.delete(greedy, b"99")
    assert await cache.find(greedy, b"99") is None
    await redis.delete(f"cache-answers:{greedy.hex}")  # as an eviction does
    await cache.store(greedy, b"again", 1, answer)
    assert await cache.find(greedy, b"again") == answer
    await until(lambda: _is_gone(redis, b"again"))
    await cache.close()


async def _is_gone(redis: Redis, key: bytes) -> bool:
    return not await redis.exists(f"cache:{key.hex()}")
