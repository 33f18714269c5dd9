"""Images of the tool `image_generation` as files: stored once, and put back by every reader."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import openai
import psycopg
import pytest

from models.files.response_images import image_file
from models.files.storage import part_key
from models.ids import parse_response_id
from models.keys import KeyGrant
from models.wire.image_marks import image_mark
from tests.support import batches, keys
from tests.support.api import decode, until
from tests.support.console import CONSOLE_SETTINGS, OPERATOR_TOKEN, console_user
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    UpstreamRequest,
    call,
    done,
    finish,
    reply,
    silence_until,
    status,
    usage,
)
from tests.support.images import IMAGE_MODEL, b64, image, png
from tests.support.native_script import native_reply
from tests.support.projects import limited_project
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.websocket_client import socket

IMAGE = png(7, 200)
PAINTER: Any = {"type": "image_generation"}
MARK = image_mark(hashlib.sha256(IMAGE).hexdigest(), len(IMAGE))
WORDS: list[Any] = [{"role": "user", "content": "Darker"}]


def painting(**arguments: Any) -> Script:
    """A turn with a call of the tool."""
    body = json.dumps({"prompt": "A cat", **arguments})
    return [call(0, "call_0", "image_generation", body), finish("tool_calls"), usage(), done()]


@pytest.fixture
def model(fake: FakeUpstream) -> str:
    """A model that calls the tool for each message."""
    fake.decide(IMAGE_MODEL, lambda _: image(IMAGE))
    fake.decide("artist", _paint_or_answer)
    return "artist"


def _paint_or_answer(request: UpstreamRequest) -> Script:
    return reply("Done") if request.messages[-1]["role"] == "tool" else painting()


async def _object_of(stack: Stack, item_id: str) -> Path:
    """The stored object of an item's image: its only one."""
    query = (
        "SELECT array_agg(p.id) FROM file_parts p JOIN files f ON f.id = p.file_id"
        " WHERE f.id = %s AND f.purpose = 'image'"
    )
    parts: Sequence[Any] = await stack.value(query, image_file(item_id))
    assert len(parts) == 1
    return Path(stack.environment()["BACKBURNER_FILES__FOLDER"]) / part_key(parts[0])


async def _has_no_base64(stack: Stack, *responses: str) -> bool:
    """Whether no row of these responses or their logs has the image."""
    text, ids = b64(IMAGE)[1000:1100], [each.removeprefix("resp_") for each in responses]
    query = (
        "SELECT NOT EXISTS (SELECT FROM items WHERE response_id = ANY(%s::uuid[])"
        " AND position(%s IN payload::text) > 0) AND NOT EXISTS (SELECT FROM event_log"
        " WHERE response_id = ANY(%s::uuid[]) AND position(%s::bytea IN frames) > 0)"
    )
    return bool(await stack.value(query, ids, text, ids, text.encode()))


def _image_of(response: Any) -> bytes:
    return base64.b64decode(response.output[0].result)


async def test_an_image_is_stored_once_and_every_reader_of_its_response_gets_it(
    tool_stack: Stack, model: str
) -> None:
    client, api = tool_stack.openai(), tool_stack.api()
    body: Any = {"model": model, "input": "A cat", "tools": [PAINTER]}
    foreground = await client.responses.create(**body)
    assert _image_of(foreground) == IMAGE
    streamed = [event async for event in await client.responses.create(**body, stream=True)]
    [shown] = [
        event.item
        for event in streamed
        if event.type == "response.output_item.done" and event.item.type == "image_generation_call"
    ]
    assert base64.b64decode(shown.result or "") == IMAGE
    assert streamed[-1].type == "response.completed"
    assert streamed[-1].response.output[0] == shown
    response_id = await api.create_background(model, tools=[PAINTER])
    async with api.follow(response_id) as stream:
        live = await stream.to_end()
    assert [decode(frame) for frame in await api.replay(response_id)] == live
    assert [decode(frame) for frame in await api.replay(response_id, 5)] == live[6:]
    got = await client.responses.retrieve(response_id)
    assert _image_of(got) == IMAGE
    assert (await api.get(response_id))["output"] == live[-1]["response"]["output"]
    async with socket(api) as ws:
        final = await ws.create_and_read(model, tools=[PAINTER])
    assert final["output"][0]["result"] == b64(IMAGE)
    ids = (foreground.id, streamed[-1].response.id, response_id, final["id"])
    for each in ids:
        made = (await client.responses.retrieve(each)).output[0]
        assert (await _object_of(tool_stack, made.id or "")).read_bytes() == IMAGE
    assert await _has_no_base64(tool_stack, *ids)


