"""A client may wait for its answer for hours. Its request is not kept in memory for so long."""

import asyncio
from contextlib import AsyncExitStack

import psutil
import pytest

from tests.support.fake_upstream import FakeUpstream, reply, wait_for
from tests.support.stack import Stack

SIZE = 3_900_000
COUNT = 20
TEXT = "x" * SIZE


@pytest.mark.long
async def test_the_inputs_of_streams_are_freed_when_they_are_stored(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    api, answered = tool_stack.api(), asyncio.Event()
    [web] = tool_stack.webs
    await api.create(fake.script(reply("x")), input=TEXT)
    before = psutil.Process(web.pid).memory_info().rss
    model = fake.script([wait_for(answered), *reply("read")])
    async with AsyncExitStack() as streams:
        for _ in range(COUNT):
            stream = await streams.enter_async_context(api.post_stream(model, input=TEXT))
            await stream.until("response.created")
        growth = psutil.Process(web.pid).memory_info().rss - before
        answered.set()
    assert growth < SIZE * COUNT * 0.6
