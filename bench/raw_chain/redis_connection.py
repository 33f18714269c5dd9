"""A connection to Redis that costs little more than its system calls."""

import asyncio
from collections import deque
from typing import Any, Self, cast
from urllib.parse import urlsplit

import hiredis

Argument = str | bytes | int


class RedisConnection(asyncio.Protocol):
    """Commands whose replies come in order; without an answer from Redis it fails loudly.

    A subclass that subscribes overrides `received`.
    """

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._replies: deque[asyncio.Future[Any] | None] = deque()

    @classmethod
    async def connect(cls, url: str) -> Self:
        """`url` as in `redis://:PASSWORD@HOST:PORT/0`."""
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        assert parts.hostname
        assert parts.port
        _, connection = await loop.create_connection(cls, parts.hostname, parts.port)
        await connection.call("AUTH", parts.password or "")
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self.received(reply)

    def received(self, reply: Any) -> None:
        """Passes one reply on to the command that it belongs to."""
        if isinstance(reply, Exception):
            raise reply
        future = self._replies.popleft()
        if future is not None:
            future.set_result(reply)

    def send(self, *arguments: Argument) -> None:
        """Sends a command; its reply is dropped."""
        self._replies.append(None)
        self._transport.write(_packed(arguments))

    async def call(self, *arguments: Argument) -> Any:
        """Sends a command and returns its reply."""
        future = asyncio.get_running_loop().create_future()
        self._replies.append(future)
        self._transport.write(_packed(arguments))
        return await future


class Subscription(RedisConnection):
    """A connection that receives the messages of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.on_message: Any = None
        """Called with the bytes of each message."""

    def received(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"message":
            self.on_message(reply[2])
        else:
            super().received(reply)

    async def subscribe(self, channel: str, on_message: Any) -> None:
        """Calls `on_message` with the bytes of each message from now on."""
        self.on_message = on_message
        await self.call("SUBSCRIBE", channel)


def _packed(arguments: tuple[Argument, ...]) -> bytes:
    """The bytes of a command."""
    packed: bytes = hiredis.pack_command(cast("tuple[Any]", arguments))  # its stub: one argument
    return packed