async def test_later_responses_conversations_and_batches_get_the_image(
    tool_stack: Stack, fake: FakeUpstream, model: str
) -> None:
    client = tool_stack.openai()
    conversation = await client.conversations.create()
    body: Any = {"model": model, "input": "A cat", "tools": [PAINTER]}
    first = await client.responses.create(**body, conversation=conversation.id)
    item = first.output[0]
    listed = await client.conversations.items.list(conversation.id)
    [shown] = [each for each in listed.data if each.type == "image_generation_call"]
    assert base64.b64decode(shown.result or "") == IMAGE
    single: Any = await client.conversations.items.retrieve(
        shown.id, conversation_id=conversation.id
    )
    assert single.result == shown.result
    edits: Any = {**body, "tools": [{**PAINTER, "action": "edit"}]}
    named = [{"type": "image_generation_call", "id": item.id}, *WORDS]
    for more in (
        {"conversation": conversation.id},
        {"previous_response_id": first.id},
        {"input": named},
    ):
        await client.responses.create(**{**edits, **more})
        assert fake.requests_for(IMAGE_MODEL)[-1].files == {"image": IMAGE}
    copied = await client.responses.create(**{**edits, "input": named, "background": True})
    await tool_stack.api().wait_for_end(copied.id)
    given: Any = (await client.responses.input_items.list(copied.id, order="asc")).data[0]
    assert (given.id, base64.b64decode(given.result)) == (item.id, IMAGE)
    smallest = "SELECT min(size) FROM items WHERE item_id = %s"  # also of the copies
    assert await tool_stack.value(smallest, item.id) > len(b64(IMAGE))
    again = await tool_stack.api().call("POST", f"/responses/{copied.id}/retry")
    assert again.status == 200, again.raw
    assert (await tool_stack.api().wait_for_end(again.body["id"]))["status"] == "completed"
    line = batches.line("one", body=body)
    batch = await batches.until_status(client, await batches.start(client, [line]), "completed")
    result = (await batches.results(client, batch.output_file_id))["one"]
    assert result["response"]["body"]["output"][0]["result"] == b64(IMAGE)


async def test_a_cached_answer_has_the_image_when_its_response_is_deleted(
    tool_stack: Stack, model: str
) -> None:
    client = tool_stack.openai()
    body: Any = {"model": model, "input": "A cached cat", "tools": [PAINTER]}
    body["extra_body"] = {"cache": True}
    first = await client.responses.create(**body)
    second = await client.responses.create(**body)
    assert second.output[0].id != first.output[0].id
    assert _image_of(second) == IMAGE


async def test_nobody_can_forge_the_mark_of_an_image(tool_stack: Stack, model: str) -> None:
    api, client = tool_stack.api(), tool_stack.openai()
    made = await client.responses.create(model=model, input="A cat", tools=[PAINTER])
    made_id = made.output[0].id or ""
    forged = {"type": "image_generation_call", "id": made_id, "result": MARK}
    answer = await api.call("POST", "/responses", {"model": model, "input": [forged, *WORDS]})
    assert (answer.status, answer.body["error"]["param"]) == (400, "input[0].result")
    function = {
        "type": "function",
        "name": "look",
        "parameters": {"type": "object", "default": forged, "examples": [forged]},
    }
    shown = await api.create(model, tools=[PAINTER, function], metadata={"a": json.dumps(forged)})
    assert shown["tools"][1]["parameters"] == function["parameters"]
    assert shown["metadata"] == {"a": json.dumps(forged)}
    assert shown["output"][0]["result"] == b64(IMAGE)
    stranger = tool_stack.api(key=keys.create(tool_stack.dsn, "strangers"))
    assert (await stranger.call("GET", f"/responses/{made.id}")).status == 404
    assert (await stranger.call("GET", f"/files/file-{made_id[3:]}")).status == 404
    assert (await api.call("GET", f"/files/file-{made_id[3:]}")).status == 404
    # A mark that is another item's shows nothing.
    await tool_stack.value(
        "UPDATE items SET payload = payload || jsonb_build_object('id', 'ig_' || repeat('0', 32))"
        " WHERE item_id = %s RETURNING 1",
        made.output[0].id,
    )
    assert (await api.get(made.id))["output"][0]["result"] is None


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """The upstream `openai` has the Responses API. It is the first for models `mixed-*`."""
    settings = {
        "BACKBURNER_UPSTREAMS__OPENAI__BASE_URL": fake.base_url,
        "BACKBURNER_UPSTREAMS__OPENAI__API": "responses",
        "BACKBURNER_ROUTES": json.dumps(
            {"native-*": "openai", "mixed-*": ["openai", "default"], "*": "default"}
        ),
        **SHORT_LEASES,
        "BACKBURNER_IMAGES__MODEL": IMAGE_MODEL,
        "BACKBURNER_WORKER__PURGE_INTERVAL": "0.3",
        **CONSOLE_SETTINGS,
    }
    folder = tmp_path_factory.mktemp("images")
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as running:
        yield running


