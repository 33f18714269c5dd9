"""Calls of custom tools have their input unwrapped; forbidden calls fail the turn."""

import json
from typing import Any

import pytest

from models.errors import UpstreamFailed
from models.wire.snapshot import closing_events, find_unfinished, fold
from tests.support.api import JSON
from tests.support.chat_turns import (
    TranslatedTurn,
    brief,
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
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.items.client_tools import InputUnwrapper
from worker.upstream.chat_chunks import parse_chunk

TOOLS: dict[str, Any] = {"tool_catalog": catalog_with("look", custom=["sh"])}


def turn_of(*pieces: Any, reason: str = "tool_calls", **options: Any) -> TranslatedTurn:
    first, *more = pieces
    chunks = [
        calls(call(0, "call_a", "sh", first)),
        *(calls(call(0, arguments=piece)) for piece in more),
    ]
    return translate([*chunks, finish(reason)], **{**TOOLS, **options})


def test_a_custom_call_has_its_own_events() -> None:
    turn = turn_of('{"in', 'put": "ls ', '-l"', "}")
    assert [event["type"] for event in turn.events] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    assert turn.lines == [
        "0 +sh/call_a",
        "0 'ls '",
        "0 '-l'",
        "0 ='ls -l'",
        "0 -sh/call_a completed",
    ]
    assert turn.output == [
        {
            "id": "ctc_1",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_a",
            "name": "sh",
            "input": "ls -l",
        }
    ]
    assert turn.calls == turn.output


INPUTS: list[Any] = [
    pytest.param('{"input":"a"}', "a", id="plain"),
    pytest.param('\n { "input" :\t"a" } ', "a", id="white space"),
    pytest.param('{"input":""}', "", id="empty"),
    pytest.param(
        r'{"input":"a\nb\t\"c\" \\ \/ \u00e9 \b\f\r"}', 'a\nb\t"c" \\ / é \b\f\r', id="escapes"
    ),
    pytest.param(r'{"input":"\ud83d\ude00!"}', "\U0001f600!", id="a surrogate pair"),
    pytest.param(r'{"input":"\ud83d!\ude00"}', "\ufffd!\ufffd", id="lone surrogates"),
    pytest.param(r'{"input":"\ud83d\u0041"}', "\ufffdA", id="half a pair, then a letter"),
    pytest.param(r'{"input":"\ud83d\n"}', "\ufffd\n", id="half a pair, then an escape"),
    pytest.param(r'{"input":"a\u0000b"}', "a\ufffdb", id="nul"),
    pytest.param(r'{"input":"a\xb \u12 c"}', r"a\xb \u12 c", id="escapes that JSON does not know"),
    pytest.param('{"input":"a\nb"}', "a\nb", id="a raw line break"),
    pytest.param('{"input":"a","more":1}', "a", id="more than was asked"),
    pytest.param('{"input":"a"} and so on', "a", id="words behind it"),
    pytest.param('{"input":"a', "a", id="never closed"),
    pytest.param('{"more":1,"input":"a"}', "a", id="in another place"),
    pytest.param('{"command":"ls"}', "ls", id="under another name"),
    pytest.param('{"a":"b","c":"d"}', '{"a":"b","c":"d"}', id="an object of its own"),
    pytest.param('{"input":{"a":1}}', '{"input":{"a":1}}', id="not a text"),
    pytest.param('{"input":5}', '{"input":5}', id="a number"),
    pytest.param('"ls"', "ls", id="a lone string"),
    pytest.param('"\\u0000"', "\ufffd", id="a lone string with nul"),
    pytest.param("ls -l", "ls -l", id="no JSON"),
    pytest.param("{}", "", id="an empty object"),
    pytest.param("", "", id="nothing"),
    pytest.param("  ", "", id="white space alone"),
    pytest.param("[" * 5000, "[" * 5000, id="nested too deeply"),
    pytest.param('{"input ":"a"}', "a", id="almost the name"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"input":"a\\', "a"), ('{"input":', ""), ('{"input":"a', "a")]
)
def test_an_input_that_broke_off_is_incomplete(arguments: str, expected: str) -> None:
    [item] = turn_of(arguments).output
    assert (item["input"], item["status"]) == (expected, "incomplete")


@pytest.mark.parametrize(("arguments", "expected"), INPUTS)
def test_the_input_is_unwrapped(arguments: str, expected: str) -> None:
    assert turn_of(arguments).output[0]["input"] == expected


@pytest.mark.parametrize(("arguments", "expected"), INPUTS)
def test_the_input_does_not_depend_on_how_it_is_cut(arguments: str, expected: str) -> None:
    """The pieces are single characters, or two halves cut at each position."""
    arguments = arguments[:200]
    wanted = expected[:200]
    cuts = [list(arguments), *([arguments[:at], arguments[at:]] for at in range(len(arguments)))]
    for pieces in cuts:
        wrapping = InputUnwrapper()
        texts = [wrapping.unwrap(piece) for piece in pieces]
        assert "".join(texts) + wrapping.flush(arguments) == wanted, pieces


def test_arguments_as_a_dict_are_unwrapped_too() -> None:
    assert turn_of({"input": "é\n"}).output[0]["input"] == "é\n"


def test_the_input_streams() -> None:
    whole = json.dumps({"input": "line\n" * 50})
    deltas = [
        event["delta"] for event in turn_of(*whole).events if event["type"].endswith(".delta")
    ]
    assert len(deltas) == 250
    assert "".join(deltas) == "line\n" * 50


def test_functions_and_custom_tools_side_by_side() -> None:
    pieces = [
        call(0, "a", "look", '{"x":'),
        call(1, "b", "sh", '{"input":"l'),
        call(0, arguments="1}"),
        call(1, arguments='s"}'),
    ]
    turn = translate(
        [delta(content="Hm."), *(calls(piece) for piece in pieces), delta(content="\n"), finish()],
        **TOOLS,
    )
    assert turn.items == ["message Hm.", 'look/a {"x":1}', "sh/b ls"]
    assert [item["type"] for item in turn.output] == [
        "message",
        "function_call",
        "custom_tool_call",
    ]
    assert [item["id"].partition("_")[0] for item in turn.output] == ["msg", "fc", "ctc"]


def test_a_truncated_custom_call_is_incomplete_and_one_before_it_is_not() -> None:
    pieces = [call(0, "a", "sh", '{"input":"ls"}'), call(1, "b", "sh", '{"input":"rm')]
    turn = translate([*(calls(piece) for piece in pieces), finish("length")], **TOOLS)
    assert turn.items == ["sh/a ls", "sh/b rm (incomplete)"]
    assert [item["call_id"] for item in turn.calls] == ["a"]


CHUNKS: list[JSON] = [
    calls(call(0, "a", "sh", '{"input":"l')),
    calls(call(0, arguments="s\\")),
    calls(call(0, arguments='n"}'), call(1, "b", "sh", "raw text")),
    calls(call(2, "c", "look", "{}")),
    finish("tool_calls"),
]


def test_a_recovery_can_close_every_open_item() -> None:
    events = translate(CHUNKS, **TOOLS).events
    for length in range(len(events) + 1):
        received = events[:length]
        closing = decoded(closing_events(find_unfinished(received)))
        done = assert_items_obey_contract([*received, *closing])
        assert [item for _, item in sorted(done.items())] == fold([*received, *closing])


def test_a_recovery_closes_items_like_the_translator() -> None:
    for length in range(len(CHUNKS)):
        translator = ChatTranslator(counter(), ChatOptions(**TOOLS))
        received = [
            event
            for chunk in CHUNKS[:length]
            for event in translator.feed(parse_chunk(json.dumps(chunk).encode()))
        ]
        closing = closing_events(find_unfinished(decoded(received)))
        # Then come the items that were held back: a recovery does not know them.
        assert translator.close_incomplete()[: len(closing)] == closing


# What tool_choice rules out.

VIOLATED = "The model called the tool 'sh', which 'tool_choice' does not allow."


@pytest.mark.parametrize("allowed", [(), ("look",)], ids=["nothing may be called", "another may"])
@pytest.mark.parametrize(
    "pieces",
    [
        [call(0, "a", "sh", "{}")],
        [call(0, "a", "sh")],
        [call(0, "a"), call(0, name="sh"), call(0, arguments="{")],
    ],
)
def test_a_call_that_is_not_allowed_becomes_no_item_and_fails_the_turn(
    allowed: tuple[str, ...], pieces: list[JSON]
) -> None:
    turn = translate(
        [delta(content="Hm."), calls(*pieces)],
        tool_catalog=catalog_with("look", custom=["sh"], allowed=allowed),
    )
    assert turn.items == ["message Hm. (incomplete)"]
    assert turn.outcome is not None
    assert turn.outcome.status == "failed"
    assert turn.outcome.failure is not None
    assert (turn.outcome.failure.message, turn.outcome.failure.reason) == (
        VIOLATED,
        "tool_choice_violated",
    )


def test_after_a_forbidden_call_no_chunk_is_accepted() -> None:
    translator = ChatTranslator(
        counter(), ChatOptions(tool_catalog=catalog_with("look", custom=["sh"], allowed=["look"]))
    )
    published = translator.feed(
        parse_chunk(
            json.dumps(calls(call(0, "a", "look", "{}"), call(1, "b", "sh", "{}"))).encode()
        )
    )
    with pytest.raises(UpstreamFailed, match="does not allow"):
        translator.feed(parse_chunk(json.dumps(delta(content="more")).encode()))
    lines = [brief(event) for event in decoded(published + translator.close_incomplete())]
    assert lines == ["0 +look/a", "0 '{}'", "0 -look/a incomplete"]


def test_calls_that_are_allowed_pass() -> None:
    turn = translate(
        [calls(call(0, "a", "look", "{}")), finish("tool_calls")],
        tool_catalog=catalog_with("look", custom=["sh"], allowed=["look"]),
    )
    assert turn.items == ["look/a {}"]


def test_a_service_tier_of_the_api_is_reported() -> None:
    translator = ChatTranslator(counter())
    for tier in ("flex", "on_demand", None):
        translator.feed(
            parse_chunk(json.dumps(delta(content="x") | {"service_tier": tier}).encode())
        )
    assert translator.service_tier == "flex"
