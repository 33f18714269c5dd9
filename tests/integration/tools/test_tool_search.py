"""Tool search by this server, with the official client, real MCP servers and a scripted model."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseToolSearchCall, ResponseToolSearchOutputItem

from tests.conftest import PrivateStack
from tests.support.api import JSON, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, Step, call, done, finish, hang, reply, usage
from tests.support.many_tools import SERVERS, server_tools
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.strict_types import check_event, check_response
from tests.support.tool_turns import TOOL_SETTINGS

SEARCH: JSON = {"type": "tool_search"}


def turn(name: str, **arguments: Any) -> list[Step]:
    return [
        call(0, "call_0", name, json.dumps(arguments)),
        finish("tool_calls"),
        usage(),
        done(),
    ]


def deferred_server(mcp: McpServers, label: str) -> JSON:
    return {
        "type": "mcp",
        "server_label": label,
        "server_url": mcp.url(label),
        "server_description": SERVERS[label][0],
        "require_approval": "never",
        "defer_loading": True,
    }


def deferred(name: str, description: str) -> JSON:
    parameters: JSON = {"type": "object", "properties": {}}
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "defer_loading": True,
    }


def offered(fake: FakeUpstream, model: str, request: int) -> list[str]:
    """Names of the functions that the upstream got."""
    body = fake.requests_for(model)[request].body
    return [tool["function"]["name"] for tool in body.get("tools", ())]


async def test_tools_of_sixteen_servers_are_found_loaded_and_listed_once(
    tool_stack: Stack, mcp_servers: McpServers, fake: FakeUpstream
) -> None:
    tools: Any = [SEARCH, *(deferred_server(mcp_servers, label) for label in SERVERS)]
    query = "get rid of a chat text in a slack channel"
    model = fake.script(
        turn("tool_search", query=query), turn("delete_message", message_id="7"), reply("Done.")
    )
    async with tool_stack.api().post_stream(model, background=True, tools=tools) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert [decode(each) for each in await tool_stack.api().replay(stream.response_id)] == events
    search, found, used = stream.final["output"][16:19]
    assert (search["type"], search["execution"]) == ("tool_search_call", "server")
    assert "call_id" not in search
    assert search["arguments"] == {"query": query}
    assert (found["type"], found["execution"], found["status"]) == (
        "tool_search_output",
        "server",
        "completed",
    )
    slack = next(tool for tool in found["tools"] if tool["server_label"] == "slack")
    assert "delete_message" in slack["allowed_tools"]
    assert used["output"] == "slack has done delete_message"
    first_turn = fake.requests_for(model)[0].body["tools"]
    every = [tool for label in SERVERS for tool in server_tools(label)]
    assert len(every) == 1024
    assert len(json.dumps(first_turn)) <= 0.05 * len(json.dumps(every))
    assert offered(fake, model, 0) == ["tool_search"]
    assert "delete_message" in offered(fake, model, 1)
    listed = {
        label: len(mcp_servers.requests_to(mcp_servers.url(label), "tools/list"))
        for label in SERVERS
    }
    again = fake.script(reply("Nothing to do."))
    response = await tool_stack.api().create(again, tools=tools)
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools"] * 16 + ["message"]
    assert listed == {
        label: len(mcp_servers.requests_to(mcp_servers.url(label), "tools/list"))
        for label in SERVERS
    }, "the lists are kept for as long as the servers say"


async def test_a_list_is_not_shared_with_other_credentials(
    tool_stack: Stack, mcp_servers: McpServers, fake: FakeUpstream
) -> None:
    url = mcp_servers.url_with_token("figma", "right")
    server = deferred_server(mcp_servers, "figma") | {"server_url": url}
    for token, status in (("right", 200), ("wrong", 401)):
        tools = [SEARCH, server | {"authorization": token}]
        body = {"model": fake.script(reply("ok")), "input": "x", "tools": tools}
        answer = await tool_stack.api().call("POST", "/responses", body)
        assert answer.status == status


async def test_found_functions_stay_loaded_and_are_called_by_the_client(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    client = tool_stack.openai()
    crm: JSON = {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [deferred("merge_accounts", "Joins two accounts of one customer.")],
    }
    tools: Any = [SEARCH, deferred("brew", "Makes coffee."), crm]
    model = fake.script(
        turn("tool_search", query="combine customer accounts"),
        turn("crm__merge_accounts"),
        reply("Merged."),
    )
    first = await client.responses.create(model=model, input="Merge.", tools=tools)
    search, found, asked = first.output
    assert isinstance(search, ResponseToolSearchCall)
    assert isinstance(found, ResponseToolSearchOutputItem)
    check_response(await tool_stack.api().get(first.id))
    assert asked.type == "function_call"
    assert (asked.namespace, asked.name) == ("crm", "merge_accounts")
    answer: Any = {"type": "function_call_output", "call_id": asked.call_id, "output": "ok"}
    await client.responses.create(
        model=model, input=[answer], previous_response_id=first.id, tools=tools
    )
    assert offered(fake, model, 0) == ["tool_search"]
    assert {"crm__merge_accounts", "tool_search"} <= set(offered(fake, model, 1))
    assert offered(fake, model, 2) == offered(fake, model, 1), "with the stored history"
    whole = fake.script(reply("Merged."))
    history: Any = [{"role": "user", "content": "Merge."}, *first.output, answer]
    await client.responses.create(model=whole, input=history, tools=tools)
    assert offered(fake, whole, 0) == offered(fake, model, 1), "with the client's own history"


async def test_a_conversation_and_a_compaction_keep_what_was_loaded(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    client = tool_stack.openai()
    tools: Any = [SEARCH, deferred("merge_accounts", "Joins two accounts of one customer.")]
    conversation = (await client.conversations.create()).id
    model = fake.script(
        turn("tool_search", query="combine customer accounts"),
        reply("I can."),
        reply("Still."),
    )
    for _ in range(2):
        last = await client.responses.create(
            model=model, input="Can you?", conversation=conversation, tools=tools
        )
    loaded = ["merge_accounts", "tool_search"]
    assert [sorted(offered(fake, model, each)) for each in range(3)] == [
        ["tool_search"],
        loaded,
        loaded,
    ]
    summary = fake.script(reply("They asked twice."))
    compacted = await client.responses.compact(model=summary, previous_response_id=last.id)
    history: Any = [each.model_dump(warnings=False) for each in compacted.output]
    again = fake.script(reply("Let me look."))
    await client.responses.create(model=again, input=history, tools=tools)
    assert sorted(offered(fake, again, 0)) == loaded


async def test_a_search_without_a_query_or_a_common_word_is_answered(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    tools: Any = [SEARCH, deferred("brew", "Makes coffee.")]
    model = fake.script(
        turn("tool_search"), turn("tool_search", query="zebra"), reply("There is none.")
    )
    response = await tool_stack.api().create(model, tools=tools)
    assert [f"{item['type']} {item['status']}" for item in response["output"]] == [
        "tool_search_call incomplete",
        "tool_search_call completed",
        "tool_search_output completed",
        "message completed",
    ]
    [found] = response["output"][2]["tools"]
    assert found["name"] == "brew", "no word of it is in the query: it has an embedding"


async def test_a_request_has_one_search(tool_stack: Stack) -> None:
    answer = await tool_stack.api().call(
        "POST", "/responses", {"model": "m", "input": "x", "tools": [SEARCH, SEARCH]}
    )
    assert (answer.status, answer.body["error"]["param"]) == (400, "tools[1]")


async def test_an_item_adds_no_mcp_server(tool_stack: Stack) -> None:
    found = {
        "type": "mcp",
        "server_label": "x",
        "server_url": "https://x.example",
        "allowed_tools": [],
    }
    item: Any = {"type": "tool_search_output", "execution": "server", "tools": [found]}
    with pytest.raises(openai.BadRequestError) as refused:
        await tool_stack.openai().responses.create(model="m", input=[item])
    assert refused.value.param == "input[0].tools[0].server_url"


@pytest.mark.long
async def test_a_search_is_not_repeated_after_a_kill_and_long_lists_are_deferred(
    private_stack: PrivateStack, mcp_servers: McpServers, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, **TOOL_SETTINGS, "BACKBURNER_TOOLS__DEFER_BEYOND": "50"}
    async with private_stack(settings=settings) as running:
        server = deferred_server(mcp_servers, "stripe")
        del server["defer_loading"]
        model = fake.script(
            turn("tool_search", query="money back refund"),
            [hang()],
            turn("create_refund", refund_id="1"),
            reply("Done."),
        )
        response_id = await running.api().create_background(model, tools=[server])
        await until(lambda: len(fake.requests_for(model)) == 2, 20)
        running.kill(running.workers[0])
        await running.start_worker()
        response = await running.api().wait_for_end(response_id, within=40)
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == [
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "mcp_call",
        "message",
    ]
    assert offered(fake, model, 0) == ["tool_search"]
    assert offered(fake, model, 1) == offered(fake, model, 2)
    assert "create_refund" in offered(fake, model, 2)
