"""The events of a response as the stream of a message, put together by Anthropic's own client."""

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from features.messages.answer import message_of
from features.messages.events import MessageStream, has_output
from features.messages.request import Thinking
from models.wire.response import ResponseFacts, response_object

Json = dict[str, Any]
USAGE = {"input_tokens": 30, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 10}}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def _frames(*events: Json) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )


def _added(item: Json) -> Json:
    return {"type": "response.output_item.added", "output_index": 0, "item": item}


def _done(item: Json) -> Json:
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


def _delta(kind: str, text: str, **fields: Any) -> Json:
    return {"type": f"response.{kind}.delta", "item_id": "x", "delta": text, **fields}


def _ended(*output: Json, status: str = "completed", reason: str | None = None) -> Json:
    facts = ResponseFacts(
        "resp_1", 0, status, model="m", parameters={}, usage=USAGE, incomplete_reason=reason
    )
    return {"type": f"response.{status}", "response": response_object(facts, list(output))}


def _text(text: str, item: str = "msg_1", **fields: Any) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": item, "type": "message", "role": "assistant", "content": [part], **fields}


def _call(arguments: str, item: str = "fc_1", **fields: Any) -> Json:
    named = {"call_id": f"call_{item}", "name": "f", "arguments": arguments}
    return {"id": item, "type": "function_call", **named, **fields}


THOUGHT: Json = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm hm"}],
    "encrypted_content": "bbs1.x",
}
SUMMARY: Json = {
    "id": "rs_2",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": text} for text in ("one", "two")],
}
SEALED: Json = {"id": "rs_3", "type": "reasoning", "summary": [], "encrypted_content": "bbs1.y"}
SEARCH: Json = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "Ulm", "sources": [{"type": "url", "url": "https://a"}]},
}
EMPTY = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}


def _events(*events: Json, thinking: Thinking = Thinking.SHOWN) -> list[Json]:
    stream = MessageStream("resp_1", "m", 20, thinking, "req_1")
    sent = stream.start() + stream.feed(_frames(*events))
    found = [part.partition(b"\n") for part in sent.split(b"\n\n") if part]
    decoded = [json.loads(data.removeprefix(b"data: ")) for _, _, data in found]
    assert [f"event: {event['type']}".encode() for event in decoded] == [
        head for head, _, _ in found
    ]
    return decoded


def _message(*events: Json, thinking: Thinking = Thinking.SHOWN) -> Json:
    """What the client makes of it."""
    snapshot: Any = None
    buffers = dict[int, bytes]()
    for event in _events(*events, thinking=thinking):
        if event["type"] != "ping":
            typed = EVENT.validate_python(event)
            snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    message: Json = snapshot.to_dict()
    return message


RUNS: dict[str, tuple[list[Json], list[Json]]] = {
    "a text in pieces": (
        [_added(EMPTY), _delta("output_text", "Good "), _delta("output_text", "day")],
        [_text("Good day")],
    ),
    "a text without deltas": ([_added(EMPTY)], [_text("Good day")]),
    "reasoning, a text and a call": (
        [
            _added({**THOUGHT, "content": []}),
            _delta("reasoning_text", "hm "),
            _delta("reasoning_text", "hm"),
            _done(THOUGHT),
            _added(EMPTY),
            _delta("output_text", "Well."),
            {"type": "response.content_part.done", "item_id": "msg_1", "content_index": 0},
            _done(_text("Well.")),
            _added(_call("")),
            _delta("function_call_arguments", '{"a"'),
            _delta("function_call_arguments", ": 1}"),
        ],
        [THOUGHT, _text("Well."), _call('{"a": 1}')],
    ),
    "a summary in parts": (
        [
            _added({**SUMMARY, "summary": []}),
            {"type": "response.reasoning_summary_part.added", "summary_index": 0},
            _delta("reasoning_summary_text", "one", summary_index=0),
            {"type": "response.reasoning_summary_part.added", "summary_index": 1},
            _delta("reasoning_summary_text", "two", summary_index=1),
        ],
        [SUMMARY],
    ),
    "reasoning that nobody can read": ([_added({**SEALED})], [SEALED]),
    "a search": ([_added({**SEARCH, "status": "in_progress"})], [SEARCH]),
    "two calls, one without arguments": (
        [_added(_call("")), _done(_call("{}")), _added(_call("", "fc_2"))],
        [_call("{}"), _call('{"b": []}', "fc_2")],
    ),
    "nothing": ([], []),
}


