"""Streams of Anthropic's Messages API, and of servers that imitate it, become items. The sequences
follow the vendor's documentation and public reports."""

import json
from typing import Any

import pytest

from models.errors import UpstreamFailed
from tests.support.chat_turns import TranslatedTurn, catalog_with, translate
from tests.support.messages_script import START_USAGE
from worker.upstream.messages_chunks import MessagesChunkReader

Json = dict[str, Any]
START: Json = {"type": "message_start", "message": {"model": "claude-x", "usage": START_USAGE}}
STOP: Json = {"type": "message_stop"}


def start(index: int | None, **block: Any) -> Json:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_start", **place, "content_block": block}


def piece(index: int | None, kind: str, **fields: Any) -> Json:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_delta", **place, "delta": {"type": kind, **fields}}


def stop(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


def end(reason: str | None = "end_turn", **delta: Any) -> Json:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, **delta},
        "usage": {"output_tokens": 9},
    }


def text(index: int, *pieces: str) -> list[Json]:
    deltas = [piece(index, "text_delta", text=each) for each in pieces]
    return [start(index, type="text", text=""), *deltas, stop(index)]


def thought(index: int, *pieces: str, signature: str = "sig") -> list[Json]:
    return [
        start(index, type="thinking", thinking="", signature=""),
        *(piece(index, "thinking_delta", thinking=each) for each in pieces),
        piece(index, "signature_delta", signature=signature),
        stop(index),
    ]


def tool(index: int, call_id: str, *pieces: str, name: str = "look") -> list[Json]:
    deltas = [piece(index, "input_json_delta", partial_json=each) for each in pieces]
    return [
        start(index, type="tool_use", id=call_id, name=name, input={}),
        *deltas,
        stop(index),
    ]


def turn(*events: Json | bytes, **options: Any) -> TranslatedTurn:
    return translate(
        events,
        reader=MessagesChunkReader(),
        seal=json.dumps,
        reasoning_in_order=True,
        **{"tool_catalog": catalog_with("look"), **options},
    )


def sealed(result: TranslatedTurn) -> list[list[Json]]:
    """The details that each reasoning item carries."""
    return [
        json.loads(item["encrypted_content"]).get("details", [])
        for item in result.output
        if item["type"] == "reasoning"
    ]


def test_a_whole_turn_has_its_items_usage_and_signatures() -> None:
    result = turn(
        START,
        {"type": "ping"},
        *thought(0, "I ", "look."),
        start(1, type="redacted_thinking", data="xyz"),
        stop(1),
        *text(2, "Let me", " see."),
        *tool(3, "toolu_1", "", '{"at":', ' "a"}'),
        *tool(4, "toolu_2", '{"at": "b"}'),
        end("tool_use"),
        STOP,
    )
    assert [item["type"] for item in result.output] == [
        *("reasoning", "message", "function_call", "function_call")
    ]
    assert result.output[0]["content"] == [{"type": "reasoning_text", "text": "I look."}]
    assert sealed(result) == [
        [
            {"type": "thinking", "thinking": "I look.", "signature": "sig"},
            {"type": "redacted_thinking", "data": "xyz"},
        ]
    ]
    calls = [(call["call_id"], json.loads(call["arguments"])) for call in result.calls]
    assert calls == [("toolu_1", {"at": "a"}), ("toolu_2", {"at": "b"})]
    assert result.outcome is not None
    assert result.outcome.status == "completed"
    assert result.usage is not None
    assert result.usage["input_tokens"] == 11 + 5 + 20
    assert result.usage["input_tokens_details"] == {"cached_tokens": 20, "cache_write_tokens": 5}
    assert result.usage["output_tokens"] == 9


def test_thinking_is_a_summary_where_the_client_wants_one() -> None:
    result = turn(
        START, *thought(0, "I ", "look."), *text(1, "A"), end(), reasoning_is_summary=True
    )
    assert result.output[0]["summary"] == [{"type": "summary_text", "text": "I look."}]
    assert result.output[0]["content"] == []


def test_thinking_whose_text_is_omitted_keeps_its_place() -> None:
    result = turn(
        START,
        *thought(0, signature="s0"),
        *text(1, "First."),
        *thought(2, signature="s2"),
        *text(3, "Second."),
        *thought(4, signature="s4"),
        *tool(5, "toolu_1"),
        end("tool_use"),
    )
    assert [item["type"] for item in result.output] == [
        *("reasoning", "message", "reasoning", "message", "reasoning", "function_call")
    ]
    assert [[each["signature"] for each in details] for details in sealed(result)] == [
        ["s0"],
        ["s2"],
        ["s4"],
    ]
    assert result.output[-1]["arguments"] == "{}"


