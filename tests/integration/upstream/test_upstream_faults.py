"""What clients get when the upstream refuses, disconnects or sends an invalid stream."""

import json

import pytest

from tests.support.api import JSON, Api
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    chunk,
    delta,
    done,
    drop,
    finish,
    raw,
    reply,
    reset,
    status,
    text,
    usage,
)
from tests.support.strict_types import check_event, check_response

BEFORE_OUTPUT: list[tuple[str, list[Step], int]] = [
    ("refused", [status(400)], 400),
    ("an invalid key", [status(401)], 502),
    ("a key without the right", [status(403)], 502),
    ("not found", [status(404)], 404),
    ("a timeout", [status(408)], 408),
    ("too large", [status(413)], 413),
    ("unprocessable", [status(422)], 422),
    ("too many requests", [status(429, headers={"retry-after": "7"})], 429),
    ("an internal error", [status(500)], 502),
    ("bad gateway", [status(502)], 502),
    ("unavailable", [status(503)], 502),
    ("reset", [reset()], 502),
    ("closed", [drop()], 502),
    ("garbage", [raw(b"data: {nonsense\n\n")], 502),
    ("a web page", [status(200, b"<html></html>", {"content-type": "text/html"})], 502),
    ("nothing at all", [raw(b"")], 502),
    (
        "an error under 200",
        [chunk({"error": {"message": "overloaded", "type": "x", "code": 500}})],
        502,
    ),
]
TEMPORARY = {
    "a timeout",
    "too many requests",
    "an internal error",
    "bad gateway",
    "unavailable",
    "reset",
    "closed",
    "an error under 200",
}
"""For these a background response waits (test_fault_table.py). After a stream of nothing it repeats
the turn (test_repeated_turns.py)."""
refusals = pytest.mark.parametrize(
    ("script", "expected"), [pytest.param(*row[1:], id=row[0]) for row in BEFORE_OUTPUT]
)


@refusals
async def test_a_foreground_client_gets_the_upstreams_class_of_error(
    api: Api, fake: FakeUpstream, script: list[Step], expected: int
) -> None:
    answer = await api.call("POST", "/responses", {"model": fake.script(script), "input": "Hi."})
    assert answer.status == expected, answer.raw
    assert answer.error["message"]
    assert "upstream-secret" not in answer.raw.decode()
    if expected == 429:
        assert answer.headers["retry-after"] == "7"
        assert answer.headers.get("x-should-retry") != "false"
    else:
        assert answer.headers["x-should-retry"] == "false"


@refusals
async def test_a_foreground_stream_ends_with_failed(
    api: Api, fake: FakeUpstream, script: list[Step], expected: int
) -> None:
    async with api.post_stream(fake.script(script)) as stream:
        events = await stream.to_end()
    _assert_failed_without_output(events, await api.get(stream.response_id))
    code = "rate_limit_exceeded" if expected == 429 else None
    assert code in (None, stream.final["error"]["code"])


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(row[1], id=row[0])
        for row in BEFORE_OUTPUT
        if row[0] not in {*TEMPORARY, "a web page", "nothing at all"}
    ],
)
async def test_a_background_response_fails_if_waiting_does_not_help(
    api: Api, fake: FakeUpstream, script: list[Step]
) -> None:
    async with api.post_stream(fake.script(script), background=True) as stream:
        events = await stream.to_end()
    _assert_failed_without_output(events, await api.get(stream.response_id))


def _assert_failed_without_output(events: list[JSON], stored: JSON) -> None:
    for event in events:
        check_event(event)
    assert_stream_obeys_contract(events)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"] == stored
    assert (stored["status"], stored["output"]) == ("failed", [])


AFTER_OUTPUT: list[tuple[str, Step]] = [
    ("reset", reset()),
    ("closed", drop()),
    ("an end without a reason", raw(b"")),
    ("garbage", raw(b"data: {nonsense\n\n")),
    ("an error chunk", chunk({"error": {"message": "overloaded", "type": "x", "code": 500}})),
    ("an error as reason", finish("error")),
]


@pytest.mark.parametrize("end", [pytest.param(step, id=name) for name, step in AFTER_OUTPUT])
async def test_a_foreground_stream_that_breaks_in_the_middle_keeps_its_output(
    api: Api, fake: FakeUpstream, end: Step
) -> None:
    model = fake.script([text("so ", "far"), end])
    async with api.post_stream(model) as stream:
        events = await stream.to_end()
    for event in events:
        check_event(event)
    assert_stream_obeys_contract(events)
    assert events[-1]["type"] == "response.failed"
    assert stream.final["output_text"] == "so far"
    assert [item["status"] for item in stream.final["output"]] == ["incomplete"]
    assert await api.get(stream.response_id) == stream.final
    assert len(fake.requests_for(model)) == 1, "a foreground turn with output is never repeated"


