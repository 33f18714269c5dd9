"""Which call a piece belongs to: each row is something that an upstream really sends."""

import gc
import json
import random
import weakref
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import LimitReached
from tests.support.api import JSON
from tests.support.chat_turns import (
    call,
    calls,
    catalog_with,
    counter,
    decoded,
    delta,
    finish,
    translate,
)
from tests.support.contract_rules import assert_items_obey_contract
from tests.support.properties import examples
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.upstream.chat_chunks import parse_chunk

TOOLS = ("get", "get_weather", "get_time", "ping")
LONG = "x" * 65

CALLS = [
    pytest.param(
        [call(0, "a", "get_weather", '{"c":1}')], ['get_weather/a {"c":1}'], id="one blob"
    ),
    pytest.param(
        [call(0, "a", "get_weather", {"c": 1})], ['get_weather/a {"c":1}'], id="arguments as a dict"
    ),
    pytest.param(
        [call(0, "a", "get_weather", {})], ["get_weather/a {}"], id="arguments as an empty dict"
    ),
    pytest.param(
        [call(0, "a", "get_weather", [1])], ["get_weather/a [1]"], id="arguments as a list"
    ),
    pytest.param(
        [call(0, "a", "get_weather"), call(0, "a", arguments="{}")],
        ["get_weather/a {}"],
        id="the id on every chunk",
    ),
    pytest.param(
        [call(0, "a", "get_weather", "{"), call(0, "b", arguments="}")],
        ["get_weather/a {}"],
        id="a fresh id on every chunk (old vLLM)",
    ),
    pytest.param(
        [call(0, "a", "get_weather", "{"), call(0, "", "", "}"), call(0, None, "", "")],
        ["get_weather/a {}"],
        id="empty id and name (watsonx)",
    ),
    # names
    pytest.param(
        [call(0, "a", arguments="{"), call(0, name="ping"), call(0, arguments="}")],
        ["ping/a {}"],
        id="a name after its arguments",
    ),
    pytest.param(
        [call(0, "a"), call(0, name="ping"), call(0, arguments="{}")],
        ["ping/a {}"],
        id="a name after its id",
    ),
    pytest.param(
        [call(0, "a", "get_"), call(0, name="weather"), call(0, arguments="{}")],
        ["get_weather/a {}"],
        id="a name in pieces",
    ),
    pytest.param(
        [call(0, "a", "get"), call(0, name="_weather", arguments="{}")],
        ["get_weather/a {}"],
        id="pieces, the first a tool itself",
    ),
    pytest.param(
        [call(0, "a", "other"), call(0, name="_tool"), call(0, arguments="{}")],
        ["other_tool/a {}"],
        id="pieces of a name nobody knows",
    ),
    pytest.param(
        [call(0, "a", "ping", "{"), call(0, "a", "ping", "}")],
        ["ping/a {}"],
        id="name and id repeated",
    ),
    pytest.param(
        [call(0, None, "ping", "{"), call(0, None, "ping", "}")],
        ["ping/call_2 {}"],
        id="the name repeated, no id",
    ),
    pytest.param(
        [call(0, "a", "ping", ""), call(0, "a", "ping", ""), call(0, "a", "ping", "{}")],
        ["ping/a {}"],
        id="repeated before the arguments",
    ),
    # indices
    pytest.param([call(None, "a", "ping", "{"), call(arguments="}")], ["ping/a {}"], id="no index"),
    pytest.param(
        [call(None, "a", "ping", "{}"), call(None, "b", "ping", "{}")],
        ["ping/a {}", "ping/b {}"],
        id="no index, new id",
    ),
    pytest.param(
        [
            call(None, "a", "ping", "{"),
            call(None, "b", "ping", "{"),
            call(None, "a", arguments="}"),
            call(None, "b", arguments="}"),
        ],
        ["ping/a {}", "ping/b {}"],
        id="no index, ids interleaved",
    ),
    pytest.param(
        [call(0, "a", "ping", "{}"), call(0, "b", "ping", "{}")],
        ["ping/a {}", "ping/b {}"],
        id="always index 0, new id",
    ),
    pytest.param(
        [
            call(0, "a", "ping", "{"),
            call(0, "b", "get", "{"),
            call(0, "a", arguments="}"),
            call(0, "b", arguments="}"),
        ],
        ["ping/a {}", "get/b {}"],
        id="always index 0, ids interleaved",
    ),
    pytest.param(
        [call(0, None, "ping", "{}"), call(0, None, "get", "{}")],
        ["ping/call_2 {}", "get/call_4 {}"],
        id="always 0, new name",
    ),
    pytest.param(
        [call(name="ping"), call(name="get", arguments="{}")],
        ["ping/call_2 {}", "get/call_4 {}"],
        id="no arguments, then another tool's name",
    ),
    pytest.param(
        [call(0, "a", "get", '{"x":1}'), call(0, name="ping", arguments="{}")],
        ['get/a {"x":1}', "ping/call_3 {}"],
        id="a new name after arguments",
    ),
    pytest.param(
        [call(name="ping", arguments='{"n":1}'), call(name="ping", arguments='{"n":2}')],
        ['ping/call_2 {"n":1}', 'ping/call_4 {"n":2}'],
        id="no index, no id, same name, whole arguments (Gemini)",
    ),
    pytest.param(
        [call(name="ping", arguments='{"n":'), call(name="ping", arguments='{"m":1}}')],
        ['ping/call_2 {"n":{"m":1}}'],
        id="the same, in pieces",
    ),
    pytest.param(
        [call(0, "a", "ping", "{}"), call(0, "b"), call(0, "b", "get", "{}")],
        ["ping/a {}", "get/b {}"],
        id="an id that comes before its name",
    ),
    pytest.param(
        [call(0, "a", "ping"), call(2, "b", "get"), call(2, arguments="{}")],
        ["ping/a {}", "get/b {}"],
        id="a gap between indices",
    ),
    pytest.param(
        [call(1, "b", "get", "{}"), call(0, "a", "ping", "{}")],
        ["get/b {}", "ping/a {}"],
        id="indices backwards: order of arrival",
    ),
    pytest.param(
        [
            call("0", "a", "ping", "{}"),  # type: ignore[arg-type]
            call("1", "b", "get", "{}"),  # type: ignore[arg-type]
        ],
        ["ping/a {}", "get/b {}"],
        id="indices as strings",
    ),
    # ids
    pytest.param(
        [call(0, None, "ping", "{}"), call(1, "", "ping", "{}")],
        ["ping/call_2 {}", "ping/call_4 {}"],
        id="no ids: made and kept",
    ),
    pytest.param(
        [call(0, None, "ping", "{"), call(0, "late", arguments="}")],
        ["ping/call_2 {}"],
        id="an id that comes too late",
    ),
    pytest.param(
        [call(0, None, "ping"), call(0, "a", arguments="{}")],
        ["ping/a {}"],
        id="an id that comes in time",
    ),
    pytest.param(
        [call(0, LONG, "ping", "{"), call(0, LONG, arguments="}")],
        ["ping/call_2 {}"],
        id="an id longer than 64 characters",
    ),
    pytest.param(
        [call(0, "a", "ping", "{}"), call(1, "a", "get", "{}")],
        ["ping/a {}", "get/call_3 {}"],
        id="one id for two calls",
    ),
    pytest.param(
        [call(0, "functions.ping:0", "ping", "{}")], ["ping/functions.ping:0 {}"], id="Kimi's ids"
    ),
    pytest.param([call(0, 7, "ping", "{}")], ["ping/7 {}"], id="an id that is a number"),  # type: ignore[arg-type]
    # nothing
    pytest.param([{}, call(0), call(0, "", "", "")], [], id="pieces that say nothing"),
    pytest.param(
        [call(0, "a", "ping", "{}"), call(0, "b")], ["ping/a {}"], id="an id without a call"
    ),
    # quirky arguments
    pytest.param(
        [call(0, "a", "ping", " "), call(0, arguments="\n")],
        ["ping/a  \n{}"],
        id="white space for arguments",
    ),
    pytest.param(
        [call(0, "a", "ping", "not json")],
        ["ping/a not json"],
        id="what the model said, not what it should have",
    ),
]


