"""`python -m bench.raw_chain.worker PORT DATABASE_URL REDIS_URL UPSTREAM_URL`: the raw worker.

It listens on the port when it is ready.
"""

import asyncio
import sys
from typing import Any

import aiohttp
import orjson
import uvloop
from psycopg_pool import AsyncConnectionPool
from redis.asyncio import Redis

from bench.raw_chain import END, EVENTS, JOBS

_PREFIX = b"data: "
_DONE = b"[DONE]"


class Publisher:
    """Publishes frames in one pipeline at a time: what is put meanwhile goes with the next one."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._waiting: list[bytes] = []
        self._is_not_empty = asyncio.Event()

    def put(self, response_id: bytes, frame: bytes) -> None:
        self._waiting.append(response_id + frame)
        self._is_not_empty.set()

    async def run(self) -> None:
        while True:
            await self._is_not_empty.wait()
            self._is_not_empty.clear()
            waiting, self._waiting = self._waiting, []
            pipeline = self._redis.pipeline(transaction=False)
            for message in waiting:
                pipeline.publish(EVENTS, message)
            await pipeline.execute()


class Worker:
    """Runs every job of the list at once."""

    def __init__(self, pool: Any, publisher: Publisher, session: aiohttp.ClientSession) -> None:
        self._pool = pool
        self._publisher = publisher
        self._session = session

    async def run(self, job: bytes) -> None:
        """Calls the upstream, publishes each delta and ends the row."""
        values = orjson.loads(job)
        response_id = bytes.fromhex(values["id"])
        body = {
            "model": values["model"],
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
        }
        number = 0
        async with self._session.post("/v1/chat/completions", json=body) as reply:
            async for line in reply.content:
                if not line.startswith(_PREFIX) or line.startswith(_DONE, len(_PREFIX)):
                    continue
                chunk = orjson.loads(line[len(_PREFIX) :])
                if chunk["choices"] and (text := chunk["choices"][0]["delta"].get("content")):
                    self._publisher.put(response_id, _frame(number, text))
                    number += 1
        async with self._pool.connection() as connection:
            await connection.execute(END, (values["id"],))
        self._publisher.put(response_id, b"")


def _frame(number: int, text: str) -> bytes:
    event = {"type": "response.output_text.delta", "sequence_number": number, "delta": text}
    return b"event: response.output_text.delta\ndata: %s\n\n" % orjson.dumps(event)


async def _main(port: str, database_url: str, redis_url: str, upstream_url: str) -> None:
    redis = Redis.from_url(redis_url, socket_timeout=None)
    publisher = Publisher(redis)
    publishing = asyncio.create_task(publisher.run())
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        AsyncConnectionPool(
            database_url, kwargs={"autocommit": True}, min_size=4, max_size=16, open=False
        ) as pool,
        aiohttp.ClientSession(upstream_url, connector=connector) as session,
    ):
        worker = Worker(pool, publisher, session)
        running: set[asyncio.Task[None]] = set()
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", int(port))
        while not publishing.done():
            popped: Any = await redis.brpop([JOBS])
            task = asyncio.create_task(worker.run(popped[1]))
            running.add(task)
            task.add_done_callback(running.discard)


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
