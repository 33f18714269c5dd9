"""Server tools in conversations: outputs stay in the history, approvals work across responses."""

import json
from collections.abc import Awaitable, Callable

import pytest

from models.db.database import open_pool
from models.ids import parse_response_id
from tests.support.api import JSON, Api
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.mcp_servers import McpServers
from tests.support.sql import run_sql
from tests.support.stack import Stack
from tests.support.tool_turns import counting_server, tool_turn
from tests.support.worker_rows import run_purge, settings_for


@pytest.fixture
def api(tool_stack: Stack) -> Api:
    """A raw client of the deployment with tools."""
    return tool_stack.api()


async def delete(stack: Stack, api: Api, response_id: str) -> None:
    """Removes the response by a request."""
    assert (await api.call("DELETE", f"/responses/{response_id}")).status == 200


async def expire(stack: Stack, api: Api, response_id: str) -> None:
    """Removes the response by its retention."""
    async with open_pool(settings_for(stack.dsn), "purging", 1) as pool:
        values = {"id": parse_response_id(response_id)}
        await run_sql(
            pool,
            "UPDATE responses SET expires_at = now() - interval '1 second' WHERE id = %(id)s",
            values,
        )
        await run_purge(settings_for(stack.dsn))
        assert not await run_sql(pool, "SELECT 1 FROM responses WHERE id = %(id)s", values)


Removal = Callable[[Stack, Api, str], Awaitable[None]]


@pytest.mark.parametrize("remove", [delete, expire])
async def test_tool_outputs_stay_in_the_conversation_after_their_response(
    tool_stack: Stack, api: Api, fake: FakeUpstream, mcp_servers: McpServers, remove: Removal
) -> None:
    conversation_id = (await api.call("POST", "/conversations", {})).body["id"]
    tools = [counting_server(mcp_servers)]
    keys = [f"outlives {remove.__name__} {number}" for number in range(2)]
    calls = tool_turn(*(("count_unsafe", key) for key in keys))
    first = await api.create(
        fake.script(calls, reply("Counted.")),
        input="Count.",
        tools=tools,
        conversation=conversation_id,
    )
    assert [item["type"] for item in first["output"]] == [
        "mcp_list_tools",
        "mcp_call",
        "mcp_call",
        "message",
    ]
    earlier = fake.script(reply("ok"))
    await api.create(earlier, input="Again?", tools=tools, conversation=conversation_id)
    await remove(tool_stack, api, first["id"])
    assert (await api.call("GET", f"/responses/{first['id']}")).status == 404
    later = fake.script(reply("ok"))
    await api.create(later, input="And now?", tools=tools, conversation=conversation_id)
    messages = fake.requests_for(earlier)[0].messages
    assert fake.requests_for(later)[0].messages[: len(messages)] == messages, (
        "the history has changed"
    )
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    items = (await api.call("GET", f"/conversations/{conversation_id}/items?order=asc")).body[
        "data"
    ]
    assert [item["type"] for item in items[:5]] == [
        "message",
        "mcp_list_tools",
        "mcp_call",
        "mcp_call",
        "message",
    ]
    assert all(item["status"] == "completed" and "turn" not in item for item in items)


async def test_a_call_can_be_approved_in_a_later_response_of_a_conversation(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    conversation_id = (await api.call("POST", "/conversations", {})).body["id"]
    tool = {**counting_server(mcp_servers), "require_approval": "always"}
    key = "approved in a conversation"
    first = await api.create(
        fake.script(tool_turn(("count_unsafe", key))), tools=[tool], conversation=conversation_id
    )
    request = first["output"][-1]
    assert request["type"] == "mcp_approval_request"

    def approval(name: str) -> JSON:
        return {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}

    never = fake.script(reply("never"))
    for items, tools, param in (
        ([approval("mcpr_nowhere")], [tool], "input"),
        ([approval(request["id"])], [], "tools"),
    ):
        refused = await api.call(
            "POST",
            "/responses",
            {"model": never, "input": items, "tools": tools, "conversation": conversation_id},
        )
        assert (refused.status, refused.error["param"]) == (400, param)
    model = fake.script(reply("Counted."))
    done = await api.create(
        model, input=[approval(request["id"])], tools=[tool], conversation=conversation_id
    )
    assert [item["type"] for item in done["output"]] == ["mcp_call", "message"]
    assert len(mcp_servers.tool_calls.calls_with(key)) == 1
    messages = [json.dumps(message) for message in fake.requests_for(model)[0].messages]
    assert any("call 1" in message for message in messages)
    await api.create(
        fake.script(reply("ok")), input="Thanks.", tools=[tool], conversation=conversation_id
    )
    assert len(mcp_servers.tool_calls.calls_with(key)) == 1, "the call ran again"


async def test_an_approval_can_be_added_before_the_response_that_uses_it(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    conversation_id = (await api.call("POST", "/conversations", {})).body["id"]
    tool = {**counting_server(mcp_servers), "require_approval": "always"}
    key = "approved beforehand"
    first = await api.create(
        fake.script(tool_turn(("count_unsafe", key))), tools=[tool], conversation=conversation_id
    )
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": first["output"][-1]["id"],
        "approve": True,
    }
    assert (
        await api.call("POST", f"/conversations/{conversation_id}/items", {"items": [approval]})
    ).status == 200
    without_tools = await api.create(
        fake.script(reply("Not without the server.")), input="Hm.", conversation=conversation_id
    )
    assert [item["type"] for item in without_tools["output"]] == ["message"]
    done = await api.create(
        fake.script(reply("Counted.")), input="Go on.", tools=[tool], conversation=conversation_id
    )
    assert [item["type"] for item in done["output"]] == ["mcp_call", "message"]
    assert len(mcp_servers.tool_calls.calls_with(key)) == 1
