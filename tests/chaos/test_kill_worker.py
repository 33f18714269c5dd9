"""A worker dies, stalls or is replaced in mid-stream: readers see one numbering, one ending, and no trace of whose fault it was."""

import asyncio
import time

import pytest

from tests.api import until
from tests.chaos.story import assert_abandoned, assert_one_story
from tests.conftest import PrivateStack
from tests.fake_upstream import FakeUpstream, Step, call, done, finish, gate, hang, reasoning, reply, text, usage
from tests.stack import IMPATIENT

PROMISE = 20
"""Seconds within which a response whose worker died is running again or over (I2)."""


async def test_after_kill_9_the_restarted_worker_brings_the_stream_to_its_end_in_time(private: PrivateStack, fake: FakeUpstream) -> None:
    """With the default leases, since their sum is the promise."""
    async with private(webs=2) as stack:
        model = fake.script([reasoning("hm"), text("half", " a "), hang()], reply("whole ", "answer"))
        response_id = await stack.api(0).background(model)
        async with stack.api(0).follow(response_id) as staying:
            async with stack.api(1).follow(response_id) as leaving:
                await leaving.until("response.output_text.delta")
            await staying.until("response.output_text.delta", count=2)
            killed = time.monotonic()
            stack.kill(stack.workers[0])
            stack.spawn_worker()
            await staying.to_end()
            assert time.monotonic() - killed < PROMISE
        events = assert_one_story(staying.frames)
        assert staying.final["output_text"] == "whole answer"
        assert_abandoned(events, items=2)
        rest = await stack.api(1).replay(response_id, after=leaving.last_number)
        assert leaving.frames + rest == staying.frames
        assert await stack.api(1).get(response_id) == staying.final
        assert len(fake.asked(model)) == 2


CUTS: list[tuple[str, list[Step], int]] = [
    ("before anything was said", [hang()], 0),
    ("in a message", [text("half"), hang()], 1),
    ("in the arguments of a call", [text("Let me see."), call(0, "call_a", "f", '{"a":'), hang()], 2),
    ("in a thought", [reasoning("hm"), hang()], 1),
]


@pytest.mark.parametrize(("before", "items"), [pytest.param(*row[1:], id=row[0]) for row in CUTS])
async def test_a_second_worker_takes_over(private: PrivateStack, fake: FakeUpstream, before: list[Step], items: int) -> None:
    async with private(webs=2, settings=IMPATIENT) as stack:
        model = fake.script(before, [text("new"), call(0, "call_b", "g", "{}"), finish("tool_calls"), usage(), done()])
        response_id = await stack.api(0).background(model)
        async with stack.api(0).follow(response_id) as staying:
            await until(lambda: fake.asked(model))
            while sum(event["type"].endswith(".delta") for event in staying.events) < items:
                await staying.next()
            async with stack.api(1).follow(response_id, after=1) as resuming:
                await stack.start_worker()
                stack.kill(stack.workers[0])
                await asyncio.gather(staying.to_end(), resuming.to_end())
        events = assert_one_story(staying.frames)
        if items:
            assert_abandoned(events, items=items)
        assert [item["type"] for item in staying.final["output"]] == ["message", "function_call"]
        assert resuming.frames == staying.frames[2:]
        assert [event["type"] for event in events].count("response.in_progress") == 1


