"""Files over HTTP, through the official client: what it stores, it gets back."""

import os
import time
from typing import Any

import openai
import pytest
from openai.types import FileObject

from tests.support.api import Api
from tests.support.projects import limited_project
from tests.support.stack import Stack

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


async def _upload(client: openai.AsyncOpenAI, content: bytes = b"some text") -> FileObject:
    return await client.files.create(file=("a.txt", content), purpose="user_data")


async def test_a_file_is_stored_listed_read_and_deleted(shared_stack: Stack) -> None:
    client = shared_stack.openai(key=(await limited_project(shared_stack)).key)
    content = os.urandom(3_000_000)
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    created = await client.files.create(
        file=("../folder/données.bin", content), purpose="assistants", expires_after=expiry
    )
    assert (created.bytes, created.filename) == (len(content), "données.bin")
    assert abs(created.created_at - time.time()) < 60
    assert created.expires_at == created.created_at + 3600
    assert await client.files.retrieve(created.id) == created
    assert (await client.files.content(created.id)).content == content
    other = await _upload(client)
    listed = [each.id async for each in client.files.list(limit=1)]
    assert listed[:2] == [other.id, created.id]
    assert [each.id async for each in client.files.list(purpose="assistants")] == [created.id]
    oldest_first = [each.id async for each in client.files.list(order="asc", after=created.id)]
    assert oldest_first == [other.id]
    assert (await client.files.delete(created.id)).deleted
    for use in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            await use(created.id)
    assert created.id not in [each.id async for each in client.files.list()]


async def test_a_range_of_a_file_is_read(client: openai.AsyncOpenAI, shared_stack: Stack) -> None:
    file = await _upload(client, b"0123456789")
    url = f"{shared_stack.api().base_url}/files/{file.id}/content"
    for asked, status, content, place in (
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=1-2,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
    ):
        headers = {"authorization": f"Bearer {shared_stack.key}", "range": asked}
        async with shared_stack.session.get(url, headers=headers) as answer:
            assert (answer.status, answer.headers.get("content-range")) == (status, place), asked
            assert content is None or await answer.read() == content, asked
            if content is not None:
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["content-disposition"].startswith("attachment;")


@pytest.mark.parametrize(
    ("name", "content", "purpose", "code"),
    [
        ("a.txt", b"", "user_data", "invalid_file"),
        ("a.png", b"no image", "user_data", "invalid_file"),
        ("a.txt", bytes(range(32)), "user_data", "invalid_file"),
        ("a.jsonl", "{}\n".encode("utf-16"), "batch", "invalid_file"),
        ("a.jpg", PNG, "user_data", "invalid_file"),
        ("a.txt", b"no image", "vision", "invalid_file"),
        ("a.jsonl", b'{"a": "\xff"}\n', "batch", "invalid_file"),
        ("a.txt", b"{}\n", "batch", "invalid_file"),
        ("a.txt", b"text", "batch_output", "invalid_value"),
        ("a.txt", b"text", "dance", "invalid_value"),
    ],
)
async def test_a_file_that_is_not_what_it_claims_is_refused(
    client: openai.AsyncOpenAI, name: str, content: bytes, purpose: Any, code: str
) -> None:
    before = [each.id async for each in client.files.list()]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.files.create(file=(name, content), purpose=purpose)
    assert caught.value.code == code
    assert caught.value.param == ("purpose" if code == "invalid_value" else "file")
    assert [each.id async for each in client.files.list()] == before


BOUNDARY = "form"
FILE = 'name="file"; filename="a.txt"'


