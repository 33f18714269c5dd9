"""How fast files are ingested into a vector store, whose upstream answers at once."""

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import aiohttp

from bench.cpu import CpuMeter
from bench.deployment import Cluster
from bench.figures import Row

_FILES = 200
_BYTES = 50_000
"""Of one of them."""
_WORD_LENGTH = 7


async def ingest_row(started: Cluster) -> Row:
    """Files of text, from the create of their batch to the end of the last one, with one worker."""
    [web], [worker] = await started.start(webs=1, workers=1)
    async with web.session(started.key) as session:
        ids = [await _upload(session, text) for text in _texts()]
        store = await _json(session, "POST", "vector_stores", {"name": "ingest"})
        path = f"vector_stores/{store['id']}"
        meter = CpuMeter({"worker": [worker.pid], "Postgres": [started.postgres.pid]})
        began = time.monotonic()
        await _json(session, "POST", f"{path}/file_batches", {"file_ids": ids})
        while (counts := await _counts(session, path))["in_progress"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        seconds, used = time.monotonic() - began, meter.used()
        assert counts["completed"] == _FILES, counts
        content = await _json(session, "GET", f"{path}/files/{ids[0]}/content")
        chunks = _FILES * len(content["data"])
    each = ", ".join(f"{name} {value / chunks * 1000:.2f}" for name, value in used.items())
    return Row(
        f"ingest of {_FILES} files of {_BYTES // 1000} kB by one worker",
        chunks / seconds,
        "chunks/s",
        details=f"{chunks} chunks of 800 tokens in {seconds:.1f} s; CPU ms of each: {each}",
    )


async def _counts(session: aiohttp.ClientSession, path: str) -> dict[str, int]:
    counts: dict[str, int] = (await _json(session, "GET", path))["file_counts"]
    return counts


def _texts() -> Iterator[bytes]:
    """As many words in each, so that each has as many chunks."""
    numbers = random.Random(1)
    for _ in range(_FILES):
        letters = numbers.choices(b"abcdefghijklmnopqrstuvwxyz", k=_BYTES)
        words = (
            bytes(letters[at : at + _WORD_LENGTH]) for at in range(0, _BYTES, _WORD_LENGTH + 1)
        )
        yield b" ".join(words)


async def _upload(session: aiohttp.ClientSession, text: bytes) -> str:
    form = aiohttp.FormData()
    form.add_field("purpose", "assistants")
    form.add_field("file", text, filename="a.txt")
    async with session.post("/v1/files", data=form) as reply:
        assert reply.status == 200, await reply.text()
        file_id: str = (await reply.json())["id"]
        return file_id


async def _json(
    session: aiohttp.ClientSession, method: str, path: str, body: dict[str, Any] | None = None
) -> Any:
    async with session.request(method, f"/v1/{path}", json=body) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()