@pytest.mark.parametrize("thinking", Thinking)
@pytest.mark.parametrize("name", RUNS)
def test_a_stream_adds_up_to_the_message_that_is_not_streamed(
    name: str, thinking: Thinking
) -> None:
    events, output = RUNS[name]
    last = [_done(output[-1])] if output else []
    ended = _ended(*output)
    whole = message_of(ended["response"], thinking)
    streamed = _message(*events, *last, ended, thinking=thinking)
    assert streamed["content"] == whole["content"]
    assert streamed["stop_reason"] == whole["stop_reason"]
    assert streamed["usage"] == whole["usage"]
    assert streamed["usage"]["input_tokens"] == 20


def test_blocks_are_numbered_and_closed_one_after_the_other() -> None:
    events, output = RUNS["reasoning, a text and a call"]
    open_block = None
    started = 0
    for event in _events(*events, _done(output[-1]), _ended(*output)):
        if event["type"] == "content_block_start":
            assert (open_block, event["index"]) == (None, started)
            open_block, started = started, started + 1
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block = None
        last = event["type"]
    assert (open_block, started, last) == (None, 3, "message_stop")


def test_hidden_reasoning_leaves_the_text_as_the_first_block() -> None:
    events, output = RUNS["reasoning, a text and a call"]
    message = _message(*events, _done(output[-1]), _ended(*output), thinking=Thinking.HIDDEN)
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]


def test_an_empty_call_has_a_delta_as_anthropics_have() -> None:
    deltas = [
        event["delta"]
        for event in _events(_added(_call("")), _done(_call("")), _ended(_call("")))
        if event["type"] == "content_block_delta"
    ]
    assert deltas == [{"type": "input_json_delta", "partial_json": ""}]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_output_tokens", "max_tokens"),
        ("content_filter", "refusal"),
        ("max_messages", "pause_turn"),
    ],
)
def test_an_incomplete_response_says_why(reason: str, expected: str) -> None:
    cut = _text("Go", status="incomplete")
    events = [_added(EMPTY), _delta("output_text", "Go"), _done(cut)]
    message = _message(*events, _ended(cut, status="incomplete", reason=reason))
    assert message["stop_reason"] == expected


LOST_TEXT = [
    _added(EMPTY),
    _delta("output_text", "Go"),
    _done(_text("Go", status="incomplete")),
    _added({**EMPTY, "id": "msg_2"}),
    _delta("output_text", "Good"),
    _ended(_text("Good", "msg_2")),
]
LOST_CALL = [
    *(_added(_call("", "fc_0")), _done(_call("{}", "fc_0"))),
    *(_added(_call("")), _done(_call("{}")), _ended(_call("{}"))),
]


@pytest.mark.parametrize("events", [LOST_TEXT, LOST_CALL])
def test_an_answer_that_begins_again_is_broken_off(events: list[Json]) -> None:
    stream = MessageStream("resp_1", "m", 20, Thinking.SHOWN, "req_1")
    sent = b"".join(stream.feed(_frames(event)) for event in events)
    assert stream.is_broken
    assert b"Good" not in sent
    assert b"message_delta" not in sent


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "server_error", "message": "It broke."}, "api_error"),
        ({"code": "rate_limit_exceeded", "message": "Slow."}, "rate_limit_error"),
        ({"code": "invalid_prompt", "message": "No."}, "invalid_request_error"),
        (None, "overloaded_error"),
    ],
)
def test_a_failure_ends_the_stream(error: Json | None, kind: str) -> None:
    failed = _ended(status="failed")
    failed["response"]["error"] = error
    *_, last = _events(failed)
    assert (last["error"]["type"], last["request_id"]) == (kind, "req_1")


def test_only_a_beginning_has_no_output() -> None:
    opening = _frames({"type": "response.created"}, {"type": "response.in_progress"})
    assert not has_output(opening)
    assert has_output(opening + _frames(_added(EMPTY)))
