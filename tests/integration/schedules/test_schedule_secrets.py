"""Credentials in the template of a schedule: sealed, used in each run, and never shown again."""

from tests.integration.tools.test_sealing import assert_clean, tool_with_secrets
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.mcp_servers import McpServers
from tests.support.stack import Stack
from tests.support.tool_turns import item_statuses, tool_turn


async def test_credentials_are_sealed_and_used_in_each_run(
    tool_stack: Stack, mcp_servers: McpServers, fake: FakeUpstream
) -> None:
    api = tool_stack.api()
    turns = [step for key in "ab" for step in (tool_turn(("count_read_only", key)), reply("done"))]
    template = {
        "model": fake.script(*turns),
        "input": "Count.",
        "tools": [{"type": "function", "name": "f"}, tool_with_secrets(mcp_servers)],
    }
    body = {"cron": "0 0 29 2 *", "template": template}
    made = await api.call("POST", "/schedules", body)
    assert made.status == 200, made.raw
    path = f"/schedules/{made.body['id']}"
    tool = made.body["template"]["tools"][1]
    assert tool.keys() == {"type", "server_label", "server_url", "require_approval"}
    for _ in range(2):
        run = await api.call("POST", f"{path}/run")
        ended = await api.wait_for_end(run.body["response_id"])
        assert item_statuses(ended)[1:] == ["mcp_call completed", "message completed"]
        await api.call("POST", path, {"name": "the template stays"})
    for answer in (made, await api.call("GET", path), await api.call("GET", f"{path}/runs")):
        assert_clean("an answer", answer.raw)
    stored = await tool_stack.value("SELECT string_agg(s::text, ' ') FROM schedules s")
    assert_clean("the table", stored.encode())
