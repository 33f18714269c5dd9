"""An operator runs a response again, and sees what waits for what."""

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from tests.support.api import Api, until
from tests.support.audit import audit_entries
from tests.support.console import OPERATOR_TOKEN, READ_ONLY_TOKEN, console_user
from tests.support.fake_upstream import FakeUpstream, fail, hang, reply, text
from tests.support.stack import Stack


async def _run(stack: Stack, *arguments: str) -> Result:
    runner = CliRunner(env=stack.environment())
    return await asyncio.to_thread(
        runner.invoke, app, ["responses", *arguments], catch_exceptions=False
    )


async def test_commands_run_a_response_again(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    failed = await api.wait_for_end(await api.create_background(fake.script([fail()]), input="Go."))
    other = fake.script(reply("again"))
    again = ("retry", failed["id"], "--with-model")
    result = await _run(shared_stack, *again, other, "--json")
    assert result.exit_code == 0, result.output
    [made] = json.loads(result.stdout)
    ended = await api.wait_for_end(made["id"])
    assert (ended["output_text"], ended["retry_of"]) == ("again", failed["id"])
    assert (await api.get(failed["id"]))["retried_by"] == made["id"]
    assert f"run again  by {made['id']}" in (await _run(shared_stack, "show", failed["id"])).stdout
    assert f"runs again  {failed['id']}" in (await _run(shared_stack, "show", made["id"])).stdout
    refused = await _run(shared_stack, *again, "")
    assert (refused.exit_code, "no name of a model" in refused.stderr) == (1, True)
    [entry] = await audit_entries(shared_stack, action="response.retry", object=failed["id"])
    assert entry["details"] == {"retry": made["id"], "model": other}
    assert (await _run(shared_stack, "retry")).exit_code == 2, "neither ids nor a filter"


@pytest.mark.long
async def test_a_command_runs_again_what_fits_a_filter_and_was_not_run_again(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([fail()], [fail()], reply("completed"), reply("again"))
    ids = [await api.create_background(model, input="Go.")]
    for _ in range(2):
        await api.wait_for_end(ids[-1])
        ids.append(await api.create_background(model, input="Go."))
    assert (await api.wait_for_end(ids[-1]))["status"] == "completed"
    again = ("retry", "--model", model, "--since", "1h")
    asked = await _run(shared_stack, *again)
    assert (asked.exit_code, "With --yes: run 2 responses again" in asked.stderr) == (1, True)
    assert [each[:21] in asked.stdout for each in ids] == [True, True, False]
    assert len(fake.requests_for(model)) == 3
    made = json.loads((await _run(shared_stack, *again, "--yes", "--json")).stdout)
    assert {each["retry_of"] for each in made} == set(ids[:2])
    for each in made:
        assert (await api.wait_for_end(each["id"]))["output_text"] == "again"
    nothing = await _run(shared_stack, *again, "--yes")
    assert (nothing.exit_code, "2 more fit, but were run again before" in nothing.stderr) == (0, 1)


async def test_the_console_runs_responses_again(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([fail()], reply("again"))
    failed = await api.wait_for_end(await api.create_background(model, input="Go."))
    page, ask = f"/console/responses/{failed['id']}", f"/console/retry?id={failed['id']}"
    async with console_user(shared_stack) as reader:
        await reader.log_in(READ_ONLY_TOKEN)
        assert "Run again" not in (await reader.get(page)).text
        assert (await reader.get(ask)).status == 403
    async with console_user(shared_stack, OPERATOR_TOKEN) as operator:
        assert "Run again" in (await operator.get(page)).text
        form = await operator.get(ask)
        assert f'<option value="{model}">' in form.html
        fields = [("id", failed["id"]), ("model", "")]
        assert (await operator.post("/console/retry", fields)).status == 403, "without its token"
        shown = await operator.post("/console/retry", [*fields, ("form_token", form.form_token)])
        assert f"Runs again {failed['id'][:21]}" in shown.text
        assert "One response runs again in the background." in shown.text
        new = (await api.get(failed["id"]))["retried_by"]
        assert (await api.wait_for_end(new))["output_text"] == "again"

        other, open_one = fake.script(reply("other")), fake.script([text("x"), hang()])
        running = await api.create_background(open_one)
        fields = [("id", each) for each in (failed["id"], new, running)]
        fields += [("model", other), ("back", "/console/responses?status=completed")]
        ids = "&".join(f"id={value}" for name, value in fields if name == "id")
        asked = await operator.get(f"/console/retry?{ids}")
        assert "Run 3 responses again?" in asked.text
        assert "Not run again: it has not ended" in asked.text
        assert f"was run again before, as {new[:21]}" in asked.text
        done = await operator.post("/console/retry", [*fields, ("form_token", form.form_token)])
        assert "2 responses run again in the background. Not done" in done.text
        assert "Not done with 1 response: it has not ended." in done.text
        newest = (await api.get(new))["retried_by"]
        ended = await api.wait_for_end(newest)
        assert (ended["model"], ended["output_text"]) == (other, "other")
        alone = [("id", running), ("form_token", form.form_token)]
        refused = await operator.post("/console/retry", alone)
        assert (refused.status, "it has not ended" in refused.text) == (409, True)
        await api.cancel(running)


async def test_operators_see_what_a_response_waits_for(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    first = await api.create_background(model)
    await until(lambda: fake.requests_for(model))
    waiting = await api.create_background(
        fake.script(reply("z")), previous_response_id=first, wait_for_previous=True
    )
    shown = await _run(shared_stack, "show", waiting, "--json")
    facts = json.loads(shown.stdout)
    assert (facts["waits"], facts["previous_response"]) == (True, first)
    assert facts["why"] == f"it waits for the end of {first}"
    assert f"waits for  {first}" in (await _run(shared_stack, "show", waiting)).stdout
    refused = await _run(shared_stack, "requeue", waiting)
    assert (refused.exit_code, "it waits for its previous" in refused.stdout) == (1, True)
    async with console_user(shared_stack) as operator:
        await operator.log_in(OPERATOR_TOKEN)
        page = await operator.get(f"/console/responses/{waiting}")
    assert f"it waits for the end of {first}" in page.text
    assert "Waits for" in page.text
    await api.cancel(first)
    await api.wait_for_end(waiting)
    refused = await _run(shared_stack, "retry", waiting)
    assert "its previous response has ended as cancelled" in refused.stderr
