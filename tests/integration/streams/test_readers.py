"""Every reader gets the same numbers and the same bytes (I4, I7)."""

import asyncio

from tests.support.api import Api, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    finish,
    hang,
    reasoning,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack

LONG_TEXT = [f"word{number} " for number in range(120)]


async def test_resuming_at_any_number_gives_the_remaining_bytes(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    calls = [call(0, "call_a", "f", "{", "}"), call(1, "call_b", "g", "{}")]
    model = fake.script(
        [reasoning("a", "b"), text("c", "d", "e"), *calls, finish("tool_calls"), usage(), done()]
    )
    async with shared_stack.api(0).post_stream(model, background=True) as stream:
        await stream.to_end()
    frames = stream.frames
    assert_stream_obeys_contract([decode(frame) for frame in frames])
    assert await shared_stack.api(1).replay(stream.response_id) == frames
    for number in range(len(frames)):
        remaining = await shared_stack.api(number % 2).replay(stream.response_id, after=number)
        assert remaining == frames[number + 1 :], number
    assert await shared_stack.api(0).replay(stream.response_id, after=len(frames) + 1000) == []


async def test_readers_that_join_at_any_time_get_the_same_bytes(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    gates = [asyncio.Event() for _ in range(6)]
    steps = [
        step
        for number, released in enumerate(gates)
        for step in (text(*LONG_TEXT[number * 20 : number * 20 + 20]), wait_for(released))
    ]
    response_id = await shared_stack.api().create_background(
        fake.script([*steps, finish(), usage(), done()])
    )

    async def read(web: int, after: int | None) -> tuple[int | None, list[bytes]]:
        async with shared_stack.api(web).follow(response_id, after) as stream:
            joined.release()
            await stream.to_end()
            return after, stream.frames

    joined = asyncio.Semaphore(0)
    readers = []
    async with shared_stack.api(0).follow(response_id) as whole:
        for number, released in enumerate(gates):
            await whole.until("response.output_text.delta", count=20)
            # From the start, from the middle, from the current number, and from a number after it.
            for after in (None, number * 10 + 3, whole.last_number, whole.last_number + 5):
                readers.append(asyncio.create_task(read(number % 2, after)))
                await joined.acquire()
            released.set()
        await whole.to_end()
    results = await asyncio.gather(*readers)
    assert_stream_obeys_contract([decode(frame) for frame in whole.frames])
    assert whole.final["output_text"] == "".join(LONG_TEXT)
    for after, frames in results:
        assert frames == whole.frames[0 if after is None else after + 1 :], after
    assert len(results) == 24


async def test_a_late_reader_gets_all_events(shared_stack: Stack, fake: FakeUpstream) -> None:
    ended = await shared_stack.api().wait_for_end(
        await shared_stack.api().create_background(fake.script(reply(*LONG_TEXT)))
    )
    frames = await shared_stack.api(1).replay(ended["id"])
    events = [decode(frame) for frame in frames]
    assert_stream_obeys_contract(events)
    assert events[-1]["response"] == ended
    assert "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    ) == "".join(LONG_TEXT)


async def test_a_reader_that_waits_for_the_next_event_gets_it(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a"), wait_for(released), text("b"), finish(), usage(), done()])
    response_id = await shared_stack.api().create_background(model)
    async with shared_stack.api(0).follow(response_id) as first:
        await first.until("response.output_text.delta")
        async with shared_stack.api(1).follow(response_id, after=first.last_number) as second:
            waiting = asyncio.create_task(second.next())
            released.set()
            event = await waiting
            assert event is not None
            assert event["delta"] == "b"
            await second.to_end()
        await first.to_end()
    assert first.frames[-len(second.frames) :] == second.frames


async def test_many_readers_follow_one_response(shared_stack: Stack, fake: FakeUpstream) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("a"), wait_for(released), text(*LONG_TEXT), finish(), usage(), done()]
    )
    response_id = await shared_stack.api().create_background(model)
    reading = 0

    async def read(web: int) -> list[bytes]:
        nonlocal reading
        async with shared_stack.api(web).follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            reading += 1
            await stream.to_end()
            return stream.frames

    readers = [asyncio.create_task(read(number % 2)) for number in range(60)]
    await until(lambda: reading == 60, 20)
    released.set()
    results = await asyncio.gather(*readers)
    assert all(frames == results[0] for frames in results)
    assert_stream_obeys_contract([decode(frame) for frame in results[0]])


async def test_a_slow_reader_delays_no_other_and_misses_nothing(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    big = ["x" * 20_000] * 100  # far more than sockets and the reader's buffer hold
    released = asyncio.Event()
    model = fake.script([text("a"), wait_for(released), text(*big), finish(), usage(), done()])
    response_id = await shared_stack.api().create_background(model)
    async with (
        shared_stack.api(0).follow(response_id) as slow,
        shared_stack.api(0).follow(response_id) as quick,
    ):
        await slow.until("response.output_text.delta")
        await quick.until("response.output_text.delta")
        released.set()
        await quick.to_end()
        assert quick.final["status"] == "completed"
        await slow.to_end()
    assert slow.frames == quick.frames


async def test_after_the_last_event_get_returns_the_completed_response(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    for number in range(20):
        async with shared_stack.api(0).post_stream(
            fake.script(reply("x")), background=True
        ) as stream:
            await stream.until("response.completed")
            ended = await shared_stack.api(1).get(stream.response_id)
            assert ended == stream.final, number
            chained = await shared_stack.api(1).create(
                fake.script(reply("y")), previous_response_id=stream.response_id
            )
            assert chained["status"] == "completed"


async def test_get_of_a_running_response_shows_the_output_so_far(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([reasoning("thought"), text("half"), hang()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        running = await api.get(stream.response_id)
        assert running["status"] == "in_progress"
        # The output shown is a prefix of the output in the stream.
        assert [item["type"] for item in running["output"]] == ["reasoning", "message"][
            : len(running["output"])
        ]
        await api.cancel(stream.response_id)


async def test_a_background_response_created_without_a_stream_can_be_replayed(
    api: Api, fake: FakeUpstream
) -> None:
    ended = await api.wait_for_end(await api.create_background(fake.script(reply("x"))))
    events = [decode(frame) for frame in await api.replay(ended["id"])]
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert events[-1]["response"] == ended
