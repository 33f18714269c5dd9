"""A native upstream's events and what they become: complete turns, turns with missing events."""

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from models.errors import LimitReached, UpstreamFailed
from models.wire.token_counts import add_usage
from tests.support.api import JSON
from tests.support.chat_turns import catalog_with, counter, decoded
from tests.support.native_turns import (
    added,
    done,
    event,
    message,
    message_events,
    numbered,
    terminal_event,
    text_delta,
    translate_native,
)
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import OpenMcpCall
from worker.translation.responses.translator import NativeTranslator
from worker.translation.tool_catalog import build_tool_catalog
from worker.translation.turn import TurnOptions
from worker.translation.upstream_events import UpstreamEvent
from worker.upstream.responses_events import parse_event

WHOLE = [
    "0 +message",
    "0.0 +output_text",
    "0.0 'H'",
    "0.0 'i'",
    "0.0 ='Hi'",
    "0.0 -output_text",
    "0 -message completed",
]
SNAPSHOT = {
    "response": {
        "id": "resp_up",
        "object": "response",
        "status": "in_progress",
        "output": [],
        "model": "big",
        "service_tier": "flex",
    }
}


def _opening() -> list[JSON]:
    return [
        {"type": f"response.{step}", **SNAPSHOT} for step in ("created", "queued", "in_progress")
    ]


def test_a_turn_shows_only_our_ids() -> None:
    turn = translate_native(
        numbered([*_opening(), *message_events("Hi"), terminal_event(message("Hi"))])
    )
    assert turn.lines == WHOLE
    assert turn.output == [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
        }
    ]
    assert turn.usage is not None
    assert (turn.usage["input_tokens"], turn.usage["total_tokens"]) == (3, 5)
    assert turn.outcome is not None
    assert turn.outcome.status == "completed"
    assert "up_msg" not in json.dumps(turn.events)
    assert "resp_up" not in json.dumps(turn.events)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [(0, "Hi"), (1, "Hi"), (2, "i"), (3, "Hi"), (4, "Hi"), (5, "Hi"), (6, "Hi")],
)
def test_a_message_is_complete_without_any_one_of_its_events(missing: int, expected: str) -> None:
    """Only a character before one that was sent is lost: sent text stays."""
    events = message_events("Hi")
    del events[missing]
    turn = translate_native([*events, terminal_event(message("Hi"))])
    assert turn.items == [f"message {expected}"]
    assert turn.outcome is not None
    assert turn.outcome.status == "completed"


@pytest.mark.parametrize("seed", range(20))
def test_a_turn_with_many_missing_events_obeys_the_contract(seed: int) -> None:
    chance = random.Random(seed)
    reasoning_item = {
        "id": "up_rs",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "ab"}],
        "encrypted_content": "blob",
    }
    call = {
        "id": "up_fc",
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": '{"a":1}',
        "status": "completed",
    }
    events = [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**reasoning_item, "summary": []},
        },
        event(
            "reasoning_summary_part.added",
            0,
            item_id="up_rs",
            summary_index=0,
            part={"type": "summary_text", "text": ""},
        ),
        event("reasoning_summary_text.delta", 0, item_id="up_rs", summary_index=0, delta="a"),
        event("reasoning_summary_text.delta", 0, item_id="up_rs", summary_index=0, delta="b"),
        event("reasoning_summary_text.done", 0, item_id="up_rs", summary_index=0, text="ab"),
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning_item},
        *[{**entry, "output_index": 1} for entry in message_events("Hello")],
        {
            "type": "response.output_item.added",
            "output_index": 2,
            "item": {**call, "arguments": ""},
        },
        event("function_call_arguments.delta", 2, item_id="up_fc", delta='{"a"'),
        event("function_call_arguments.delta", 2, item_id="up_fc", delta=":1}"),
        event("function_call_arguments.done", 2, item_id="up_fc", name="f", arguments='{"a":1}'),
        {"type": "response.output_item.done", "output_index": 2, "item": call},
    ]
    stored = [entry for entry in events if chance.random() < 0.6]
    for entry in stored:
        if chance.random() < 0.3:
            entry.pop("output_index", None)
        if chance.random() < 0.2:
            entry["item_id"] = f"changed_{chance.random()}"
    if chance.random() < 0.3:
        stored += stored[-1:]
    last = (
        terminal_event(reasoning_item, message("Hello"), call)
        if chance.random() < 0.7
        else terminal_event()
    )
    turn = translate_native([*stored, last])
    assert turn.outcome is not None