ENDS = [
    ("end_turn", "completed", None),
    ("stop_sequence", "completed", None),
    ("tool_use", "completed", None),
    ("max_tokens", "incomplete", "max_output_tokens"),
    ("model_context_window_exceeded", "incomplete", "max_output_tokens"),
    ("pause_turn", "incomplete", "max_output_tokens"),
    ("refusal", "incomplete", "content_filter"),
    ("something_new", "failed", None),
]


@pytest.mark.parametrize(("word", "status", "reason"), ENDS)
def test_the_reason_of_the_end_decides_the_status(
    word: str, status: str, reason: str | None
) -> None:
    outcome = turn(START, *text(0, "A"), end(word), STOP).outcome
    assert outcome is not None
    assert (outcome.status, outcome.incomplete_reason) == (status, reason)


def test_a_refusal_is_explained() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "Not this."}
    result = turn(START, end("refusal", stop_details=details), STOP)
    assert result.output[0]["content"] == [{"type": "refusal", "refusal": "Not this."}]


def test_a_stream_without_its_end_is_a_failure() -> None:
    outcome = turn(START, *text(0, "Half"), done_seen=False).outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.failure.is_interruption) == (
        "upstream_ended_early",
        True,
    )


ODD: dict[str, list[Json | bytes]] = {
    "no-start-no-stop-no-reason": [*text(0, "Hello"), STOP],
    "gaps-between-indexes": [START, *text(3, "Hel"), *text(9, "lo"), end()],
    "no-index": [
        start(None, type="text", text=""),
        piece(None, "text_delta", text="Hello"),
        end(),
    ],
    "no-block-start": [START, piece(0, "text_delta", text="Hello"), end()],
    "text-in-the-start": [START, start(0, type="text", text="Hello"), end()],
    "unknown-blocks-and-events": [
        START,
        {"type": "vendor_event", "x": 1},
        start(0, type="server_tool_use", id="s", name="web", input={}),
        piece(0, "input_json_delta", partial_json="{}"),
        stop(0),
        *text(1, "Hello"),
        end(),
        STOP,
    ],
    "a-whole-message": [
        {
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        }
    ],
}


@pytest.mark.parametrize("name", ODD)
def test_servers_that_imitate_the_api_are_understood(name: str) -> None:
    result = turn(*ODD[name])
    assert "".join(part["text"] for item in result.output for part in item["content"]) == "Hello"
    assert result.outcome is not None
    assert result.outcome.status == "completed"


def test_thinking_without_signature_and_end_comes_before_what_follows() -> None:
    result = turn(
        start(0, type="thinking", thinking="I look."),
        *tool(1, "toolu_1", '{"at": 1}'),
        end("tool_use"),
    )
    assert [item["type"] for item in result.output] == ["reasoning", "function_call"]
    assert sealed(result) == [[{"type": "thinking", "thinking": "I look.", "signature": ""}]]


def test_a_call_that_comes_whole_has_its_arguments() -> None:
    call = start(0, type="tool_use", id="c", name="look", input={"at": [1]})
    assert json.loads(turn(START, call, end("tool_use")).calls[0]["arguments"]) == {"at": [1]}


def test_a_call_that_the_limit_cuts_is_incomplete() -> None:
    result = turn(START, *tool(0, "c", '{"at": "'), end("max_tokens"), STOP)
    assert result.calls == []
    assert result.output[0]["status"] == "incomplete"


ERRORS: list[tuple[Any, int, bool]] = [
    ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 502, True),
    ({"type": "error", "error": {"type": "api_error", "message": "Internal"}}, 502, True),
    ({"type": "error", "error": {"type": "rate_limit_error", "message": "Slow"}}, 429, True),
    ({"type": "error", "error": {"type": "invalid_request_error", "message": "No"}}, 400, False),
    ({"type": "error", "error": {"type": "request_too_large", "message": "Big"}}, 413, False),
    ({"type": "error", "error": "it broke"}, 502, False),
    ({"error": {"message": "Model overloaded", "code": 503}}, 502, True),
]


@pytest.mark.parametrize(("event", "status", "is_temporary"), ERRORS)
def test_errors_inside_a_stream_are_failures(event: Json, status: int, is_temporary: bool) -> None:
    with pytest.raises(UpstreamFailed) as raised:
        MessagesChunkReader().read(json.dumps(event).encode())
    assert (raised.value.status, raised.value.is_temporary) == (status, is_temporary)