async def test_the_official_stream_helper_survives_a_recovery(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(settings=IMPATIENT) as stack:
        model = fake.script([text("half"), hang()], reply("whole"))
        async with stack.openai().responses.stream(model=model, input="Go.", background=True) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta" and event.delta == "half":
                    stack.kill(stack.workers[0])
                    stack.spawn_worker()
            assert (await stream.get_final_response()).output_text == "whole"


async def test_a_foreground_stream_survives_its_worker_too(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(settings=IMPATIENT) as stack:
        model = fake.script([text("half"), hang()], reply("whole"))
        async with stack.api().post_stream(model) as stream:
            await stream.until("response.output_text.delta")
            stack.kill(stack.workers[0])
            stack.spawn_worker()
            await stream.to_end()
        assert_abandoned(assert_one_story(stream.frames), items=1)
        assert stream.final["output_text"] == "whole"


async def test_all_the_responses_of_a_dead_worker_are_taken_over(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(settings=IMPATIENT) as stack:
        models = [fake.script([text("half"), hang()], reply(f"whole {number}")) for number in range(40)]
        ids = await asyncio.gather(*map(stack.api().background, models))
        await until(lambda: all(fake.asked(model) for model in models), 20)
        stack.kill(stack.workers[0])
        stack.spawn_worker()
        ended = await asyncio.gather(*(stack.api().ended(response_id) for response_id in ids))
        assert [response["output_text"] for response in ended] == [f"whole {number}" for number in range(40)]
        for response_id in ids:
            assert_one_story(await stack.api().replay(response_id))


async def test_a_cancel_ends_a_response_whose_worker_is_dead(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(settings={**IMPATIENT, "BACKBURNER_WEB__CANCEL_WAIT": "0.5"}) as stack:
        model = fake.script([text("half"), hang()], reply("never"))
        response_id = await stack.api().background(model)
        async with stack.api().follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            stack.kill(stack.workers[0])
            answer = await stack.api().cancel(response_id)
            assert answer.status == 200
            stack.spawn_worker()
            await stream.to_end()
        assert_one_story(stream.frames)
        ended = await stack.api().get(response_id)
        assert (ended["status"], ended["output_text"]) == ("cancelled", "half")
        assert len(fake.asked(model)) == 1


async def test_a_frozen_worker_that_wakes_up_can_do_nothing_any_more(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(webs=2, settings=IMPATIENT) as stack:
        woken = asyncio.Event()
        told = asyncio.Event()
        old = [text("old"), gate(woken), text(" words", " that", " come", " too", " late"), finish(), usage(), done()]
        model = fake.script(old, [text("new"), gate(told), text(" words"), finish(), usage(), done()])
        response_id = await stack.api().background(model)
        async with stack.api(0).follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            frozen = stack.workers[0]
            frozen.pause()
            await stack.start_worker()
            await stream.until("response.output_text.delta")  # the new worker speaks
            woken.set()
            await until(lambda: fake.asked(model)[0].finished is not None)
            stack.workers.remove(frozen)
            frozen.resume()
            await until(lambda: not frozen.running(), 10)
            told.set()
            await stream.to_end()
        assert_abandoned(assert_one_story(stream.frames), items=1)
        assert stream.final["output_text"] == "new words"
        assert await stack.api(1).replay(response_id) == stream.frames


async def test_a_stopping_worker_hands_its_responses_over(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(webs=2, settings={**IMPATIENT, "BACKBURNER_WORKER__GRACE": "0.5"}) as stack:
        model = fake.script([text("half"), hang()], reply("whole"))
        response_id = await stack.api().background(model)
        async with stack.api(0).follow(response_id) as staying, stack.api(1).follow(response_id) as other:
            await staying.until("response.output_text.delta")
            await stack.start_worker()
            await stack.stop(stack.workers[0])
            [first, *_] = fake.asked(model)
            assert first.closed_by_client is not None
            await asyncio.gather(staying.to_end(), other.to_end())
        assert_abandoned(assert_one_story(staying.frames), items=1)
        assert staying.final["output_text"] == "whole"
        assert other.frames == staying.frames
        uuid = response_id.removeprefix("resp_")
        assert await stack.value("SELECT deaths FROM responses WHERE id = %s::uuid", uuid) == 0, "a hand-over is no death"


async def test_a_stopping_worker_lets_end_what_ends_by_itself(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(settings={**IMPATIENT, "BACKBURNER_WORKER__GRACE": "10"}) as stack:
        opened = asyncio.Event()
        model = fake.script([text("one "), gate(opened), text("go"), finish(), usage(), done()], reply("never"))
        async with stack.api().post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            stopping = stack.workers.pop()
            stopping.ask_to_stop()
            late = fake.script(reply("by the next worker"))
            waiting = await stack.api().background(late)
            opened.set()
            await stream.to_end()
            await until(lambda: not stopping.running(), 20)
            assert stopping.exit_code() == 0
        assert stream.final["output_text"] == "one go"
        assert len(fake.asked(model)) == 1
        await stack.start_worker()
        assert (await stack.api().ended(waiting))["output_text"] == "by the next worker"


async def test_a_response_that_kills_its_workers_fails_in_quarantine(private: PrivateStack, fake: FakeUpstream) -> None:
    async with private(settings=IMPATIENT, quarantine=True) as stack:
        worker, quarantine = stack.workers
        model = fake.script([text("boom"), hang()])
        async with stack.api().post_stream(model, background=True) as stream:
            for deaths, victim in enumerate([worker, None, quarantine]):
                await until(lambda: len(fake.asked(model)) > deaths, 20)  # noqa: B023  # awaited before the next round
                await stream.until("response.output_text.delta")
                stack.kill(victim or stack.workers[-1])
                await stack.start_worker(quarantine=victim is quarantine)
            await stream.to_end()
        assert_one_story(stream.frames)
        assert stream.final["status"] == "failed"
        assert len(fake.asked(model)) == 3
        assert (await stack.api().ended(await stack.api().background(fake.script(reply("fine")))))["status"] == "completed"
