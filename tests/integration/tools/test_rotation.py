"""The sealing key is replaced while responses run; then the old key is removed."""

import secrets

import pytest

from tests.conftest import PrivateStack
from tests.integration.operator.test_operations import backburner
from tests.support.api import JSON, until
from tests.support.audit import audit_entries
from tests.support.fake_upstream import FakeUpstream, done, finish, reply, text, usage
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn

KEYS = "BACKBURNER_SECRET_KEYS"
HISTORY: list[JSON] = [
    {"role": "user", "content": "My cat is called Momo."},
    {"role": "assistant", "content": "Nice."},
]


@pytest.mark.long
async def test_after_a_rotation_the_old_key_can_be_removed(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    old, new = (secrets.token_urlsafe(32) for _ in range(2))
    settings = {**SHORT_LEASES, **TOOL_SETTINGS, KEYS: old}
    async with McpServers() as mcp, private_stack(settings=settings) as running:
        api, old_worker = running.api(), running.workers[0]
        made = await backburner(running, "webhooks", "create", "https://hooks.example/x")
        assert made.code == 0, made.err
        tool = counting_server(mcp) | {"authorization": "a-token"}
        later = {"cron": "0 0 29 2 *", "template": {"model": "demo", "input": "x", "tools": [tool]}}
        assert (await api.call("POST", "/schedules", later)).status == 200
        compacting = fake.script([text("The cat is Momo."), finish(), usage(40, 6), done()])
        compacted = await api.create(
            compacting, input=[*HISTORY, {"type": "compaction_trigger"}], store=True
        )
        released = mcp.tool_calls.hold("rotation")
        model = fake.script(tool_turn(("count_read_only", "rotation")), reply("done"))
        runs = await api.create_background(model, tools=[tool])
        await until(lambda: mcp.tool_calls.calls_with("rotation"), 20)

        refused = await backburner(running, "secrets", "rotate", environment={KEYS: new})
        assert refused.code == 1
        assert "no configured key opens 5 of them" in refused.err

        rotated = await backburner(
            running, "secrets", "rotate", "--json", environment={KEYS: f"{new},{old}"}
        )
        counts = {
            name: rotated.facts[name]
            for name in ("credentials", "webhooks", "schedules", "items", "unreadable")
        }
        assert counts == {
            "credentials": 1,
            "webhooks": 1,
            "schedules": 1,
            "items": 2,
            "unreadable": 0,
        }
        again = await backburner(running, "secrets", "rotate", environment={KEYS: f"{new},{old}"})
        assert "0 credentials of open responses, 0 webhooks, 0 items" in again.out
        entries = await audit_entries(running, action="secrets.rotate")
        details = [entry["details"] for entry in entries if entry["outcome"] == "done"]
        assert details == [
            {"sealed": 0, "unreadable": 5},
            {"sealed": 5, "unreadable": 0},
            {"sealed": 0, "unreadable": 0},
        ]

        running.settings = {**running.settings, KEYS: new}
        web = await running.start_web()
        await running.start_worker()
        running.kill(old_worker)
        await until(lambda: len(mcp.tool_calls.calls_with("rotation")) == 2, 40)
        released.set()
        api = running.api(web)
        ended = await api.wait_for_end(runs)
        assert item_statuses(ended)[1:] == ["mcp_call completed", "message completed"]
        assert fake.requests_for(model)[1].messages[-1]["tool_call_id"] == "call_0"
        reading = fake.script(reply("Momo."))
        await api.create(reading, previous_response_id=compacted["id"], input="My cat?")
        assert "The cat is Momo." in str(fake.requests_for(reading)[0].body)
