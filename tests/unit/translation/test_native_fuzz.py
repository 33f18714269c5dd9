"""Whatever a native upstream sends, the turn ends, in a stream that obeys the contract: nothing it says breaks the server."""

import copy
import json
import random
from typing import Any

import pytest

from models.errors import LimitReached, UpstreamFailed
from models.wire.snapshot import closing_events, find_unfinished, fold
from tests.support.chat_turns import JSON, catalog_with, counter, decoded
from tests.support.contract_rules import assert_items_obey_contract
from tests.support.native_turns import added, event, message, message_events, terminal_event
from worker.translation.responses.translator import NativeTranslator
from worker.upstream.responses_events import parse_event

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    1.5,
    "",
    "x",
    "\ud800\x00",
    [],
    [None],
    ["x"],
    [[]],
    {},
    {"type": "x"},
    {"type": 1},
    {"id": []},
    "x" * 70,
]
CODE: JSON = {
    "id": "ci",
    "type": "code_interpreter_call",
    "status": "completed",
    "code": "1+1",
    "container_id": "c",
    "outputs": [],
}
CALL: JSON = {
    "id": "fc",
    "type": "function_call",
    "call_id": "c1",
    "name": "f",
    "arguments": '{"a":1}',
    "status": "completed",
}
CUSTOM: JSON = {
    "id": "ct",
    "type": "custom_tool_call",
    "call_id": "c2",
    "name": "p",
    "input": "text",
    "status": "completed",
}
SHELL: JSON = {
    "id": "sh",
    "type": "shell_call",
    "call_id": "c3",
    "action": {"commands": ["ls"]},
    "status": "completed",
}
SEEN: JSON = {
    "id": "ws",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "q"},
}
IMAGE: JSON = {"id": "ig", "type": "image_generation_call", "status": "completed", "result": "AA"}
THOUGHT: JSON = {
    "id": "rs", "type": "reasoning", "status": "completed", "summary": [{"type": "summary_text", "text": "ab"}],
    "content": [{"type": "reasoning_text", "text": "cd"}], "encrypted_content": "blob",
}  # fmt: skip
CITED: JSON = {
    "type": "url_citation",
    "url": "https://x",
    "title": "t",
    "start_index": 0,
    "end_index": 1,
}


def whole_turn() -> list[JSON]:
    """One of everything."""

    def told(index: int, item: JSON, *inside: JSON, **opening: Any) -> list[JSON]:
        begin = {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, "status": "in_progress", **opening},
        }
        return [
            begin,
            *inside,
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]

    return copy.deepcopy(
        [
            {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
            *told(
                0, THOUGHT,
                event("reasoning_summary_part.added", 0, item_id="rs", summary_index=0, part={"type": "summary_text", "text": ""}),
                event("reasoning_summary_text.delta", 0, item_id="rs", summary_index=0, delta="ab"),
                event("reasoning_summary_text.done", 0, item_id="rs", summary_index=0, text="ab"),
                event("reasoning_text.delta", 0, item_id="rs", content_index=0, delta="cd"),
                summary=[], content=[],
            ),
            *[{**one, "output_index": 1} for one in message_events("Hi")],
            event("output_text.annotation.added", 1, item_id="up_msg", content_index=0, annotation_index=0, annotation=CITED),
            *told(2, CALL, event("function_call_arguments.delta", 2, item_id="fc", delta='{"a":1}'), arguments=""),
            *told(3, CUSTOM, event("custom_tool_call_input.delta", 3, item_id="ct", delta="text"), input=""),
            *told(4, SHELL),
            *told(5, SEEN, event("web_search_call.searching", 5, item_id="ws")),
            *told(6, CODE, event("code_interpreter_call_code.delta", 6, item_id="ci", delta="1+1"), code=""),
            *told(7, IMAGE, event("image_generation_call.partial_image", 7, item_id="ig", partial_image_index=0, partial_image_b64="AA")),
            added(8, "slug:gadget", id="x"),
            terminal_event(THOUGHT, message("Hi"), CALL, CUSTOM, SHELL, SEEN, CODE, IMAGE),
        ]
    )  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in JSON: (container, key)."""
    found: list[tuple[Any, Any]] = []
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in entries:
        found += [(value, key), *_places(inner)]
    return found


def spoil(events: list[JSON], chance: random.Random) -> list[bytes]:
    """Some places hold junk, some events are missing, twice, or elsewhere."""
    for _ in range(chance.randrange(1, 6)):
        one = chance.choice(events)
        container, key = chance.choice(_places(one))
        if isinstance(container, dict) and chance.random() < 0.3:
            del container[key]
        else:
            container[key] = copy.deepcopy(chance.choice(JUNK))
    for _ in range(chance.randrange(4)):
        position = chance.randrange(len(events))
        one = events.pop(position)
        if chance.random() < 0.6:
            events.insert(chance.randrange(len(events) + 1), one)
        if chance.random() < 0.3:
            events.insert(chance.randrange(len(events) + 1), copy.deepcopy(one))
    return [json.dumps(one).encode() for one in events]


@pytest.mark.parametrize("seed", range(600))
def test_a_spoilt_turn_still_obeys_the_contract(seed: int) -> None:
    chance = random.Random(seed)
    translator = NativeTranslator(
        counter(),
        tool_catalog=catalog_with("f", custom=["p"]),
        tag_encrypted=lambda blob: f"kept {blob}",
    )
    told = []
    try:
        for payload in spoil(whole_turn(), chance):
            told += translator.feed(parse_event(payload))
        told += translator.finish(done_seen=chance.random() < 0.5)
    except (UpstreamFailed, LimitReached):
        told += translator.close_incomplete()
    shown = decoded(told)
    closed = assert_items_obey_contract(shown)
    assert [item for _, item in sorted(closed.items())] == translator.output == fold(shown)
    json.dumps(translator.output)


@pytest.mark.parametrize("seed", range(200))
def test_wherever_it_is_cut_a_recovery_can_close_it(seed: int) -> None:
    """The next attempt knows only the events that were shown."""
    chance = random.Random(seed)
    translator = NativeTranslator(counter(), tool_catalog=catalog_with("f", custom=["p"]))
    events = whole_turn()
    told = []
    for one in events[: chance.randrange(len(events))]:
        told += translator.feed(parse_event(json.dumps(one).encode()))
    shown = decoded(told)
    closing = decoded(closing_events(find_unfinished(shown)))
    assert_items_obey_contract([*shown, *closing])
    by_us = [*shown, *decoded(translator.close_incomplete())]
    assert_items_obey_contract(by_us)
    assert fold([*shown, *closing]) == fold(by_us)