def test_parts_with_the_same_index_are_separated_by_type() -> None:
    refusal = event("refusal.delta", 0, item_id="up_msg", content_index=0, delta="no")
    turn = translate_native([text_delta("yes, "), refusal, terminal_event()])
    assert turn.items == ["message yes,  | refusal no"]


def test_items_whose_ids_change_are_separated_by_index() -> None:
    changing = [text_delta(letter, item_id=f"id_{letter}") for letter in "abc"]
    last = {
        "type": "response.output_item.done",
        "output_index": 0,
        "item": {**message("abc"), "id": "last"},
    }
    assert translate_native(
        [added(0, "message", id="first"), *changing, last, terminal_event(message("abc"))]
    ).items == ["message abc"]


def test_items_with_the_same_index_are_separated_by_id() -> None:
    events = [
        added(0, "message", id="one"),
        text_delta("1", item_id="one"),
        added(0, "message", id="two"),
        text_delta("2", item_id="two"),
        text_delta("1", item_id="one"),
    ]
    assert translate_native([*events, terminal_event()]).items == ["message 11", "message 2"]


def test_items_without_ids_and_indexes_are_complete() -> None:
    bare = [event("output_text.delta", delta=letter) for letter in "abc"]
    assert (
        translate_native(
            [*bare, event("function_call_arguments.delta", delta="{"), terminal_event()]
        ).lines[-1]
        == "0 -message incomplete"
    )
    assert translate_native([*bare, terminal_event()]).items == ["message abc"]


def test_content_of_the_terminal_event_alone_is_sent() -> None:
    turn = translate_native([terminal_event(message("All at once."))])
    assert turn.lines == [
        "0 +message",
        "0.0 +output_text",
        "0.0 'All at once.'",
        "0.0 ='All at once.'",
        "0.0 -output_text",
        "0 -message completed",
    ]


def test_an_empty_terminal_list_removes_nothing() -> None:
    assert translate_native([*message_events("Hi"), terminal_event()]).lines == WHOLE


def test_a_json_body_is_a_whole_turn() -> None:
    turn = translate_native([terminal_event(message("Hi"))["response"]])
    assert turn.items == ["message Hi"]
    assert turn.usage is not None


def test_counts_that_are_not_known_are_kept_and_added() -> None:
    sent = {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "audio_tokens": 2, "image_tokens": None},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1, "tool_tokens": 4},
        "total_tokens": 5,
        "cost": 0.5,
        "is_byok": True,
        "tier": {"name": "a", "seconds": 2},
    }
    usage = translate_native([*message_events("Hi"), terminal_event(usage=sent)]).usage
    assert usage is not None
    assert {**usage, "input_tokens_details": {}} == {**sent, "input_tokens_details": {}}
    assert usage["input_tokens_details"] == {
        "cached_tokens": 1,
        "cache_write_tokens": 0,
        "audio_tokens": 2,
    }
    two = add_usage(usage, {**usage, "later": 1})
    assert two is not None
    assert two["output_tokens_details"] == {"reasoning_tokens": 2, "tool_tokens": 8}
    assert (two["cost"], two["is_byok"], two["tier"], two["later"]) == (
        1.0,
        True,
        {"name": "a", "seconds": 4},
        1,
    )


def test_events_after_the_end_are_ignored() -> None:
    assert (
        translate_native(
            [
                *message_events("Hi"),
                terminal_event(),
                text_delta("more"),
                terminal_event(status="failed"),
            ]
        ).lines
        == WHOLE
    )


def test_a_stream_that_stops_early_fails_and_keeps_its_content() -> None:
    turn = translate_native(message_events("Hi")[:-3])
    assert turn.lines[-1] == "0 -message incomplete"
    assert turn.outcome is not None
    assert turn.outcome.failure is not None
    assert turn.outcome.failure.reason == "upstream_ended_early"


