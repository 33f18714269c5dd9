"""Stored files in inputs: the model gets their bytes, and clients get their ids back."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import openai
import pytest
from typer.testing import CliRunner

from cli.main import app
from models.files.storage import part_key
from models.ids import parse_file_id
from tests.conftest import PrivateStack
from tests.support import keys
from tests.support.api import JSON, Api, until
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
)
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.websocket_client import socket

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
PDF = b"%PDF-1.7\n" + bytes(range(64))
TEXT: JSON = {"type": "input_text", "text": "And?"}
NO_FILE = f"file-{'0' * 32}"
CALL: JSON = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}


def data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def image(file: str, **more: Any) -> JSON:
    return {"type": "input_image", "file_id": file, **more}


def document(file: str, **more: Any) -> JSON:
    return {"type": "input_file", "file_id": file, **more}


def user(*parts: JSON) -> list[JSON]:
    return [{"role": "user", "content": list(parts)}]


def chat_image(content: bytes = PNG, **more: Any) -> JSON:
    return {"type": "image_url", "image_url": {"url": data_url("image/png", content), **more}}


def chat_file(name: str, kind: str, content: bytes) -> JSON:
    return {"type": "file", "file": {"filename": name, "file_data": data_url(kind, content)}}


async def upload(
    client: openai.AsyncOpenAI, name: str, content: bytes, purpose: Any = "user_data"
) -> str:
    return (await client.files.create(file=(name, content), purpose=purpose)).id


@pytest.fixture
async def png(client: openai.AsyncOpenAI) -> str:
    return await upload(client, "a.png", PNG, "vision")


@pytest.fixture
async def pdf(client: openai.AsyncOpenAI) -> str:
    return await upload(client, "a.pdf", PDF)


@pytest.mark.parametrize("stream", [False, True])
async def test_files_reach_the_model_as_data_and_clients_see_their_ids(
    client: openai.AsyncOpenAI, api: Api, fake: FakeUpstream, png: str, pdf: str, stream: bool
) -> None:
    notes = await upload(client, "notes.md", b"# Notes")
    model = fake.script(reply("ok"), reply("still"), reply("again"))
    parts = [image(png, detail="low"), document(pdf), document(notes, filename="mine.txt")]
    output: Any = {"type": "function_call_output", "call_id": "c", "output": [image(png)]}
    content: Any = [*user(*parts), CALL, output]
    if stream:
        created: Any = client.responses.create(
            model=model, input=content, background=True, stream=True
        )
        events = [event async for event in await created]
        assert events[-1].type == "response.completed"
        response_id = events[-1].response.id
    else:
        queued: Any = client.responses.create(model=model, input=content, background=True)
        response_id = (await queued).id
    ended = await api.wait_for_end(response_id)
    assert ended["status"] == "completed", ended
    sent = fake.requests_for(model)[0].messages
    expected = [
        chat_image(detail="low"),
        chat_file("a.pdf", "application/pdf", PDF),
        chat_file("mine.txt", "text/markdown", b"# Notes"),
    ]
    assert sent[0]["content"] == expected
    assert sent[-1]["content"][-1] == chat_image()
    items = [item async for item in client.responses.input_items.list(response_id, order="asc")]
    shown = items[0].model_dump(exclude_unset=True)["content"]
    assert shown == parts_as_stored(parts)
    assert base64.b64encode(PDF).decode()[:20] not in json.dumps(ended)
    await api.create(model, input="Again.", previous_response_id=response_id)
    assert fake.requests_for(model)[1].messages[0]["content"] == expected


def parts_as_stored(parts: list[JSON]) -> list[JSON]:
    """With the defaults of their fields."""
    return [
        {"type": "input_image", "detail": "auto", **part} if "image" in part["type"] else part
        for part in parts
    ]


async def test_a_conversation_keeps_files_and_gives_them_to_the_model(
    client: openai.AsyncOpenAI, api: Api, fake: FakeUpstream, png: str
) -> None:
    items: Any = user(image(png))
    conversation = await client.conversations.create(items=items)
    listed = await client.conversations.items.list(conversation.id)
    assert listed.data[0].model_dump(exclude_unset=True)["content"] == parts_as_stored([image(png)])
    model = fake.script(reply("ok"))
    await api.create(model, input="What is it?", conversation=conversation.id)
    assert fake.requests_for(model)[0].messages[0]["content"] == [chat_image()]


async def test_twenty_files_and_one_of_them_twice(
    client: openai.AsyncOpenAI, api: Api, fake: FakeUpstream
) -> None:
    contents = [b"%PDF-1.7\n" + bytes([number]) * 10_000 for number in range(20)]
    uploads = (upload(client, f"{at}.pdf", content) for at, content in enumerate(contents))
    files = await asyncio.gather(*uploads)
    model = fake.script(reply("ok"))
    await api.create(model, input=user(*map(document, [*files, files[3]])))
    sent = fake.requests_for(model)[0].messages[0]["content"]
    assert sent == [
        chat_file(f"{at}.pdf", "application/pdf", contents[at]) for at in [*range(20), 3]
    ]


async def _refusal(api: Api, path: str, body: JSON) -> tuple[int, Any, Any]:
    answer = await api.call("POST", path, body)
    assert answer.status != 200, answer.raw
    return answer.status, answer.error["code"], answer.error["param"]


async def test_a_file_that_the_project_does_not_have_is_refused(
    client: openai.AsyncOpenAI, shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    other = shared_stack.openai(key=await asyncio.to_thread(keys.create, shared_stack.dsn, "other"))
    foreign, deleted = await upload(other, "a.png", PNG), await upload(client, "b.png", PNG)
    expired = await upload(client, "c.png", PNG)
    await client.files.delete(deleted)
    await shared_stack.value(
        "UPDATE files SET expires_at = now() - interval '1 s' WHERE id = %s RETURNING id",
        parse_file_id(expired),
    )
    model = fake.script(reply("never"))
    for file in (NO_FILE, foreign, deleted, expired, "file-G9RUSJfisA2m5m8zsRMoLD"):
        body: JSON = {"model": model, "input": user(TEXT, image(file))}
        place = "input[0].content[1].file_id"
        assert await _refusal(api, "/responses", body) == (400, "file_not_found", place), file
    counted = body | {"input": user(document(foreign))}
    place = "input[0].content[0].file_id"
    assert await _refusal(api, "/responses/input_tokens", counted) == (400, "file_not_found", place)
    stored = {"items": user(document(NO_FILE))}
    place = "items[0].content[0].file_id"
    assert await _refusal(api, "/conversations", stored) == (400, "file_not_found", place)
    async with socket(api) as connection:
        await connection.create(model, input=user(image(deleted), image(NO_FILE)))
        frame = await connection.next()
    assert (frame["status"], frame["error"]["code"]) == (400, "file_not_found")
    assert frame["error"]["message"] == f"Files [{deleted}, {NO_FILE}] were not found."
    assert fake.requests_for(model) == []


async def test_a_file_of_another_kind_or_purpose_is_refused(
    client: openai.AsyncOpenAI, api: Api, fake: FakeUpstream, png: str, pdf: str
) -> None:
    unnamed = await upload(client, "scan", PNG)
    lines = await upload(client, "a.jsonl", b"{}\n", "batch")
    model = fake.script(reply("never"))
    place = "input[0].content[0].file_id"
    for part, code in (
        (image(pdf), "invalid_file"),
        (document(png), "invalid_file"),
        (document(unnamed), "invalid_file"),
        (document(pdf, filename="a.png"), "invalid_file"),
        (document(lines), "invalid_value"),
    ):
        body = {"model": model, "input": user(part)}
        assert await _refusal(api, "/responses", body) == (400, code, place), part
    large = await upload(client, "large.txt", b"x" * 300_000)
    for count, code in ((113, "input_too_large"), (1001, "invalid_value")):
        body = {"model": model, "input": user(*[document(large)] * count)}
        assert await _refusal(api, "/responses", body) == (400, code, "input")
    with pytest.raises(openai.BadRequestError) as caught:
        await upload(client, "b.pdf", PNG)
    assert caught.value.code == "invalid_file"
    assert fake.requests_for(model) == []


async def _object_of(stack: Stack, file: str) -> Path:
    """The stored object of a file that has one part."""
    query = "SELECT id FROM file_parts WHERE file_id = %s"
    part: UUID = await stack.value(query, parse_file_id(file))
    return stack.folder / "files" / part_key(part)


async def test_bytes_that_are_not_what_was_uploaded_reach_no_model(
    shared_stack: Stack, api: Api, fake: FakeUpstream, pdf: str
) -> None:
    stored = await _object_of(shared_stack, pdf)
    stored.write_bytes(PNG + PDF[len(PNG) :])
    model = fake.script(reply("never"))
    answer = await api.call("POST", "/responses", {"model": model, "input": user(document(pdf))})
    assert (answer.status, answer.error["code"]) == (500, None)
    assert "damaged" in answer.error["message"]
    assert fake.requests_for(model) == []


async def test_a_storage_that_does_not_answer_delays_background_responses(
    shared_stack: Stack, api: Api, fake: FakeUpstream, pdf: str
) -> None:
    stored = await _object_of(shared_stack, pdf)
    away = stored.rename(stored.with_suffix(".away"))
    model = fake.script(reply("ok"))
    answer = await api.call("POST", "/responses", {"model": model, "input": user(document(pdf))})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    response_id = await api.create_background(model, input=user(document(pdf)))
    query = "SELECT resume_at FROM responses WHERE id = %s"

    async def is_deferred() -> bool:
        return await shared_stack.value(query, UUID(response_id[5:])) is not None

    await until(is_deferred)
    away.rename(stored)
    assert (await api.cancel(response_id)).body["status"] == "cancelled"
    assert fake.requests_for(model) == []


async def test_a_response_fails_whose_history_names_a_file_that_was_deleted(
    client: openai.AsyncOpenAI, shared_stack: Stack, api: Api, fake: FakeUpstream, png: str
) -> None:
    model = fake.script(reply("ok"), reply("never"))
    first = await api.create(model, input=user(image(png)))
    await client.files.delete(png)
    # A file that is deleted in the second of a create may still be used.
    await shared_stack.value(
        "UPDATE files SET delete_requested_at = now() - interval '2 s' WHERE id = %s RETURNING id",
        parse_file_id(png),
    )
    body = {"model": model, "input": "Again.", "previous_response_id": first["id"]}
    refusal = await _refusal(api, "/responses", body)
    assert refusal == (400, "file_not_found", "previous_response_id")
    ended = await api.wait_for_end(
        await api.create_background(model, input="Again.", previous_response_id=first["id"])
    )
    message = f"Files [{png}] were not found."
    assert ended["error"] == {"code": "image_file_not_found", "message": message}
    assert len(fake.requests_for(model)) == 1


def _requests_with(pdf: bytes) -> list[list[JSON]]:
    """The messages of two requests that have this document."""
    return [[{"role": "user", "content": [chat_file("a.pdf", "application/pdf", pdf)]}]] * 2


async def test_the_next_attempt_reads_a_file_that_was_deleted_meanwhile(
    client: openai.AsyncOpenAI, shared_stack: Stack, api: Api, fake: FakeUpstream, pdf: str
) -> None:
    model = fake.script([text("Half"), hang()], reply("whole"))
    response_id = await api.create_background(model, input=user(document(pdf)))
    async with api.follow(response_id) as stream:
        await stream.until("response.output_text.delta")
        await client.files.delete(pdf)
        runner = CliRunner(env=shared_stack.environment())
        requeue = ["responses", "requeue", response_id]
        result = await asyncio.to_thread(runner.invoke, app, requeue, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        await stream.to_end()
    assert stream.final["status"] == "completed"
    assert [each.messages for each in fake.requests_for(model)] == _requests_with(PDF)


@pytest.mark.long
async def test_a_deleted_file_stays_for_a_response_whose_worker_is_killed(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The next worker reads it again, and it is deleted when the response has ended."""
    settings = {**SHORT_LEASES, "BACKBURNER_WORKER__PURGE_INTERVAL": "0.5"}
    model = fake.script([text("Half"), hang()], reply("whole"))
    async with private_stack(settings=settings) as own_stack:
        api, client = own_stack.api(), own_stack.openai()
        pdf = await upload(client, "a.pdf", PDF)
        stored = await _object_of(own_stack, pdf)
        response_id = await api.create_background(model, input=user(document(pdf)))
        async with api.follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            await client.files.delete(pdf)
            own_stack.kill(own_stack.workers[0])
            own_stack.spawn_worker()
            await stream.to_end()
        assert stream.final["status"] == "completed"
        assert [each.messages for each in fake.requests_for(model)] == _requests_with(PDF)
        await until(lambda: not stored.exists())


