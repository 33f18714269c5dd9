"""The console makes endpoints of webhooks, tests them, and says when an event is tried next."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.support.api import until
from tests.support.audit import audit_entries
from tests.support.console import OPERATOR_TOKEN, ConsoleUser, console_user
from tests.support.stack import Stack
from tests.support.webhook_receiver import webhook_receiver
from tests.support.webhooks import Hooks, unwrap

_NAME = "jobs <script>alert(1)</script>"


@pytest.fixture
async def user(tool_stack: Stack) -> AsyncIterator[ConsoleUser]:
    async with console_user(tool_stack, OPERATOR_TOKEN) as one:
        yield one


async def test_an_endpoint_is_made_and_tested_and_its_pause_is_shown(
    tool_stack: Stack, user: ConsoleUser
) -> None:
    hooks = await asyncio.to_thread(Hooks, tool_stack, "console-hooks")
    form = await user.get(f"/console/webhooks/new?project={hooks.project}")
    token = ("form_token", form.form_token)
    async with webhook_receiver() as receiver:
        fields = [token, ("project", hooks.project), ("name", _NAME), ("url", receiver.url)]
        for changed, words in (
            (("url", "http://10.9.9.9/"), "may not be reached"),
            (("project", "nobodys"), "There is no project nobodys"),
            (("type", "batch.begun"), "There are response.completed"),
        ):
            kept = [each for each in fields if each[0] != changed[0]]
            refused = await user.post("/console/webhooks/new", [*kept, changed])
            assert (refused.status, words in refused.text) == (400, True), refused.text
            assert "&lt;script&gt;" in refused.html, "what was written stays in the form"
        made = await user.post("/console/webhooks/new", [*fields, ("type", "response.failed")])
        secret, endpoint = (
            re.search(rf"{prefix}[A-Za-z0-9+/=]+", made.text)[0]  # type: ignore[index]
            for prefix in ("whsec_", "whe_")
        )
        assert "<script>alert" not in made.html
        [entry] = await audit_entries(tool_stack, action="webhook.create", object=endpoint)
        assert (entry["project"], entry["os_user"]) == (hooks.project, "console (operator token)")
        path = f"/console/webhooks/{endpoint}"
        page = await user.get(path)
        assert secret not in page.html
        assert _NAME in page.text

        tested = await user.post("/console/webhooks/test", [token, ("id", endpoint)])
        assert "A worker delivers a test event next" in tested.text
        await until(lambda: receiver.hooks, within=30)
        event = unwrap(receiver.hooks[0], secret)
        assert event.type == "response.failed", "one that it gets"
        await hooks.until_delivered(endpoint, 1)

        receiver.answer = lambda: web.Response(status=500)
        await user.post("/console/webhooks/test", [token, ("id", endpoint)])
        await hooks.until_state("failing")
        # Much later than the pause of the delivery, which has failed once.
        [paused] = await hooks.sql(
            "UPDATE webhook_endpoints SET paused_until = now() + interval '4 min' "
            f"WHERE id = '{endpoint.removeprefix('whe_')}' RETURNING paused_until AS until"
        )
        failing = await user.get(path)
        assert "nothing is sent before" in failing.text
        assert re.search(r"in 4 min, \d{4}-", failing.text), failing.text
        [waiting] = [
            each for each in await hooks.deliveries(endpoint) if each["state"] == "waiting"
        ]
        assert waiting["next_attempt_at"][:19] == paused["until"].isoformat()[:19]
        await hooks.run("disable", endpoint)
        refused = await user.post("/console/webhooks/test", [token, ("id", endpoint)])
        assert (refused.status, "Enable the endpoint first." in refused.text) == (409, True)
        assert "when it is enabled" in (await user.get(path)).text
        await hooks.run("delete", endpoint)
