"""Slots: a full worker takes no messages, ends what is only to be ended, and fills no queue.

In most of these tests sweeps claim no fresh response for ten minutes: a response whose message was
lost would not start in time.
"""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import orjson

from models.celery.queue import wake_up
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    done,
    finish,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack

FAST_SWEEPS = {"BACKBURNER_LEASE__SWEEP": "0.2", "BACKBURNER_LEASE__OBSERVE": "0.2"}
NO_SECOND_MESSAGE = {**FAST_SWEEPS, "BACKBURNER_LEASE__ENQUEUE_INTERVAL": "600"}
STREAMS = 2
SLOTS = 3
"""Of a worker with so few streams, none of them reserved."""
_IN_LINE = 60
"""Responses that wait for the few slots."""


def _held(gate: asyncio.Event) -> Script:
    return [text("held"), wait_for(gate), finish(), usage(), done()]


async def _queue_length(running: Stack, queue: str = "background") -> int:
    redis = running.redis()
    try:
        return await redis.llen(queue)
    finally:
        await redis.aclose()


@asynccontextmanager
async def _full_worker(
    running: Stack, fake: FakeUpstream, gate: asyncio.Event
) -> AsyncIterator[list[str]]:
    """A new worker that has no free slot, all of them filled by its sweep; `gate` frees them.

    Yields the ids of its responses, which must be completed at the end.
    """
    model = fake.script(_held(gate))
    ids = [await running.api().create_background(model) for _ in range(SLOTS)]
    redis = running.redis()
    await until(lambda: redis.llen("background"))
    await redis.flushall()
    await redis.aclose()
    # Old enough for a sweep to claim, but not to enqueue again.
    await running.value(
        "UPDATE responses SET enqueue_count = 6, enqueued_at = now() - interval '1 hour'"
        " WHERE status = 'queued' RETURNING 1"
    )
    await running.start_worker(streams=STREAMS)
    await until(lambda: len(fake.requests_for(model)) == SLOTS)
    try:
        yield ids
    finally:
        gate.set()
    for response_id in ids:
        assert (await running.api().wait_for_end(response_id))["status"] == "completed"


async def _wait_for_sweeps(running: Stack, waiting_ids: list[str]) -> None:
    """Waits until sweeps have ended these waiting responses, one after another."""
    for response_id in waiting_ids:
        await running.value(
            "UPDATE responses SET fail_requested_at = now() WHERE id = %s::uuid RETURNING 1",
            response_id.removeprefix("resp_"),
        )
        assert (await running.api().wait_for_end(response_id))["status"] == "failed"


