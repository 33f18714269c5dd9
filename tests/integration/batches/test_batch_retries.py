"""The failed requests of a batch run again in a new one."""

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from tests.support import keys
from tests.support.api import until
from tests.support.audit import audit_entries
from tests.support.batches import line, results, start, until_status
from tests.support.console import OPERATOR_TOKEN, console_user
from tests.support.fake_upstream import FakeUpstream, fail, hang, reply
from tests.support.stack import Stack

_EVIL = "<script>alert(1)</script>"


async def _run(stack: Stack, *arguments: str) -> Result:
    runner = CliRunner(env=stack.environment())
    return await asyncio.to_thread(
        runner.invoke, app, ["batches", *arguments], catch_exceptions=False
    )


async def test_failed_requests_run_again_from_the_console_and_by_the_command(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    client = shared_stack.openai(key=keys.create(shared_stack.dsn, "batch-retries"))
    good = fake.script(reply("good"))
    bad = fake.script([fail("Broken.")], [fail("Broken.")], reply("mended"))
    lines = [line("a", good), line(f"b{_EVIL}", bad), line("c", body={"input": "no model"})]
    old = await start(client, lines, metadata={"team": _EVIL})
    old = await until_status(client, old, "completed")
    assert old.request_counts is not None
    assert old.request_counts.failed == 2
    path = f"/console/batches/{old.id}"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get(path)
        assert _EVIL not in page.html
        assert f"2 models {good}, {bad}" in page.text
        assert f"b{_EVIL} 500" in page.text or f"b{_EVIL} 400" in page.text
        assert f"team {_EVIL}" in page.text
        failed = (await results(client, old.error_file_id))[f"b{_EVIL}"]["id"]
        assert f"/responses/resp_{failed.removeprefix('batch_req_')}" in page.html
        assert "Download" not in page.text
        responses = await user.get(f"{path}/responses?status=failed")
        assert responses.html.count("/responses/resp_") == 1
        file = f"{path}/files/error"
        assert (await user.get(file)).status == 403
        assert "Download" in (await user.reveal(path)).text
        assert f'"custom_id":"b{_EVIL}"' in (await user.get(file)).html
        assert (await user.get(f"{path}/files/other")).status == 404
        assert await audit_entries(shared_stack, action="batch.reveal", object=old.id)
        made = await user.post(
            "/console/batches/retry", [("form_token", page.form_token), ("id", old.id)]
        )
        assert f"The failed requests of {old.id} run again in this new batch." in made.text
        assert f"/console/batches/{old.id}" in made.html
    shown = json.loads((await _run(shared_stack, "show", old.id, "--json")).stdout)
    new = shown["retried_by"]
    second = await until_status(client, await client.batches.retrieve(new), "completed")
    assert second.metadata == old.metadata
    assert second.completion_window == old.completion_window
    errors = await results(client, second.error_file_id)
    assert sorted(errors) == sorted([f"b{_EVIL}", "c"]), "both have failed once more"

    again = await _run(shared_stack, "retry", new, "--follow", "--json")
    assert again.exit_code == 0, again.output
    third = json.loads(again.stdout)
    assert (third["retry_of"], third["status"], third["total"]) == (new, "completed", 2)
    assert (third["completed"], third["failed"]) == (1, 1)
    output = await results(client, third["output_file"])
    assert list(output) == [f"b{_EVIL}"]
    [entry] = await audit_entries(shared_stack, action="batch.retry", object=new)
    assert (entry["details"], entry["project"]) == ({"retry": third["id"]}, "batch-retries")


@pytest.mark.long
async def test_what_has_not_ended_or_failed_is_not_run_again(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    client = shared_stack.openai(key=keys.create(shared_stack.dsn, "batch-retries"))
    slow = fake.script([hang()])
    batch = await start(client, [line("never", slow), line("never 2", slow)])
    await until(lambda: fake.requests_for(slow), within=30)
    refused = await _run(shared_stack, "retry", batch.id)
    assert (refused.exit_code, "it has not ended" in refused.stderr) == (1, True)
    await client.batches.cancel(batch.id)
    cancelled = await until_status(client, batch, "cancelled")
    again = json.loads((await _run(shared_stack, "retry", batch.id, "--json")).stdout)
    assert again["retry_of"] == batch.id
    retried = await until_status(client, await client.batches.retrieve(again["id"]), "in_progress")
    assert retried.request_counts is not None
    assert retried.request_counts.total == 2, "also what was cancelled"
    await client.batches.cancel(again["id"])
    assert cancelled.error_file_id is not None
    await client.files.delete(cancelled.error_file_id)
    refused = await _run(shared_stack, "retry", batch.id)
    assert (refused.exit_code, "its error file was deleted" in refused.stderr) == (1, True)
    fine = await start(client, [line("fine", fake.script(reply("yes")))])
    await until_status(client, fine, "completed")
    refused = await _run(shared_stack, "retry", fine.id)
    assert (refused.exit_code, "no request of it has failed" in refused.stderr) == (1, True)
