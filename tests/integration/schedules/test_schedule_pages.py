"""The console's pages of schedules, and what may be done there."""

import secrets

from tests.support.api import JSON, until
from tests.support.audit import audit_entries
from tests.support.console import OPERATOR_TOKEN, ConsolePage, ConsoleUser, console_user
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack


async def _shown(user: ConsoleUser, path: str) -> ConsolePage:
    page = await user.get(f"/console/{path}")
    assert page.status == 200, page.text
    return page


async def _act(user: ConsoleUser, schedule: str, action: str) -> ConsolePage:
    """Asks and confirms."""
    asked = await _shown(user, f"schedules/change?id={schedule}&action={action}")
    fields = [("form_token", asked.form_token), ("id", schedule), ("action", action)]
    return await user.post("/console/schedules/change", fields, follows=False)


async def test_a_schedule_is_paused_resumed_and_run(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, name = shared_stack.api(), f"<b>{secrets.token_hex(4)}"
    body = {
        "name": name,
        "cron": "0 7 29 2 *",
        "time_zone": "Europe/Berlin",
        "template": {"model": fake.script(reply("x")), "input": "private input"},
    }
    made: JSON = (await api.call("POST", "/schedules", body)).body
    schedule = made["id"]
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await _shown(user, "schedules?status=active&project=default")
        assert f"{name} default" in page.text
        assert name not in page.html
        page = await _shown(user, f"schedules/{schedule}")
        assert "0 7 29 2 * in Europe/Berlin" in page.text
        assert page.text.count("02-29 06:00:00 UTC") == 5
        assert "It has not run yet." in page.text
        assert "private input" not in page.html

        assert (await _act(user, schedule, "pause")).status == 303
        assert "Resume Run now" in (await _shown(user, f"schedules/{schedule}")).text
        assert "There is no schedule" not in (await _shown(user, "schedules?status=paused")).text
        assert (await _act(user, schedule, "pause")).status == 409
        assert (await _act(user, schedule, "run")).status == 303

        async def has_run() -> bool:
            return "created" in (await _shown(user, f"schedules/{schedule}")).text

        await until(has_run, 20)
        assert (await _act(user, schedule, "resume")).status == 303
    runs = (await api.call("GET", f"/schedules/{schedule}/runs")).body["data"]
    assert [run["trigger"] for run in runs] == ["request"]
    for action in ("pause", "run", "resume"):
        entries = await audit_entries(shared_stack, action=f"schedule.{action}")
        [entry] = [each for each in entries if each["object"] == schedule]
        assert (entry["project"], entry["actor"]) == ("default", "operator")
