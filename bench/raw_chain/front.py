"""`python -m bench.raw_chain.front PORT DATABASE_URL REDIS_URL`: the raw chain's web process."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import UUID, uuid4

import orjson
import uvicorn

from bench.raw_chain import CANCEL, CANCELS, EVENTS, INSERT, JOBS, Connections
from bench.raw_chain.redis_connection import RedisConnection, Subscription

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_STREAM = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream")],
}


class Frames:
    """What has arrived for one stream and was not sent yet."""

    __slots__ = ("_has_ended", "_parts", "_waiter")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._has_ended = False

    def put(self, frames: bytes) -> None:
        """Adds frames; empty bytes end the stream."""
        if frames:
            self._parts.append(frames)
        else:
            self._has_ended = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> bytes:
        """All frames that have arrived, at least one; empty bytes at the end."""
        if not self._parts and not self._has_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        parts, self._parts = self._parts, []
        return b"".join(parts)


class Front:
    """An ASGI application.

    `POST /v1/responses`, streamed or not; `POST /v1/responses/ID/cancel`; `GET /open`: how many
    responses have not ended; `POST /stop`: cancels all.
    """

    def __init__(self, database_url: str, redis_url: str) -> None:
        self._database_url = database_url
        self._redis_url = redis_url
        self._database = Connections()
        self._readers: dict[bytes, Frames] = {}
        self._open = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["path"] == "/open":
            await _reply(send, b'{"open":%d}' % self._open)
        elif scope["path"] == "/stop":
            await self._stop(send)
        elif scope["path"].endswith("/cancel"):
            await self._cancel(UUID(scope["path"].split("/")[-2]), send)
        else:
            content = await _body(receive)
            body = orjson.loads(content)
            await (self._stream if body.get("stream") else self._create)(content, body, send)

    async def _create(self, content: bytes, body: Message, send: Send) -> None:
        response_id = uuid4()
        await self._insert(response_id, content, body)
        await _reply(send, b'{"id":"%s","status":"queued"}' % str(response_id).encode())

    async def _insert(self, response_id: UUID, content: bytes, body: Message) -> None:
        await self._database.execute(INSERT, (response_id, content.decode()))
        self._open += 1
        job = orjson.dumps({"id": response_id.hex, "model": body["model"]})
        self._redis.send("LPUSH", JOBS, job)

    async def _stream(self, content: bytes, body: Message, send: Send) -> None:
        response_id = uuid4()
        frames = self._readers[response_id.bytes] = Frames()
        await self._insert(response_id, content, body)
        await send(_STREAM)
        created = b'event: response.created\ndata: {"id":"%s"}\n\n' % str(response_id).encode()
        await send({"type": "http.response.body", "body": created, "more_body": True})
        while part := await frames.get():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        del self._readers[response_id.bytes]

    async def _cancel(self, response_id: UUID, send: Send) -> None:
        await self._database.execute(CANCEL, (response_id,))
        self._redis.send("PUBLISH", CANCELS, response_id.bytes)
        self._open -= 1
        await _reply(send, b"{}")

    async def _stop(self, send: Send) -> None:
        self._redis.send("PUBLISH", CANCELS, b"")
        self._open = 0
        for frames in self._readers.values():
            frames.put(b"")
        await _reply(send, b"{}")

    def _relay(self, data: bytes) -> None:
        """Gives the messages of one publication to their readers."""
        position = 0
        while position < len(data):
            start = position + 20
            end = start + int.from_bytes(data[position + 16 : start], "big")
            if start == end:
                self._open -= 1
            reader = self._readers.get(data[position : position + 16])
            if reader is not None:
                reader.put(data[start:end])
            position = end

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._database.open(self._database_url)
        self._redis = await RedisConnection.connect(self._redis_url)
        subscription = await Subscription.connect(self._redis_url)
        await subscription.subscribe(EVENTS, self._relay)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def _body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    return body


async def _reply(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    port, database_url, redis_url = sys.argv[1:]
    uvicorn.run(
        Front(database_url, redis_url),
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
