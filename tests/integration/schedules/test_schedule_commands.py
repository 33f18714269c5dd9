"""`backburner schedules`: what an operator does, with its entries in the audit log."""

import asyncio
import json
import secrets
from pathlib import Path

from tests.integration.operator.test_operations import backburner, command_facts
from tests.support import keys
from tests.support.api import until
from tests.support.audit import audit_entries
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack


async def test_an_operator_makes_runs_and_deletes_a_schedule(
    shared_stack: Stack, fake: FakeUpstream, tmp_path: Path
) -> None:
    project, file = f"commands-{secrets.token_hex(4)}", tmp_path / "template.json"
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, project)
    file.write_text(json.dumps({"model": fake.script(reply("x")), "input": "private input"}))
    options = ("--key", key, "--cron", "0 7 29 2 *", "--time-zone", "Europe/Berlin")
    made = await backburner(shared_stack, "schedules", "create", str(file), *options)
    assert made.code == 0, made.err
    schedule = made.out.strip()
    api = shared_stack.api(key=key)
    shown = (await api.call("GET", f"/schedules/{schedule}")).body
    assert (shown["cron"], shown["time_zone"]) == ("0 7 29 2 *", "Europe/Berlin")

    listed = await backburner(shared_stack, "schedules", "list", "--project", project)
    assert "0 7 29 2 * Europe/Berlin" in listed.out
    asked = await backburner(shared_stack, "schedules", "run", schedule)
    path = f"/schedules/{schedule}/runs"

    async def has_run() -> bool:
        return bool((await api.call("GET", path)).body["data"])

    await until(has_run, 20)
    facts = await command_facts(shared_stack, "schedules", "show", schedule)
    [run] = facts["runs"]
    assert (run["id"], run["status"], run["requested"]) == (asked.out.strip(), "created", True)
    assert len(facts["next_runs"]) == 5
    text = (await backburner(shared_stack, "schedules", "show", schedule)).out
    assert run["response"] in text
    assert "private input" not in text + json.dumps(facts)
    for command, status in (("pause", "paused"), ("resume", "active"), ("delete", "deleted")):
        done = await backburner(shared_stack, "schedules", command, schedule)
        assert done.out.strip() == f"{schedule} is {status}"
        [entry] = [
            each
            for each in await audit_entries(shared_stack, action=f"schedule.{command}")
            if each["object"] == schedule
        ]
        assert (entry["actor"], entry["project"]) == ("operator", project)
    gone = await backburner(shared_stack, "schedules", "show", schedule)
    assert (gone.code, "there is no schedule" in gone.err) == (1, True)


async def test_what_the_api_refuses_is_refused_here_too(
    shared_stack: Stack, tmp_path: Path
) -> None:
    file = tmp_path / "template.json"
    file.write_text(json.dumps({"model": "demo", "input": "x", "temperature": 9}))
    project = f"commands-{secrets.token_hex(4)}"
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, project)
    create = ("schedules", "create", str(file), "--key", key)
    refused = await backburner(shared_stack, *create, "--cron", "0 7 * * *")
    assert (refused.code, "temperature" in refused.err) == (1, True)
    refused = await backburner(shared_stack, *create, "--cron", "7")
    assert (refused.code, "five fields" in refused.err) == (1, True)
    file.write_text("{")
    refused = await backburner(shared_stack, *create, "--cron", "0 7 * * *")
    assert (refused.code, "is no JSON" in refused.err) == (2, True)
