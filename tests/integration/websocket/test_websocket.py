"""WebSocket mode (docs/websocket.md): events as over HTTP, several creates, continuations."""

import asyncio
import contextlib
import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponsesServerEvent
from websockets.exceptions import ConnectionClosed, InvalidStatus

from models.wire.events import split_frames
from tests.support import keys
from tests.support.api import JSON, Api, HttpResponse, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    drop,
    finish,
    hang,
    reply,
    silence_until,
    status,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack
from tests.support.websocket_client import Socket, socket

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def _handshake(refusal: InvalidStatus) -> HttpResponse:
    answer = refusal.response
    return HttpResponse(answer.status_code, answer.headers, bytes(answer.body or b""))


# --- one create ---


async def test_a_create_gets_the_same_events_as_over_http(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("Hello ", "socket"))
    async with socket(api) as connection:
        await connection.create(model, metadata={"by": "socket"})
        events = await connection.read_to_end()
    assert_stream_obeys_contract(events)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    response = events[-1]["response"]
    assert (response["output_text"], response["background"], response["metadata"]) == (
        "Hello socket",
        False,
        {"by": "socket"},
    )
    assert await api.get(response["id"]) == response
    stored = await api.call("GET", f"/responses/{response['id']}", params={"stream": "true"})
    # It is an ordinary foreground response.
    assert stored.error["param"] == "stream"


async def test_the_frames_are_those_of_the_event_log(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    async with socket(api) as connection:
        response = await connection.create_and_read(fake.script(reply("ä ", "ö\n\nü")))
    log = await shared_stack.value(
        "SELECT string_agg(frames, ''::bytea ORDER BY first_number)"
        " FROM event_log WHERE response_id = %s",
        response["id"].removeprefix("resp_"),
    )
    assert [
        frame.partition(b"\ndata: ")[2][:-2].decode() for frame in split_frames(bytes(log))
    ] == connection.frames


async def test_deltas_are_padded_on_request(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("a", "b" * 50))
    async with socket(api) as connection:
        await connection.create(model, stream_options={"include_obfuscation": True})
        events = await connection.read_to_end()
    assert_stream_obeys_contract(events)
    padded = [event for event in events if "obfuscation" in event]
    assert [event["delta"] for event in padded] == ["a", "b" * 50]


async def test_the_official_client_works_unchanged(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"), reply("two"))
    async with client.responses.connect() as connection:
        await connection.response.create(model=model, input="1", store=False)
        first = await _last_event(connection)
        assert first.type == "response.completed"
        await connection.response.create(
            model=model, input="2", store=False, previous_response_id=first.response.id
        )
        second = await _last_event(connection)
        assert second.type == "response.completed"
        assert second.response.output_text == "two"
        await connection.response.create(
            model=model, input="3", previous_response_id="resp_unknown"
        )
        refused = await connection.recv()
        assert refused.type == "error"
        assert (refused.status, refused.error.code) == (400, "previous_response_not_found")
    assert [message["content"] for message in fake.requests_for(model)[-1].messages] == [
        "1",
        "one",
        "2",
    ]


@pytest.mark.filterwarnings(
    "ignore:connect\\(\\) must be used as a context manager:DeprecationWarning"
)  # raised by the client library
async def test_the_official_client_works_without_asyncio_too(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("in a thread"))

    def run_sync() -> str:
        with (
            openai.OpenAI(
                base_url=f"http://127.0.0.1:{shared_stack.webs[0].port}/v1",
                api_key=shared_stack.key,
            ) as sync_client,
            sync_client.responses.connect() as sync_connection,
        ):
            sync_connection.response.create(model=model, input="Hello.")
            return next(
                event.response.output_text
                for event in sync_connection
                if event.type == "response.completed"
            )

    assert await asyncio.to_thread(run_sync) == "in a thread"


async def _last_event(connection: Any) -> ResponsesServerEvent:
    async for event in connection:
        if event.type in ("response.completed", "response.failed", "error"):
            return event  # type: ignore[no-any-return]
    raise AssertionError("the connection was closed")


async def test_a_failed_response_keeps_the_connection_open(api: Api, fake: FakeUpstream) -> None:
    async with socket(api) as connection:
        await connection.create("no-such-model")
        failed = await connection.read_to_end()
        assert failed[-1]["type"] == "response.failed"
        assert (await connection.create_and_read(fake.script(reply("still here"))))[
            "output_text"
        ] == "still here"


# --- several creates ---


async def test_creates_of_one_stream_run_one_after_the_other(api: Api, fake: FakeUpstream) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("first"), wait_for(released), finish(), usage(), done()], reply("second")
    )
    async with socket(api) as connection:
        await connection.create(model)
        await connection.create(model)
        await connection.until("response.output_text.delta")
        assert len(fake.requests_for(model)) == 1
        released.set()
        await connection.read_to_end()
        events = await connection.read_to_end()
        assert_stream_obeys_contract(events)
        assert events[-1]["response"]["output_text"] == "second"


