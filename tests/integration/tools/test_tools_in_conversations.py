"""Calls that the server runs, in conversations: what the model was told of them stays, approvals work across responses."""

import json
from collections.abc import Awaitable, Callable

import pytest

from models.db.database import fetch, open_pool
from models.db.queries import statements
from models.ids import parse_response_id
from tests.support.api import JSON, Api
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.mcp_servers import McpServers
from tests.support.stack import Stack
from tests.support.tool_turns import counting_server, tool_turn
from tests.support.worker_rows import settings_for


@pytest.fixture
def api(tool_stack: Stack) -> Api:
    """A raw client of the deployment with tools."""
    return tool_stack.api()


async def deleted(stack: Stack, api: Api, response_id: str) -> None:
    """By request."""
    assert (await api.call("DELETE", f"/responses/{response_id}")).status == 200


async def expired(stack: Stack, api: Api, response_id: str) -> None:
    """By retention."""
    pool = open_pool(settings_for(stack.dsn), "purging", 1)
    await pool.open(wait=True)
    values = {"id": parse_response_id(response_id)}
    await fetch(
        pool,
        "UPDATE responses SET expires_at = now() - interval '1 second' WHERE id = %(id)s",
        values,
    )
    assert values["id"] in {row["id"] for row in await fetch(pool, statements.PURGE, {})}
    await pool.close()


Gone = Callable[[Stack, Api, str], Awaitable[None]]


@pytest.mark.parametrize("gone", [deleted, expired])
async def test_what_the_model_was_told_outlives_the_response(
    tool_stack: Stack, api: Api, fake: FakeUpstream, mcp_servers: McpServers, gone: Gone
) -> None:
    named = (await api.call("POST", "/conversations", {})).body["id"]
    tools = [counting_server(mcp_servers)]
    keys = [f"outlives {gone} {at}" for at in range(2)]
    calls = tool_turn(*(("count_unsafe", key) for key in keys))
    first = await api.create(
        fake.script(calls, reply("Counted.")), input="Count.", tools=tools, conversation=named
    )
    assert [item["type"] for item in first["output"]] == [
        "mcp_list_tools",
        "mcp_call",
        "mcp_call",
        "message",
    ]
    before = fake.script(reply("ok"))
    await api.create(before, input="Again?", tools=tools, conversation=named)
    await gone(tool_stack, api, first["id"])
    assert (await api.call("GET", f"/responses/{first['id']}")).status == 404
    after = fake.script(reply("ok"))
    await api.create(after, input="And now?", tools=tools, conversation=named)
    told = fake.requests_for(before)[0].messages
    assert fake.requests_for(after)[0].messages[: len(told)] == told, "to the byte what it was"
    assert [message["role"] for message in told] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    items = (await api.call("GET", f"/conversations/{named}/items?order=asc")).body["data"]
    assert [item["type"] for item in items[:5]] == [
        "message",
        "mcp_list_tools",
        "mcp_call",
        "mcp_call",
        "message",
    ]
    assert all(item["status"] == "completed" and "turn" not in item for item in items)


async def test_a_call_is_approved_across_a_conversation(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    named = (await api.call("POST", "/conversations", {})).body["id"]
    tool = {**counting_server(mcp_servers), "require_approval": "always"}
    key = "approved in a conversation"
    asking = await api.create(
        fake.script(tool_turn(("count_unsafe", key))), tools=[tool], conversation=named
    )
    request = asking["output"][-1]
    assert request["type"] == "mcp_approval_request"

    def approval(name: str) -> JSON:
        return {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}

    never = fake.script(reply("never"))
    for given, tools, param in (
        ([approval("mcpr_nowhere")], [tool], "input"),
        ([approval(request["id"])], [], "tools"),
    ):
        refused = await api.call(
            "POST",
            "/responses",
            {"model": never, "input": given, "tools": tools, "conversation": named},
        )
        assert (refused.status, refused.error["param"]) == (400, param)
    model = fake.script(reply("Counted."))
    done = await api.create(
        model, input=[approval(request["id"])], tools=[tool], conversation=named
    )
    assert [item["type"] for item in done["output"]] == ["mcp_call", "message"]
    assert len(mcp_servers.tool_calls.calls_with(key)) == 1
    told = [json.dumps(message) for message in fake.requests_for(model)[0].messages]
    assert any("call 1" in message for message in told)
    await api.create(fake.script(reply("ok")), input="Thanks.", tools=[tool], conversation=named)
    assert len(mcp_servers.tool_calls.calls_with(key)) == 1, "nothing is called again"


async def test_an_approval_may_be_added_before_the_response_that_acts_on_it(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    named = (await api.call("POST", "/conversations", {})).body["id"]
    tool = {**counting_server(mcp_servers), "require_approval": "always"}
    key = "approved beforehand"
    asking = await api.create(
        fake.script(tool_turn(("count_unsafe", key))), tools=[tool], conversation=named
    )
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": asking["output"][-1]["id"],
        "approve": True,
    }
    assert (
        await api.call("POST", f"/conversations/{named}/items", {"items": [approval]})
    ).status == 200
    without = await api.create(
        fake.script(reply("Not without the server.")), input="Hm.", conversation=named
    )
    assert [item["type"] for item in without["output"]] == ["message"]
    done = await api.create(
        fake.script(reply("Counted.")), input="Go on.", tools=[tool], conversation=named
    )
    assert [item["type"] for item in done["output"]] == ["mcp_call", "message"]
    assert len(mcp_servers.tool_calls.calls_with(key)) == 1
