"""`python -m bench.raw_chain.worker PORT DATABASE_URL REDIS_URL UPSTREAM_URL`: the raw worker.

It listens on the port when it is ready.
"""

import asyncio
import sys
from typing import Any
from uuid import UUID

import aiohttp
import orjson
import uvloop
from yarl import URL

from bench.raw_chain import CANCELS, END, EVENTS, JOBS, Connections
from bench.raw_chain.redis_connection import RedisConnection, Subscription

_FRAME_END = b"\n\n"
_PREFIX = len(b"data: ")
_DONE = b"data: [DONE]"
_GAP = 0.002
"""Seconds between two publications, so that one carries many deltas. The first one after a pause
is sent at once."""
_JOBS_AT_ONCE = 100


class Publisher:
    """Publishes the messages of a short time by one command."""

    def __init__(self, redis: RedisConnection) -> None:
        self._redis = redis
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._published_at = 0.0

    def put(self, response_id: bytes, frames: bytes) -> None:
        """Publishes frames soon; without frames: the end of the response."""
        if not self._waiting:
            self._loop.call_at(self._published_at + _GAP, self._publish)
        self._waiting.append(b"%s%s%s" % (response_id, len(frames).to_bytes(4, "big"), frames))

    def _publish(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._published_at = self._loop.time()
        self._redis.send("PUBLISH", EVENTS, b"".join(waiting))


class Worker:
    """Runs every job of the list at once."""

    def __init__(
        self,
        database: Connections,
        publisher: Publisher,
        session: aiohttp.ClientSession,
        upstream_url: str,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._session = session
        self._url = URL(f"{upstream_url}/v1/chat/completions")
        self._running: dict[bytes, asyncio.Task[None]] = {}

    def start(self, job: bytes) -> None:
        """Runs a job in a task of its own."""
        values = orjson.loads(job)
        response_id = bytes.fromhex(values["id"])
        task = asyncio.create_task(self._run(response_id, values["model"]))
        self._running[response_id] = task
        task.add_done_callback(lambda _: self._running.pop(response_id))

    def cancel(self, response_id: bytes) -> None:
        """Closes the connection to the upstream; with empty bytes, all connections."""
        for key in [response_id] if response_id else list(self._running):
            if key in self._running:
                self._running[key].cancel()

    async def _run(self, response_id: bytes, model: str) -> None:
        """Calls the upstream, publishes each delta and ends the row."""
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with self._session.post(self._url, data=orjson.dumps(body)) as reply:
            rest, number = b"", 0
            while data := await reply.content.readany():
                *chunks, rest = (rest + data).split(_FRAME_END)
                frames, number = _renamed(chunks, number)
                if frames:
                    self._publisher.put(response_id, frames)
        await self._database.execute(END, (UUID(bytes=response_id),))
        self._publisher.put(response_id, b"")


def _renamed(chunks: list[bytes], number: int) -> tuple[bytes, int]:
    """The frames of the deltas in these chunks, and the number of the next delta."""
    frames = []
    for chunk in chunks:
        if chunk == _DONE:
            continue
        choices = orjson.loads(chunk[_PREFIX:])["choices"]
        if choices and (text := choices[0]["delta"].get("content")):
            event = {
                "type": "response.output_text.delta",
                "sequence_number": number,
                "delta": text,
            }
            frames.append(b"event: response.output_text.delta\ndata: %s\n\n" % orjson.dumps(event))
            number += 1
    return b"".join(frames), number


async def _main(port: str, database_url: str, redis_url: str, upstream_url: str) -> None:
    database = Connections()
    await database.open(database_url)
    publisher = Publisher(await RedisConnection.connect(redis_url))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    ) as session:
        worker = Worker(database, publisher, session, upstream_url)
        cancels = await Subscription.connect(redis_url)
        await cancels.subscribe(CANCELS, worker.cancel)
        jobs = await RedisConnection.connect(redis_url)
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", int(port))
        while True:
            popped: Any = await jobs.call("BLMPOP", 0, 1, JOBS, "RIGHT", "COUNT", _JOBS_AT_ONCE)
            for job in popped[1]:
                worker.start(job)


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