@pytest.mark.parametrize(("pieces", "items"), CALLS)
def test_each_piece_of_a_call_joins_the_right_call(pieces: list[JSON], items: list[str]) -> None:
    turn = translate(
        [*(calls(piece) for piece in pieces), finish("stop")], tool_catalog=catalog_with(*TOOLS)
    )
    assert turn.items == items
    assert len(turn.calls) == len(items)


@pytest.mark.parametrize(("pieces", "items"), CALLS)
def test_pieces_of_calls_in_one_chunk_join_the_right_calls(
    pieces: list[JSON], items: list[str]
) -> None:
    assert (
        translate([calls(*pieces), finish("tool_calls")], tool_catalog=catalog_with(*TOOLS)).items
        == items
    )


def test_an_item_id_differs_from_its_call_id() -> None:
    [item] = translate([calls(call(0, "call_a", "ping", "{}")), finish()]).output
    assert (item["id"], item["call_id"]) == ("fc_1", "call_a")


def test_without_known_tools_a_second_name_is_the_rest_of_the_first() -> None:
    assert translate(
        [calls(call(0, "a", "get_"), call(0, name="time"), call(0, arguments="{}")), finish()]
    ).items == ["get_time/a {}"]


def test_an_item_waits_for_its_whole_name() -> None:
    chunks = [
        calls(call(0, "a", "get_")),
        calls(call(0, name="time")),
        calls(call(0, arguments="{}")),
        finish(),
    ]
    assert translate(chunks).lines[0] == "0 +get_time/a"


def test_a_call_whose_name_is_incomplete_comes_before_later_text() -> None:
    turn = translate(
        [delta(reasoning="hm"), calls(call(0, "a", "ping")), delta(content="Hi"), finish()]
    )
    assert turn.items == ["reasoning hm", "ping/a {}", "message Hi"]