async def test_a_cached_answer_is_for_the_same_file_only(
    client: openai.AsyncOpenAI, api: Api, fake: FakeUpstream, png: str
) -> None:
    same_name = await upload(client, "a.png", PNG[:-1] + b"!", "vision")
    model = fake.script(reply("one"), reply("two"))
    hits = []
    for file in (png, png, same_name):
        body = {"model": model, "input": user(image(file)), "cache": True}
        answer = await api.call("POST", "/responses", body)
        hits.append(answer.headers["x-cache"])
    assert hits == ["miss", "hit", "miss"]


async def test_tokens_of_files_are_counted(
    client: openai.AsyncOpenAI, fake: FakeUpstream, png: str
) -> None:
    long = await upload(client, "long.txt", b"x" * 6000)
    model = fake.script()
    content: Any = user(image(png), document(long))
    counted = await client.responses.input_tokens.count(model=model, input=content)
    assert 765 + 1000 <= counted.input_tokens <= 765 + 1020


async def test_a_compaction_keeps_ids_and_the_turn_after_it_gets_the_files(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    api, client = tool_stack.api(), tool_stack.openai()
    png = await upload(client, "a.png", PNG)
    tool_call = [call(0, "c2", "look", "{}"), finish("tool_calls"), usage(), done()]
    model = fake.script(reply("A summary."), tool_call, reply("Seen."))
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    history = [
        *user(image(png)),
        {"role": "assistant", "content": "x" * 8000},
        *user(image(png), TEXT),
    ]
    gone = {"model": model, "input": [*history, *user(image(NO_FILE))]}
    place = "input[3].content[0].file_id"
    assert await _refusal(api, "/responses/compact", gone) == (400, "file_not_found", place)
    edits = [{"type": "compaction", "compact_threshold": 1000}]
    response = await api.create(model, input=history, tools=tools, context_management=edits)
    assert [item["type"] for item in response["output"]] == ["compaction", "function_call"]
    summary, turn = fake.requests_for(model)
    assert "base64" not in json.dumps(summary.messages)
    images = [
        part
        for message in turn.messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]
    assert images == [chat_image(), chat_image()]
    output = {"type": "function_call_output", "call_id": "c2", "output": "a cat"}
    await api.create(model, input=[output], tools=tools, previous_response_id=response["id"])
    assert json.dumps(fake.requests_for(model)[2].messages).count(data_url("image/png", PNG)) == 2