def test_done_ends_a_turn_whose_items_were_all_closed() -> None:
    closed, left_open = (
        translate_native(message_events("Hi"), done_seen=True),
        translate_native(message_events("Hi")[:-1], done_seen=True),
    )
    assert closed.outcome is not None
    assert left_open.outcome is not None
    assert (closed.outcome.status, left_open.outcome.status) == ("completed", "failed")
    nothing = translate_native([], done_seen=True).outcome
    assert nothing is not None
    assert nothing.status == "failed"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("max_output_tokens", "max_output_tokens"),
        ("content_filter", "content_filter"),
        ("length", "max_output_tokens"),
        ("safety", "content_filter"),
        (None, "max_output_tokens"),
    ],
)
def test_an_incomplete_turn_has_a_reason(given: str | None, expected: str) -> None:
    details = None if given is None else {"reason": given}
    turn = translate_native(
        [
            *message_events("Hi")[:4],
            terminal_event(
                message("Hi", status="incomplete"), status="incomplete", incomplete_details=details
            ),
        ]
    )
    assert turn.outcome is not None
    assert (turn.outcome.status, turn.outcome.incomplete_reason) == ("incomplete", expected)
    assert turn.items == ["message Hi (incomplete)"]


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        ({"code": "rate_limit_exceeded", "message": "slow down"}, "rate_limit_exceeded", 429),
        ({"code": "invalid_prompt", "message": "no"}, "invalid_prompt", 400),
        ({"code": "image_too_large", "message": "no"}, "image_too_large", 400),
        ({"code": "vector_store_timeout", "message": "slow"}, "vector_store_timeout", 502),
        ({"code": "server_error", "message": "oops"}, "server_error", 502),
        ({"code": "something_new", "message": "oops"}, "server_error", 502),
        ({"code": 429, "message": "slow down"}, "rate_limit_exceeded", 429),
        ({}, "server_error", 502),
        (None, "server_error", 502),
    ],
)
def test_a_failed_turn_has_a_code_that_clients_know(
    error: JSON | None, code: str, status: int
) -> None:
    turn = translate_native(
        [text_delta("so far"), terminal_event(message("so far"), status="failed", error=error)]
    )
    assert turn.outcome is not None
    assert turn.outcome.failure is not None
    assert (turn.outcome.failure.code, turn.outcome.failure.status) == (code, status)
    assert turn.items[0].startswith("message so far")


def test_unfinished_items_of_a_failed_turn_are_incomplete() -> None:
    turn = translate_native(
        [text_delta("so"), terminal_event(message("so far", status="in_progress"), status="failed")]
    )
    assert turn.items == ["message so far (incomplete)"]


def test_items_listed_with_other_ids_at_the_end_are_matched_in_order() -> None:
    sent_event = [
        entry
        for number in range(50)
        for entry in (
            added(number, "message", id=f"m{number}"),
            text_delta("x", number, f"m{number}"),
        )
    ]
    turn = translate_native(
        [
            *sent_event,
            terminal_event(*(message(f"x{number}", id=f"other{number}") for number in range(50))),
        ]
    )
    assert turn.items == [f"message x{number}" for number in range(50)]


def test_a_turn_that_the_upstream_cancels_fails() -> None:
    turn = translate_native(
        [text_delta("a"), {"type": "response.cancelled", "response": {"status": "cancelled"}}]
    )
    assert turn.outcome is not None
    assert turn.outcome.failure is not None
    assert turn.outcome.failure.reason == "upstream_cancelled"


@pytest.mark.parametrize(
    "sent_event",
    [
        {"type": "error", "message": "overloaded", "code": None, "param": None},
        {"type": "error", "error": {"message": "overloaded", "type": "server_error"}},
        {"error": {"message": "overloaded"}},
        {"message": "overloaded", "code": 500},
        {"detail": "overloaded"},
    ],
)
def test_an_error_event_is_raised(sent_event: JSON) -> None:
    with pytest.raises(UpstreamFailed, match="overloaded"):
        parse_event(json.dumps(sent_event).encode())