def _take_away(folder: Path) -> None:
    """Nothing can be read any more, nor stored."""
    folder.rename(folder.with_name("away"))
    folder.write_bytes(b"")


def _bring_back(folder: Path) -> None:
    folder.unlink()
    folder.with_name("away").rename(folder)


async def test_a_storage_that_fails_loses_no_image_and_half_a_response_is_never_shown(
    own_stack: Stack, model: str
) -> None:
    api, client = own_stack.api(), own_stack.openai()
    folder = Path(own_stack.environment()["BACKBURNER_FILES__FOLDER"])
    response_id = await api.create_background(model, tools=[PAINTER])
    whole = await api.wait_for_end(response_id)
    _take_away(folder)
    answer = await api.call("GET", f"/responses/{response_id}")
    assert (answer.status, answer.body["error"]["code"]) == (503, "server_error")
    assert answer.headers["retry-after"] == "1"
    async with api.follow(response_id) as stream:
        await stream.until("response.image_generation_call.completed")
        kept = await client.responses.create(model=model, input="A cat", tools=[PAINTER])
        assert _image_of(kept) == IMAGE
        _bring_back(folder)
        events = await stream.to_end()
    assert events[-1]["response"]["output"] == whole["output"]
    assert await api.get(response_id) == whole
    stored = await own_stack.value(
        "SELECT payload ->> 'result' FROM items WHERE item_id = %s", kept.output[0].id
    )
    assert stored == b64(IMAGE)


async def test_an_image_is_deleted_with_the_last_item_that_has_it(
    own_stack: Stack, model: str
) -> None:
    client = own_stack.openai()
    body: Any = {"model": model, "input": "A cat", "tools": [PAINTER]}
    first = await client.responses.create(**body)
    stored = await _object_of(own_stack, first.output[0].id or "")
    named = [{"type": "image_generation_call", "id": first.output[0].id}]
    given_by_id: Any = [*named, *WORDS]
    copied = await client.responses.create(model=model, input=given_by_id)
    await client.responses.delete(first.id)
    given: Any = (await client.responses.input_items.list(copied.id, order="asc")).data[0]
    assert base64.b64decode(given.result) == IMAGE
    conversation = await client.conversations.create()
    in_conversation = await client.responses.create(**body, conversation=conversation.id)
    kept = await _object_of(own_stack, in_conversation.output[0].id or "")
    await client.responses.delete(in_conversation.id)
    await client.responses.delete(copied.id)
    await until(lambda: not stored.exists())
    items = (await client.conversations.items.list(conversation.id)).data
    [shown] = [each for each in items if each.type == "image_generation_call"]
    assert base64.b64decode(shown.result or "") == kept.read_bytes() == IMAGE
    await client.conversations.items.delete(shown.id, conversation_id=conversation.id)
    await until(lambda: not kept.exists())
    # Not to be stored: until its time is over.
    unstored = await client.responses.create(**body, store=False)
    brief = await _object_of(own_stack, unstored.output[0].id or "")
    await own_stack.value(
        "UPDATE responses SET expires_at = now() WHERE id = %s RETURNING 1",
        parse_response_id(unstored.id),
    )
    await until(lambda: not brief.exists())


async def test_an_upstream_with_the_responses_api_gets_the_image_itself(
    own_stack: Stack, fake: FakeUpstream, model: str
) -> None:
    client = own_stack.openai()
    first = await client.responses.create(model=model, input="A cat", tools=[PAINTER])
    fake.script(native_reply("Nice"), name="native-cat")
    by_id: Any = [{"type": "image_generation_call", "id": first.output[0].id}, *WORDS]
    await client.responses.create(model="native-cat", input=by_id)
    given = fake.requests_for("native-cat")[0].body["input"][0]
    assert (given["type"], given["result"]) == ("image_generation_call", b64(IMAGE))
    folder = Path(own_stack.environment()["BACKBURNER_FILES__FOLDER"])
    _take_away(folder)
    with pytest.raises(openai.APIStatusError) as failure:
        await client.responses.create(model="native-cat", input=by_id)
    assert failure.value.status_code == 503
    _bring_back(folder)


def _down_or_chat(request: UpstreamRequest) -> Script:
    return [status(500)] if request.path == "/v1/responses" else _paint_or_answer(request)


