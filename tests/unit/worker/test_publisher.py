"""The publisher of a worker, over connections in memory."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from models.redis.raw_connection import RawConnection, stay_connected
from tests.support.api import until
from worker.log import publisher as module
from worker.log.publisher import Publisher


class Connections:
    """All connections of a publisher, one after the other."""

    def __init__(self) -> None:
        self.opened = 0
        self.published: list[bytes] = []
        """the batches that Redis has"""
        self.may_open = asyncio.Event()
        self.may_confirm = asyncio.Event()
        self.is_lost = False

    async def open(self, _: Redis) -> "Connections":
        await self.may_open.wait()
        self.opened += 1
        return self

    def write(self, commands: Iterable[bytes]) -> None:
        if self.is_lost:
            self.is_lost = False
            # uvloop's, just after a transport was closed.
            raise RuntimeError("unable to perform operation on <TCPTransport>; it is closed")
        self.published.append(b"".join(commands))

    async def read(self) -> list[Any]:
        await self.may_confirm.wait()
        return [b"OK"]

    async def abort(self) -> None:
        self.may_open.clear()


async def test_messages_gather_and_those_that_wait_for_another_connection_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections = Connections()
    monkeypatch.setattr(RawConnection, "open", connections.open)
    monkeypatch.setattr(module, "stay_connected", partial(stay_connected, pause=0.001))
    publisher = Publisher(cast("Redis", None))
    task = asyncio.create_task(publisher.run())
    publisher.publish("events:1", b"before the first connection")
    connections.may_open.set()
    await until(lambda: len(connections.published) == 1, every=0.001)
    for number in range(3):
        publisher.publish("events:1", b"gathered %d" % number)
    connections.may_confirm.set()
    await until(lambda: len(connections.published) == 2, every=0.001)
    connections.is_lost = True
    publisher.publish("events:1", b"not sent")
    await until(lambda: not connections.may_open.is_set(), every=0.001)
    publisher.publish("events:1", b"Redis is away")
    connections.may_open.set()
    await until(lambda: connections.opened == 2, every=0.001)
    publisher.publish("events:1", b"it is back")
    await until(lambda: b"it is back" in connections.published[-1], every=0.001)
    first, second, *_ = connections.published
    assert b"before the first connection" in first
    assert second.count(b"gathered") == 3
    assert not any(b"not sent" in batch or b"away" in batch for batch in connections.published)
    task.cancel()
    await asyncio.wait((task,))
