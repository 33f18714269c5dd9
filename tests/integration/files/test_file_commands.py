"""Files, as operators see and delete them."""

import asyncio
import json

import openai
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from tests.support import keys
from tests.support.stack import Stack


async def _run(stack: Stack, *arguments: str) -> Result:
    runner = CliRunner(env=stack.environment())
    return await asyncio.to_thread(
        runner.invoke, app, ["files", *arguments], catch_exceptions=False
    )


async def test_an_operator_lists_shows_and_deletes_files(shared_stack: Stack) -> None:
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "archive")
    client = shared_stack.openai(key=key)
    first = await client.files.create(file=("a.txt", b"text"), purpose="user_data")
    second = await client.files.create(file=("b.pdf", b"%PDF-1.7"), purpose="assistants")
    listed = await _run(shared_stack, "list", "--project", "archive", "--json")
    assert [one["id"] for one in json.loads(listed.stdout)] == [second.id, first.id]
    some = await _run(shared_stack, "list", "--project", "archive", "--purpose", "user_data")
    assert first.id in some.stdout
    assert second.id not in some.stdout

    shown = json.loads((await _run(shared_stack, "show", second.id, "--json")).stdout)
    assert (shown["state"], shown["bytes"], shown["parts"]) == ("stored", 8, 1)
    assert shown["media_type"] == "application/pdf"

    deleted = await _run(shared_stack, "delete", second.id)
    assert f"{second.id}  deleted" in deleted.stdout
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(second.id)
    audited = "SELECT actor || project FROM audit WHERE action = 'file.delete' AND object = %s"
    assert await shared_stack.value(audited, second.id) == "operatorarchive"
    for command in (["delete", second.id], ["show", "file-1"], ["delete", "file-1"]):
        assert (await _run(shared_stack, *command)).exit_code == 1
