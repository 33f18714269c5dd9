"""If only a worker loses Redis, silence alone makes a reader read the log (I8)."""

import asyncio
from typing import cast
from uuid import uuid4

import pytest

from models.config.settings import Settings
from models.db.arrays import Uuids
from models.db.database import Pool
from models.db.queries.common import LogBlock
from web.stream import polls as module
from web.stream.bus import Bus
from web.stream.polls import LogPolls


async def test_the_log_of_a_reader_that_has_just_received_something_is_looked_at_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FAST_POLL_AFTER", 0.02)
    settings = Settings(database_url="postgresql://unused", redis_url="redis://unused")
    bus = Bus(settings, uuid4())
    polls = LogPolls(settings, cast("Pool", None), bus)

    async def fetch(_pool: object, _query: object, positions: dict[str, Uuids]) -> list[int]:
        assert positions["ids"].data == Uuids([active_id]).data
        return [1]

    monkeypatch.setattr(module, "fetch", fetch)
    active_id = uuid4()
    async with bus.subscribe(active_id) as active, bus.subscribe(uuid4()) as waiting:
        watch = asyncio.create_task(polls.watch_idle_readers())
        active.put(LogBlock(1, 0, 0, b"data: {}\n\n"))
        assert await active.next() is not None
        async with asyncio.timeout(10):
            assert await active.next() is None
        assert not active.poll_fast
        assert not waiting.must_read_log
        watch.cancel()
