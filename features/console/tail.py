"""The live tail of a response: its events by number, while they are stored, for the list of events
and for the texts that grow on the page.

It is read as a client reads a stream (web/stream/reader.py), so it continues by number through
reconnects, and through the death of the response's worker.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.content import read_details, response_id_of
from features.console.page import HEADERS, Page, PageError, Visit
from features.operator.service import record_reveal
from models.wire.events import DONE, split_frames
from web.http.body import held_bytes
from web.http.request_record import request_record
from web.stream.sse import sse_response

KINDS = {
    "state": (
        *("response.created", "response.queued", "response.in_progress", "response.completed"),
        *("response.incomplete", "response.failed", "error"),
    ),
    "items": (
        *("response.output_item.", "response.content_part."),
        "response.reasoning_summary_part.",
    ),
    "tools": (
        *("response.mcp_", "response.web_search_call.", "response.file_search_call."),
        *("response.function_call_arguments.", "response.custom_tool_call_input."),
        *("response.code_interpreter_call", "response.image_generation_call."),
        "response.shell_call_",
    ),
}
"""Which events a filter shows, by the beginnings of their types. `text`: all others."""
TEXT = "text"
_MAX_DETAIL = 2_000
"""Characters of an event's content that are shown. Deltas are shown as they are."""


@dataclass(slots=True)
class _Line:
    """One line of the tail: an event, or deltas of one item in a row."""

    first: int
    last: int
    kind: str
    type: str
    item: str
    """the id of the item; empty for an event about none"""
    status: str
    """of the item, if the event has it"""
    count: int
    detail: str

    @property
    def is_delta(self) -> bool:
        """Whether the detail is a piece of a text that grows."""
        return self.type.endswith(".delta")

    def encode(self) -> bytes:
        data = {
            "first": self.first,
            "last": self.last,
            "kind": self.kind,
            "type": self.type,
            "item": self.item,
            "status": self.status,
            "count": self.count,
            "detail": self.detail if self.is_delta else self.detail[:_MAX_DETAIL],
        }
        return b"id: %d\ndata: %s\n\n" % (self.last, orjson.dumps(data))


def kind_of(event_type: str) -> str:
    """The filter to which a type of events belongs."""
    for kind, beginnings in KINDS.items():
        if event_type.startswith(beginnings):
            return kind
    return TEXT


def lines_of(block: bytes, *, with_content: bool) -> list[bytes]:
    """The lines of a block of frames, as events for an `EventSource`."""
    lines: list[_Line] = []
    for frame in split_frames(block):
        event = json.loads(frame.partition(b"\ndata: ")[2])
        line = _line(event, with_content=with_content)
        before = lines[-1] if lines else None
        is_same = before is not None and (before.type, before.item) == (line.type, line.item)
        if before is not None and is_same and line.is_delta:
            before.last, before.count = line.last, before.count + 1
            before.detail += line.detail
        else:
            lines.append(line)
    return [line.encode() for line in lines]


def _line(event: dict[str, Any], *, with_content: bool) -> _Line:
    number, event_type = event["sequence_number"], event["type"]
    item = event["item"] if isinstance(event.get("item"), dict) else {}
    # What an item is says its first event; the others are its content.
    is_content = with_content and event_type != "response.output_item.added"
    return _Line(
        first=number,
        last=number,
        kind=kind_of(event_type),
        type=event_type,
        item=str(event.get("item_id") or item.get("id") or ""),
        status=str(item.get("status") or ""),
        count=1,
        detail=(_content(event) if is_content else "") or _facts(event),
    )


def _facts(event: dict[str, Any]) -> str:
    """What an event is about, without its content."""
    item, response = event.get("item"), event.get("response")
    if isinstance(item, dict):
        words = [item.get("type"), item.get("name"), item.get("status")]
    elif isinstance(response, dict):
        words = [response.get("status"), (response.get("error") or {}).get("code")]
    else:
        words = []
    return ", ".join(str(word) for word in words if word)


def _content(event: dict[str, Any]) -> str:
    delta = event.get("delta")
    if isinstance(delta, str):
        return delta
    for name in ("item", "part", "text", "arguments", "refusal"):
        value = event.get(name)
        if value is not None:
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return ""


async def follow(visit: Visit) -> Response:
    """The events behind a number, to the end of the response."""
    identifier = response_id_of(visit)
    after = _after(visit)
    await read_details(visit, identifier)
    if visit.may_read:
        await record_reveal(visit.pool, identifier, visit.actor)
    held = visit.state.budgets.streams.reserve("")
    request_record(visit.request).at_end(held.release)
    frames = _frames(visit, identifier, after, with_content=visit.may_read)
    answer = sse_response(frames, visit.state.settings.web)
    for name in HEADERS.keys() - {"cache-control"}:
        answer.headers[name] = HEADERS[name]
    return answer


def _after(visit: Visit) -> int:
    text = visit.request.headers.get("last-event-id") or visit.query.get("after", "-1")
    try:
        return max(-1, min(int(text), 2**31 - 1))
    except ValueError:
        raise PageError(400, "No number", "The tail begins after the number of an event.") from None


async def _frames(
    visit: Visit, identifier: UUID, after: int, *, with_content: bool
) -> AsyncGenerator[bytes]:
    yield b"retry: 1000\n\n"
    stream = visit.state.event_reader.follow(
        identifier, after, background=True, held=held_bytes(visit.request)
    )
    async with aclosing(stream) as blocks:
        async for block in blocks:
            is_last = block.endswith(DONE)
            lines = lines_of(block.removesuffix(DONE), with_content=with_content)
            if is_last:
                lines.append(b"event: end\ndata: {}\n\n")
            if lines:
                yield b"".join(lines)


PAGES = (Page("/responses/{response_id}/events", follow, roles=EVERYONE),)