@pytest.mark.parametrize(
    "payload",
    [
        b"{nonsense",
        b"[]",
        b"1",
        b"null",
        b"",
        b"{}",
        b'{"type":"response.x","item":' + b"[" * 300 + b"]" * 300 + b"}",
    ],
)
def test_payloads_that_are_no_events_fail_the_turn(payload: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        parse_event(payload)


def test_an_upstream_with_the_wrong_api_setting_is_reported() -> None:
    with pytest.raises(UpstreamFailed, match="'api' should be 'chat'"):
        parse_event(b'{"object":"chat.completion.chunk","choices":[]}')


@pytest.mark.parametrize(
    "unknown",
    [
        {"type": "response.new_thing.delta", "delta": "x", "item_id": "a", "output_index": 0},
        {"type": "ping"},
        {"type": "keepalive", "sequence_number": 3},
        {"type": "response.mcp_call.in_progress", "item_id": "m", "output_index": 0},
        {"type": "response.output_item.added", "output_index": 5},
        {"type": "response.output_item.done", "output_index": 5},
        {"type": "response.output_item.done", "output_index": 5, "item": {"type": 7}},
        {
            "type": "response.output_text.annotation.added",
            "item_id": "up_msg",
            "output_index": 0,
            "annotation": "none",
        },
        {
            "type": "response.content_part.added",
            "output_index": 0,
            "item_id": "up_msg",
            "part": {"type": "new"},
        },
    ],
)
def test_unknown_events_change_nothing(unknown: JSON) -> None:
    turn = translate_native(
        [
            *message_events("Hi")[:3],
            unknown,
            *message_events("Hi")[3:],
            terminal_event(message("Hi")),
        ]
    )
    assert [line for line in turn.lines if line.startswith("0")] == WHOLE


def test_text_that_cannot_be_stored_becomes_the_replacement_character() -> None:
    raw = (
        b'{"type":"response.output_text.delta","output_index":0,"item_id":"a","content_index":0,'
        b'"delta":"x\\u0000y\\ud800z\xff"}'
    )
    assert translate_native([raw, terminal_event()]).items == ["message x\ufffdy\ufffdz\ufffd"]


# --- reasoning ---


def test_reasoning_keeps_summary_text_and_encrypted_content() -> None:
    events = [
        added(0, "reasoning", id="up_rs", summary=[], encrypted_content="early"),
        event(
            "reasoning_summary_part.added",
            0,
            item_id="up_rs",
            summary_index=0,
            part={"type": "summary_text", "text": ""},
        ),
        event("reasoning_summary_text.delta", 0, item_id="up_rs", summary_index=0, delta="first"),
        event(
            "reasoning_summary_part.done",
            0,
            item_id="up_rs",
            summary_index=0,
            part={"type": "summary_text", "text": "first"},
        ),
        event("reasoning_summary_text.delta", 0, item_id="up_rs", summary_index=1, delta="second"),
        event("reasoning_text.delta", 0, item_id="up_rs", content_index=0, delta="raw"),
        done(
            0,
            "reasoning",
            id="up_rs",
            encrypted_content="late",
            summary=[{"type": "summary_text", "text": text} for text in ("first", "second")],
        ),
    ]
    turn = translate_native([*events, terminal_event()], tag_encrypted=lambda blob: f"kept {blob}")
    assert turn.output == [
        {
            "id": "rs_1",
            "type": "reasoning",
            "status": "completed",
            "summary": [
                {"type": "summary_text", "text": "first"},
                {"type": "summary_text", "text": "second"},
            ],
            "content": [{"type": "reasoning_text", "text": "raw"}],
            "encrypted_content": "kept late",
        }
    ]


def test_older_names_of_reasoning_events_are_read() -> None:
    events = [
        event("reasoning.delta", 0, item_id="r", content_index=0, delta="hm"),
        event("reasoning_summary.delta", 0, item_id="r", summary_index=0, delta="s"),
    ]
    output = translate_native([*events, terminal_event()]).output
    assert (output[0]["content"][0]["text"], output[0]["summary"][0]["text"]) == ("hm", "s")


# --- calls ---


def _call(**more: Any) -> JSON:
    return {
        "id": "up_fc",
        "type": "function_call",
        "call_id": "call_up",
        "name": "f",
        "arguments": '{"a":1}',
        "status": "completed",
        **more,
    }


def test_a_call_keeps_its_call_id_and_other_fields() -> None:
    shape = _call(caller={"type": "direct"}, namespace="ns")
    events = [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**shape, "arguments": "", "status": "in_progress"},
        }
    ]
    events += [
        event("function_call_arguments.delta", 0, item_id="up_fc", delta=piece)
        for piece in ('{"a"', ":1}")
    ]
    turn = translate_native(
        [
            *events,
            {"type": "response.output_item.done", "output_index": 0, "item": shape},
            terminal_event(shape),
        ]
    )
    assert turn.output == [{**shape, "id": "fc_1"}]
    assert turn.calls == turn.output


@pytest.mark.parametrize("missing", range(4))
def test_a_call_with_missing_events_is_complete(missing: int) -> None:
    shape = _call()
    events = [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**shape, "arguments": ""},
        },
        event("function_call_arguments.delta", 0, item_id="up_fc", delta='{"a":1}'),
        event("function_call_arguments.done", 0, item_id="up_fc", name="f", arguments='{"a":1}'),
        {"type": "response.output_item.done", "output_index": 0, "item": shape},
    ]
    del events[missing]
    turn = translate_native([*events, terminal_event(shape)])
    assert turn.items == ['f/call_up {"a":1}']
    assert turn.output[0]["arguments"] == '{"a":1}'