async def test_temporary_errors_are_retried_before_the_first_byte(
    api: Api, fake: FakeUpstream
) -> None:
    unavailable = [status(503, headers={"retry-after-ms": "5"}, retry=True)]
    model = fake.script(unavailable, unavailable, reply("at last"))
    response = await api.create(model)
    assert response["output_text"] == "at last"
    assert len(fake.requests_for(model)) == 3


async def test_the_upstreams_message_reaches_a_foreground_client(
    api: Api, fake: FakeUpstream
) -> None:
    message = "This model's maximum context length is 8 tokens."
    body: JSON = {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    answer = await api.call(
        "POST", "/responses", {"model": fake.script([status(400, body)]), "input": "Hi."}
    )
    assert answer.status == 400
    assert message in answer.error["message"]


async def test_an_answer_without_a_stream_is_accepted_or_refused(
    api: Api, fake: FakeUpstream
) -> None:
    completion = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "All at once."},
                "finish_reason": "stop",
            }
        ],
    }
    answer = await api.call(
        "POST", "/responses", {"model": fake.script([status(200, completion)]), "input": "Hi."}
    )
    if answer.status == 200:
        assert answer.body["output_text"] == "All at once."
    else:
        assert answer.status == 502


async def test_unusual_but_valid_sse_is_read(api: Api, fake: FakeUpstream) -> None:
    def chunk_bytes(content: str, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
        return json.dumps(
            {
                "id": "x",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
        ).encode()

    halves = chunk_bytes("é").partition(b'"model"')
    steps = [
        raw(b": a comment\n\n"),
        raw(b"data:" + chunk_bytes("no space, ") + b"\r\n\r\n"),
        raw(b"event: message\nid: 7\nretry: 10\ndata: " + chunk_bytes("with fields, ") + b"\n\n"),
        raw(b"data: " + halves[0] + b"\ndata: " + halves[1] + halves[2] + b"\n\n"),
        raw(b"data: " + chunk_bytes("cut ")[:20]),
        raw(chunk_bytes("cut ")[20:] + b"\n"),
        raw(b"\ndata: " + chunk_bytes("end", "stop") + b"\n\n"),
        done(),
    ]
    response = await api.create(fake.script(steps))
    assert response["output_text"] == "no space, with fields, écut end"
    assert response["status"] == "completed"


async def test_calls_without_ids_or_indexes_stay_separate(api: Api, fake: FakeUpstream) -> None:
    def call_chunk(name: str, arguments: str) -> Step:
        return delta(
            {
                "tool_calls": [
                    {"type": "function", "function": {"name": name, "arguments": arguments}}
                ]
            }
        )

    response = await api.create(
        fake.script(
            [
                call_chunk("f", '{"a":1}'),
                call_chunk("g", '{"b":2}'),
                finish("stop"),
                usage(),
                done(),
            ]
        )
    )
    check_response(response)
    assert [(item["name"], item["arguments"]) for item in response["output"]] == [
        ("f", '{"a":1}'),
        ("g", '{"b":2}'),
    ]
    assert len({item["call_id"] for item in response["output"]}) == 2


async def test_content_and_finish_reason_can_be_in_one_chunk(api: Api, fake: FakeUpstream) -> None:
    response = await api.create(
        fake.script([text("a"), delta({"content": "b"}, finish_reason="stop"), done()])
    )
    assert (response["status"], response["output_text"]) == ("completed", "ab")


async def test_an_empty_answer_fails(api: Api, fake: FakeUpstream) -> None:
    async with api.post_stream(fake.script([finish(), usage(), done()])) as stream:
        assert_stream_obeys_contract(await stream.to_end())
    assert (stream.final["status"], stream.final["output_text"]) == ("failed", "")
    assert "without any output" in stream.final["error"]["message"]


async def test_arguments_cut_off_by_the_length_limit_are_incomplete(
    api: Api, fake: FakeUpstream
) -> None:
    response = await api.create(
        fake.script([call(0, "call_1", "f", '{"a'), finish("length"), done()])
    )
    assert response["status"] == "incomplete"
    assert [(item["status"], item["arguments"]) for item in response["output"]] == [
        ("incomplete", '{"a')
    ]
    check_response(response)
