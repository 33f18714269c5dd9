"""Steps of tests/support/fake_upstream.py for a native upstream: the Responses API as OpenAI sends
it.

    model = fake.script([begin(), speech("Hello ", "world"), end()])

Items are numbered and kept as they are told, so that `end` can list them. A test that wants holes
leaves steps out, or sends `native` events.
"""

import asyncio
import json
import time
from typing import Any

from tests.support.api import JSON
from tests.support.fake_upstream import Exchange, Step

USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}


def native_events(*events: JSON) -> Step:
    """Sends these events with sequence numbers."""

    async def step(exchange: Exchange) -> None:
        for event in events:
            await _send(exchange, event)

    return step


def begin() -> Step:
    """Sends `response.created` and `response.in_progress`, with ids that clients must not see."""

    async def step(exchange: Exchange) -> None:
        for kind in ("created", "in_progress"):
            await _send(
                exchange,
                {"type": f"response.{kind}", "response": _response(exchange, "in_progress", [])},
            )

    return step


def message_item(
    *pieces: str, item_id: str = "msg_upstream", closed: bool = True, gap: float = 0
) -> Step:
    """Sends a message with a delta for each piece, `gap` seconds apart.

    Without `closed` it stays open.
    """

    async def step(exchange: Exchange) -> None:
        index, part = (
            len(exchange.request.items),
            {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
        )
        place = {"item_id": item_id, "output_index": index, "content_index": 0}
        message: JSON = {
            "id": item_id,
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        await _send(
            exchange, {"type": "response.output_item.added", "output_index": index, "item": message}
        )
        await _send(exchange, {"type": "response.content_part.added", **place, "part": part})
        for piece in pieces:
            exchange.request.sent_text.append((time.monotonic(), piece))
            await _send(
                exchange,
                {
                    "type": "response.output_text.delta",
                    **place,
                    "delta": piece,
                    "logprobs": [],
                    "obfuscation": "x",
                },
            )
            if gap:
                await asyncio.sleep(gap)
        if not closed:
            return
        whole = "".join(pieces)
        await _send(
            exchange, {"type": "response.output_text.done", **place, "text": whole, "logprobs": []}
        )
        await _send(
            exchange,
            {"type": "response.content_part.done", **place, "part": {**part, "text": whole}},
        )
        await _done(
            exchange, {**message, "status": "completed", "content": [{**part, "text": whole}]}
        )

    return step


def reasoning_item(encrypted: str, *summary: str, item_id: str = "rs_upstream") -> Step:
    """Sends a reasoning item with its summary and its encrypted content."""

    async def step(exchange: Exchange) -> None:
        index = len(exchange.request.items)
        place = {"item_id": item_id, "output_index": index, "summary_index": 0}
        part = {"type": "summary_text", "text": "".join(summary)}
        shape: JSON = {
            "id": item_id,
            "type": "reasoning",
            "summary": [],
            "encrypted_content": "unfinished",
        }
        await _send(
            exchange, {"type": "response.output_item.added", "output_index": index, "item": shape}
        )
        if summary:
            await _send(
                exchange,
                {
                    "type": "response.reasoning_summary_part.added",
                    **place,
                    "part": {**part, "text": ""},
                },
            )
            for piece in summary:
                await _send(
                    exchange,
                    {"type": "response.reasoning_summary_text.delta", **place, "delta": piece},
                )
            await _send(
                exchange,
                {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]},
            )
            await _send(
                exchange, {"type": "response.reasoning_summary_part.done", **place, "part": part}
            )
        await _done(
            exchange,
            {**shape, "summary": [part] if summary else [], "encrypted_content": encrypted},
        )

    return step


def native_call(call_id: str, name: str, *arguments: str, **more: Any) -> Step:
    """Sends a function call, its arguments piece by piece."""

    async def step(exchange: Exchange) -> None:
        index, item_id = len(exchange.request.items), f"fc_{call_id}"
        shape: JSON = {
            "id": item_id,
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": "",
            "status": "in_progress",
            **more,
        }
        await _send(
            exchange, {"type": "response.output_item.added", "output_index": index, "item": shape}
        )
        place = {"item_id": item_id, "output_index": index}
        for piece in arguments:
            await _send(
                exchange,
                {"type": "response.function_call_arguments.delta", **place, "delta": piece},
            )
        whole = "".join(arguments)
        await _send(
            exchange,
            {
                "type": "response.function_call_arguments.done",
                **place,
                "name": name,
                "arguments": whole,
            },
        )
        await _done(exchange, {**shape, "arguments": whole, "status": "completed"})

    return step


def server_tool_item(shape: JSON, *progress: JSON) -> Step:
    """Sends an item of a tool that the upstream runs, with its events.

    `shape`: the finished item.
    """

    async def step(exchange: Exchange) -> None:
        index = len(exchange.request.items)
        opening = {
            "id": shape["id"],
            "type": shape["type"],
            "status": "in_progress",
            **({"code": ""} if "code" in shape else {}),
        }
        await _send(
            exchange, {"type": "response.output_item.added", "output_index": index, "item": opening}
        )
        for event in progress:
            await _send(exchange, {"item_id": shape["id"], "output_index": index, **event})
        await _done(exchange, shape)

    return step


def end(status: str = "completed", **more: Any) -> Step:
    """Sends the terminal event with all items that were sent."""

    async def step(exchange: Exchange) -> None:
        exchange.request.finish_reason_sent = True
        response = {**_response(exchange, status, exchange.request.items), "usage": USAGE, **more}
        await _send(exchange, {"type": f"response.{status}", "response": response})

    return step


def native_reply(*pieces: str) -> list[Step]:
    """The steps of a complete ordinary answer."""
    return [begin(), message_item(*pieces), end()]


async def _send(exchange: Exchange, event: JSON) -> None:
    numbered = {**event, "sequence_number": exchange.request.events}
    exchange.request.events += 1
    await exchange.write(
        f"event: {event.get('type')}\ndata: {json.dumps(numbered, ensure_ascii=False)}\n\n".encode()
    )


async def _done(exchange: Exchange, item: JSON) -> None:
    index = len(exchange.request.items)
    exchange.request.items.append(item)
    await _send(
        exchange, {"type": "response.output_item.done", "output_index": index, "item": item}
    )


def _response(exchange: Exchange, status: str, output: list[JSON]) -> JSON:
    return {
        "id": "resp_upstream",
        "object": "response",
        "created_at": 1700000000,
        "status": status,
        "model": exchange.request.model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "metadata": {"of": "the upstream"},
        "store": False,
        "service_tier": "flex",
        "usage": None,
    }
