"""Attacks with many streams, queued responses or cached answers."""

import asyncio
import contextlib

from tests.chaos.abuse.kinds import attack
from tests.chaos.abuse.offender import Offender, as_json
from tests.support.fake_upstream import Exchange, done, finish, hang, reply, text, usage

_JOBS_RUN = 3.0
"""Seconds for which the long jobs hold their slots."""


@attack("80 readers that read nothing of 8 MiB")
async def _slow_readers(offender: Offender) -> None:
    model = offender.model([text(*["x" * 1000] * 8_000), finish(), usage(), done()])
    created = await offender.create(model)
    if created is None:
        return
    head = offender.head("GET", f"/responses/{created}?stream=true")
    async with contextlib.AsyncExitStack() as connections:
        for _ in range(80):
            _, writer = await connections.enter_async_context(offender.connection(4096))
            writer.write(head)
        await offender.end(created)


@attack("500 open streams", "429")
async def _open_streams(offender: Offender) -> None:
    model = offender.model([hang()])
    body = as_json({"model": model, "input": "x", "stream": True})

    async def stream() -> None:
        with contextlib.suppress(TimeoutError, OSError):
            async with offender.connection() as (reader, writer):
                writer.write(offender.head("POST", "/responses", content_length=len(body)) + body)
                async with asyncio.timeout(10):
                    line = await reader.readline()
                offender.count(line.split()[1].decode() if line else "closed")
                await asyncio.sleep(3)
            return
        offender.count("no answer")

    await offender.all(stream() for _ in range(500))


@attack("10 000 queued jobs", "429")
async def _queue(offender: Offender) -> None:
    async def pause(exchange: Exchange) -> None:
        await asyncio.sleep(10)
        await exchange.begin()

    model = offender.model([pause, *reply("done")])
    ids: list[str | None] = []
    for _ in range(offender.many(100, 6)):
        ids += await offender.all(offender.create(model) for _ in range(100))
    created = [one for one in ids if one is not None]
    await offender.all(
        offender.api.call("POST", f"/responses/{one}/cancel", b"") for one in created
    )


@attack("600 long background jobs", quick=True)
async def _long_jobs(offender: Offender) -> None:
    """More than the worker has slots for. They are cancelled after some seconds."""
    model = offender.model([hang()])
    ids: list[str | None] = []
    for _ in range(6):
        ids += await offender.all(offender.create(model) for _ in range(100))
    await asyncio.sleep(_JOBS_RUN)
    created = [one for one in ids if one is not None]
    await offender.all(
        offender.api.call("POST", f"/responses/{one}/cancel", b"") for one in created
    )


@attack("60 cached answers of 750 KiB")
async def _cache(offender: Offender) -> None:
    model = offender.model([text("x" * 750 * 1024), finish(), usage(), done()])
    ids = await offender.all(
        offender.create(model, input=f"{number}", cache=True) for number in range(60)
    )
    await offender.end(*ids)
