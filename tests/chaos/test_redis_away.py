"""Redis is disposable (I8): flushed, killed, hung or empty, it costs latency and nothing else."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from cli.embedded.valkey import Valkey
from tests.conftest import PrivateStack
from tests.support.api import until
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

# Celery and redis-py log what they meet when their server goes away
GONE = (
    "redis.exceptions.",
    "kombu.exceptions.OperationalError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "BrokenPipeError",
)


@pytest.fixture(scope="module")
async def house(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment that loses its Redis again and again."""
    async with stack(
        tmp_path_factory.mktemp("house"),
        database_server,
        suite_settings,
        fake,
        webs=2,
        allowed_tracebacks=GONE,
    ) as one:
        yield one


@pytest.fixture
def valkey(house: Stack) -> Iterator[Valkey]:
    """Its Redis, which is back when the test is over."""
    assert house.valkey is not None
    yield house.valkey
    if house.valkey.running():
        os.kill(house.valkey.pid, signal.SIGCONT)
    else:
        house.valkey.start()


async def test_a_flush_in_mid_stream_is_not_noticed(house: Stack, fake: FakeUpstream) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a"), wait_for(opened), text(*"bcdef"), finish(), usage(), done()])
    async with house.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        redis = house.redis()
        await redis.flushall()
        await redis.aclose()
        opened.set()
        await stream.to_end()
    assert_stream_obeys_contract(stream.events)
    assert stream.final["output_text"] == "abcdef"
    assert (await house.api().create(fake.script(reply("new"))))["output_text"] == "new"


async def test_what_was_queued_in_a_flushed_redis_still_starts(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(workers=0, settings={"BACKBURNER_LEASE__RING_INTERVAL": "1"}) as one:
        models = [fake.script(reply("x")) for _ in range(10)]
        ids = [await one.api().create_background(model) for model in models]
        redis = one.redis()
        await redis.flushall()
        await redis.aclose()
        await one.start_worker()
        for response_id in ids:
            assert (await one.api().wait_for_end(response_id, 10))["status"] == "completed"
        assert [len(fake.requests_for(model)) for model in models] == [1] * 10


@pytest.mark.parametrize("how", ["killed", "hung"])
async def test_a_stream_goes_on_while_redis_is_away(
    house: Stack, valkey: Valkey, fake: FakeUpstream, how: str
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
    response_id = await house.api().create_background(model)
    async with (
        house.api(0).follow(response_id) as stream,
        house.api(1).follow(response_id) as other,
    ):
        await stream.until("response.output_text.delta")
        if how == "killed":
            valkey.kill()
        else:
            os.kill(valkey.pid, signal.SIGSTOP)
        gates[0].set()
        await stream.until("response.output_text.delta", count=3)
        # accepted, run and told without Redis
        unheard = fake.script(reply("without a bell"))
        created = await house.api(1).create_background(unheard)
        assert (await house.api(0).wait_for_end(created))["output_text"] == "without a bell"
        gates[1].set()
        await stream.until("response.output_text.delta", count=3)
        if how == "killed":
            valkey.start()
        else:
            os.kill(valkey.pid, signal.SIGCONT)
        back = time.monotonic()
        assert (await house.api().create(fake.script(reply("back"))))["output_text"] == "back"
        assert time.monotonic() - back < 10  # starts within 7 s, and ends
        gates[2].set()
        await asyncio.gather(stream.to_end(), other.to_end())
    assert_stream_obeys_contract(stream.events)
    assert stream.final["output_text"] == "abcdefgh"
    assert other.frames == stream.frames
    assert len(fake.requests_for(model)) == 1
    assert len(fake.requests_for(unheard)) == 1


async def test_a_reader_that_comes_while_redis_is_away_sees_everything(
    house: Stack, valkey: Valkey, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a", "b"), wait_for(opened), text("c"), finish(), usage(), done()])
    response_id = await house.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    valkey.kill()
    async with house.api().follow(response_id) as stream:
        await stream.until("response.output_text.delta", count=2)
        opened.set()
        await stream.to_end()
    assert_stream_obeys_contract(stream.events)
    assert stream.final["output_text"] == "abc"


async def test_a_cancel_reaches_the_worker_without_redis(
    house: Stack, valkey: Valkey, fake: FakeUpstream
) -> None:
    model = fake.script([text("a"), hang()])
    async with house.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        valkey.kill()
        asked = time.monotonic()
        assert (await house.api().cancel(stream.response_id)).status == 200
        [request] = fake.requests_for(model)
        await until(lambda: request.closed_by_client is not None)
        assert time.monotonic() - asked < 6
        await stream.to_end()
    assert stream.final["status"] == "cancelled"
