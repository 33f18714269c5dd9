"""kill -9 of the worker during and after a compaction: a stored summary is not made twice (I6)."""

import asyncio
import secrets

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import FakeUpstream, finish, hang, reply, text, wait_for
from tests.support.stack import SHORT_LEASES

HISTORY: list[JSON] = [
    {"role": "user", "content": "My cat is called Momo."},
    {"role": "assistant", "content": "Noted. " + "x" * 6000},
    {"role": "user", "content": "And my dog?"},
]
CONTEXT_MANAGEMENT: JSON = {
    "context_management": [{"type": "compaction", "compact_threshold": 1000}]
}


@pytest.mark.long
async def test_a_compaction_is_repeated_after_a_crash_and_a_stored_one_is_not(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32)}
    async with private_stack(settings=settings) as running:
        api = running.api()
        during = fake.script(
            [text("Half a summ"), hang()], reply("The cat is Momo."), reply("Rex.")
        )
        after = fake.script(reply("The cat is Momo."), [text("Re"), hang()], reply("Rex."))
        response_ids = [
            await api.create_background(model, input=HISTORY, **CONTEXT_MANAGEMENT)
            for model in (during, after)
        ]
        async with api.follow(response_ids[0]) as first, api.follow(response_ids[1]) as second:
            await first.until("response.compaction.compacting")
            await until(lambda: any(request.sent_text for request in fake.requests_for(during)))
            await second.until("response.output_text.delta")
            running.kill(running.workers[0])
            await running.start_worker()
            await asyncio.gather(first.to_end(), second.to_end())
        for response_id, stream in zip(response_ids, (first, second), strict=True):
            assert await api.replay(response_id) == stream.frames
            assert_one_stream(stream.frames)
            response = await api.get(response_id)
            assert (response["status"], response["output_text"]) == ("completed", "Rex.")
            assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert len(fake.requests_for(during)) == 3
        assert len(fake.requests_for(after)) == 3, (
            "the summary was stored: only the turn after it is repeated"
        )
        model = fake.script(reply("Yes."))
        for response_id in response_ids:
            await api.create(model, input="Sure?", previous_response_id=response_id)
        first_messages, second_messages = (request.messages for request in fake.requests_for(model))
        assert first_messages == second_messages


@pytest.mark.long
async def test_a_compact_whose_worker_dies_is_answered_by_the_next(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32)}
    async with private_stack(settings=settings) as running:
        released = asyncio.Event()
        model = fake.script([text("Half"), wait_for(released), finish()], reply("The cat is Momo."))
        compact_task = asyncio.create_task(
            running.api().call("POST", "/responses/compact", {"model": model, "input": HISTORY})
        )
        await until(lambda: any(request.sent_text for request in fake.requests_for(model)))
        running.kill(running.workers[0])
        released.set()
        await running.start_worker()
        answer = await compact_task
        assert answer.status == 200, answer.raw
        assert [item["type"] for item in answer.body["output"]] == [
            "message",
            "message",
            "compaction",
        ]