async def test_streams_run_in_parallel_and_their_events_carry_their_id(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("slow"), wait_for(released), finish(), usage(), done()], reply("quick")
    )
    async with socket(api) as connection:
        await connection.create(model, stream_id="planner")
        await connection.until("response.output_text.delta")
        await connection.create(model, stream_id="critic.2")
        critic = await connection.read_to_end()
        released.set()
        planner = await connection.read_to_end()
        assert {event["stream_id"] for event in critic} == {"critic.2"}
        assert {event["stream_id"] for event in planner} == {"planner"}
        assert_stream_obeys_contract(critic)
        unnamed = await connection.create_and_read(model)
        assert "stream_id" not in unnamed
        await connection.send(type="response.create", model=model, input=1, stream_id="planner")
        await connection.read_error()
        assert json.loads(connection.frames[-1])["stream_id"] == "planner"


async def test_a_connection_allows_32_streams_and_64_waiting_creates(
    api: Api, fake: FakeUpstream
) -> None:
    quick, slow = fake.script(reply("x")), fake.script([text("slow"), hang()])
    async with socket(api) as connection:
        for number in range(32):
            await connection.create_and_read(quick, stream_id=f"stream-{number}", generate=False)
        await connection.create(quick, stream_id="stream-32")
        refused = await connection.read_error()
        assert (refused["code"], refused["param"]) == (
            "websocket_stream_limit_reached",
            "stream_id",
        )
        for _ in range(65):
            await connection.create(slow)
        await connection.create(quick, stream_id="stream-1")
        queued = [await connection.read_until_error(), await connection.read_until_error()]
        assert {refusal["code"] for refusal in queued} == {"websocket_queue_full"}