def test_a_call_without_a_name_fails_the_turn() -> None:
    turn = translate_native(
        [event("function_call_arguments.delta", 0, item_id="x", delta="{}"), terminal_event()]
    )
    assert turn.outcome is not None
    assert turn.outcome.failure is not None
    assert turn.outcome.failure.reason == "upstream_garbage"


def test_an_unusable_call_id_is_replaced() -> None:
    turn = translate_native(
        [
            terminal_event(
                _call(call_id="x" * 65),
                _call(id="b", call_id="same"),
                _call(id="c", call_id="same"),
                _call(id="d", call_id=None),
            )
        ]
    )
    ids = [call["call_id"] for call in turn.output]
    assert len(set(ids)) == 4
    assert ids[1] == "same"


def test_custom_calls_have_free_text_input() -> None:
    shape = {
        "id": "up",
        "type": "custom_tool_call",
        "call_id": "c",
        "name": "patch",
        "input": "*** Begin",
    }
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**shape, "input": ""}},
        event("custom_tool_call_input.delta", 0, item_id="up", delta="*** "),
        event("custom_tool_call_input.done", 0, item_id="up", input="*** Begin"),
    ]
    assert translate_native([*events, terminal_event(shape)]).items == ["patch/c *** Begin"]


def _ours(name: str = "look") -> Any:
    function = ServerFunction(
        {"type": "mcp", "server_label": "s", "name": name},
        name,
        lambda index, new_id: OpenMcpCall(index, new_id("mcp"), server_label="s", name=name),
    )
    return build_tool_catalog({"tools": []}, server_functions={name: function})


def test_a_server_call_stays_open() -> None:
    shape = _call(name="look")
    events = [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**shape, "arguments": ""},
        }
    ]
    events += [
        event("function_call_arguments.delta", 0, item_id="up_fc", delta=piece)
        for piece in ('{"a"', ":1")
    ]
    turn = translate_native(
        [
            *events,
            {"type": "response.output_item.done", "output_index": 0, "item": shape},
            terminal_event(shape),
        ],
        tool_catalog=_ours(),
    )
    assert [(item["type"], item["status"], item["arguments"]) for item in turn.output] == [
        ("mcp_call", "in_progress", '{"a":1}')
    ]


@pytest.mark.parametrize("done_seen", [False, True])
def test_server_calls_beyond_what_the_request_allows_are_no_items(*, done_seen: bool) -> None:
    calls = [_call(name="look", id=f"up_{number}", call_id=f"c{number}") for number in range(2)]
    events = [
        event
        for index, shape in enumerate(calls)
        for event in (
            {"type": "response.output_item.added", "output_index": index, "item": shape},
            {"type": "response.output_item.done", "output_index": index, "item": shape},
        )
    ]
    ending = [] if done_seen else [terminal_event(*calls)]
    turn = translate_native(
        [*events, *ending], tool_catalog=_ours(), calls_left=1, done_seen=done_seen
    )
    assert [item["type"] for item in turn.output] == ["mcp_call"]
    assert turn.outcome is not None
    assert turn.outcome.status == "completed"


def test_a_call_of_an_unknown_function_gets_an_error_if_there_are_server_tools() -> None:
    turn = translate_native(
        [terminal_event(_call(name="look"), _call(id="x", call_id="x", name="nobody"))],
        tool_catalog=_ours(),
    )
    assert [item["type"] for item in turn.output] == [
        "mcp_call",
        "function_call",
        "function_call_output",
    ]


def test_a_call_that_tool_choice_forbids_fails_the_turn() -> None:
    turn = translate_native(
        [terminal_event(_call(name="g"))], tool_catalog=catalog_with("f", "g", allowed=["f"])
    )
    assert turn.outcome is not None
    assert turn.outcome.failure is not None
    assert turn.outcome.failure.reason == "tool_choice_violated"
    assert turn.output == []


# --- what the upstream runs itself ---


