"""Whatever a native upstream sends, the turn ends in a stream that obeys the contract."""

import copy
import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from models.errors import LimitReached, UpstreamFailed
from models.wire.snapshot import closing_events, find_unfinished, fold
from tests.support.api import JSON
from tests.support.chat_turns import catalog_with, counter, decoded
from tests.support.contract_rules import assert_items_obey_contract
from tests.support.native_turns import added, event, message, message_events, terminal_event
from tests.support.properties import examples
from worker.translation.responses.translator import NativeTranslator
from worker.translation.turn import TurnOptions
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
SEARCH: JSON = {
    "id": "ws",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "q"},
}
IMAGE: JSON = {"id": "ig", "type": "image_generation_call", "status": "completed", "result": "AA"}
REASONING: JSON = {
    "id": "rs",
    "type": "reasoning",
    "status": "completed",
    "summary": [{"type": "summary_text", "text": "ab"}],
    "content": [{"type": "reasoning_text", "text": "cd"}],
    "encrypted_content": "blob",
}
CITATION: JSON = {
    "type": "url_citation",
    "url": "https://x",
    "title": "t",
    "start_index": 0,
    "end_index": 1,
}


def whole_turn() -> list[JSON]:
    """The events of a turn with an item of each kind."""

    def item_events(index: int, item: JSON, *inside: JSON, **opening: Any) -> list[JSON]:
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
            {
                "type": "response.created",
                "response": {"id": "r", "status": "in_progress", "output": []},
            },
            *item_events(
                0,
                REASONING,
                event(
                    "reasoning_summary_part.added",
                    0,
                    item_id="rs",
                    summary_index=0,
                    part={"type": "summary_text", "text": ""},
                ),
                event("reasoning_summary_text.delta", 0, item_id="rs", summary_index=0, delta="ab"),
                event("reasoning_summary_text.done", 0, item_id="rs", summary_index=0, text="ab"),
                event("reasoning_text.delta", 0, item_id="rs", content_index=0, delta="cd"),
                summary=[],
                content=[],
            ),
            *[{**one, "output_index": 1} for one in message_events("Hi")],
            event(
                "output_text.annotation.added",
                1,
                item_id="up_msg",
                content_index=0,
                annotation_index=0,
                annotation=CITATION,
            ),
            *item_events(
                2,
                CALL,
                event("function_call_arguments.delta", 2, item_id="fc", delta='{"a":1}'),
                arguments="",
            ),
            *item_events(
                3,
                CUSTOM,
                event("custom_tool_call_input.delta", 3, item_id="ct", delta="text"),
                input="",
            ),
            *item_events(4, SHELL),
            *item_events(5, SEARCH, event("web_search_call.searching", 5, item_id="ws")),
            *item_events(
                6,
                CODE,
                event("code_interpreter_call_code.delta", 6, item_id="ci", delta="1+1"),
                code="",
            ),
            *item_events(
                7,
                IMAGE,
                event(
                    "image_generation_call.partial_image",
                    7,
                    item_id="ig",
                    partial_image_index=0,
                    partial_image_b64="AA",
                ),
            ),
            added(8, "slug:gadget", id="x"),
            terminal_event(REASONING, message("Hi"), CALL, CUSTOM, SHELL, SEARCH, CODE, IMAGE),
        ]
    )


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in JSON: (container, key)."""
    pairs: list[tuple[Any, Any]] = []
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in entries:
        pairs += [(value, key), *_places(inner)]
    return pairs


def damage(events: list[JSON], chance: random.Random) -> list[bytes]:
    """Puts junk in some places; removes, repeats and moves some events."""
    for _ in range(chance.randrange(1, 6)):
        one = chance.choice(events)
        places = _places(one)
        if not places:
            continue
        container, key = chance.choice(places)
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


CHANCE = st.randoms(use_true_random=False)


@examples(100)
@given(chance=CHANCE)
def test_a_damaged_turn_still_obeys_the_contract(chance: random.Random) -> None:
    translator = NativeTranslator(
        counter(),
        TurnOptions(tool_catalog=catalog_with("f", custom=["p"])),
        tag_encrypted=lambda blob: f"kept {blob}",
    )
    published = []
    try:
        for payload in damage(whole_turn(), chance):
            published += translator.feed(parse_event(payload))
        published += translator.finish(done_seen=chance.random() < 0.5)
    except (UpstreamFailed, LimitReached):
        published += translator.close_incomplete()
    events = decoded(published)
    closed = assert_items_obey_contract(events)
    assert [item for _, item in sorted(closed.items())] == translator.output == fold(events)
    json.dumps(translator.output)


@examples(100)
@given(length=st.integers(0, len(whole_turn()) - 1))
def test_wherever_it_is_cut_a_recovery_can_close_it(length: int) -> None:
    """The next attempt knows only the events that were published."""
    translator = NativeTranslator(
        counter(), TurnOptions(tool_catalog=catalog_with("f", custom=["p"]))
    )
    published = []
    for one in whole_turn()[:length]:
        published += translator.feed(parse_event(json.dumps(one).encode()))
    events = decoded(published)
    closing = decoded(closing_events(find_unfinished(events)))
    assert_items_obey_contract([*events, *closing])
    closed_by_translator = [*events, *decoded(translator.close_incomplete())]
    assert_items_obey_contract(closed_by_translator)
    assert fold([*events, *closing]) == fold(closed_by_translator)
