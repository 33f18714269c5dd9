"""An upstream gets no address of a private place: not in a create, over a WebSocket, in a
conversation or in a chat completion."""

import asyncio
import json
from typing import Any

import pytest

from models.db.database import open_pool
from tests.support import keys
from tests.support.api import JSON, Api, HttpResponse
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.sql import run_sql
from tests.support.stack import Stack
from tests.support.websocket_client import socket
from tests.support.worker_rows import settings_for

METADATA = "http://169.254.169.254/latest/meta-data/"


def image(url: str) -> JSON:
    return {"type": "input_image", "image_url": url}


def user(*parts: JSON) -> JSON:
    return {"role": "user", "content": list(parts)}


CALL = {"type": "computer_call", "call_id": "c1", "action": {"type": "screenshot"}}
SCREENSHOT = {
    "type": "computer_call_output",
    "call_id": "c1",
    "output": {"type": "computer_screenshot", "image_url": METADATA},
}
FUNCTION_CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
FUNCTION_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": [image(METADATA)]}
INPUTS: list[tuple[list[JSON], str]] = [
    ([user({"type": "input_text", "text": METADATA}, image(METADATA))], "[0].content[1].image_url"),
    ([user(image("http://0x7f.1/"))], "[0].content[0].image_url"),
    ([user(image("http://metadata.google.internal./x"))], "[0].content[0].image_url"),
    ([user({"type": "input_file", "file_data": METADATA})], "[0].content[0].file_data"),
    ([user({"type": "input_file", "file_url": METADATA})], "[0].content[0].file_url"),
    ([CALL, SCREENSHOT], "[1].output.image_url"),
    ([FUNCTION_CALL, FUNCTION_OUTPUT], "[1].output[0].image_url"),
]


@pytest.mark.parametrize(("items", "place"), INPUTS, ids=[place for _, place in INPUTS])
async def test_a_create_and_a_conversation_refuse_the_address_and_name_its_place(
    api: Api, fake: FakeUpstream, items: list[JSON], place: str
) -> None:
    model = fake.script(reply("never"))
    refused = await api.call("POST", "/responses", {"model": model, "input": items})
    stored = await api.call("POST", "/conversations", {"items": items})
    for answer, name in ((refused, "input"), (stored, "items")):
        assert (answer.status, answer.error["param"]) == (400, f"{name}{place}")
        assert answer.error["code"] == "invalid_value"
        assert "169.254" not in answer.error["message"], "a URL may contain a key"
    assert not fake.requests_for(model)


async def test_a_create_over_a_websocket_refuses_it_too(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    async with socket(shared_stack.api()) as connection:
        await connection.create(fake.script(reply("never")), input=[user(image(METADATA))])
        answer = await connection.next()
    assert (answer["status"], answer["error"]["param"]) == (400, "input[0].content[0].image_url")


CHAT_PARTS: list[tuple[JSON, str]] = [
    ({"type": "image_url", "image_url": {"url": METADATA}}, "image_url.url"),
    ({"type": "image_url", "image_url": "http://[::1]/"}, "image_url"),
    ({"type": "video_url", "video_url": {"url": "http://2130706433/"}}, "video_url.url"),
    ({"type": "file", "file": {"file_data": "file:///etc/passwd"}}, "file.file_data"),
    # a name that leads to this machine
    ({"type": "image_url", "image_url": {"url": "http://localhost/"}}, "image_url.url"),
]


@pytest.mark.parametrize(("part", "place"), CHAT_PARTS, ids=[place for _, place in CHAT_PARTS])
async def test_a_chat_completion_refuses_it(
    api: Api, fake: FakeUpstream, part: JSON, place: str
) -> None:
    model = fake.script(reply("never"))
    body = {"model": model, "messages": [{"role": "user", "content": [part]}]}
    answer = await api.call("POST", "/chat/completions", body)
    assert (answer.status, answer.error["param"]) == (400, f"messages[0].content[0].{place}")
    assert not fake.requests_for(model)


async def test_public_addresses_arrive_unchanged(api: Api, fake: FakeUpstream) -> None:
    url = "https://example.com/cat.png?size=large"
    model = fake.script(reply("A cat."), reply("A cat."))
    assert (await api.create(model, input=[user(image(url))]))["status"] == "completed"
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": model, "messages": [{"role": "user", "content": [part]}]}
    assert (await api.call("POST", "/chat/completions", body)).status == 200
    assert all(url in json.dumps(request.messages) for request in fake.requests_for(model))


async def test_many_urls_are_refused_before_each_is_judged(api: Api, fake: FakeUpstream) -> None:
    parts = [image(f"https://example.com/{number}") for number in range(1_001)]
    model = fake.script(reply("never"))
    answer = await api.call("POST", "/responses", {"model": model, "input": [user(*parts)]})
    assert (answer.status, answer.error["param"]) == (400, "input")


async def test_a_project_may_be_kept_from_the_public_internet_also_for_what_it_has_stored(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "indoors")
    api = shared_stack.api(key=key)
    model = fake.script(reply("A cat."), reply("never"))
    first = await api.create(model, input=[user(image("https://example.com/a.png"))])
    assert first["status"] == "completed"
    await _set_policy(shared_stack, {"egress": {"public": False, "allow": ["*.example.org"]}})

    async def refused(param: str, **body: Any) -> HttpResponse:
        """The answer once the process that refuses this knows the new rules."""
        while True:
            fake.script(reply("A cat."), name=model)
            answer = await api.call("POST", "/responses", {"model": model, **body})
            if answer.status == 400 and answer.error["param"] == param:
                return answer

    mcp = {"type": "mcp", "server_label": "x", "server_url": "https://example.com/mcp"}
    async with asyncio.timeout(20):
        # The web process, then the worker.
        await refused("tools[0].server_url", input="x", tools=[mcp])
        continued = await refused(
            "previous_response_id", input="And now?", previous_response_id=first["id"]
        )
    assert "may not fetch 'https://example.com/a.png'" in continued.error["message"]
    other = fake.script(reply("Fine."))
    listed = await api.create(other, input=[user(image("https://img.example.org/a.png"))])
    assert listed["status"] == "completed"


async def _set_policy(stack: Stack, policy: JSON) -> None:
    async with open_pool(settings_for(stack.dsn), "test", 1) as pool:
        await run_sql(
            pool,
            "UPDATE projects SET policy = CAST(%(policy)s AS jsonb) WHERE name = 'indoors'",
            {"policy": json.dumps(policy)},
        )
