"""Calls of built-in tools are sent when their arguments are complete, in their order."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.wire.snapshot import closing_events, find_unfinished, fold
from tests.support.api import JSON
from tests.support.chat_turns import (
    TranslatedTurn,
    call,
    calls,
    counter,
    decoded,
    delta,
    finish,
    translate,
)
from tests.support.contract_rules import assert_items_obey_contract
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.items.client_tools import BUILT_IN_TOOLS, parse_arguments
from worker.translation.tool_catalog import build_tool_catalog
from worker.upstream.chat_chunks import parse_chunk

TOOLS: list[JSON] = [
    {"type": "shell"},
    {"type": "local_shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client"},
    {"type": "computer"},
    {"type": "function", "name": "look"},
]
OFFER = build_tool_catalog({"tools": TOOLS})
LS = '{"commands": ["ls"]}'
PATCH = '{"type": "create_file", "path": "a", "diff": "+x"}'


def turn_of(*chunks: JSON, **options: Any) -> TranslatedTurn:
    return translate(chunks, tool_catalog=OFFER, **options)


def kinds(turn: TranslatedTurn) -> list[str]:
    return [f"{item['type']}/{item.get('call_id', '')} {item['status']}" for item in turn.output]


def test_a_built_in_call_is_sent_when_the_next_item_begins() -> None:
    turn = turn_of(
        calls(call(0, "a", "shell", LS[:5])),
        calls(call(0, arguments=LS[5:])),
        calls(call(1, "b", "look", "{}")),
        finish("tool_calls"),
    )
    assert turn.lines == [
        "0 +shell_call/a",
        "0 +command",
        "0 'ls'",
        "0 ='ls'",
        "0 -shell_call/a completed",
        "1 +look/b",
        "1 '{}'",
        "1 ='{}'",
        "1 -look/b completed",
    ]


def test_a_message_ends_when_a_built_in_call_begins() -> None:
    turn = turn_of(
        delta(content="Let me. "),
        calls(call(0, "a", "apply_patch", PATCH)),
        delta(content="Done."),
        finish("stop"),
    )
    assert kinds(turn) == [
        "message/ completed",
        "apply_patch_call/a completed",
        "message/ completed",
    ]
    added = [event["item"] for event in turn.events if event["type"].endswith("item.added")]
    assert [item["type"] for item in added] == ["message", "apply_patch_call", "message"]


def test_interleaved_built_in_calls_are_both_sent() -> None:
    pieces = [
        call(0, "a", "shell", '{"comm'),
        call(1, "b", "look", '{"x'),
        call(0, arguments='ands": ["ls"]}'),
        call(1, arguments='": 1}'),
    ]
    turn = turn_of(*(calls(piece) for piece in pieces), finish("tool_calls"))
    assert kinds(turn) == ["function_call/b completed", "shell_call/a completed"]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("tool_calls", ["shell_call/a completed", "function_call/b incomplete"]),
        ("length", ["shell_call/a completed", "function_call/b incomplete"]),
        ("content_filter", ["shell_call/a completed", "function_call/b incomplete"]),
        ("error", ["shell_call/a completed", "function_call/b incomplete"]),
    ],
)
def test_an_incomplete_built_in_call_becomes_a_function_call(
    reason: str, expected: list[str]
) -> None:
    turn = turn_of(
        calls(call(0, "a", "shell", LS)),
        calls(call(1, "b", "apply_patch", '{"type": "crea')),
        finish(reason),
    )
    assert kinds(turn) == expected
    assert (turn.output[1]["name"], turn.output[1]["arguments"]) == (
        "apply_patch",
        '{"type": "crea',
    )


CHUNKS = [
    delta(content="Hm."),
    calls(call(0, "a", "shell", LS[:9])),
    calls(call(0, arguments=LS[9:])),
    calls(call(1, "b", "apply_patch", PATCH)),
    calls(call(2, "c", "tool_search", '{"query": ')),
    calls(call(2, arguments='"x"}')),
    calls(call(3, "d", "look", "{}")),
    finish("tool_calls"),
]


def test_a_turn_may_be_cut_anywhere() -> None:
    for length in range(len(CHUNKS)):
        turn = turn_of(*CHUNKS[:length], cut=True)
        assert all(item["status"] in ("incomplete", "completed") for item in turn.output)


def test_a_recovery_can_close_every_open_item() -> None:
    events = turn_of(*CHUNKS).events
    for length in range(len(events) + 1):
        published = events[:length]
        closing = decoded(closing_events(find_unfinished(published)))
        done = assert_items_obey_contract([*published, *closing])
        assert [item for _, item in sorted(done.items())] == fold([*published, *closing])


def test_a_name_in_pieces_is_one_name() -> None:
    turn = turn_of(
        calls(call(0, "a", "apply_")),
        calls(call(0, name="patch")),
        calls(call(0, arguments=PATCH)),
        finish("tool_calls"),
    )
    assert kinds(turn) == ["apply_patch_call/a completed"]


def test_a_name_on_every_piece_is_one_call() -> None:
    turn = turn_of(
        *(calls(call(0, "a", "shell", piece)) for piece in (LS[:7], LS[7:12], LS[12:])),
        finish("tool_calls"),
    )
    assert kinds(turn) == ["shell_call/a completed"]


def test_two_calls_at_one_index_are_two() -> None:
    turn = turn_of(
        calls(call(0, "a", "shell", LS)), calls(call(0, "b", "shell", LS)), finish("tool_calls")
    )
    assert kinds(turn) == ["shell_call/a completed", "shell_call/b completed"]


def actions(*made: JSON) -> JSON:
    return {"actions": list(made), "pending_safety_checks": []}


CLICK = {"type": "click", "button": "left", "x": 10, "y": 20}
MENDED: list[tuple[JSON, *tuple[JSON, ...]]] = [
    (
        {"actions": [{"type": "click", "x": 10, "y": 20}, {"type": "wait", "ms": 5}]},
        CLICK,
        {"type": "wait"},
    ),
    ({"actions": '[{"type": "click", "x": 10, "y": 20}]'}, CLICK),
    ({"actions": {"type": "click", "x": "10", "y": 19.6}}, CLICK),
    ({"actions": ["screenshot"]}, {"type": "screenshot"}),
    ({"action": "screenshot"}, {"type": "screenshot"}),
    ({"action": {"type": "click", "x": [10, 20]}}, CLICK),
    ({"type": "click", "coordinate": "[10, 20]", "button": "left"}, CLICK),
    ({"type": "click", "x": "10, 20"}, CLICK),
    ({"action": "left_click", "coordinate": [10, 20]}, CLICK),
    (
        {"action": "middle-click", "coordinate": {"x": 10, "y": 20}, "keys": ["CTRL"]},
        CLICK | {"button": "wheel", "keys": ["CTRL"]},
    ),
    (
        {"type": "double_click", "x": 10, "y": 20},
        {"type": "double_click", "keys": None, "x": 10, "y": 20},
    ),
    ({"action": "mouse_move", "x": 10, "y": 20}, {"type": "move", "x": 10, "y": 20}),
    ({"action": "key", "text": "ctrl++"}, {"type": "keypress", "keys": ["ctrl", "+"]}),
    ({"type": "keypress", "keys": '["CTRL", "C"]'}, {"type": "keypress", "keys": ["CTRL", "C"]}),
    ({"type": "type", "text": 2026}, {"type": "type", "text": "2026"}),
    ({"type": "type", "text": "[1]"}, {"type": "type", "text": "[1]"}),
    (
        {"actions": r'[{"type": "type", "text": "a\u0000\ud800"}]'},
        {"type": "type", "text": "a\ufffd\ufffd"},
    ),
    (
        {"type": "scroll", "x": 1, "y": 2, "scroll_y": "-300"},
        {"type": "scroll", "scroll_x": 0, "scroll_y": -300, "x": 1, "y": 2},
    ),
    (
        {"type": "drag", "path": [[1, 2], {"x": 3, "y": "4"}]},
        {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]},
    ),
    (
        {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]},
        {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]},
    ),
]
UNCLEAR: list[JSON] = [
    {},
    {"actions": [{"type": "screenshot"}, {"type": "fly"}]},
    {"actions": [{"type": "screenshot"}, 7]},
    {"actions": [{}]},
    {"type": "click"},
    {"type": "click", "x": 10},
    {"type": "click", "x": 0.4, "y": 0.5},
    {"type": "click", "x": True, "y": 1},
    {"type": "click", "x": 1e300, "y": 1},
    {"type": "click", "x": "9" * 400, "y": 1},
    {"type": "click", "x": 1, "y": 2, "button": "third"},
    {"type": "click", "x": 1, "y": 2, "button": ["left"]},
    {"type": "click", "x": "(1, 2, 3)"},
    {"type": "click", "x": 1, "y": 2, "keys": [16]},
    {"type": "drag", "path": [[1, 2]]},
    {"type": "drag", "path": "from here to there"},
    {"type": "keypress", "keys": []},
    {"type": "keypress", "keys": ["a", 1]},
    {"type": "scroll", "x": 1, "y": 2},
    {"type": "scroll", "scroll_y": 3},
    {"type": "scroll", "x": 1, "y": 2, "scroll_y": "far"},
    {"type": "type", "text": None},
]

READ: list[tuple[str, Any, JSON | None]] = [
    ("shell_call", {"commands": "ls"}, {"action": {"commands": ["ls"]}}),
    (
        "shell_call",
        {"commands": ["ls"], "timeout_ms": "5", "max_output_length": -1},
        {"action": {"commands": ["ls"]}},
    ),
    ("shell_call", {"commands": ["ls"], "timeout_ms": True}, {"action": {"commands": ["ls"]}}),
    ("shell_call", {"commands": ["a\0b"]}, {"action": {"commands": ["a\ufffdb"]}}),
    ("shell_call", {"command": ["ls"]}, None),
    (
        "local_shell_call",
        {"command": ["ls"], "env": None},
        {"action": {"type": "exec", "command": ["ls"], "env": {}}},
    ),
    (
        "local_shell_call",
        {"command": ["ls"], "user": 5, "x": 1},
        {"action": {"type": "exec", "command": ["ls"], "env": {}}},
    ),
    ("local_shell_call", {"command": []}, None),
    (
        "apply_patch_call",
        {"type": "delete_file", "path": "a", "diff": "x"},
        {"operation": {"type": "delete_file", "path": "a"}},
    ),
    (
        "apply_patch_call",
        {"operation": {"type": "create_file", "path": "a", "diff": ""}},
        {"operation": {"type": "create_file", "path": "a", "diff": ""}},
    ),
    ("apply_patch_call", {"operation": "create_file", "path": "a", "diff": ""}, None),
    ("tool_search_call", {}, {"execution": "client", "arguments": {}}),
    ("computer_call", {"actions": []}, None),
    *(("computer_call", arguments, actions(*made)) for arguments, *made in MENDED),
    *(("computer_call", arguments, None) for arguments in UNCLEAR),
]


@pytest.mark.parametrize(("item", "arguments", "fields"), READ)
def test_arguments_become_fields(item: str, arguments: Any, fields: JSON | None) -> None:
    assert parse_arguments(item, json.dumps(arguments)) == fields


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["commands", "command", "env", "type", "path", "diff", "operation", "x", "actions"]
            ),
            inner,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(BUILT_IN_TOOLS)), ANYTHING)
def test_any_arguments_of_a_model_make_a_call(item: str, arguments: Any) -> None:
    """Valid arguments become the item, others a function call with all of the text. No arguments
    are an empty object."""
    written = json.dumps(arguments) if arguments not in (None, "", []) else "{}"
    turn = turn_of(calls(call(0, "a", BUILT_IN_TOOLS[item].name, written)), finish("tool_calls"))
    [told_as] = turn.output
    assert told_as["type"] == item or (told_as["type"], told_as["arguments"]) == (
        "function_call",
        written,
    )


def test_arguments_survive_the_way_to_an_item_and_back() -> None:
    for item, arguments, fields in READ:
        if fields is not None:
            again = parse_arguments(item, json.dumps(BUILT_IN_TOOLS[item].to_arguments(fields)))
            assert again == fields, arguments


def test_many_incomplete_calls_stay_cheap() -> None:
    """Each new item parses only the first waiting call, not all of them."""
    translator = ChatTranslator(counter(), ChatOptions(tool_catalog=OFFER))
    for number in itertools.islice(itertools.count(), 3000):
        translator.feed(
            parse_chunk(
                json.dumps(calls(call(number, f"c{number}", "shell", '{"commands": ["x'))).encode()
            )
        )
    translator.finish(done_seen=True)
    assert len(translator.output) == 3000