def test_a_search_of_the_upstream_shows_its_progress() -> None:
    shape = {
        "id": "ws_up",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q", "sources": None},
    }
    events = [added(0, "web_search_call", id="ws_up", status="in_progress")]
    events += [
        event(f"web_search_call.{step}", 0, item_id="ws_up")
        for step in ("in_progress", "searching", "searching", "completed")
    ]
    turn = translate_native(
        [
            *events,
            {"type": "response.output_item.done", "output_index": 0, "item": shape},
            terminal_event(),
        ]
    )
    kinds = [sent_event["type"].removeprefix("response.") for sent_event in turn.events]
    assert kinds == [
        "output_item.added",
        *(f"web_search_call.{step}" for step in ("in_progress", "searching", "completed")),
        "output_item.done",
    ]
    assert turn.output == [
        {
            "id": "ws_1",
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "q"},
        }
    ]


@pytest.mark.parametrize(
    "kind",
    ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"],
)
@pytest.mark.parametrize("arrived", ["nothing", "added", "progress"])
def test_an_upstreams_tool_call_with_missing_events_is_complete(kind: str, arrived: str) -> None:
    more: JSON = (
        {"code": "1+1", "container_id": "c", "outputs": None}
        if kind == "code_interpreter_call"
        else {}
    )
    more |= {"action": {"type": "search"}} if kind == "web_search_call" else {}
    shape = {
        "id": "up",
        "type": kind,
        "status": "completed",
        **({"queries": ["q"]} if kind == "file_search_call" else {}),
        **more,
    }
    events = {
        "nothing": [],
        "added": [added(0, kind, id="up")],
        "progress": [event(f"{kind}.in_progress", 0, item_id="up")],
    }[arrived]
    turn = translate_native([*events, terminal_event(shape)])
    assert turn.output == [
        {
            **{name: value for name, value in shape.items() if value is not None},
            "id": turn.output[0]["id"],
        }
    ]
    steps = [
        sent_event["type"]
        for sent_event in turn.events
        if sent_event["type"].startswith(f"response.{kind}.")
    ]
    assert (steps[0], steps[-1]) == (f"response.{kind}.in_progress", f"response.{kind}.completed")


def test_code_streams() -> None:
    shape = {
        "id": "ci",
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "1+1",
        "container_id": "c",
        "outputs": [{"type": "logs", "logs": "2"}],
    }
    events = [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**shape, "code": "", "status": "in_progress", "outputs": None},
        },
        *(
            event("code_interpreter_call_code.delta", 0, item_id="ci", delta=piece)
            for piece in ("1", "+")
        ),
        event("code_interpreter_call_code.done", 0, item_id="ci", code="1+1"),
        event("code_interpreter_call.interpreting", 0, item_id="ci"),
    ]
    turn = translate_native(
        [
            *events,
            {"type": "response.output_item.done", "output_index": 0, "item": shape},
            terminal_event(),
        ]
    )
    assert turn.output == [{**shape, "id": "ci_1"}]
    cut = translate_native(events[:2], cut=True)
    assert [(item["status"], item["code"]) for item in cut.output] == [("incomplete", "1")]


def test_previews_of_an_image_are_numbered_by_us() -> None:
    events = [added(0, "image_generation_call", id="ig")]
    events += [
        event(
            "image_generation_call.partial_image",
            0,
            item_id="ig",
            partial_image_index=7,
            partial_image_b64=data,
        )
        for data in ("AA", "BB")
    ]
    turn = translate_native(
        [
            *events,
            terminal_event(
                {"id": "ig", "type": "image_generation_call", "status": "completed", "result": "CC"}
            ),
        ]
    )
    assert [
        sent_event["partial_image_index"]
        for sent_event in turn.events
        if "partial_image_index" in sent_event
    ] == [0, 1]
    assert turn.output[0]["result"] == "CC"


def test_a_completed_turn_may_contain_a_failed_call_of_the_upstream() -> None:
    turn = translate_native(
        [
            done(0, "web_search_call", id="w", status="failed", action={"type": "search"}),
            *[{**entry, "output_index": 1} for entry in message_events("ok")],
            terminal_event(),
        ]
    )
    assert [item["status"] for item in turn.output] == ["failed", "completed"]


def test_items_of_unknown_types_are_sent_when_they_are_complete() -> None:
    shape = {
        "id": "x_1",
        "type": "slug:gadget",
        "status": "completed",
        "inside": {"a": None, "b": 1},
    }
    translator = NativeTranslator(lambda prefix: f"{prefix}_1")
    events = translator.feed(
        parse_event(
            json.dumps(
                {"type": "response.output_item.added", "output_index": 0, "item": shape}
            ).encode()
        )
    )
    assert events == []
    translator.feed(
        parse_event(
            json.dumps(
                {"type": "response.output_item.done", "output_index": 0, "item": shape}
            ).encode()
        )
    )
    assert translator.output == [
        {"id": "item_1", "type": "slug:gadget", "status": "completed", "inside": {"b": 1}}
    ]


