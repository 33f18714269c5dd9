"""Batches through the official client."""

import json
from collections.abc import Sequence
from typing import Any

import openai
from openai.types import Batch

from tests.support.api import until

ENDED = {"completed", "failed", "expired", "cancelled"}


def line(custom_id: str, model: str = "demo", **changes: Any) -> dict[str, Any]:
    """A request; `changes` replace members of the line."""
    body = {"model": model, "input": f"Say {custom_id}."}
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}
    return request | changes


async def upload(client: openai.AsyncOpenAI, lines: Sequence[Any]) -> str:
    """Stores an input file; returns its id. A line that is bytes is stored as it is."""
    encoded = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    content = b"\n".join(encoded) + b"\n"
    file = await client.files.create(file=("input.jsonl", content), purpose="batch")
    return file.id


async def start(client: openai.AsyncOpenAI, lines: Sequence[Any], **options: Any) -> Batch:
    """Creates a batch of these lines."""
    values: Any = {"completion_window": "24h", "endpoint": "/v1/responses", **options}
    return await client.batches.create(input_file_id=await upload(client, lines), **values)


async def until_status(client: openai.AsyncOpenAI, batch: Batch, *statuses: str) -> Batch:
    """Waits until the batch has one of these statuses, and returns it."""

    async def found() -> Any:
        now = await client.batches.retrieve(batch.id)
        assert now.status in statuses or now.status not in ENDED, now
        return now if now.status in statuses else None

    reached: Batch = await until(found, within=60)
    return reached


async def results(client: openai.AsyncOpenAI, file: str | None) -> dict[str, Any]:
    """custom_id -> line of an output or error file, which has each of them once."""
    if file is None:
        return {}
    content = await client.files.content(file)
    lines = [json.loads(one) for one in content.text.splitlines()]
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found