async def test_a_connection_runs_at_most_16_responses_at_a_time(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([wait_for(released), *reply("x")])
    async with socket(api) as connection:
        for number in range(20):
            await connection.create(model, stream_id=f"stream-{number}")
        await until(lambda: len(fake.requests_for(model)) >= 16)
        await connection.send(type="something else")
        await connection.read_until_error()
        assert len(fake.requests_for(model)) == 16
        released.set()
        for _ in range(20):
            await connection.read_to_end()
    assert len(fake.requests_for(model)) == 20


# --- continuations that only the connection has ---


async def test_an_unstored_response_can_be_continued_on_its_connection_only(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    """As Codex does it: `store: false`, and only the new input with `previous_response_id`."""
    model = fake.script(
        [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()],
        reply("seen"),
        reply("and more"),
        reply("stored"),
    )
    async with socket(api) as connection, socket(shared_stack.api(1)) as other_connection:
        first = await connection.create_and_read(model, store=False, tools=[FUNCTION])
        output = [{"type": "function_call_output", "call_id": "call_a", "output": "42"}]
        second = await connection.create_and_read(
            model, store=False, input=output, previous_response_id=first["id"], tools=[FUNCTION]
        )
        third = await connection.create_and_read(
            model, store=False, input="More", previous_response_id=second["id"]
        )
        assert third["previous_response_id"] == second["id"]
        roles = [message["role"] for message in fake.requests_for(model)[-1].messages]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]

        await other_connection.create(model, input="Mine?", previous_response_id=third["id"])
        assert (await other_connection.read_error())["code"] == "previous_response_not_found"
        over_http = await api.call(
            "POST",
            "/responses",
            {"model": model, "input": "Mine?", "previous_response_id": third["id"]},
        )
        assert (over_http.status, over_http.error["code"]) == (400, "previous_response_not_found")
        assert (await api.call("GET", f"/responses/{third['id']}")).status == 404

        stored = await connection.create_and_read(
            model, input="Keep this", previous_response_id=third["id"]
        )
    assert await api.get(stored["id"]) == stored
    count_expired = (
        "SELECT count(*) FROM responses"
        " WHERE id = ANY(%s::uuid[]) AND expires_at <= clock_timestamp()"
    )
    ids = [response["id"].removeprefix("resp_") for response in (first, second, third)]

    async def are_expired() -> bool:
        return bool(await shared_stack.value(count_expired, ids) == 3)

    await until(are_expired)  # they expire when the connection closes
    assert (await api.create(model, input="Still", previous_response_id=stored["id"]))[
        "status"
    ] == "completed"


_ORPHAN = [{"type": "function_call_output", "call_id": "call_missing", "output": "42"}]


@pytest.mark.parametrize(
    ("refused", "param"),
    [
        ({"input": _ORPHAN}, "input"),  # as in the suite of Open Responses
        ({"input": [{"type": "no such"}]}, "input[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"background": True}, "background"),  # the frame itself is refused
    ],
    ids=["call", "item", "tool", "frame"],
)
async def test_a_refused_continuation_forgets_the_unstored_response_that_it_named(
    shared_stack: Stack, api: Api, fake: FakeUpstream, refused: JSON, param: str
) -> None:
    model = fake.script(reply("first"), reply("second"), reply("third"))
    async with socket(api) as connection:
        first = await connection.create_and_read(model, store=False)
        continued = {"previous_response_id": first["id"], "store": False}
        second = await connection.create_and_read(model, **continued)
        await connection.create(model, **{**continued, **refused})
        error = await connection.read_error()
        assert (error["status"], error["param"]) == (400, param)
        await connection.create(model, **continued)
        assert (await connection.read_error())["code"] == "previous_response_not_found"
        # Another that continued it before has its history still.
        third = await connection.create_and_read(
            model, previous_response_id=second["id"], store=False
        )
        assert third["output_text"] == "third"

        async def is_released() -> bool:
            expired = "SELECT expires_at <= clock_timestamp() FROM responses WHERE id = %s::uuid"
            return bool(await shared_stack.value(expired, first["id"].removeprefix("resp_")))

        await until(is_released)
    roles = [message["role"] for message in fake.requests_for(model)[-1].messages]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


async def test_a_refused_continuation_forgets_no_stored_response(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("first"), reply("second"))
    async with socket(api) as connection:
        first = await connection.create_and_read(model)
        continued = {"previous_response_id": first["id"], "store": False}
        await connection.create(model, input=_ORPHAN, **continued)
        assert (await connection.read_error())["param"] == "input"
        assert (await connection.create_and_read(model, **continued))["output_text"] == "second"


@pytest.mark.parametrize("failure", ["upstream", "with output", "still running"])
async def test_a_response_can_be_continued_again_after_a_continuation_failed(
    api: Api, fake: FakeUpstream, failure: str
) -> None:
    """OpenAI forgets an unstored response then. Here nothing is lost: the client may try again."""
    gate = asyncio.Event()
    model = fake.script([silence_until(gate), *reply("first")], reply("at last"))
    failing = fake.script([text("half"), drop()] if failure == "with output" else [status(400)])
    async with socket(api) as connection:
        await connection.create(model, store=False, stream_id="a")
        created = await connection.next()
        continued = {"previous_response_id": created["response"]["id"], "store": False}
        if failure == "still running":
            await connection.create(model, input="And?", stream_id="b", **continued)
            assert (await connection.read_until_error())["code"] == "previous_response_not_found"
        gate.set()
        await connection.read_to_end()
        if failure != "still running":
            await connection.create(failing, input="And?", **continued)
            assert (await connection.read_to_end())[-1]["type"] == "response.failed"
        last = await connection.create_and_read(model, input="And?", **continued)
        assert last["output_text"] == "at last"
    roles = [message["role"] for message in fake.requests_for(model)[-1].messages]
    assert roles == ["user", "assistant", "user"]


async def test_a_stored_response_can_be_continued_on_any_connection(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("one"), reply("two"), reply("three"))
    async with socket(api) as connection:
        first = await connection.create_and_read(model)
    async with socket(shared_stack.api(1)) as other_connection:
        second = await other_connection.create_and_read(
            model, input="2", previous_response_id=first["id"]
        )
    assert (await api.create(model, input="3", previous_response_id=second["id"]))[
        "output_text"
    ] == "three"


async def test_another_projects_responses_cannot_be_continued(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("x"))
    response = await api.create(model)
    async with socket(
        shared_stack.api(key=keys.create(shared_stack.dsn, "another project"))
    ) as other_connection:
        await other_connection.create(model, previous_response_id=response["id"])
        assert (await other_connection.read_error())["code"] == "previous_response_not_found"


async def test_a_warm_up_calls_no_model_and_can_be_continued(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("warm"))
    async with socket(api) as connection:
        await connection.create(
            model, store=False, generate=False, instructions="Be brief.", tools=[FUNCTION]
        )
        events = await connection.read_to_end()
        assert_stream_obeys_contract(events)
        warm = events[-1]["response"]
        assert (warm["status"], warm["output"], warm["usage"]["total_tokens"]) == (
            "completed",
            [],
            0,
        )
        assert fake.requests_for(model) == []
        answer = await connection.create_and_read(
            model, store=False, input="Now.", previous_response_id=warm["id"]
        )
        assert answer["output_text"] == "warm"
        assert [message["content"] for message in fake.requests_for(model)[0].messages] == [
            "Hello.",
            "Now.",
        ]

        empty_inputs: list[list[Any] | None] = [[], None]
        for empty in empty_inputs:
            warm_up = await connection.create_and_read(model, generate=False, input=empty)
            assert (await connection.create_and_read(model, previous_response_id=warm_up["id"]))[
                "status"
            ] == "completed"
        prewarmed = await connection.create_and_read(model, prompt_cache_options={"prewarm": True})
        assert prewarmed["output"] == []
        await connection.create(
            "no-such-model",
            input="x",
            previous_response_id=prewarmed["id"],
            generate=False,
            text={"format": {"type": "?"}},
        )
        assert (await connection.read_error())["param"] == "text.format.type"


async def test_a_conversation_runs_one_response_at_a_time_over_a_websocket(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("be"), wait_for(released), text("gun"), finish(), usage(), done()], reply("next")
    )
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    async with socket(api) as connection:
        await connection.create(model, conversation=conversation)
        await connection.until("response.output_text.delta")
        await connection.create(model, conversation=conversation, stream_id="meanwhile")
        assert (await connection.read_error())["code"] == "conversation_locked"
        released.set()
        await connection.read_to_end()
        warm = await connection.create_and_read(
            model, conversation={"id": conversation}, generate=False, input="By the way."
        )
        assert warm["conversation"] == {"id": conversation}
        assert (await connection.create_and_read(model, conversation=conversation, input="Go on."))[
            "output_text"
        ] == "next"
    assert [message["content"] for message in fake.requests_for(model)[-1].messages] == [
        "Hello.",
        "begun",
        "By the way.",
        "Go on.",
    ]


async def test_a_cached_answer_is_sent_over_a_websocket(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("once"))
    async with socket(api) as connection:
        first, second = [await connection.create_and_read(model, cache=True) for _ in range(2)]
    assert first["output_text"] == second["output_text"]
    assert len(fake.requests_for(model)) == 1


# --- invalid frames ---


BAD_FRAMES: dict[str, tuple[str | bytes, int, str | None, str | None]] = {
    "no json": ("{", 400, "invalid_json", None),
    "nothing": ("", 400, "invalid_json", None),
    "a list": ("[]", 400, "invalid_type", None),
    "binary": (b'{"type": "response.create"}', 400, "invalid_json", None),
    "no type": ("{}", 400, "missing_required_parameter", "type"),
    "a number for a type": ('{"type": 1}', 400, "invalid_type", "type"),
    "an unknown type": ('{"type": "response.cancel"}', 400, "invalid_value", "type"),
    "a steer of nothing": (
        '{"type": "response.steer", "input": "x"}',
        400,
        "invalid_input",
        "previous_response_id",
    ),
    "a steer without input": (
        '{"type": "response.steer", "previous_response_id": "resp_1"}',
        400,
        "invalid_input",
        "input",
    ),
    "no model": (
        '{"type": "response.create", "input": "x"}',
        400,
        "missing_required_parameter",
        "model",
    ),
    "no input": (
        '{"type": "response.create", "model": "m"}',
        400,
        "missing_required_parameter",
        "input",
    ),
    "background": (
        '{"type": "response.create", "model": "m", "input": "x", "background": true}',
        400,
        "unsupported_parameter",
        "background",
    ),
    "background of a wrong type": (
        '{"type": "response.create", "background": "no"}',
        400,
        "invalid_type",
        "background",
    ),
    "stream of a wrong type": (
        '{"type": "response.create", "stream": 1}',
        400,
        "invalid_type",
        "stream",
    ),
    "generate of a wrong type": (
        '{"type": "response.create", "generate": "no"}',
        400,
        "invalid_type",
        "generate",
    ),
    "an empty stream_id": (
        '{"type": "response.create", "stream_id": ""}',
        400,
        "invalid_stream_id",
        "stream_id",
    ),
    "a number for a stream_id": (
        '{"type": "response.create", "stream_id": 1}',
        400,
        "invalid_stream_id",
        "stream_id",
    ),
    "a blank in a stream_id": (
        '{"type": "response.create", "stream_id": "a b"}',
        400,
        "invalid_stream_id",
        "stream_id",
    ),
    "a body inside": (
        '{"type": "response.create", "response": {"model": "m"}}',
        400,
        "unknown_parameter",
        "response",
    ),
    "too deep": ('{"type": ' + "[" * 300 + "]" * 300 + "}", 400, "invalid_json", None),
    "too large": (
        '{"type": "response.create", "input": "' + "x" * 4_000_000 + '"}',
        413,
        "request_too_large",
        None,
    ),
}


@pytest.mark.parametrize("case", sorted(BAD_FRAMES))
async def test_a_bad_frame_is_answered_and_the_connection_stays_open(
    api: Api, fake: FakeUpstream, case: str
) -> None:
    sent, status, code, param = BAD_FRAMES[case]
    async with socket(api) as connection:
        await connection.connection.send(sent)
        refused = await connection.read_error()
        assert (refused["status"], refused["code"], refused["param"]) == (status, code, param)
        assert (await connection.create_and_read(fake.script(reply("alive")), generate=False))[
            "status"
        ] == "completed"


async def test_options_that_mean_nothing_on_a_websocket_are_ignored(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("x"))
    async with socket(api) as connection:
        answer = await connection.create_and_read(
            model,
            stream=False,
            background=False,
            client_metadata={"a": "b"},
            stream_id=None,
            generate=None,
        )
        assert answer["output_text"] == "x"


async def test_fragments_are_joined_and_lone_surrogates_replaced(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("x"))
    request = json.dumps({"type": "response.create", "model": model, "input": "a \ud800 b"})
    async with socket(api) as connection:
        await connection.connection.send(iter([request[:10], request[10:40], request[40:]]))
        await connection.read_to_end()
    assert fake.requests_for(model)[0].messages[0]["content"] == "a \ufffd b"


async def test_a_protocol_error_closes_the_connection(api: Api) -> None:
    async with socket(api) as connection:
        with contextlib.suppress(ConnectionClosed):  # it may come before the end of the message
            await connection.connection.send("x" * 9_000_000)
        assert await connection.read_until_closed() == 1009
    async with socket(api) as connection:
        await connection.connection.send(b"\xff\xfe", text=True)
        assert await connection.read_until_closed() == 1007


HANDSHAKE_HEADERS = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-extensions": "permessage-deflate",
}
ZERO_MASK = b"\0\0\0\0"
INVALID_BYTES: dict[str, tuple[bytes, int]] = {
    "not masked": (b"\x81\x02{}", 1002),
    "a reserved bit": (b"\xa1\x82" + ZERO_MASK + b"{}", 1002),
    "an unknown opcode": (b"\x83\x80" + ZERO_MASK, 1002),
    "a continuation of nothing": (b"\x80\x80" + ZERO_MASK, 1002),
    "a fragmented ping": (b"\x09\x80" + ZERO_MASK, 1002),
    "a ping that is too long": (b"\x89\xfe\x00\x7e" + ZERO_MASK + b"x" * 126, 1002),
    "no deflate": (b"\xc1\x84" + ZERO_MASK + b"\xff\xff\xff\xff", 1002),
    "a close with half a code": (b"\x88\x81" + ZERO_MASK + b"\x03", 1002),
    "a length that is too large": (b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + ZERO_MASK, 1009),
}