def _form(*parts: tuple[str, str], end: str = f"--{BOUNDARY}--\r\n") -> bytes:
    return (
        "".join(
            f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n{body}\r\n"
            for head, body in parts
        )
        + end
    ).encode()


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        (_form((FILE, "x"), ('name="purpose"', "user_data")), 200, None),
        (_form((FILE, "x")), 400, "missing_required_parameter"),
        (_form(('name="purpose"', "user_data")), 400, "missing_required_parameter"),
        (_form((FILE, "x"), ('name="purpose"', "dance")), 400, "invalid_value"),
        (_form((FILE, "x"), (FILE, "y")), 400, "unknown_parameter"),
        (_form(('name="file"', "x")), 400, "invalid_type"),
        (_form(('name="purpose"', "x" * 5000)), 400, "string_above_max_length"),
        (_form((FILE, "x"), end=""), 400, "invalid_form"),
        (_form(("", "x")), 400, "invalid_form"),
        (b"no form", 400, "invalid_form"),
        (b"", 400, "invalid_form"),
        (
            _form(
                (FILE, "x"), ('name="purpose"', "vision"), ('name="expires_after[seconds]"', "9")
            ),
            400,
            "invalid_value",
        ),
        (
            _form(
                (FILE, "x"),
                ('name="purpose"', "user_data"),
                ('name="expires_after[anchor]"', "created_at"),
                ('name="expires_after[seconds]"', "9"),
            ),
            400,
            "integer_below_min_value",
        ),
    ],
)
async def test_a_form_in_any_order_is_read_and_a_bad_one_refused(
    shared_stack: Stack, form: bytes, status: int, code: str | None
) -> None:
    headers = {
        "authorization": f"Bearer {shared_stack.key}",
        "content-type": f"multipart/form-data; boundary={BOUNDARY}",
    }
    url = f"{shared_stack.api().base_url}/files"
    async with shared_stack.session.post(url, data=form, headers=headers) as answer:
        body = await answer.json()
        assert (answer.status, body.get("error", {}).get("code")) == (status, code), body


async def test_a_larger_file_is_refused_before_it_is_read(shared_stack: Stack, api: Api) -> None:
    headers = {
        "authorization": f"Bearer {shared_stack.key}",
        "content-type": f"multipart/form-data; boundary={BOUNDARY}",
        "content-length": str(513 * 1024 * 1024),
        "expect": "100-continue",
    }
    url = f"{api.base_url}/files"
    async with shared_stack.session.post(url, data=b"", headers=headers) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "request_too_large"
    answer_to_json = await api.call("POST", "/files", {"purpose": "batch"})
    assert (answer_to_json.status, answer_to_json.error["code"]) == (415, "unsupported_media_type")


async def test_an_id_that_is_none_is_not_found(api: Api) -> None:
    for path in ("/files/file-1", "/files/x", f"/files/file-{'0' * 32}/content"):
        assert (await api.call("GET", path)).status == 404, path
        if not path.endswith("content"):
            assert (await api.call("DELETE", path)).status == 404, path
    assert (await api.call("GET", "/files?after=x")).error["param"] == "after"
    assert (await api.call("GET", "/files?limit=0")).error["param"] == "limit"


async def test_another_projects_file_looks_like_an_unknown_id(
    client: openai.AsyncOpenAI, shared_stack: Stack
) -> None:
    file = await _upload(client)
    other = (await limited_project(shared_stack)).key
    stranger = shared_stack.openai(key=other)
    for use in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await use(file.id)
        assert caught.value.body == {
            "message": f"No such File object: {file.id}",
            "type": "invalid_request_error",
            "param": "id",
            "code": None,
        }
    assert [each async for each in stranger.files.list()] == []
    assert await client.files.retrieve(file.id) == file


async def test_a_project_stores_no_more_than_its_quotas(shared_stack: Stack) -> None:
    project = await limited_project(shared_stack, files=2, file_bytes=5000)
    client = shared_stack.openai(key=project.key)
    first = await _upload(client, b"x" * 3000)
    with pytest.raises(openai.RateLimitError) as caught:
        await _upload(client, b"x" * 3000)
    assert caught.value.code == "insufficient_quota"
    assert "5000 bytes of stored files" in caught.value.message
    await _upload(client, b"x")
    with pytest.raises(openai.RateLimitError, match="2 stored files"):
        await _upload(client, b"x")
    await client.files.delete(first.id)
    assert await _upload(client, b"x" * 3000)


async def test_a_project_with_zero_retention_stores_no_files(shared_stack: Stack) -> None:
    project = await limited_project(shared_stack)
    await shared_stack.value(
        "UPDATE projects SET policy = '{\"zero_retention\": true}' WHERE id = %s RETURNING id",
        project.id,
    )
    with pytest.raises(openai.BadRequestError) as caught:
        await _upload(shared_stack.openai(key=project.key))
    assert caught.value.code == "unsupported_parameter"


async def test_a_key_for_files_uses_files_only(shared_stack: Stack) -> None:
    project = await limited_project(shared_stack)
    await shared_stack.value(
        "UPDATE api_keys SET scopes = '{files}' WHERE project_id = %s RETURNING id", project.id
    )
    client = shared_stack.openai(key=project.key)
    file = await _upload(client)
    assert (await client.files.content(file.id)).content == b"some text"
    with pytest.raises(openai.PermissionDeniedError):
        await client.responses.create(model="m", input="x")
