"""Redis is disposable (I8): emptied, killed or frozen, it costs latency and nothing else."""

import asyncio
import os
import signal
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator

import orjson
import pytest
from prometheus_client import Counter

from cli.embedded.valkey import Valkey
from models.celery.queue import JobQueue
from models.config.settings import Settings
from models.console_links import LOGIN_PATH, create_link
from models.ids import new_uuid
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.chaos.tracebacks import REDIS_TRACEBACKS
from tests.support.console import console_user
from tests.support.contract_rules import assert_stream_obeys_contract
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
from tests.support.stack import Databases, Stack, SuiteSettings, stack

pytestmark = pytest.mark.usefixtures("embedded_redis")


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment whose Redis is killed, frozen and emptied."""
    async with stack(
        tmp_path_factory.mktemp("redis-away"),
        database_server,
        suite_settings,
        fake,
        webs=2,
        allowed_tracebacks=REDIS_TRACEBACKS,
    ) as running:
        yield running


@pytest.fixture
def valkey(own_stack: Stack) -> Iterator[Valkey]:
    """Its Redis; after the test it runs again."""
    assert own_stack.valkey is not None
    yield own_stack.valkey
    if own_stack.valkey.running():
        os.kill(own_stack.valkey.pid, signal.SIGCONT)
    else:
        own_stack.valkey.start()


async def test_emptying_redis_does_not_disturb_a_stream(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a"), wait_for(released), text(*"bcdef"), finish(), usage(), done()])
    async with own_stack.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        redis = own_stack.redis()
        await redis.flushall()
        await redis.aclose()
        released.set()
        await stream.to_end()
    assert_stream_obeys_contract(stream.events)
    assert stream.final["output_text"] == "abcdef"
    assert (await own_stack.api().create(fake.script(reply("new"))))["output_text"] == "new"


async def test_a_queued_response_starts_although_redis_was_emptied(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        workers=0, settings={"BACKBURNER_LEASE__ENQUEUE_INTERVAL": "1"}
    ) as running:
        models = [fake.script(reply("x")) for _ in range(10)]
        ids = [await running.api().create_background(model) for model in models]
        redis = running.redis()
        await redis.flushall()
        await redis.aclose()
        await running.start_worker()
        for response_id in ids:
            assert (await running.api().wait_for_end(response_id, 10))["status"] == "completed"
        assert [len(fake.requests_for(model)) for model in models] == [1] * 10


@pytest.mark.parametrize("fault", [pytest.param("killed", marks=pytest.mark.long), "hung"])
async def test_a_stream_continues_while_redis_is_down(
    own_stack: Stack, valkey: Valkey, fake: FakeUpstream, fault: str
) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    steps = [
        text("a"),
        wait_for(gates[0]),
        text(*"bcd"),
        wait_for(gates[1]),
        text(*"efg"),
        wait_for(gates[2]),
        text("h"),
    ]
    model = fake.script([*steps, finish(), usage(), done()])
    response_id = await own_stack.api().create_background(model)
    async with (
        own_stack.api(0).follow(response_id) as stream,
        own_stack.api(1).follow(response_id) as other,
    ):
        await stream.until("response.output_text.delta")
        if fault == "killed":
            valkey.kill()
        else:
            os.kill(valkey.pid, signal.SIGSTOP)
        gates[0].set()
        await stream.until("response.output_text.delta", count=3)
        # A new response is accepted, runs and can be read without Redis.
        model_without_redis = fake.script(reply("without Redis"))
        created = await own_stack.api(1).create_background(model_without_redis)
        assert (await own_stack.api(0).wait_for_end(created))["output_text"] == "without Redis"
        gates[1].set()
        await stream.until("response.output_text.delta", count=3)
        if fault == "killed":
            valkey.start()
        else:
            os.kill(valkey.pid, signal.SIGCONT)
        redis_returned = time.monotonic()
        assert (await own_stack.api().create(fake.script(reply("back"))))["output_text"] == "back"
        assert time.monotonic() - redis_returned < 10  # it starts within 7 s and ends
        gates[2].set()
        await asyncio.gather(stream.to_end(), other.to_end())
    assert_stream_obeys_contract(stream.events)
    assert stream.final["output_text"] == "abcdefgh"
    assert other.frames == stream.frames
    assert len(fake.requests_for(model)) == 1
    assert len(fake.requests_for(model_without_redis)) == 1


async def test_a_reader_that_connects_while_redis_is_down_gets_all_events(
    own_stack: Stack, valkey: Valkey, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a", "b"), wait_for(released), text("c"), finish(), usage(), done()])
    response_id = await own_stack.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    valkey.kill()
    async with own_stack.api().follow(response_id) as stream:
        await stream.until("response.output_text.delta", count=2)
        released.set()
        await stream.to_end()
    assert_stream_obeys_contract(stream.events)
    assert stream.final["output_text"] == "abc"


async def test_the_console_works_and_says_that_redis_is_down(
    own_stack: Stack, valkey: Valkey
) -> None:
    async with console_user(own_stack) as user:
        await user.get(f"{LOGIN_PATH}{create_link(own_stack.dsn)}")
        assert "Redis does not answer" not in (await user.get("/console")).text
        valkey.kill()
        page = await user.get("/console")
        assert (page.status, "Redis does not answer" in page.text) == (200, True)
        assert (await user.get("/console/responses")).status == 200


async def test_a_cancel_reaches_the_worker_without_redis_within_6_s(
    own_stack: Stack, valkey: Valkey, fake: FakeUpstream
) -> None:
    model = fake.script([text("a"), hang()])
    async with own_stack.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        valkey.kill()
        sent_at = time.monotonic()
        assert (await own_stack.api().cancel(stream.response_id)).status == 200
        [request] = fake.requests_for(model)
        await until(lambda: request.closed_by_client is not None)
        assert time.monotonic() - sent_at < 6
        await stream.to_end()
    assert stream.final["status"] == "cancelled"


async def test_a_hung_redis_costs_a_bounded_number_of_wake_ups(
    own_stack: Stack, valkey: Valkey
) -> None:
    settings = Settings(database_url="postgresql://unused", redis_url=own_stack.redis_url)
    dropped = Counter("dropped", "Wake-ups that were not sent.", registry=None)
    job_queue, queue = JobQueue(settings, dropped), "not consumed"
    running = asyncio.create_task(job_queue.run())
    redis = own_stack.redis()
    job_queue.enqueue(new_uuid(), queue)
    await until(lambda: redis.llen(queue))
    os.kill(valkey.pid, signal.SIGSTOP)
    for _ in range(12_000):
        job_queue.enqueue(new_uuid(), queue)
    # The confirmation of the first one may not have been read yet.
    assert _value(dropped) in {2_000, 2_001}
    await until(lambda: _value(dropped) == 12_000)
    os.kill(valkey.pid, signal.SIGCONT)
    sent_again = new_uuid()
    job_queue.enqueue(sent_again, queue)
    running.cancel()
    await asyncio.wait([running])
    await job_queue.close()
    # What the hung connection has sent may be read after it.
    bodies = [b64decode(orjson.loads(job)["body"]) for job in await redis.lrange(queue, 0, -1)]
    assert orjson.dumps(([sent_again.hex], {}, {})) in bodies
    await redis.delete(queue)
    await redis.aclose()


def _value(counter: Counter) -> float:
    [metric] = counter.collect()
    return metric.samples[0].value
