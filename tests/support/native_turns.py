"""Turns of a native upstream in unit tests: its events in, short lines out."""

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

from models.wire.events import Event
from models.wire.snapshot import fold
from tests.support.api import JSON
from tests.support.chat_turns import TranslatedTurn, counter, decoded
from tests.support.contract_rules import assert_items_obey_contract
from tests.support.strict_types import check_event, check_item, check_usage
from worker.translation.responses.translator import NativeTranslator
from worker.translation.turn import TurnOptions
from worker.upstream.responses_events import ResponsesEventReader


def added(index: int | None, kind: str, **shape: Any) -> JSON:
    """`output_item.added`."""
    return _with_output_index(
        {"type": "response.output_item.added", "item": {"type": kind, **shape}}, index
    )


def done(index: int | None, kind: str, **shape: Any) -> JSON:
    """`output_item.done`."""
    return _with_output_index(
        {
            "type": "response.output_item.done",
            "item": {"type": kind, "status": "completed", **shape},
        },
        index,
    )


def event(kind: str, index: int | None = None, **fields: Any) -> JSON:
    """Any other event of an item."""
    return _with_output_index({"type": f"response.{kind}", **fields}, index)


def text_delta(
    text: str, index: int | None = 0, item_id: str = "up_msg", place: int | None = 0
) -> JSON:
    """A text delta."""
    return event(
        "output_text.delta", index, item_id=item_id, content_index=place, delta=text, logprobs=[]
    )


def message(text: str, **more: Any) -> JSON:
    """A message as the upstream lists it at the end."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": "up_msg",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **more,
    }


def terminal_event(*output: JSON, status: str = "completed", **more: Any) -> JSON:
    """The terminal event."""
    counted = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    response = {
        "id": "resp_up",
        "object": "response",
        "status": status,
        "output": list(output),
        "usage": counted,
        **more,
    }
    return {"type": f"response.{status}", "response": response}


def message_events(text: str) -> list[JSON]:
    """The events of a message as OpenAI sends them."""
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    shape = {"id": "up_msg", "role": "assistant"}
    written = [added(0, "message", **shape, status="in_progress", content=[])]
    written.append(event("content_part.added", 0, item_id="up_msg", content_index=0, part=part))
    written += [text_delta(piece) for piece in text]
    written.append(
        event("output_text.done", 0, item_id="up_msg", content_index=0, text=text, logprobs=[])
    )
    written.append(
        event(
            "content_part.done", 0, item_id="up_msg", content_index=0, part={**part, "text": text}
        )
    )
    return [*written, done(0, "message", **shape, content=[{**part, "text": text}])]


def numbered(events: Iterable[JSON]) -> list[JSON]:
    """The events with the upstream's sequence numbers."""
    return [
        {**copy.deepcopy(written), "sequence_number": number}
        for number, written in enumerate(events)
    ]


def translate_native(
    events: Iterable[JSON | bytes],
    *,
    done_seen: bool = False,
    cut: bool = False,
    tag_encrypted: Callable[[str], str] = str,
    **options: Any,
) -> TranslatedTurn:
    """Feeds the events to the parser and a translator, ends the turn and checks the output."""
    translator = NativeTranslator(counter(), TurnOptions(**options), tag_encrypted=tag_encrypted)
    written: list[Event] = []
    reader = ResponsesEventReader()
    for one in events:
        written += translator.feed(
            reader.read(one if isinstance(one, bytes) else json.dumps(one).encode())
        )
    written += translator.close_incomplete() if cut else translator.finish(done_seen=done_seen)
    shown = decoded(written)
    for one in shown:
        check_event(one)
    closed = assert_items_obey_contract(shown, complete=not translator.needs_another_turn)
    output = translator.output
    assert fold(shown) == output[: len(fold(shown))]
    if not translator.needs_another_turn:
        assert fold(shown) == output
        assert [item for _, item in sorted(closed.items())] == output
    for item in output:
        check_item(item)
    if translator.usage is not None:
        check_usage(translator.usage)
    return TranslatedTurn(shown, output, translator.calls, translator.usage, translator.outcome)


def _with_output_index(payload: JSON, index: int | None) -> JSON:
    return payload if index is None else {**payload, "output_index": index}
