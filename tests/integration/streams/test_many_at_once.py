"""Two hundred background responses run at the same time through one worker process."""

import asyncio

from tests.support.api import decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, done, finish, text, usage, wait_for
from tests.support.stack import Stack


async def test_two_hundred_background_responses_all_complete(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    chunks = [f"w{number} " for number in range(30)]
    model = fake.script(
        [text("start "), wait_for(released), text(*chunks, gap=0.02), finish(), usage(), done()]
    )
    full_text = "start " + "".join(chunks)
    ids = await asyncio.gather(
        *(shared_stack.api(number % 2).create_background(model) for number in range(200))
    )
    assert len(set(ids)) == 200

    async def follow(number: int) -> list[bytes]:
        async with shared_stack.api(number % 2).follow(ids[number]) as stream:
            await stream.until("response.output_text.delta")
            running.release()
            await stream.to_end()
            assert stream.final["output_text"] == full_text
            return stream.frames

    running = asyncio.Semaphore(0)
    followers = [asyncio.create_task(follow(number)) for number in range(0, 200, 10)]
    for _ in followers:
        await running.acquire()
    await until(lambda: len(fake.requests_for(model)) == 200)
    released.set()
    for frames in await asyncio.gather(*followers):
        assert_stream_obeys_contract([decode(frame) for frame in frames])
    ended = await asyncio.gather(
        *(
            shared_stack.api(number % 2).wait_for_end(response_id, 60)
            for number, response_id in enumerate(ids)
        )
    )
    assert {response["status"] for response in ended} == {"completed"}
    assert {response["output_text"] for response in ended} == {full_text}
    assert len(fake.requests_for(model)) == 200, "each was sent to the upstream exactly once"
