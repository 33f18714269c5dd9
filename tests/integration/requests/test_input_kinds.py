"""Every kind of input and every parameter: what the upstream gets and what the client gets back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from models.egress import NOT_REACHED
from tests.support.api import JSON, Api, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    chunk,
    delta,
    done,
    finish,
    reply,
    text,
    usage,
)
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_event, check_response

PNG = "data:image/png;base64,iVBORw0KGgo="
LOOK: JSON = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
}
LISTEN: JSON = {
    "type": "function",
    "name": "listen",
    "parameters": {"type": "object", "properties": {}},
}
CUSTOM: JSON = {"type": "custom", "name": "sh"}


def image(url: str, **more: Any) -> JSON:
    return {"type": "input_image", "image_url": url, **more}


def chat_image(url: str, **more: Any) -> JSON:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def user(*parts: JSON) -> list[JSON]:
    return [{"role": "user", "content": list(parts)}]


AUDIO: JSON = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
TEXT: JSON = {"type": "input_text", "text": "See."}
CALL: JSON = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
CHAT_CALL: JSON = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ],
}

INPUTS: list[tuple[str, list[JSON], list[JSON]]] = [
    (
        "an image by URL",
        user(image("https://x.example/a.png")),
        user(chat_image("https://x.example/a.png")),
    ),
    (
        "an image as data",
        user(TEXT, image(PNG)),
        user({"type": "text", "text": "See."}, chat_image(PNG)),
    ),
    ("detail low", user(image(PNG, detail="low")), user(chat_image(PNG, detail="low"))),
    ("detail high", user(image(PNG, detail="high")), user(chat_image(PNG, detail="high"))),
    ("detail original", user(image(PNG, detail="original")), user(chat_image(PNG, detail="high"))),
    ("detail auto", user(image(PNG, detail="auto")), user(chat_image(PNG))),
    (
        "a file as data",
        user(
            {
                "type": "input_file",
                "filename": "a.pdf",
                "file_data": "data:application/pdf;base64,JVBERg==",
            }
        ),
        user(
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
            }
        ),
    ),
    ("sound", user(AUDIO), user(AUDIO)),
    (
        "output text as a string and as parts",
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
            {
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "d"},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
            {"role": "user", "content": "e"},
        ],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d\n\nno"},
            {"role": "user", "content": "e"},
        ],
    ),
    (
        "system and developer",
        [
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [TEXT]},
            {"role": "user", "content": "x"},
        ],
        [
            {"role": "system", "content": "s"},
            {"role": "system", "content": "See."},
            {"role": "user", "content": "x"},
        ],
    ),
    (
        "a tool's output as a string",
        [CALL, {"type": "function_call_output", "call_id": "c", "output": "seen"}],
        [CHAT_CALL, {"role": "tool", "tool_call_id": "c", "content": "seen"}],
    ),
    (
        "a tool's output as parts",
        [CALL, {"type": "function_call_output", "call_id": "c", "output": [TEXT, image(PNG)]}],
        [
            CHAT_CALL,
            {
                "role": "tool",
                "tool_call_id": "c",
                "content": "See.\n[image: see the next user message]",
            },
            *user(
                {"type": "text", "text": "The image that tool call c returned:"}, chat_image(PNG)
            ),
        ],
    ),
]


@pytest.mark.parametrize(
    ("input_items", "messages"), [row[1:] for row in INPUTS], ids=[row[0] for row in INPUTS]
)
async def test_every_kind_of_input_reaches_the_upstream(
    api: Api, fake: FakeUpstream, input_items: list[JSON], messages: list[JSON]
) -> None:
    model = fake.script(reply("ok"))
    response = await api.create(model, input=input_items)
    assert fake.requests_for(model)[0].messages == messages
    items = (await api.call("GET", f"/responses/{response['id']}/input_items?order=asc")).body[
        "data"
    ]
    assert [item["type"] for item in items] == [item.get("type", "message") for item in input_items]


# Files by address.


class Site:
    """A web server for files on this machine.

    Every request sets `requested`. `/slow` never answers and sets `disconnected` when
    its client leaves.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requested = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        self.requested.set()
        if path == b"/slow":
            await reader.read()
            self.disconnected.set()
        elif path == b"/inside":
            writer.write(
                b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\n"
                b"content-length: 0\r\n\r\n"
            )
        else:
            size = 5000 if path == b"/large.pdf" else 4
            status = b"404 Not Found" if path == b"/none.pdf" else b"200 OK"
            writer.write(
                b"HTTP/1.1 %b\r\ncontent-type: application/pdf\r\ncontent-length: %d\r\n\r\n"
                % (status, size)
                + b"%PDF" * (size // 4)
            )
        writer.close()


@asynccontextmanager
async def _running_site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield site
    finally:
        server.close()
        await server.wait_closed()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with _running_site() as site:
        yield site


@pytest.fixture(scope="module")
async def egress_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment that may fetch from this machine; its upstream takes one system message."""
    settings = {
        "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
        "BACKBURNER_EGRESS__FILE_BYTES": "1000",
        "BACKBURNER_UPSTREAM__SINGLE_SYSTEM_MESSAGE": "true",
        "BACKBURNER_UPSTREAM__PASSTHROUGH": '["service_tier", "safety_identifier"]',
    }
    async with stack(
        tmp_path_factory.mktemp("egress"),
        database_server,
        suite_settings,
        fake,
        settings=settings,
    ) as own_stack:
        yield own_stack


def file_message(url: str, **more: Any) -> list[JSON]:
    return user(TEXT, {"type": "input_file", "file_url": url, **more})


@pytest.mark.parametrize("background", [False, True])
async def test_a_file_is_fetched_before_the_turn(
    egress_stack: Stack, fake: FakeUpstream, site: Site, background: bool
) -> None:
    api, model = egress_stack.api(), fake.script(reply("ok"), reply("still ok"))
    file_input = file_message(f"{site.url}/a.pdf")
    first = await api.wait_for_end(
        (await api.create(model, input=file_input, background=background))["id"]
    )
    assert first["status"] == "completed"
    file = {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
    }
    assert fake.requests_for(model)[0].messages[0]["content"][1] == file
    items = (await api.call("GET", f"/responses/{first['id']}/input_items")).body["data"]
    assert items[0]["content"] == file_input[0]["content"], (
        "the item keeps the address, not the file"
    )
    await api.create(model, input="Again.", previous_response_id=first["id"])
    assert fake.requests_for(model)[1].messages[0]["content"][1] == file


async def test_a_file_in_a_tool_output_is_fetched_too(
    egress_stack: Stack, fake: FakeUpstream, site: Site
) -> None:
    model = fake.script(reply("ok"))
    output = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_file", "file_url": f"{site.url}/a.pdf"}],
    }
    await egress_stack.api().create(model, input=[CALL, output])
    assert (
        fake.requests_for(model)[0].messages[2]["content"][1]["file"]["file_data"]
        == "data:application/pdf;base64,JVBERg=="
    )


UNFETCHABLE = [
    ("none.pdf", "its server answered with HTTP 404"),
    ("large.pdf", "it is larger than the 1000 bytes that are left for files in this response"),
    ("inside", "its address is not on the public internet"),
]


@pytest.mark.parametrize(("path", "reason"), UNFETCHABLE, ids=[row[0] for row in UNFETCHABLE])
async def test_a_file_that_cannot_be_fetched_ends_the_response(
    egress_stack: Stack, fake: FakeUpstream, site: Site, path: str, reason: str
) -> None:
    api, model = egress_stack.api(), fake.script(reply("never"))
    url = f"{site.url}/{path}"
    message = f"Failed to download the file from '{url}': {reason}."
    answer = await api.call("POST", "/responses", {"model": model, "input": file_message(url)})
    assert answer.status == 400
    expected = {
        "message": message,
        "type": "invalid_request_error",
        "param": "input[0].content[1].file_url",
        "code": "invalid_value",
    }
    assert answer.error == expected
    assert answer.headers["x-should-retry"] == "false"
    ended = await api.wait_for_end(await api.create_background(model, input=file_message(url)))
    check_response(ended)
    assert (ended["status"], ended["error"]) == (
        "failed",
        {"code": "invalid_prompt", "message": message},
    )
    async with api.post_stream(model, input=file_message(url)) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert stream.final["error"] == ended["error"]
    assert fake.requests_for(model) == []


async def test_a_cancel_does_not_wait_for_a_slow_file(
    egress_stack: Stack, fake: FakeUpstream, site: Site
) -> None:
    api = egress_stack.api()
    response_id = await api.create_background(
        fake.script(reply("never")), input=file_message(f"{site.url}/slow")
    )
    async with asyncio.timeout(10):
        await site.requested.wait()
        assert (await api.cancel(response_id)).body["status"] == "cancelled"
        await site.disconnected.wait()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/a", "its address is not on the public internet"),
        ("http://[::ffff:169.254.169.254]/", "its address is not on the public internet"),
        ("http://0x7f000001/", "an IPv4 address must be written as four decimal numbers"),
        ("http://x@example.com/", "its address must not hold a user name or password"),
        ("file:///etc/passwd", "its address must begin with http:// or https://"),
        ("", "its address must begin with http:// or https://"),
    ],
)
async def test_a_forbidden_address_is_refused_at_create(
    api: Api, fake: FakeUpstream, url: str, reason: str
) -> None:
    model = fake.script(reply("never"))
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": file_message(url), "background": True}
    )
    param = "input[0].content[1].file_url"
    assert answer.status == 400
    assert answer.error == {
        "message": f"Invalid '{param}': {reason}.",
        "type": "invalid_request_error",
        "param": param,
        "code": "invalid_value",
    }


async def test_a_name_that_resolves_to_an_internal_address_fails_the_response(
    api: Api, fake: FakeUpstream, site: Site
) -> None:
    model = fake.script(reply("never"))
    internal_url = site.url.replace("127.0.0.1", "localhost") + "/a.pdf"
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": file_message(internal_url)}
    )
    assert answer.status == 400
    assert answer.error["message"].endswith(f"its server {NOT_REACHED}.")
    assert not site.requested.is_set()
    assert fake.requests_for(model) == []


async def test_system_messages_are_joined_for_an_upstream_that_takes_one(
    egress_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("ok"))
    roles = [("system", "s"), ("user", "u"), ("developer", "late")]
    await egress_stack.api().create(
        model,
        instructions="i",
        input=[{"role": role, "content": content} for role, content in roles],
    )
    assert fake.requests_for(model)[0].messages == [
        {"role": "system", "content": "i\n\ns\n\nlate"},
        {"role": "user", "content": "u"},
    ]


# Tools.

ALLOWED: JSON = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "look"}],
}

CHOICES: list[tuple[Any, Any, list[str]]] = [
    ("auto", "auto", ["look", "listen", "sh"]),
    ("required", "required", ["look", "listen", "sh"]),
    ("none", "none", ["look", "listen", "sh"]),
    (
        {"type": "function", "name": "look"},
        {"type": "function", "function": {"name": "look"}},
        ["look", "listen", "sh"],
    ),
    (
        {"type": "custom", "name": "sh"},
        {"type": "function", "function": {"name": "sh"}},
        ["look", "listen", "sh"],
    ),
    (ALLOWED, "auto", ["look"]),
    (ALLOWED | {"mode": "required"}, "required", ["look"]),
]


@pytest.mark.parametrize(
    ("choice", "sent", "allowed_names"), CHOICES, ids=[str(row[0])[:40] for row in CHOICES]
)
async def test_every_form_of_tool_choice_is_echoed_and_sent(
    api: Api, fake: FakeUpstream, choice: Any, sent: Any, allowed_names: list[str]
) -> None:
    model = fake.script(reply("ok"))
    response = await api.create(model, tools=[LOOK, LISTEN, CUSTOM], tool_choice=choice)
    check_response(response)
    assert response["tool_choice"] == choice
    body = fake.requests_for(model)[0].body
    assert body["tool_choice"] == sent
    assert [tool["function"]["name"] for tool in body["tools"]] == allowed_names


VIOLATIONS: list[Any] = [
    "none",
    ALLOWED,
    {"type": "function", "name": "look"},
    {"type": "custom", "name": "sh"},
]


@pytest.mark.parametrize("choice", VIOLATIONS, ids=lambda choice: str(choice)[:40])
async def test_a_call_outside_the_choice_fails_the_response(
    api: Api, fake: FakeUpstream, choice: Any
) -> None:
    """Also if the upstream ignores the choice: a client must not run the call (docs/tools.md)."""
    message = "The model called the tool 'listen', which 'tool_choice' does not allow."
    call_steps: list[Step] = [
        call(0, "call_a", "listen", "{", "}"),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    fields = {"tools": [LOOK, LISTEN, CUSTOM], "tool_choice": choice}
    answer = await api.call(
        "POST", "/responses", {"model": fake.script(call_steps), "input": "x", **fields}
    )
    assert (answer.status, answer.error["message"]) == (502, message)
    async with api.post_stream(
        fake.script([text("Hm."), *call_steps]), background=True, **fields
    ) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert stream.final["status"] == "failed"
    assert stream.final["error"] == {"code": "server_error", "message": message}
    assert [item["type"] for item in stream.final["output"]] == ["message"]
    assert await api.get(stream.response_id) == stream.final


async def test_a_custom_tool_completes_its_round_trip(api: Api, fake: FakeUpstream) -> None:
    call_steps: list[Step] = [
        call(0, "call_a", "sh", '{"inp', 'ut":"echo \\"', 'hi\\""', "}"),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    async with api.post_stream(fake.script(call_steps), background=True, tools=[CUSTOM]) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    kinds = [event["type"] for event in events if "custom_tool_call_input" in event["type"]]
    assert kinds == ["response.custom_tool_call_input.delta"] * 2 + [
        "response.custom_tool_call_input.done"
    ]
    [item] = stream.final["output"]
    assert item["id"].startswith("ctc_")
    assert item == {
        "id": item["id"],
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_a",
        "name": "sh",
        "input": 'echo "hi"',
    }
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    model = fake.script(reply("Done."))
    output = {"type": "custom_tool_call_output", "call_id": "call_a", "output": "hi"}
    chained = await api.create(
        model, input=[output], previous_response_id=stream.response_id, tools=[CUSTOM]
    )
    resent = await api.create(
        model, input=[{"role": "user", "content": "Hello."}, item, output], tools=[CUSTOM]
    )
    assert (chained["status"], resent["status"]) == ("completed", "completed")
    chained_request, resent_request = fake.requests_for(model)
    assert chained_request.messages == resent_request.messages
    assert chained_request.messages[1]["tool_calls"][0]["function"] == {
        "name": "sh",
        "arguments": '{"input":"echo \\"hi\\""}',
    }
    assert chained_request.messages[2] == {
        "role": "tool",
        "tool_call_id": "call_a",
        "content": "hi",
    }


# Parameters.


async def test_parameters_are_echoed_unchanged(egress_stack: Stack, fake: FakeUpstream) -> None:
    api = egress_stack.api()
    parameters: JSON = {
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "safety_identifier": "user-1",
        "prompt_cache_key": "key",
        "user": "u",
        "truncation": "auto",
        "top_logprobs": 2,
        "temperature": 0.5,
        "max_output_tokens": 99,
        "parallel_tool_calls": False,
    }
    model = fake.script(reply("ok"))
    response = await api.create(model, **parameters)
    check_response(response)
    assert {name: response[name] for name in parameters} == parameters
    assert await api.get(response["id"]) == response
    sent = fake.requests_for(model)[0].body
    assert (sent["service_tier"], sent["safety_identifier"]) == ("flex", "user-1"), (
        "the passthrough setting names both"
    )
    assert not {"metadata", "truncation", "prompt_cache_key", "logprobs", "top_logprobs"} & set(
        sent
    )


@pytest.mark.parametrize(
    ("used", "expected"),
    [("priority", "priority"), ("default", "default"), ("on_demand", "flex"), (None, "flex")],
)
async def test_the_service_tier_shown_is_the_one_the_upstream_used(
    api: Api, fake: FakeUpstream, used: str | None, expected: str
) -> None:
    fields = {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "service_tier": used,
    }
    script: list[Step] = [
        chunk(
            fields | {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
        ),
        usage(),
        done(),
    ]
    async with api.post_stream(fake.script(script), background=True, service_tier="flex") as stream:
        await stream.to_end()
    assert stream.events[0]["response"]["service_tier"] == "flex"
    assert stream.final["service_tier"] == expected
    assert await api.get(stream.response_id) == stream.final


@pytest.mark.parametrize(
    ("fields", "sent", "count"),
    [
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
            {"logprobs": True, "top_logprobs": 1},
            1,
        ),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}, 1),
        ({"top_logprobs": 1}, {}, 0),
    ],
    ids=["both", "include alone", "top_logprobs alone"],
)
async def test_log_probabilities_are_returned_only_if_included(
    api: Api, fake: FakeUpstream, fields: JSON, sent: JSON, count: int
) -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    model = fake.script(
        [delta({"content": "a"}, logprobs={"content": [token]}), finish(), usage(), done()]
    )
    async with api.post_stream(model, **fields) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    body = fake.requests_for(model)[0].body
    assert {name: body[name] for name in ("logprobs", "top_logprobs") if name in body} == sent
    assert len(stream.final["output"][0]["content"][0]["logprobs"]) == count


NULLABLE = (
    "instructions",
    "previous_response_id",
    "conversation",
    "store",
    "background",
    "stream",
    "stream_options",
    "include",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "max_output_tokens",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "text",
    "reasoning",
    "truncation",
    "metadata",
    "service_tier",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt",
    "context_management",
    "moderation",
    "prompt_cache_retention",
)


async def test_null_means_absent_at_every_depth(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("ok"))
    plain = await api.create(model)
    with_nulls = await api.create(model, **dict.fromkeys(NULLABLE))
    for response in (plain, with_nulls):
        for name in ("id", "created_at", "completed_at", "output"):
            del response[name]
    assert with_nulls == plain
    item = {"type": None, "id": None, "role": "user", "status": None, "phase": None}
    part = {"type": "input_text", "text": "Hello.", "annotations": None}
    nested_nulls: JSON = {
        "text": {"format": None, "verbosity": None},
        "reasoning": {"effort": None, "summary": None, "generate_summary": None},
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": None,
                "parameters": None,
                "strict": None,
            }
        ],
        "metadata": {"a": None},
        "input": [item | {"content": [part]}],
        "stream": True,
        "stream_options": {"include_obfuscation": None},
    }
    async with api.post_stream(model, **nested_nulls) as stream:
        await stream.to_end()
    check_response(stream.final)
    assert stream.final["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert stream.final["reasoning"] == {"effort": None, "summary": None}
    assert stream.final["metadata"] == {}
    assert fake.requests_for(model)[2].messages == [{"role": "user", "content": "Hello."}]


async def test_an_empty_text_parameter_means_plain_text(api: Api, fake: FakeUpstream) -> None:
    response = await api.create(fake.script(reply("ok")), text={})
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


async def test_stream_options_are_refused_without_a_stream(api: Api, fake: FakeUpstream) -> None:
    async with api.post_stream(
        fake.script(reply("ok")), stream_options={"include_obfuscation": False}
    ) as stream:
        await stream.to_end()
    assert stream.final["status"] == "completed"
    answer = await api.call(
        "POST",
        "/responses",
        {"model": "m", "input": "x", "stream_options": {"include_obfuscation": False}},
    )
    assert (answer.status, answer.error["param"]) == (400, "stream_options")
