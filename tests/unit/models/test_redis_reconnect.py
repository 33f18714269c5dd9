"""A connection to Redis that is opened again, over connections in memory."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from models.redis.raw_connection import RawConnection, listen, stay_connected, subscribe

REDIS = cast("Redis", None)
PAUSE = 0.001


class Connection:
    """Records what is written. Each read returns the next replies, and at their end never."""

    def __init__(self, *replies: list[Any]) -> None:
        self.written: list[bytes] = []
        self.is_closed = False
        self._replies = list(replies)

    def write(self, commands: Iterable[bytes]) -> None:
        self.written += commands

    async def read(self) -> list[Any]:
        if not self._replies:
            await asyncio.Event().wait()
        return self._replies.pop(0)

    async def abort(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    "error",
    [
        RedisConnectionError("Redis has closed the connection."),
        OSError("no route to host"),
        TimeoutError(),
        RuntimeError("unable to perform operation on <TCPTransport closed=True>; it is closed"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_lost_connection_is_closed_and_opened_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The second attempt to connect fails too."""
    opened: list[Connection] = []
    used: list[object] = []
    ended = asyncio.Event()
    attempts = 0

    async def open_connection(_: Redis) -> Connection:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            raise error
        opened.append(Connection())
        return opened[-1]

    async def use(connection: RawConnection) -> None:
        used.append(connection)
        if len(used) < 3:
            raise error
        ended.set()

    monkeypatch.setattr(RawConnection, "open", open_connection)
    async with asyncio.timeout(5):
        await stay_connected(REDIS, use, "lost", pause=PAUSE, ended=ended)
    assert (attempts, used) == (4, list[object](opened))
    assert all(connection.is_closed for connection in opened)


async def test_what_is_to_end_does_not_wait_for_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, has_failed = asyncio.Event(), asyncio.Event()

    async def open_connection(_: Redis) -> Connection:
        has_failed.set()
        raise OSError("connection refused")

    async def use(_: RawConnection) -> None:
        raise AssertionError("there is no connection")

    monkeypatch.setattr(RawConnection, "open", open_connection)
    task = asyncio.create_task(stay_connected(REDIS, use, "lost", pause=3600, ended=ended))
    await has_failed.wait()
    ended.set()
    async with asyncio.timeout(5):
        await task


async def test_a_message_that_comes_with_the_confirmation_is_received() -> None:
    replies = [[b"subscribe", b"control:1", 1], [b"message", b"control:1", b"cancel"]]
    connection = Connection(replies)
    got = await subscribe(cast("RawConnection", connection), "control:1")
    assert (got, connection.written) == (
        replies,
        [b"*2\r\n$9\r\nSUBSCRIBE\r\n$9\r\ncontrol:1\r\n"],
    )


async def test_a_silent_connection_is_pinged_and_then_lost() -> None:
    connection = Connection([b"PONG"], [b"PONG"])
    received: list[bytes] = []
    with pytest.raises(TimeoutError):
        await listen(cast("RawConnection", connection), received.append, 0.01)
    assert received == [b"PONG", b"PONG"]
    assert set(connection.written) == {b"*1\r\n$4\r\nPING\r\n"}
