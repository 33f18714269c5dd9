"""Turns of a chat upstream in unit tests: upstream JSON in, short lines out."""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from models.wire.events import Event, decode_frame, frame
from models.wire.snapshot import fold
from tests.support.api import JSON
from tests.support.contract_rules import assert_items_obey_contract
from tests.support.strict_types import check_event, check_item, check_usage
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.tool_catalog import ToolCatalog, build_tool_catalog
from worker.translation.turn import TurnOutcome
from worker.upstream.chat_chunks import ChunkReader
from worker.upstream.messages_chunks import MessagesChunkReader


def counter() -> Callable[[str], str]:
    """Makes predictable ids: msg_1, fc_2, call_3, …"""
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def delta(**fields: Any) -> JSON:
    """A chunk with a delta."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def finish(reason: str | None = "stop", **fields: Any) -> JSON:
    """The chunk with the finish reason."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def call(
    index: int | None = None,
    id: str | None = None,  # noqa: A002
    name: str | None = None,
    arguments: Any = None,
) -> JSON:
    """A piece of one tool call. None: the vendor omits the field."""
    function = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    return {
        key: value
        for key, value in (("index", index), ("id", id), ("function", function))
        if value is not None
    }


def calls(*pieces: JSON) -> JSON:
    """A chunk with pieces of tool calls."""
    return delta(tool_calls=list(pieces))


@dataclass(frozen=True)
class TranslatedTurn:
    """A finished turn, checked against the rules of streams and the SDK's types."""

    events: list[JSON]
    output: list[JSON]
    calls: list[JSON]
    usage: JSON | None
    outcome: TurnOutcome | None

    @property
    def lines(self) -> list[str]:
        """The events, a short line for each."""
        return [brief(event) for event in self.events]

    @property
    def items(self) -> list[str]:
        """The output, a short line for each item."""
        return [_item(item) for item in self.output]


def catalog_with(
    *functions: str, custom: Iterable[str] = (), allowed: Iterable[str] | None = None
) -> ToolCatalog:
    """A catalog of functions and custom tools, of which only the `allowed` may be called."""
    tools = [
        *({"type": "function", "name": name} for name in functions),
        *({"type": "custom", "name": name} for name in custom),
    ]
    if allowed is None:
        return build_tool_catalog({"tools": tools})
    chosen = [tool for tool in tools if tool["name"] in allowed]
    return build_tool_catalog(
        {"tools": tools, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": chosen}}
    )


def translate(
    chunks: Iterable[JSON | bytes],
    *,
    done_seen: bool = True,
    cut: bool = False,
    reader: ChunkReader | MessagesChunkReader | None = None,
    **options: Any,
) -> TranslatedTurn:
    """Feeds the chunks to the parser and a translator, and ends the turn."""
    translator, reader = ChatTranslator(counter(), ChatOptions(**options)), reader or ChunkReader()
    published: list[Event] = []
    payloads = (
        chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode() for chunk in chunks
    )
    reads = [*map(reader.read, payloads)]
    for read in (*reads, *(reader.rest() if isinstance(reader, ChunkReader) else ())):
        published += translator.feed(read)
    published += translator.close_incomplete() if cut else translator.finish(done_seen=done_seen)
    events = decoded(published)
    for event in events:
        check_event(event)
    done = assert_items_obey_contract(events)
    assert [item for _, item in sorted(done.items())] == translator.output == fold(events)
    for item in translator.output:
        check_item(item)
    if translator.usage is not None:
        check_usage(translator.usage)
    assert translator.close_incomplete() == []
    return TranslatedTurn(
        events, translator.output, translator.calls, translator.usage, translator.outcome
    )


def decoded(events: list[Event]) -> list[JSON]:
    """The events as JSON, as a reader receives them."""
    return [decode_frame(frame(event, number)) for number, event in enumerate(events)]


def brief(event: JSON) -> str:
    """`0 +message`, `0.0 +output_text`, `0.0 'Hi'`, `0.0 ='Hi'`, `0.0 -output_text`, `0 -message
    completed`.
    """
    kind = event["type"].removeprefix("response.")
    place = ".".join(
        str(event[key])
        for key in ("output_index", "content_index", "summary_index")
        if key in event
    )
    if kind.startswith("output_item."):
        item = event["item"]
        what = (
            f"{item.get('name', item['type'])}/{item['call_id']}"
            if "call_id" in item
            else item["type"]
        )
        return f"{place} +{what}" if kind.endswith("added") else f"{place} -{what} {item['status']}"
    if kind.startswith(("content_part.", "reasoning_summary_part.")):
        return f"{place} {'+' if kind.endswith('added') else '-'}{event['part']['type']}"
    if kind.endswith(".delta"):
        return f"{place} {event['delta']!r}"
    if kind.endswith("annotation.added"):
        return f"{place} @{event['annotation']['url']}"
    if kind.endswith("command.added"):
        return f"{place} +command"
    keys = ("text", "refusal", "arguments", "input", "command")
    return f"{place} ={next(event[key] for key in keys if key in event)!r}"


def _item(item: JSON) -> str:
    mark = "" if item["status"] == "completed" else f" ({item['status']})"
    if "call_id" in item:
        content = next(
            item[key] for key in ("arguments", "input", "action", "operation") if key in item
        )
        return f"{item.get('name', item['type'])}/{item['call_id']} {content}{mark}"
    parts = [f"summary {part['text']}" for part in item.get("summary", ())]
    parts += [
        f"refusal {part['refusal']}" if part["type"] == "refusal" else part["text"]
        for part in item["content"]
    ]
    return f"{item['type']} {' | '.join(parts)}{mark}"
