"""Readers of silent responses share one statement, and still notice a lost message (I8)."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from models.db.queries import read
from tests.conftest import PrivateStack
from tests.support.api import Stream, until
from tests.support.chaos.fragments import fragment
from tests.support.fake_upstream import FakeUpstream, done, finish, text, usage, wait_for

READERS = 100
LOG_PAGE = fragment(read.LOG_PAGE, "SELECT response.status, response.is_rewritten")
MOVED_LOGS = fragment(read.MOVED_LOGS, "AS t (id, number, attempt, nr)")


@pytest.mark.long
async def test_silent_readers_share_one_statement_and_still_get_what_redis_lost(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("before "), wait_for(released), text("after"), finish(), usage(), done()]
    )
    settings = {"BACKBURNER_WEB__POLL": "1"}
    async with private_stack(proxied=True, settings=settings) as stack, AsyncExitStack() as streams:
        api = stack.api()
        response = await api.create_background(model)
        readers = [await streams.enter_async_context(api.follow(response)) for _ in range(READERS)]
        await asyncio.gather(*(_read_to_text(reader) for reader in readers))
        postgres = stack.webs[0].proxies.postgres
        postgres.count(LOG_PAGE)
        postgres.count(MOVED_LOGS)
        await until(lambda: postgres.counts[MOVED_LOGS] >= 5)
        # A first look may find what a reader has missed while all of them connected.
        assert postgres.counts[LOG_PAGE] < READERS / 10
        assert postgres.counts[MOVED_LOGS] < READERS / 10
        stack.workers[0].proxies.redis.refuse()
        released.set()
        await asyncio.gather(*(reader.to_end() for reader in readers))
        assert {reader.final["output_text"] for reader in readers} == {"before after"}
        stack.workers[0].proxies.redis.heal()


async def _read_to_text(reader: Stream) -> None:
    await reader.until("response.output_text.delta")