def test_arguments_without_a_name_fail_the_turn() -> None:
    turn = translate(
        [delta(content="Hi"), calls(call(0, "a", arguments="{}")), finish("tool_calls")]
    )
    assert turn.outcome is not None
    assert turn.outcome.failure is not None
    assert turn.outcome.failure.reason == "upstream_garbage"
    assert turn.items == ["message Hi (incomplete)"]


LEGACY: list[Any] = [
    pytest.param([{"name": "ping", "arguments": "{"}, {"arguments": "}"}], id="in pieces"),
    pytest.param([{"name": "ping"}, {"name": "", "arguments": "{}"}], id="an empty name later"),
    pytest.param([{"name": "ping", "arguments": {}}], id="a dict"),
]


@pytest.mark.parametrize("pieces", LEGACY)
def test_a_legacy_function_call_becomes_a_call(pieces: list[JSON]) -> None:
    turn = translate(
        [*(delta(content=None, function_call=piece) for piece in pieces), finish("function_call")]
    )
    assert turn.items == ["ping/call_2 {}"]
    assert turn.outcome is not None
    assert turn.outcome.status == "completed"


# One item at a time.

ARGUMENTS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.text(alphabet='{}[]"\\ aé', max_size=6) | st.integers(0, 9),
        lambda inner: st.lists(inner, max_size=2),
    ),
    max_size=3,
).map(json.dumps)


@examples(50)
@given(
    arguments=st.lists(ARGUMENTS, min_size=1, max_size=4),
    chance=st.randoms(use_true_random=False),
)
def test_interleaved_calls_are_streamed_one_after_the_other(
    arguments: list[str], chance: random.Random
) -> None:
    """`translate` checks that no two items are open at once."""
    pieces = {
        index: [whole[at : at + 3] for at in range(0, len(whole), 3)]
        for index, whole in enumerate(arguments)
    }
    chunks = [calls(call(index, f"call_{index}", "f", "")) for index in pieces]
    while pieces:
        index = chance.choice(list(pieces))
        chunks.append(calls(call(index, arguments=pieces[index].pop(0))))
        if not pieces[index]:
            del pieces[index]
        if chance.random() < 0.1:
            chunks.append(delta(content="Hm. ", reasoning="hm" if chance.random() < 0.5 else ""))
    turn = translate([*chunks, finish("tool_calls")])
    sent = [item for item in turn.output if item["type"] == "function_call"]
    assert [(item["call_id"], item["arguments"]) for item in sent] == [
        (f"call_{index}", whole) for index, whole in enumerate(arguments)
    ]
    assert len(turn.calls) == len(arguments)


def _events_by_chunk(chunks: list[JSON]) -> list[list[str]]:
    """The types of the events that each chunk causes at once."""
    translator = ChatTranslator(counter(), ChatOptions())
    return [
        [
            event["type"].removeprefix("response.")
            for event in decoded(translator.feed(parse_chunk(json.dumps(chunk).encode())))
        ]
        for chunk in chunks
    ]


def test_calls_one_after_the_other_are_not_delayed() -> None:
    chunks = [
        calls(call(0, "a", "f", '{"x"')),
        calls(call(0, arguments=": 1}")),
        calls(call(1, "b", "f", "{")),
        calls(call(1, arguments="}")),
    ]
    assert _events_by_chunk(chunks) == [
        ["output_item.added", "function_call_arguments.delta"],
        ["function_call_arguments.delta"],
        [
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
        ],
        ["function_call_arguments.delta"],
    ]


def test_a_held_call_is_sent_when_the_arguments_before_it_are_complete() -> None:
    chunks = [
        calls(call(0, "a", "f", '{"x"')),
        calls(call(1, "b", "f", "{")),
        calls(call(1, arguments='"y": 2}')),
        calls(call(0, arguments=": 1}")),
    ]
    assert _events_by_chunk(chunks)[1:] == [
        [],
        [],
        [
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
        ],
    ]


def test_text_behind_an_incomplete_call_comes_after_it() -> None:
    turn = translate(
        [
            calls(call(0, "a", "f", '{"x"')),
            delta(content="Hi"),
            calls(call(0, arguments=": 1}")),
            finish("tool_calls"),
        ]
    )
    assert turn.items == ['f/a {"x": 1}', "message Hi"]


def test_what_is_held_back_is_limited() -> None:
    translator = ChatTranslator(counter(), ChatOptions(output_limit=100_000))
    chunk = parse_chunk(json.dumps(calls(call(1, "b", "f", "x"))).encode())
    events = translator.feed(parse_chunk(json.dumps(calls(call(0, "a", "f", "{"))).encode()))
    fed = 0
    with suppress(LimitReached):
        for fed in range(1000):  # noqa: B007 - the number of chunks before the limit
            events += translator.feed(chunk)
    assert 0 < fed < 999
    events += translator.close_incomplete()
    done = assert_items_obey_contract(decoded(events))
    assert [item["arguments"] for item in done.values()] == ["{", "x" * fed]


def test_a_turn_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        translator = ChatTranslator(counter(), ChatOptions())
        translator.feed(parse_chunk(json.dumps(delta(content="Hm.")).encode()))
        left = weakref.ref(translator)
        del translator
        assert left() is None
    finally:
        gc.enable()
