"""kill -9 of the worker while it compacts, and right after: one summary in the history, none made twice that was stored (I6)."""

import asyncio
import secrets

from tests.conftest import PrivateStack
from tests.support.api import JSON, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import FakeUpstream, finish, hang, reply, text, wait_for
from tests.support.stack import SHORT_LEASES

TALK: list[JSON] = [
    {"role": "user", "content": "My cat is called Momo."},
    {"role": "assistant", "content": "Noted. " + "x" * 6000},
    {"role": "user", "content": "And my dog?"},
]
MANAGED: JSON = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}


async def test_a_compaction_whose_worker_dies_is_made_anew_and_a_stored_one_is_not(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32)}
    async with private_stack(settings=settings) as one:
        api = one.api()
        during = fake.script(
            [text("Half a summ"), hang()], reply("The cat is Momo."), reply("Rex.")
        )
        after = fake.script(reply("The cat is Momo."), [text("Re"), hang()], reply("Rex."))
        names = [
            await api.create_background(model, input=TALK, **MANAGED) for model in (during, after)
        ]
        async with api.follow(names[0]) as first, api.follow(names[1]) as second:
            await first.until("response.compaction.compacting")
            await until(lambda: any(request.sent_text for request in fake.requests_for(during)))
            await second.until("response.output_text.delta")
            one.kill(one.workers[0])
            await one.start_worker()
            await asyncio.gather(first.to_end(), second.to_end())
        for name, stream in zip(names, (first, second), strict=True):
            assert await api.replay(name) == stream.frames
            assert_one_stream(stream.frames)
            response = await api.get(name)
            assert (response["status"], response["output_text"]) == ("completed", "Rex.")
            assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert len(fake.requests_for(during)) == 3
        assert len(fake.requests_for(after)) == 3, (
            "the summary was stored: only the turn after it is asked for again"
        )
        model = fake.script(reply("Yes."))
        for name in names:
            await api.create(model, input="Sure?", previous_response_id=name)
        one_told, other_told = (request.messages for request in fake.requests_for(model))
        assert one_told == other_told


async def test_a_compact_whose_worker_dies_is_answered_by_the_next(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32)}
    async with private_stack(settings=settings) as one:
        opened = asyncio.Event()
        model = fake.script([text("Half"), wait_for(opened), finish()], reply("The cat is Momo."))
        asked = asyncio.create_task(
            one.api().call("POST", "/responses/compact", {"model": model, "input": TALK})
        )
        await until(lambda: any(request.sent_text for request in fake.requests_for(model)))
        one.kill(one.workers[0])
        opened.set()
        await one.start_worker()
        answer = await asked
        assert answer.status == 200, answer.raw
        assert [item["type"] for item in answer.body["output"]] == [
            "message",
            "message",
            "compaction",
        ]