async def test_a_worker_that_its_sweep_filled_runs_the_next_messages_as_soon_as_a_slot_is_free(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    async with private_stack(workers=0, settings=NO_SECOND_MESSAGE) as running:
        async with _full_worker(running, fake, gate):
            waiting_id = await running.api().create_background(fake.script(reply("waited")))
            await until(lambda: _queue_length(running))
        assert (await running.api().wait_for_end(waiting_id))["output_text"] == "waited"
        for _ in range(2 * SLOTS):
            next_id = await running.api().create_background(fake.script(reply("next")))
            assert (await running.api().wait_for_end(next_id))["output_text"] == "next"


async def test_a_full_worker_leaves_foreground_requests_to_an_idle_one(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    async with (
        private_stack(workers=0, settings=NO_SECOND_MESSAGE) as running,
        _full_worker(running, fake, gate),
    ):
        await running.start_worker(streams=50)
        async with asyncio.timeout(20):
            answers = await asyncio.gather(
                *(running.api().create(fake.script(reply("now"))) for _ in range(16))
            )
        assert {answer["output_text"] for answer in answers} == {"now"}


async def test_a_full_worker_still_ends_responses_that_are_only_to_be_ended(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    async with (
        private_stack(workers=0, settings=NO_SECOND_MESSAGE) as running,
        _full_worker(running, fake, gate),
    ):
        never = fake.script(reply("never"))
        ids = [await running.api().create_background(never) for _ in range(20)]
        await running.value(
            "UPDATE responses SET deadline = now(), enqueued_at = now() - interval '1 minute'"
            " WHERE attempt = 0 RETURNING 1"
        )
        for response_id in ids:
            assert (await running.api().wait_for_end(response_id))["status"] == "failed"
        assert not fake.requests_for(never)


async def test_a_worker_runs_what_fits_of_a_message_and_leaves_the_rest_to_others(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """A message that nobody can read stops no worker either."""
    gate = asyncio.Event()
    async with private_stack(
        workers=0, settings=NO_SECOND_MESSAGE, allowed_tracebacks=("orjson.JSONDecodeError",)
    ) as running:
        model = fake.script(_held(gate))
        ids = [await running.api().create_background(model) for _ in range(2 * SLOTS)]
        await until(lambda: _queue_length(running))
        uuids = [UUID(hex=response_id.removeprefix("resp_")) for response_id in ids]
        redis = running.redis()
        await redis.flushall()
        await redis.lpush("background", "no message", wake_up(uuids, "background"))
        await running.start_worker(streams=STREAMS)
        await until(lambda: len(fake.requests_for(model)) == SLOTS)
        await until(lambda: _queue_length(running))
        # The others are in line, and the message for other workers says only that.
        [message] = await redis.lrange("background", 0, -1)
        await redis.aclose()
        named, _, _ = orjson.loads(b64decode(orjson.loads(message)["body"]))
        assert named == []
        await running.start_worker(streams=STREAMS)
        await until(lambda: len(fake.requests_for(model)) == 2 * SLOTS)
        gate.set()
        for response_id in ids:
            assert (await running.api().wait_for_end(response_id))["status"] == "completed"


async def test_a_stopping_worker_loses_no_message_that_redis_has_just_sent_it(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(workers=0, settings=NO_SECOND_MESSAGE, proxied=True) as running:
        created = await running.api().create_background(fake.script(reply("kept")))
        await until(lambda: _queue_length(running))
        worker = running.spawn_worker()
        held = worker.proxies.redis.hold_answer(b"BRPOP\r\n$10\r\nbackground")
        worker.proxies.redis.count(b"UNBLOCK")
        await held.answered.wait()
        worker.request_stop()
        await until(lambda: worker.proxies.redis.counts[b"UNBLOCK"])
        held.release()
        await running.stop(worker)
        await running.start_worker()
        assert (await running.api().wait_for_end(created))["output_text"] == "kept"


async def test_waiting_responses_do_not_fill_redis_and_survive_its_loss(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """A response in line gets no second message, however old it is."""
    gate = asyncio.Event()
    settings = {**FAST_SWEEPS, "BACKBURNER_LEASE__ENQUEUE_INTERVAL": "0.2"}
    async with private_stack(streams=STREAMS, settings=settings) as running:
        model = fake.script(_held(gate))
        api = running.api()
        # One after another: creates at the same moment share a message.
        ids = [await api.create_background(model) for _ in range(_IN_LINE)]
        await until(lambda: len(fake.requests_for(model)) == SLOTS)
        await running.value(
            "UPDATE responses SET enqueued_at = now() - interval '1 minute'"
            " WHERE attempt = 0 RETURNING 1"
        )
        await _wait_for_sweeps(running, ids[-3:])
        assert await _queue_length(running) <= _IN_LINE
        redis = running.redis()
        assert len(await redis.lindex("background", 0) or "") < 500
        await redis.flushall()
        await redis.aclose()
        gate.set()
        await running.start_worker()
        completed = "SELECT count(*) = %s FROM responses WHERE status = 'completed'"
        await until(lambda: running.value(completed, len(ids) - 3), 30)
        assert len(fake.requests_for(model)) == len(ids) - 3
