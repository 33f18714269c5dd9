"""The tool loop over HTTP with a real MCP server that counts its calls: order, limits, end."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import JSON, Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import FakeUpstream, call, done, finish, reply, text, usage
from tests.support.mcp_servers import McpServers
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn


@pytest.fixture(scope="module")
async def tool_servers() -> AsyncIterator[McpServers]:
    async with McpServers() as running:
        yield running
    assert not running.faults, running.faults


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    settings = {
        **TOOL_SETTINGS,
        "BACKBURNER_LIMITS__TURNS": "6",
        "BACKBURNER_TOOLS__TIME": "2",
        "BACKBURNER_TOOLS__ANSWER": "2000",
        "BACKBURNER_LIMITS__RESPONSE_OUTPUT": "2000000",
    }
    async with stack(
        tmp_path_factory.mktemp("loop"), database_server, suite_settings, fake, settings=settings
    ) as running:
        yield running


@pytest.fixture
def api(own_stack: Stack) -> Api:
    return own_stack.api()


async def read_stream(api: Api, model: str, **body: Any) -> tuple[JSON, list[JSON]]:
    """Reads a stream to its end; returns the response and its events, both checked."""
    async with api.post_stream(model, **body) as stream:
        await stream.to_end()
    return stream.final, assert_one_stream(stream.frames)


async def _shows(api: Api, response_id: str, items: list[str]) -> bool:
    return item_statuses(await api.get(response_id)) == items


async def test_calls_of_one_turn_run_in_parallel_and_keep_their_order(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    slow, quick = "side-slow", "side-quick"
    released = tool_servers.tool_calls.hold(slow)
    model = fake.script(
        tool_turn(("count_unsafe", slow), ("count_read_only", quick)), reply("done")
    )
    response_id = await api.create_background(model, tools=[counting_server(tool_servers)])
    await until(lambda: [one.finished for one in tool_servers.tool_calls.calls_with(quick)])
    shown = ["mcp_list_tools completed", "mcp_call in_progress"]
    assert await _shows(api, response_id, shown), "as in the stream, one call at a time"
    released.set()
    ended = await api.wait_for_end(response_id)
    assert item_statuses(ended) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "mcp_call completed",
        "message completed",
    ]
    assert [item["output"] for item in ended["output"][1:3]] == [
        f"count_unsafe {slow}: call 1",
        f"count_read_only {quick}: call 1",
    ]
    events = assert_one_stream(await api.replay(response_id))
    dones = [
        event["output_index"] for event in events if event["type"] == "response.output_item.done"
    ]
    assert dones == [0, 1, 2, 3]
    messages = fake.requests_for(model)[1].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [entry["id"] for entry in messages[1]["tool_calls"]] == ["call_0", "call_1"]
    assert [message["tool_call_id"] for message in messages[2:]] == ["call_0", "call_1"]


async def test_without_parallel_tool_calls_they_run_one_after_the_other(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    keys = ["alone-a", "alone-b", "alone-c"]
    model = fake.script(tool_turn(*(("count_unsafe", key) for key in keys)), reply("done"))
    ended = await api.create(
        model, tools=[counting_server(tool_servers)], parallel_tool_calls=False
    )
    assert ended["status"] == "completed"
    calls = [tool_servers.tool_calls.calls_with(key)[0] for key in keys]
    for earlier, later in itertools.pairwise(calls):
        assert earlier.finished is not None
        assert earlier.finished <= later.started


async def test_the_usage_of_a_response_counts_all_its_turns(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(
        tool_turn(("count_unsafe", "sum-1")), tool_turn(("count_unsafe", "sum-2")), reply("done")
    )
    ended, events = await read_stream(api, model, tools=[counting_server(tool_servers)])
    assert (ended["status"], ended["output_text"]) == ("completed", "done")
    assert ended["usage"]["input_tokens"] == 3 * 11
    assert ended["usage"]["total_tokens"] == 3 * 18
    indexes = [
        event["output_index"] for event in events if event["type"] == "response.output_item.added"
    ]
    assert indexes == list(range(4))
    assert [message["role"] for message in fake.requests_for(model)[2].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


async def test_a_client_call_ends_the_turn_after_server_calls_have_run(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    client_tool = {
        "type": "function",
        "name": "client_tool",
        "parameters": {"type": "object", "properties": {}},
    }
    both_calls = [
        call(0, "call_mine", "client_tool", "{}"),
        call(1, "call_2", "count_unsafe", '{"key": "mixed"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    model = fake.script(both_calls, reply("done"))
    tools = [client_tool, counting_server(tool_servers)]
    ended, _ = await read_stream(api, model, tools=tools, store=True)
    assert item_statuses(ended) == [
        "mcp_list_tools completed",
        "function_call completed",
        "mcp_call completed",
    ]
    assert ended["status"] == "completed"
    assert len(tool_servers.tool_calls.calls_with("mixed")) == 1
    refused = await api.call(
        "POST",
        "/responses",
        {"model": model, "input": "Go on.", "previous_response_id": ended["id"]},
    )
    assert refused.status == 400
    output = {
        "type": "function_call_output",
        "call_id": "call_mine",
        "output": "the client's output",
    }
    last = await api.create(model, input=[output], previous_response_id=ended["id"], tools=tools)
    assert last["output_text"] == "done"
    assert item_statuses(last) == ["message completed"], (
        "the tools are in the history and not listed again"
    )
    contents = [
        message.get("content")
        for message in fake.requests_for(model)[1].messages
        if message["role"] == "tool"
    ]
    assert set(contents) == {"count_unsafe mixed: call 1", "the client's output"}


async def test_calls_over_the_requests_limit_are_ignored(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(
        tool_turn(
            ("count_unsafe", "most-1"), ("count_unsafe", "most-2"), ("count_unsafe", "most-3")
        ),
        [text("So be it."), *tool_turn(("count_unsafe", "most-4"))],
    )
    ended, _ = await read_stream(
        api, model, tools=[counting_server(tool_servers)], max_tool_calls=2
    )
    assert item_statuses(ended)[1:] == [
        "mcp_call completed",
        "mcp_call completed",
        "message completed",
    ]
    assert (ended["status"], len(fake.requests_for(model))) == ("completed", 2)
    assert [
        len(tool_servers.tool_calls.calls_with(f"most-{number}")) for number in (1, 2, 3, 4)
    ] == [
        1,
        1,
        0,
        0,
    ]
    second = fake.requests_for(model)[1]
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool", "tool"]
    assert second.body["tool_choice"] == "none"


async def test_calls_of_the_clients_tools_do_not_count_against_the_limit(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    client_tool = {
        "type": "function",
        "name": "client_tool",
        "parameters": {"type": "object", "properties": {}},
    }
    model = fake.script(
        tool_turn(("count_unsafe", "only-1")),
        [
            call(0, "call_1", "client_tool", "{}"),
            call(1, "call_2", "count_unsafe", '{"key": "only-2"}'),
            call(2, "call_3", "client_tool", "{}"),
            finish("tool_calls"),
            usage(),
            done(),
        ],
    )
    tools = [client_tool, counting_server(tool_servers)]
    ended, _ = await read_stream(api, model, tools=tools, max_tool_calls=1)
    assert item_statuses(ended)[1:] == [
        "mcp_call completed",
        "function_call completed",
        "function_call completed",
    ]
    assert tool_servers.tool_calls.calls_with("only-2") == []
    offered = fake.requests_for(model)[1].body["tools"]
    assert [tool["function"]["name"] for tool in offered] == ["client_tool"]


async def test_a_model_that_never_stops_calling_ends_at_the_limit_of_turns(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(tool_turn(("count_read_only", "for-ever")))
    ended, _ = await read_stream(api, model, tools=[counting_server(tool_servers)])
    assert (ended["status"], ended["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_messages"},
    )
    assert len(tool_servers.tool_calls.calls_with("for-ever")) == 6 == len(fake.requests_for(model))


@pytest.mark.parametrize(
    "arguments", ["no json", "[1]", '"text"', '{"cut": ', "null", '{"key": "\\ud800"}', "{" * 300]
)
async def test_invalid_arguments_fail_the_call_and_the_loop_continues(
    api: Api, fake: FakeUpstream, tool_servers: McpServers, arguments: str
) -> None:
    model = fake.script(
        [call(0, "call_1", "count_unsafe", arguments), finish("tool_calls"), usage(), done()],
        reply("sorry"),
    )
    ended, _ = await read_stream(api, model, tools=[counting_server(tool_servers)])
    assert ended["status"] == "completed"
    assert item_statuses(ended)[1:] in (
        ["mcp_call failed", "message completed"],
        ["mcp_call completed", "message completed"],
    )
    assert fake.requests_for(model)[1].messages[-1]["role"] == "tool"


async def test_a_call_of_an_unknown_tool_is_answered_and_the_loop_continues(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(tool_turn(("no_such_tool", "x")), reply("sorry"))
    ended, _ = await read_stream(api, model, tools=[counting_server(tool_servers)], store=True)
    assert item_statuses(ended)[1:] == [
        "function_call completed",
        "function_call_output completed",
        "message completed",
    ]
    assert "no tool named 'no_such_tool'" in fake.requests_for(model)[1].messages[-1]["content"]
    continued = await api.create(
        model, previous_response_id=ended["id"], tools=[counting_server(tool_servers)]
    )
    assert continued["status"] == "completed", (
        "the call has its output and needs none from the client"
    )


async def test_a_thousand_calls_in_one_turn_end_at_the_limit_of_calls(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(
        tool_turn(*(("count_read_only", f"thousand-{number}") for number in range(1000))),
        reply("done"),
    )
    response_id = await api.create_background(model, tools=[counting_server(tool_servers)])
    ended = await api.wait_for_end(response_id, within=90)
    assert ended["status"] == "completed"
    outcomes = [item["status"] for item in ended["output"][1:-1]]
    assert (outcomes.count("completed"), outcomes.count("failed")) == (128, 872)
    executed = [
        tool_call
        for tool_call in tool_servers.tool_calls.calls
        if str(tool_call.arguments.get("key")).startswith("thousand-")
    ]
    assert len(executed) == 128


async def test_a_tool_that_takes_too_long_is_a_failed_call(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    tool_servers.tool_calls.hold("hangs")
    model = fake.script(tool_turn(("count_unsafe", "hangs")), reply("too bad"))
    ended, _ = await read_stream(api, model, tools=[counting_server(tool_servers)])
    assert item_statuses(ended)[1:] == ["mcp_call failed", "message completed"]
    assert "did not answer within 2 s" in fake.requests_for(model)[1].messages[-1]["content"]
    await until(lambda: tool_servers.tool_calls.calls_with("hangs")[0].cancelled is not None)


async def test_a_tools_output_is_limited_in_size(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    plain = {
        "type": "mcp",
        "server_label": "plain",
        "server_url": tool_servers.url("plain"),
        "require_approval": "never",
    }
    model = fake.script(
        [call(0, "c", "megabytes", '{"count": 1}'), finish("tool_calls"), usage(), done()],
        reply("much"),
    )
    ended, _ = await read_stream(api, model, tools=[plain])
    tool_output = fake.requests_for(model)[1].messages[-1]["content"]
    assert len(tool_output) < 2200
    assert "too long" in tool_output
    assert ended["output"][1]["output"] == tool_output


async def test_a_required_call_is_required_only_once(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(tool_turn(("count_unsafe", "required")), reply("done"))
    ended, _ = await read_stream(
        api, model, tools=[counting_server(tool_servers)], tool_choice="required"
    )
    assert ended["status"] == "completed"
    assert [request.body.get("tool_choice") for request in fake.requests_for(model)] == [
        "required",
        "auto",
    ]
    assert ended["tool_choice"] == "required"


async def test_a_cancel_closes_running_calls_at_once(
    own_stack: Stack, api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    tool_servers.tool_calls.hold("cancelled")
    model = fake.script(
        [text("Let me see."), *tool_turn(("count_unsafe", "cancelled"))], reply("never")
    )
    async with api.post_stream(
        model, background=True, tools=[counting_server(tool_servers)]
    ) as stream:
        await stream.until("response.mcp_call_arguments.done")
        await until(lambda: tool_servers.tool_calls.calls_with("cancelled"))
        answer = await api.cancel(stream.response_id)
        assert (answer.status, answer.body["status"]) == (200, "cancelled")
        await stream.to_end()
    assert_one_stream(stream.frames)
    assert item_statuses(stream.final) == [
        "mcp_list_tools completed",
        "message completed",
        "mcp_call incomplete",
    ]
    assert item_statuses(await api.get(stream.response_id)) == item_statuses(stream.final)
    await until(lambda: tool_servers.tool_calls.calls_with("cancelled")[0].cancelled is not None)
    assert len(fake.requests_for(model)) == 1


async def test_poll_stream_and_replay_agree_on_a_response_with_calls(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(
        tool_turn(("count_unsafe", "agree")), tool_turn(("count_unsafe", "agree")), reply("done")
    )
    async with api.post_stream(
        model, background=True, tools=[counting_server(tool_servers)]
    ) as stream:
        await stream.to_end()
    assert await api.replay(stream.response_id) == stream.frames
    assert (await api.get(stream.response_id))["output"] == stream.final["output"]


async def test_an_answer_that_used_tools_is_not_cached(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    model = fake.script(
        tool_turn(("count_unsafe", "cached")),
        reply("1"),
        tool_turn(("count_unsafe", "cached")),
        reply("2"),
    )
    body = {
        "model": model,
        "input": "Hello.",
        "cache": True,
        "tools": [counting_server(tool_servers)],
    }
    answers = [await api.call("POST", "/responses", body) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["miss", "miss"]
    assert [answer.body["output_text"] for answer in answers] == ["1", "2"]


async def test_all_turns_of_a_response_share_a_limit_of_output(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    """128 turns of 16 MiB were allowed. The calls of the turn beyond the limit are not made."""
    key = "no-room"
    asked = call(0, "call_1", "count_unsafe", f'{{"key": "{key}"}}')
    model = fake.script(
        [text("x" * 2_100_000), asked, finish("tool_calls"), usage(), done()], reply("never")
    )
    ended = await api.wait_for_end(
        await api.create_background(model, tools=[counting_server(tool_servers)])
    )
    assert (ended["status"], ended["error"]["code"]) == ("failed", "server_error")
    assert "exceeded the limit of 2000000 bytes in all turns" in ended["error"]["message"]
    assert item_statuses(ended)[-1] == "mcp_call failed"
    assert not tool_servers.tool_calls.calls_with(key)
    assert len(fake.requests_for(model)) == 1