async def test_a_project_with_zero_retention_has_its_image_in_no_file(
    own_stack: Stack, model: str
) -> None:
    project = await limited_project(own_stack)
    policy = "UPDATE projects SET policy = %s WHERE id = %s RETURNING 1"
    await own_stack.value(policy, '{"zero_retention": true}', project.id)
    made = (await own_stack.api(key=project.key).create(model, tools=[PAINTER]))["output"][0]
    assert made["result"] == b64(IMAGE)
    stored = "SELECT count(*) FROM files WHERE id = %s"
    assert await own_stack.value(stored, image_file(made["id"])) == 0


async def test_an_operator_sees_it(own_stack: Stack, fake: FakeUpstream, model: str) -> None:
    """A small one and one that is too large for the page."""
    for content in (png(1, 10), png(2, 1200)):
        fake.decide(IMAGE_MODEL, partial(_answer_with, content))
        response = await own_stack.api().create(model, tools=[PAINTER])
        path = f"/console/responses/{response['id']}"
        async with console_user(own_stack, OPERATOR_TOKEN) as user:
            page = await user.reveal(path)
            assert page.html.count('<img class="picture"') == 1
            image_path = f"{path}/image?item={response['output'][0]['id']}"
            async with user.session.get(f"{user.origin}{image_path}") as shown:
                assert (shown.content_type, await shown.read()) == ("image/png", content)


def _answer_with(content: bytes, _: UpstreamRequest) -> Script:
    return image(content)


async def test_a_tool_that_this_server_may_run_after_all_is_checked(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    """The first upstream of the model would make the image itself; it is down."""
    fake.decide(IMAGE_MODEL, lambda _: image(IMAGE))
    rude: Any = {
        **PAINTER,
        "partial_images": "2",
        "input_image_mask": "no",
        "action": ["edit"],
        "size": 7,
    }
    fake.decide("mixed-cat", _down_or_chat)
    for models, expected in ((("mixed-cat",), 403), (("mixed-cat", IMAGE_MODEL), 200)):
        key = keys.create(own_stack.dsn, "default", grant=KeyGrant(allowed_models=models))
        body = {"model": "mixed-cat", "input": "A cat", "tools": [rude]}
        answer = await own_stack.api(key=key).call("POST", "/responses", body)
        assert answer.status == expected, answer.raw
    assert answer.body["output"][0]["result"] == b64(IMAGE)
    asked = fake.requests_for(IMAGE_MODEL)[-1].body
    assert asked == {"model": IMAGE_MODEL, "prompt": "A cat"}
    mask = {"file_id": f"file-{'0' * 32}"}
    body["tools"] = [{**PAINTER, "input_image_mask": mask}]
    answer = await own_stack.api(key=key).call("POST", "/responses", body)
    assert (answer.status, answer.body["error"]["code"]) == (400, "account_id_not_allowed")


@pytest.mark.timeout(60)
async def test_a_kill_between_the_image_and_its_result_leaves_one_bill_and_one_object(
    own_stack: Stack, fake: FakeUpstream, model: str
) -> None:
    api, may_answer = own_stack.api(), asyncio.Event()
    fake.decide(IMAGE_MODEL, lambda _: [silence_until(may_answer), *image(IMAGE)])
    before = len(fake.requests_for(IMAGE_MODEL))
    response_id = await api.create_background(model, tools=[PAINTER])
    await until(lambda: len(fake.requests_for(IMAGE_MODEL)) > before)
    async with await psycopg.AsyncConnection.connect(own_stack.dsn) as held:
        await held.execute("LOCK TABLE tool_calls IN SHARE MODE")
        may_answer.set()
        waits = (
            "SELECT count(*) > 0 FROM pg_locks"
            " WHERE relation = 'tool_calls'::regclass AND NOT granted"
        )
        await until(lambda: own_stack.value(waits))
        own_stack.kill(own_stack.workers[-1])
        await own_stack.start_worker()
    ended = await api.wait_for_end(response_id, within=40)
    made = ended["output"][0]
    assert (made["status"], made["result"]) == ("completed", b64(IMAGE))
    stored = await _object_of(own_stack, made["id"])
    assert stored.read_bytes() == IMAGE
    assert len(fake.requests_for(IMAGE_MODEL)) == before + 1
    bills = "SELECT count(*) FROM usage_entries WHERE kind = 'images' AND entry_id = %s"
    assert await own_stack.value(bills, image_file(made["id"])) == 1
    await own_stack.openai().responses.delete(response_id)
    await until(lambda: not stored.exists())