@pytest.mark.parametrize("case", sorted(INVALID_BYTES))
async def test_invalid_bytes_close_the_connection(api: Api, fake: FakeUpstream, case: str) -> None:
    invalid, code = INVALID_BYTES[case]
    reader, writer = await _raw_handshake(api, HANDSHAKE_HEADERS)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    writer.write(invalid)
    head = await reader.readexactly(4)
    assert head[:1] == b"\x88", "a close"
    assert int.from_bytes(head[2:], "big") == code
    writer.close()


@pytest.mark.parametrize(
    "header",
    sorted(HANDSHAKE_HEADERS.keys() - {"connection", "upgrade", "sec-websocket-extensions"}),
)
async def test_an_incomplete_handshake_is_refused(api: Api, header: str) -> None:
    reader, writer = await _raw_handshake(api, {**HANDSHAKE_HEADERS, header: "?"})
    assert b" 400 " in await reader.readuntil(b"\r\n")
    writer.close()


async def _raw_handshake(
    api: Api, headers: dict[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(api.base_url.removesuffix("/v1").rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [
        f"{name}: {value}"
        for name, value in {"host": "x", "authorization": f"Bearer {api.key}", **headers}.items()
    ]
    writer.write("\r\n".join(["GET /v1/responses HTTP/1.1", *lines, "", ""]).encode())
    return reader, writer


# --- the handshake ---


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer unknown"}, {"authorization": ""}, {"authorization": "Basic x"}],
)
async def test_without_a_key_the_handshake_is_refused(
    shared_stack: Stack, api: Api, headers: dict[str, str]
) -> None:
    for path in ("/responses", "/elsewhere"):
        with pytest.raises(InvalidStatus) as refusal:
            async with socket(api, path, headers=headers):
                pass
        answer = _handshake(refusal.value)
        assert (answer.status, answer.error["code"], answer.headers["www-authenticate"]) == (
            401,
            "invalid_api_key",
            "Bearer",
        )
        assert answer.headers["x-request-id"]
    assert "handshake" not in shared_stack.webs[0].log.read_text(), "a refusal is no error"


async def test_a_handshake_on_another_path_is_a_404(api: Api) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        async with socket(api, "/responses/resp_1"):
            pass
    answer = _handshake(refusal.value)
    assert (answer.status, answer.error["code"]) == (404, "unknown_url")


async def test_without_an_upgrade_the_path_has_no_get(api: Api) -> None:
    answer = await api.call("GET", "/responses")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_no_message_is_compressed(api: Api, fake: FakeUpstream) -> None:
    """Sixteen frames of 59 KiB that inflate to 60 MiB each took a gigabyte of a web process."""
    async with socket(api, compression="deflate") as connection:
        assert "sec-websocket-extensions" not in _handshake_headers(connection)
        assert _handshake_headers(connection)["x-request-id"]
        created = await connection.create_and_read(fake.script(reply("plain")))
        assert created["output_text"] == "plain"


def _handshake_headers(connection: Socket) -> Any:
    answer = connection.connection.response
    assert answer is not None
    return answer.headers


# --- disconnects ---


async def test_a_client_that_disconnects_cancels_its_running_response(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("said"), hang()])
    async with socket(api) as connection:
        await connection.create(model)
        await connection.create(model)
        response_id = (await connection.until("response.created"))["response"]["id"]
        await connection.until("response.output_text.delta")
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None)

    async def is_cancelled() -> bool:
        answer = await api.call("GET", f"/responses/{response_id}")
        return answer.status == 200 and answer.body["status"] == "cancelled"

    await until(is_cancelled)
    assert len(fake.requests_for(model)) == 1, "the create in the queue was started"


async def test_a_client_that_aborts_during_errors_does_not_harm_the_server(
    api: Api, fake: FakeUpstream
) -> None:
    async with socket(api) as connection:
        for _ in range(200):
            await connection.connection.send("{")
        connection.connection.transport.abort()
    assert (await api.create(fake.script(reply("unharmed"))))["output_text"] == "unharmed"


async def test_open_sockets_are_counted(shared_stack: Stack) -> None:
    async def count() -> float:
        async with shared_stack.session.get(
            f"http://127.0.0.1:{shared_stack.webs[1].port}/metrics"
        ) as answer:
            lines = (await answer.text()).splitlines()
        return float(
            next(line.split()[1] for line in lines if line.startswith("backburner_sockets "))
        )

    async def is_closed() -> bool:
        return await count() == before

    before = await count()
    async with socket(shared_stack.api(1)), socket(shared_stack.api(1)):
        assert await count() == before + 2
    await until(is_closed)