def test_a_shell_call_of_the_upstream_and_its_output_have_the_same_call_id() -> None:
    call = {
        "id": "sh",
        "type": "shell_call",
        "call_id": "x" * 70,
        "status": "completed",
        "action": {"commands": ["ls", ""]},
    }
    out = {"id": "so", "type": "shell_call_output", "call_id": "x" * 70, "output": []}
    first, second = translate_native([terminal_event(call, out)]).output
    assert first["call_id"] == second["call_id"]
    assert len(first["call_id"]) <= 64


# --- limits ---


def test_a_turn_above_the_output_limit_fails() -> None:
    translator = NativeTranslator(lambda prefix: f"{prefix}_1", TurnOptions(output_limit=3000))
    events = [parse_event(json.dumps(text_delta("x" * 500)).encode())] * 10
    with pytest.raises(LimitReached):
        _fed(translator, events)
    assert translator.output[0]["content"][0]["text"] == "x" * 1500


def test_repeated_content_counts_once() -> None:
    text = "x" * 50_000
    part = {"type": "output_text", "text": text, "annotations": []}
    events = [
        text_delta(text),
        event("output_text.done", 0, item_id="up_msg", content_index=0, text=text),
        event("content_part.done", 0, item_id="up_msg", content_index=0, part=part),
    ]
    assert translate_native(
        [*events, terminal_event(message(text))], output_limit=60_000
    ).items == [f"message {text}"]


def test_endless_empty_items_reach_the_limit_too() -> None:
    translator = NativeTranslator(lambda prefix: f"{prefix}_1", TurnOptions(output_limit=100_000))
    events = [
        parse_event(json.dumps(added(number, "message", id=f"m{number}")).encode())
        for number in range(1000)
    ]
    with pytest.raises(LimitReached):
        _fed(translator, events)


def _fed(translator: NativeTranslator, events: Iterable[UpstreamEvent]) -> None:
    for sent_event in events:
        translator.feed(sent_event)


# --- one item at a time ---


def _added_call(index: int, name: str) -> JSON:
    return added(index, "function_call", id=f"up_{name}", call_id=f"c_{name}", name=name)


def _arguments(index: int, name: str, piece: str) -> JSON:
    return event("function_call_arguments.delta", index, item_id=f"up_{name}", delta=piece)


def _events_by_event(events: list[JSON]) -> list[list[str]]:
    """The types of the events that each event of the upstream causes at once."""
    translator = NativeTranslator(counter(), TurnOptions())
    return [
        [
            shown["type"].removeprefix("response.")
            for shown in decoded(translator.feed(parse_event(json.dumps(one).encode())))
        ]
        for one in events
    ]


def test_interleaved_calls_are_streamed_one_after_the_other() -> None:
    turn = translate_native(
        [
            _added_call(0, "f"),
            _added_call(1, "g"),
            _arguments(0, "f", '{"a"'),
            _arguments(1, "g", "{"),
            _arguments(0, "f", ":1}"),
            _arguments(1, "g", "}"),
            done(1, "function_call", id="up_g", call_id="c_g", name="g", arguments="{}"),
            done(0, "function_call", id="up_f", call_id="c_f", name="f", arguments='{"a":1}'),
            terminal_event(),
        ]
    )
    assert turn.items == ['f/c_f {"a":1}', "g/c_g {}"]


def test_a_server_that_closes_its_items_at_the_end_delays_nothing() -> None:
    """llama.cpp sends all `done` events when the turn ends."""
    events = [
        added(0, "reasoning", id="rs"),
        event("reasoning_text.delta", 0, item_id="rs", content_index=0, delta="hm"),
        added(1, "message", id="up_msg"),
        text_delta("Hi", 1),
        _added_call(2, "f"),
        _arguments(2, "f", "{}"),
        _added_call(3, "g"),
        _arguments(3, "g", "{}"),
    ]
    caused = _events_by_event(events)
    assert all(types[-1].endswith(("added", "delta")) for types in caused)
    turn = translate_native(
        [
            *events,
            done(0, "reasoning", id="rs", content=[{"type": "reasoning_text", "text": "hm"}]),
            done(1, "message", id="up_msg", content=[{"type": "output_text", "text": "Hi"}]),
            done(2, "function_call", id="up_f", call_id="c_f", name="f", arguments="{}"),
            done(3, "function_call", id="up_g", call_id="c_g", name="g", arguments="{}"),
            terminal_event(),
        ]
    )
    assert turn.items == ["reasoning hm", "message Hi", "f/c_f {}", "g/c_g {}"]


