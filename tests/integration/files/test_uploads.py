"""Uploads in parts: they become one file, or nothing."""

import hashlib
from typing import Any
from uuid import uuid4

import openai
import pytest

from models.ids import UPLOAD, file_id
from tests.support.audit import audit_entries
from tests.support.projects import limited_project
from tests.support.stack import Stack


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


async def _begin(client: openai.AsyncOpenAI, size: int, name: str = "a.txt") -> str:
    upload = await client.uploads.create(
        bytes=size, filename=name, mime_type="text/plain", purpose="user_data"
    )
    assert (upload.status, upload.bytes, upload.filename) == ("pending", size, name)
    assert upload.expires_at == upload.created_at + 3600
    return upload.id


async def test_parts_become_a_file_in_the_order_of_their_ids(client: openai.AsyncOpenAI) -> None:
    upload = await _begin(client, 10)
    last = await client.uploads.parts.create(upload, data=b"56789")
    first = await client.uploads.parts.create(upload, data=b"01234")
    unused = await client.uploads.parts.create(upload, data=b"unused")
    assert {each.upload_id for each in (first, last, unused)} == {upload}
    with pytest.raises(openai.BadRequestError, match="MD5"):
        await client.uploads.complete(upload, part_ids=[last.id, first.id], md5=_md5(b"0123456789"))
    done = await client.uploads.complete(
        upload, part_ids=[first.id, last.id], md5=_md5(b"0123456789")
    )
    assert done.status == "completed"
    assert done.file is not None
    assert (done.file.bytes, done.file.filename, done.file.expires_at) == (10, "a.txt", None)
    assert (await client.files.content(done.file.id)).content == b"0123456789"
    for again in (
        client.uploads.complete(upload, part_ids=[first.id]),
        client.uploads.cancel(upload),
        client.uploads.parts.create(upload, data=b"more"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await again
        assert caught.value.code == "upload_not_pending"


async def test_an_upload_that_does_not_fit_stays_open_until_it_is_cancelled(
    client: openai.AsyncOpenAI, shared_stack: Stack
) -> None:
    upload = await _begin(client, 4, "a.png")
    part = await client.uploads.parts.create(upload, data=b"text")
    more = await client.uploads.parts.create(upload, data=b"more")
    for ids, code in (
        ([part.id, more.id], "invalid_value"),
        ([], "invalid_value"),
        ([part.id, part.id], "invalid_value"),
        (["part_" + "0" * 32], "invalid_value"),
        ([part.id], "invalid_file"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.uploads.complete(upload, part_ids=ids)
        assert caught.value.code == code, ids
    assert (await client.uploads.cancel(upload)).status == "cancelled"
    [entry] = await audit_entries(shared_stack, object=upload)
    assert (entry["actor"], entry["action"]) == ("key", "upload.cancel")
    assert upload not in str([each async for each in client.files.list()])


async def test_parts_are_not_stored_without_end_beside_the_quota(
    client: openai.AsyncOpenAI,
) -> None:
    upload = await _begin(client, 4, "a.txt")
    for data in (b"text", b"tex"):
        await client.uploads.parts.create(upload, data=data)
    with pytest.raises(openai.APIStatusError) as caught:
        await client.uploads.parts.create(upload, data=b"text")
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
    await client.uploads.parts.create(upload, data=b"t")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.uploads.parts.create(upload, data=b"t")
    assert refused.value.code == "too_many_parts"


async def test_completing_counts_as_a_request(shared_stack: Stack) -> None:
    """It reads all of the upload: with a wrong `md5` as often as a client likes."""
    project = await limited_project(shared_stack, requests_per_minute=4)
    client = shared_stack.openai(key=project.key)
    upload = await _begin(client, 4)
    part = await client.uploads.parts.create(upload, data=b"text")
    for _ in range(2):
        with pytest.raises(openai.BadRequestError, match="MD5"):
            await client.uploads.complete(upload, part_ids=[part.id], md5="0" * 32)
    with pytest.raises(openai.RateLimitError):
        await client.uploads.complete(upload, part_ids=[part.id], md5="0" * 32)


async def test_a_bad_upload_is_refused(client: openai.AsyncOpenAI) -> None:
    good: dict[str, Any] = {
        "bytes": 1,
        "filename": "a",
        "mime_type": "text/plain",
        "purpose": "user_data",
    }
    for change, code in (
        ({"bytes": 0}, "integer_below_min_value"),
        ({"bytes": "1"}, "invalid_type"),
        ({"filename": None}, "missing_required_parameter"),
        ({"purpose": "batch_output"}, "invalid_value"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "integer_below_min_value"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.uploads.create(**(good | change))
        assert caught.value.code == code
    with pytest.raises(openai.APIStatusError, match="536870912") as too_large:
        await client.uploads.create(**(good | {"bytes": 2**40}))
    assert too_large.value.status_code == 413
    with pytest.raises(openai.NotFoundError):
        await client.uploads.cancel("upload_" + "0" * 32)


async def test_a_file_that_a_batch_writes_is_no_upload(
    client: openai.AsyncOpenAI, shared_stack: Stack
) -> None:
    file = uuid4()
    await shared_stack.value(
        "INSERT INTO files (id, project_id, filename, purpose, bytes)"
        " SELECT %s, id, 'output.jsonl', 'batch_output', 0 FROM projects WHERE name = 'default'"
        " RETURNING id",
        file,
    )
    upload = file_id(file, UPLOAD)
    for change in (
        client.uploads.cancel(upload),
        client.uploads.parts.create(upload, data=b"forged"),
        client.uploads.complete(upload, part_ids=["part_" + "0" * 32]),
    ):
        with pytest.raises(openai.NotFoundError):
            await change
