"""Redis is disposable (I8): flushed, killed, hung or empty, it costs latency and nothing else."""

import asyncio
import os
import signal
import time

import pytest

from tests.api import decode, until
from tests.conftest import PrivateStack
from tests.contract_rules import assert_stream_obeys_contract
from tests.fake_upstream import FakeUpstream, done, finish, gate, hang, reply, text, usage

pytestmark = pytest.mark.usefixtures("embedded_redis")

# Celery and redis-py log what they meet when their server goes away
GONE = ("redis.exceptions.", "kombu.exceptions.OperationalError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")


async def test_a_flush_in_mid_stream_is_not_noticed(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(forgiven=GONE) as stack:
        opened = asyncio.Event()
        model = fake.script([text("a"), gate(opened), text(*"bcdef"), finish(), usage(), done()])
        async with stack.api().post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            redis = stack.redis()
            await redis.flushall()
            await redis.aclose()
            opened.set()
            await stream.to_end()
        assert_stream_obeys_contract(stream.events)
        assert stream.final["output_text"] == "abcdef"
        assert (await stack.api().create(fake.script(reply("new"))))["output_text"] == "new"


async def test_what_was_queued_in_a_flushed_redis_still_starts(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(workers=0, forgiven=GONE) as stack:
        models = [fake.script(reply("x")) for _ in range(10)]
        ids = [await stack.api().background(model) for model in models]
        redis = stack.redis()
        await redis.flushall()
        await redis.aclose()
        await stack.start_worker()
        for response_id in ids:
            assert (await stack.api().ended(response_id, 10))["status"] == "completed"
        assert [len(fake.asked(model)) for model in models] == [1] * 10


@pytest.mark.parametrize("how", ["killed", "hung"])
async def test_a_stream_goes_on_while_redis_is_away(private: PrivateStack, fake: FakeUpstream, how: str) -> None:
    async with private(webs=2, forgiven=GONE) as stack:
        gates = [asyncio.Event() for _ in range(3)]
        steps = [text("a"), gate(gates[0]), text(*"bcd"), gate(gates[1]), text(*"efg"), gate(gates[2]), text("h")]
        model = fake.script([*steps, finish(), usage(), done()])
        response_id = await stack.api().background(model)
        assert stack.valkey is not None
        async with stack.api(0).follow(response_id) as stream, stack.api(1).follow(response_id) as other:
            await stream.until("response.output_text.delta")
            if how == "killed":
                stack.valkey.kill()
            else:
                os.kill(stack.valkey.pid, signal.SIGSTOP)
            gates[0].set()
            await stream.until("response.output_text.delta", count=3)
            # accepted, run and told without Redis
            unheard = fake.script(reply("without a bell"))
            created = await stack.api(1).background(unheard)
            assert (await stack.api(0).ended(created, 30))["output_text"] == "without a bell"
            gates[1].set()
            await stream.until("response.output_text.delta", count=3)
            if how == "killed":
                stack.valkey.start()
            else:
                os.kill(stack.valkey.pid, signal.SIGCONT)
            back = time.monotonic()
            assert (await stack.api().create(fake.script(reply("back"))))["output_text"] == "back"
            assert time.monotonic() - back < 10
            gates[2].set()
            await asyncio.gather(stream.to_end(), other.to_end())
        assert_stream_obeys_contract(stream.events)
        assert stream.final["output_text"] == "abcdefgh"
        assert other.frames == stream.frames
        assert len(fake.asked(model)) == 1
        assert len(fake.asked(unheard)) == 1


async def test_a_reader_that_comes_while_redis_is_away_sees_everything(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(forgiven=GONE) as stack:
        opened = asyncio.Event()
        model = fake.script([text("a", "b"), gate(opened), text("c"), finish(), usage(), done()])
        response_id = await stack.api().background(model)
        await until(lambda: fake.asked(model))
        assert stack.valkey is not None
        stack.valkey.kill()
        async with stack.api().follow(response_id) as stream:
            await stream.until("response.output_text.delta", count=2)
            opened.set()
            await stream.to_end()
        assert_stream_obeys_contract([decode(frame) for frame in stream.frames])
        assert stream.final["output_text"] == "abc"
        stack.valkey.start()


async def test_a_cancel_reaches_the_worker_without_redis(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(forgiven=GONE) as stack:
        model = fake.script([text("a"), hang()])
        async with stack.api().post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            assert stack.valkey is not None
            stack.valkey.kill()
            asked = time.monotonic()
            assert (await stack.api().cancel(stream.response_id)).status == 200
            [request] = fake.asked(model)
            await until(lambda: request.closed_by_client is not None)
            assert time.monotonic() - asked < 6
            await stream.to_end()
        assert stream.final["status"] == "cancelled"
        stack.valkey.start()