def test_text_for_a_closed_message_is_a_new_message() -> None:
    turn = translate_native(
        [
            added(0, "message", id="up_msg"),
            text_delta("H", 0),
            added(1, "reasoning", id="rs"),
            event("reasoning_text.delta", 1, item_id="rs", content_index=0, delta="hm"),
            text_delta("i", 0),
            done(1, "reasoning", id="rs", content=[{"type": "reasoning_text", "text": "hm, so"}]),
            done(0, "message", id="up_msg", content=[{"type": "output_text", "text": "Hi you"}]),
            terminal_event(),
        ]
    )
    assert turn.items == [
        "message H",
        "reasoning hm",
        "message i",
        "reasoning , so",
        "message  you",
    ]


# --- losses ---


@pytest.mark.parametrize("arguments", ['{"a": "hal', "{", '{"a": [1'])
@pytest.mark.parametrize("status", ["completed", None])
def test_half_a_call_is_not_completed(arguments: str, status: str | None) -> None:
    call = {"id": "up_fc", "type": "function_call", "call_id": "c", "name": "f"}
    whole = {**call, "arguments": arguments, **({"status": status} if status else {})}
    turn = translate_native([*added_and_done(call, whole), terminal_event(whole)])
    assert turn.items == [f"f/c {arguments} (incomplete)"]
    assert turn.calls == []
    assert turn.outcome is not None
    assert turn.outcome.status == "incomplete"


def added_and_done(begun: JSON, whole: JSON) -> list[JSON]:
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
    ]


def test_a_completed_response_without_output_failed() -> None:
    turn = translate_native([terminal_event()], needs_output=True)
    assert turn.outcome is not None
    assert turn.outcome.failure is not None
    assert turn.outcome.failure.reason == "upstream_empty"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a\ud83d", "\ude00b"], "a😀b"),
        (["\ud83d", "", "\ude00"], "😀"),
        (["a\ud83d", "b"], "a\ufffdb"),
        (["\ude00b"], "\ufffdb"),
    ],
)
def test_halves_of_a_character_meet(pieces: list[str], text: str) -> None:
    deltas = [text_delta(piece) for piece in pieces]
    end = terminal_event(message(text))
    assert translate_native([*deltas, end]).items == [f"message {text}"]
    raw = [json.dumps(each, ensure_ascii=False).encode("utf-8", "surrogatepass") for each in deltas]
    assert translate_native([*raw, end]).items == [f"message {text}"]


def _call_events(arguments: str) -> list[JSON]:
    shape = {"id": "up_fc", "call_id": "call_a", "name": "look", "arguments": arguments}
    return [
        added(0, "function_call", **{**shape, "arguments": ""}),
        done(0, "function_call", **shape),
    ]


CODE_CALL: JSON = {"id": "ci_1", "container_id": "c", "code": "1", "outputs": []}


@pytest.mark.parametrize(
    ("events", "limit", "tokens", "expected"),
    [
        (message_events("Hi"), 2, 2, "incomplete"),
        (message_events("Hi"), 2, 3, "incomplete"),
        (message_events("Hi"), 3, 2, "completed"),
        (message_events("Hi"), None, 2, "completed"),
        (message_events("Hi"), 2, None, "completed"),
        ([], 2, 2, "incomplete"),
        (_call_events('{"city": "Ulm"}'), 2, 2, "completed"),
        (_call_events('{"ci'), 2, 2, "incomplete"),
        ([*message_events("Hi"), done(1, "code_interpreter_call", **CODE_CALL)], 2, 9, "completed"),
    ],
)
def test_a_completed_turn_with_as_many_tokens_as_it_may_have_is_incomplete(
    events: list[JSON], limit: int | None, tokens: int | None, expected: str
) -> None:
    """Some servers report `completed` at the limit."""
    usage = tokens and {"input_tokens": 3, "output_tokens": tokens, "total_tokens": 3 + tokens}
    turn = translate_native([*events, terminal_event(usage=usage)], token_limit=limit)
    assert turn.outcome is not None
    assert turn.outcome.status == expected
    reason = "max_output_tokens" if expected == "incomplete" else None
    assert turn.outcome.incomplete_reason == reason
