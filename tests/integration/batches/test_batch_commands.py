"""Batches, as operators see them, and the webhook of the end of one."""

import asyncio
import json

from typer.testing import CliRunner, Result

from cli.main import app
from tests.support import keys
from tests.support.api import until
from tests.support.batches import line, start
from tests.support.fake_upstream import FakeUpstream, hang
from tests.support.stack import Stack
from tests.support.webhook_receiver import webhook_receiver
from tests.support.webhooks import Hooks, unwrap


async def _run(stack: Stack, *arguments: str) -> Result:
    runner = CliRunner(env=stack.environment())
    return await asyncio.to_thread(
        runner.invoke, app, ["batches", *arguments], catch_exceptions=False
    )


async def test_an_operator_cancels_a_batch_whose_end_is_delivered_without_those_of_its_requests(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    hooks = await asyncio.to_thread(Hooks, tool_stack, "operated")
    client = tool_stack.openai(key=keys.create(tool_stack.dsn, hooks.project))
    model = fake.script([hang()])
    async with webhook_receiver() as receiver:
        endpoint, secret = await hooks.create(receiver)
        batch = await start(client, [line("a", model)])
        await until(lambda: fake.requests_for(model), within=30)
        listed = await _run(tool_stack, "list", "--project", hooks.project, "--open", "--json")
        assert [one["id"] for one in json.loads(listed.stdout)] == [batch.id]

        cancelled = await _run(tool_stack, "cancel", batch.id, "--follow", "--json")
        assert cancelled.exit_code == 0, cancelled.output
        assert json.loads(cancelled.stdout)["status"] == "cancelled"
        assert f"{batch.id}  cancelled" in cancelled.stderr
        await until(lambda: receiver.hooks, within=30)
        assert len(await hooks.deliveries(endpoint)) == 1
        await hooks.run("delete", endpoint)
    event = unwrap(receiver.hooks[0], secret)
    assert (event.type, event.data.id) == ("batch.cancelled", batch.id)

    again = await _run(tool_stack, "cancel", batch.id, "--json")
    assert (again.exit_code, json.loads(again.stdout)["status"]) == (0, "cancelled")
    assert (await client.batches.cancel(batch.id)).status == "cancelled", "the same over the API"
    [audited] = await hooks.sql(f"SELECT count(*) AS n FROM audit WHERE object = '{batch.id}'")
    assert audited["n"] == 1, "what changes nothing has no entry"
    assert "window       24h" in (await _run(tool_stack, "show", batch.id)).stdout
    assert (await _run(tool_stack, "show", "batch_1")).exit_code == 1
