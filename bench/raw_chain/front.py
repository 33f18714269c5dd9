"""`python -m bench.raw_chain.front PORT DATABASE_URL REDIS_URL`: the raw chain's web process."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

import orjson
import uvicorn
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool
from redis.asyncio import Redis

from bench.raw_chain import EVENTS, INSERT, JOBS

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Front:
    """An ASGI application: `POST /v1/responses`, streamed or not, and `GET /noop`."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self._database_url = database_url
        self._redis_url = redis_url
        self._readers: dict[bytes, asyncio.Queue[bytes]] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            async with self._connected():
                await _serve_lifespan(receive, send)
        elif scope["path"] == "/noop":
            await _reply(send, b"{}")
        else:
            body = orjson.loads(await _body(receive))
            await (self._stream if body.get("stream") else self._create)(body, send)

    async def _create(self, body: Message, send: Send) -> None:
        response_id = await self._insert(body)
        await _reply(send, orjson.dumps({"id": str(response_id), "status": "queued"}))

    async def _insert(self, body: Message) -> UUID:
        response_id = uuid4()
        async with self._pool.connection() as connection:
            await connection.execute(INSERT, (response_id, Jsonb(body)))
        await self._push(response_id, body)
        return response_id

    async def _push(self, response_id: UUID, body: Message) -> None:
        job = orjson.dumps({"id": response_id.hex, "model": body["model"]})
        await self._redis.lpush(JOBS, job)

    async def _stream(self, body: Message, send: Send) -> None:
        response_id = uuid4()
        frames = self._readers[response_id.bytes] = asyncio.Queue()
        async with self._pool.connection() as connection:
            await connection.execute(INSERT, (response_id, Jsonb(body)))
        await self._push(response_id, body)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while frame := await frames.get():
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        del self._readers[response_id.bytes]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        self._redis = Redis.from_url(self._redis_url, socket_timeout=None)
        async with (
            AsyncConnectionPool(
                self._database_url, kwargs={"autocommit": True}, min_size=4, max_size=16, open=False
            ) as self._pool,
            self._redis.pubsub() as subscription,
        ):
            await subscription.subscribe(EVENTS)
            relay = asyncio.create_task(self._relay(subscription))
            try:
                yield
            finally:
                relay.cancel()
                with suppress(asyncio.CancelledError):
                    await relay
        await self._redis.aclose()

    async def _relay(self, subscription: Any) -> None:
        async for message in subscription.listen():
            if message["type"] == "message":
                data = message["data"]
                reader = self._readers.get(data[:16])
                if reader is not None:
                    reader.put_nowait(data[16:])


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    await receive()
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
