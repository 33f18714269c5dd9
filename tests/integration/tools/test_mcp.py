"""MCP with the official client and raw HTTP, real MCP servers and a scripted model.

The behaviours follow llama-stack's Responses suite and OpenAI's guide.
tests/integration/tools/test_mcp_source.py has all the ways in which servers can fail.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.support.api import JSON, Api, Stream, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    Exchange,
    FakeUpstream,
    Script,
    Step,
    call,
    done,
    finish,
    reply,
    usage,
)
from tests.support.mcp_servers import (
    PIXEL,
    Fault,
    McpServers,
    RawExchange,
    break_off,
    hang,
    http_answer,
    redirect,
    rpc_result,
)
from tests.support.stack import Stack
from tests.support.strict_types import check_event, check_response


@pytest.fixture
def api(tool_stack: Stack) -> Api:
    """A raw client of the deployment with tools."""
    return tool_stack.api()


@pytest.fixture
def client(tool_stack: Stack) -> openai.AsyncOpenAI:
    """The official client of that deployment."""
    return tool_stack.openai()


def server(url: str, label: str = "it", **more: Any) -> Any:
    """The tool as a request names it, without approvals by default."""
    return {
        "type": "mcp",
        "server_label": label,
        "server_url": url,
        "require_approval": "never",
        **more,
    }


def turn(*calls: tuple[str, JSON | str]) -> list[Step]:
    """A turn of the model that calls tools: (name, arguments) each."""
    encoded = [
        (name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for name, arguments in calls
    ]
    return [
        *(
            call(number, f"call_{number}", name, arguments)
            for number, (name, arguments) in enumerate(encoded)
        ),
        finish("tool_calls"),
        usage(),
        done(),
    ]


def tool_outputs(messages: list[JSON]) -> list[Any]:
    """Outputs of tools that the model got."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def computed_turn(next_call: Callable[[list[Any]], tuple[str, JSON]]) -> list[Step]:
    """A turn whose call is computed from the tools' outputs so far."""

    async def step(exchange: Exchange) -> None:
        name, arguments = next_call(tool_outputs(exchange.request.messages))
        await call(0, "call_0", name, json.dumps(arguments))(exchange)

    return [step, finish("tool_calls"), usage(), done()]


def item_statuses(output: list[JSON]) -> list[str]:
    """Type and status of each item."""
    return [f"{item['type']} {item['status']}" for item in output]


async def read_events(api: Api, model: str, **body: Any) -> Stream:
    """Reads a background stream to its end and checks it.

    Events obey the contract and the SDK's types. GET and replay return the same.
    """
    async with api.post_stream(model, background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


# --- listing, calling, answering ---


async def test_the_tools_are_listed_then_called_then_the_model_answers(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("get_user_id", {"username": "alice"})), reply("It is user_4711."))
    stream = await read_events(api, model, tools=[server(mcp_servers.url("plain"))])
    listing, call_item, message = stream.final["output"]
    assert item_statuses(stream.final["output"]) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "message completed",
    ]
    assert listing["server_label"] == "it"
    assert {tool["name"] for tool in listing["tools"]} >= {
        "get_user_id",
        "get_user_permissions",
        "check_file_access",
        "echo",
    }
    assert all(tool["input_schema"]["type"] == "object" for tool in listing["tools"])
    assert (call_item["name"], call_item["server_label"]) == ("get_user_id", "it")
    assert json.loads(call_item["arguments"]) == {"username": "alice"}
    assert call_item["output"] == "user_4711"
    assert stream.final["output_text"] == message["content"][0]["text"] == "It is user_4711."
    first, second = fake.requests_for(model)
    functions = {tool["function"]["name"]: tool["function"] for tool in first.body["tools"]}
    assert functions["get_user_id"]["description"] == "The id of a user."
    assert functions["get_user_id"]["parameters"]["properties"]["username"]["type"] == "string"
    assert tool_outputs(second.messages) == ["user_4711"]
    types = [
        event["type"].removeprefix("response.")
        for event in stream.events
        if event.get("output_index") in (0, 1)
    ]
    assert types == [
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert stream.final["usage"]["total_tokens"] == 36


CHAINED_CALLS: list[Script] = [
    computed_turn(lambda outputs: ("get_user_id", {"username": "bob"})),
    computed_turn(lambda outputs: ("get_user_permissions", {"user_id": outputs[0]})),
    computed_turn(
        lambda outputs: (
            "check_file_access",
            {"permissions": outputs[1], "filename": "salaries.txt"},
        )
    ),
    reply("No, bob may not."),
]
"""Each call needs the output of the one before: user id, permissions, access to a file."""


@pytest.mark.parametrize("mode", ["whole", "streamed", "background"])
async def test_a_call_can_use_the_output_of_the_one_before(
    api: Api, client: Any, fake: FakeUpstream, mcp_servers: McpServers, mode: str
) -> None:
    model = fake.script(*CHAINED_CALLS)
    tools = [server(mcp_servers.url("old"))]
    if mode == "whole":
        output = (
            await client.responses.create(
                model=model, input="May bob read salaries.txt?", tools=tools
            )
        ).to_dict()["output"]
    elif mode == "streamed":
        async with client.responses.stream(
            model=model, input="May bob read salaries.txt?", tools=tools
        ) as events:
            async for _ in events:
                pass
            output = (await events.get_final_response()).to_dict()["output"]
    else:
        output = (await api.wait_for_end(await api.create_background(model, tools=tools)))["output"]
    assert item_statuses(output) == [
        "mcp_list_tools completed",
        *["mcp_call completed"] * 3,
        "message completed",
    ]
    assert [item["output"] for item in output[1:4]] == ["user_0815", "guest", "no"]
    assert tool_outputs(fake.requests_for(model)[3].messages) == ["user_0815", "guest", "no"]
    assert [
        len(message.get("tool_calls", ()))
        for message in fake.requests_for(model)[3].messages
        if message["role"] == "assistant"
    ] == [1, 1, 1]


async def test_tools_are_called_over_the_older_transport(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("echo", {"text": "over SSE"})), reply("Said."))
    response = await client.responses.create(
        model=model, input="Echo it.", tools=[server(mcp_servers.url("plain", "sse"))]
    )
    assert response.output[1].to_dict()["output"] == "over SSE"


async def test_tools_in_the_history_are_not_listed_again(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    url = mcp_servers.url_with_fault("plain", "nothing", hang)
    model = fake.script(reply("Hello."))
    tools = [server(url)]
    first = await client.responses.create(model=model, input="Hello.", tools=tools)
    assert [item.type for item in first.output] == ["mcp_list_tools", "message"]
    chained = fake.script(turn(("echo", {"text": "a"})), reply("ok"))
    second = await client.responses.create(
        model=chained, input="Again.", previous_response_id=first.id, tools=tools
    )
    assert [item.type for item in second.output] == ["mcp_call", "message"]
    resent: Any = [
        {"role": "user", "content": "Hello."},
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "Again."},
    ]
    resent[1]["unknown"] = None  # codex and the agents SDK send items back with such fields
    last_model = fake.script(turn(("echo", {"text": "b"})), reply("ok"))
    third = await client.responses.create(model=last_model, input=resent, tools=tools, store=False)
    assert [item.type for item in third.output] == ["mcp_call", "message"]
    assert len(mcp_servers.requests_to(url, "tools/list")) == 1


async def test_earlier_calls_are_in_the_history_of_the_model(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("echo", {"text": "first"})), reply("Said."))
    first = await client.responses.create(
        model=model, input="Say.", tools=[server(mcp_servers.url("plain"))]
    )
    later = fake.script(reply("Still said."))
    await client.responses.create(model=later, input="And?", previous_response_id=first.id)
    assert tool_outputs(fake.requests_for(later)[0].messages) == ["first"]
    (calls,) = [
        message["tool_calls"]
        for message in fake.requests_for(later)[0].messages
        if message.get("tool_calls")
    ]
    assert (calls[0]["function"]["name"], json.loads(calls[0]["function"]["arguments"])) == (
        "echo",
        {"text": "first"},
    )


async def test_servers_with_equal_tool_names_stay_separate(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    first, second = (
        mcp_servers.url_with_fault("plain", "nothing", hang),
        mcp_servers.url_with_fault("old", "nothing", hang),
    )
    tools = [
        server(first, "one", allowed_tools=["echo"]),
        server(second, "two", allowed_tools=["echo", "weather"]),
    ]
    tools.append(
        {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    )
    model = fake.script(
        turn(
            ("two__echo", {"text": "2"}),
            ("one__echo", {"text": "1"}),
            ("two__weather", {"city": "Rome"}),
        ),
        reply("Done."),
    )
    stream = await read_events(api, model, tools=tools)
    assert {tool["function"]["name"] for tool in fake.requests_for(model)[0].body["tools"]} == {
        "one__echo",
        "two__echo",
        "two__weather",
        "weather",
    }
    listed = [
        (item["server_label"], [tool["name"] for tool in item["tools"]])
        for item in stream.final["output"][:2]
    ]
    assert listed == [("one", ["echo"]), ("two", ["echo", "weather"])]
    called = [
        (item["server_label"], item["name"], item["output"]) for item in stream.final["output"][2:5]
    ]
    assert called == [
        ("two", "echo", "2"),
        ("one", "echo", "1"),
        ("two", "weather", '{\n  "degrees": 4\n}'),
    ]
    assert [len(mcp_servers.requests_to(url, "tools/call")) for url in (first, second)] == [1, 2]


async def test_a_tool_choice_of_a_server_leaves_only_its_tools(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tools: Any = [
        server(mcp_servers.url("plain"), "one"),
        server(mcp_servers.url("counting"), "two"),
    ]
    for choice, names in (
        (
            {"type": "mcp", "server_label": "two"},
            {"count_unsafe", "count_read_only", "count_idempotent"},
        ),
        ({"type": "mcp", "server_label": "one", "name": "echo"}, {"echo"}),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "mcp", "server_label": "one", "name": "echo"}],
            },
            {"echo"},
        ),
    ):
        model = fake.script(reply("ok"))
        tool_choice: Any = choice
        await client.responses.create(
            model=model, input="Hi.", tools=tools, tool_choice=tool_choice
        )
        assert {
            tool["function"]["name"] for tool in fake.requests_for(model)[0].body["tools"]
        } == names


async def test_three_hundred_tools_reach_the_model(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("tool_299", {})), reply("ok"))
    response = await client.responses.create(
        model=model, input="Hi.", tools=[server(mcp_servers.url("many"))]
    )
    assert len(fake.requests_for(model)[0].body["tools"]) == 300
    assert response.output[1].to_dict()["output"] == "tool_299"


async def test_an_image_reaches_the_model_and_stays_in_the_history(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("picture", {})), reply("Red."), reply("Still red."))
    first = await client.responses.create(
        model=model, input="Look.", tools=[server(mcp_servers.url("plain"))]
    )
    output = first.output[1].to_dict()["output"]
    assert isinstance(output, str)
    assert output.startswith("a red pixel\n[image: image/png, ")
    await client.responses.create(model=model, input="And now?", previous_response_id=first.id)
    for request in fake.requests_for(model)[1:]:
        images = [
            part
            for message in request.messages
            if isinstance(message["content"], list)
            for part in message["content"]
            if "image_url" in part
        ]
        assert [image["image_url"]["url"][:30] for image in images] == [
            "data:image/png;base64,iVBORw0K"
        ]
    assert len(PIXEL) > 60


# --- credentials ---


async def test_a_server_that_needs_a_token_is_a_401_without_it(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    url = mcp_servers.url_with_token("plain", "t0ken-of-the-client")
    model = fake.script(reply("Hello."))
    refused = await api.call(
        "POST", "/responses", {"model": model, "input": "Hi.", "tools": [server(url)]}
    )
    assert refused.status == 401
    assert refused.headers["x-should-retry"] == "false"
    assert (refused.error["type"], refused.error["param"]) == ("authentication_error", "tools")
    assert "'it'" in refused.error["message"]
    failed = await api.wait_for_end(await api.create_background(model, tools=[server(url)]))
    assert (failed["status"], item_statuses(failed["output"])) == (
        "failed",
        ["mcp_list_tools failed"],
    )
    assert "'it'" in failed["error"]["message"]
    assert not fake.requests_for(model)
    for credentials in (
        {"authorization": "t0ken-of-the-client"},
        {"headers": {"Authorization": "Bearer t0ken-of-the-client"}},
    ):
        response = await api.create(model, tools=[server(url, **credentials)])
        check_response(response)
        assert item_statuses(response["output"]) == [
            "mcp_list_tools completed",
            "message completed",
        ]
        assert "t0ken" not in json.dumps(response)
        (shown_tool,) = response["tools"]
        assert set(shown_tool) == {"type", "server_label", "server_url", "require_approval"}
        assert shown_tool["server_url"] == "/".join(url.split("/")[:3])


# --- approvals ---


async def response_with_approval_request(
    client: openai.AsyncOpenAI, fake: FakeUpstream, tool: Any
) -> tuple[Any, Any]:
    """A response that ended with an approval request, and that request."""
    model = fake.script(turn(("count_unsafe", {"key": tool["server_label"]})))
    response = await client.responses.create(model=model, input="Count.", tools=[tool])
    assert response.status == "completed"
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_approval_request"]
    return response, response.output[1]


async def test_a_call_waits_for_approval_by_default(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tool = server(mcp_servers.url("counting"), "approve-chained")
    del tool["require_approval"]
    first, request = await response_with_approval_request(client, fake, tool)
    assert (request.name, request.server_label, json.loads(request.arguments)) == (
        "count_unsafe",
        "approve-chained",
        {"key": "approve-chained"},
    )
    assert not mcp_servers.tool_calls.calls_with("approve-chained")
    model = fake.script(reply("Counted."))
    answer: Any = [
        {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    ]
    second = await client.responses.create(
        model=model, input=answer, previous_response_id=first.id, tools=[tool]
    )
    call_item, message = (item.to_dict() for item in second.output)
    assert (call_item["type"], call_item["status"], call_item["approval_request_id"]) == (
        "mcp_call",
        "completed",
        request.id,
    )
    assert call_item["output"] == "count_unsafe approve-chained: call 1"
    assert message["type"] == "message"
    assert tool_outputs(fake.requests_for(model)[0].messages) == [call_item["output"]]
    # A later turn does not make the call again.
    await client.responses.create(
        model=fake.script(reply("ok")),
        input="Thanks.",
        previous_response_id=second.id,
        tools=[tool],
    )
    assert len(mcp_servers.tool_calls.calls_with("approve-chained")) == 1


async def test_an_approval_works_when_the_client_sends_the_history(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tool = server(mcp_servers.url("counting"), "approve-resent", require_approval="always")
    first = await api.create(
        fake.script(turn(("count_unsafe", {"key": "approve-resent"}))), tools=[tool], store=False
    )
    request = first["output"][1]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": True,
    }
    history = [{"role": "user", "content": "Count."}, *first["output"], answer]
    stream = await read_events(api, fake.script(reply("Counted.")), input=history, tools=[tool])
    assert item_statuses(stream.final["output"]) == ["mcp_call completed", "message completed"]
    later = await api.create(
        fake.script(reply("ok")),
        input=[*history, *stream.final["output"], {"role": "user", "content": "Ok."}],
        tools=[tool],
    )
    assert item_statuses(later["output"]) == ["message completed"]
    assert len(mcp_servers.tool_calls.calls_with("approve-resent")) == 1


async def test_a_refused_approval_reaches_the_model(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tool = server(mcp_servers.url("counting"), "refuse", require_approval="always")
    first, request = await response_with_approval_request(client, fake, tool)
    model = fake.script(reply("Then not."))
    answer: Any = [
        {
            "type": "mcp_approval_response",
            "approval_request_id": request.id,
            "approve": False,
            "reason": "too costly",
        }
    ]
    second = await client.responses.create(
        model=model, input=answer, previous_response_id=first.id, tools=[tool]
    )
    assert [item.type for item in second.output] == ["message"]
    assert tool_outputs(fake.requests_for(model)[0].messages) == [
        "The user refused this call. Reason: too costly"
    ]
    assert not mcp_servers.tool_calls.calls_with("refuse")


async def test_approval_can_be_required_for_some_tools_only(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    rules = {"never": {"read_only": True}, "always": {"tool_names": ["count_unsafe"]}}
    tool = server(mcp_servers.url("counting"), "some", require_approval=rules)
    calls = turn(("count_read_only", {"key": "some"}), ("count_unsafe", {"key": "some"}))
    stream = await read_events(api, fake.script(calls), tools=[tool])
    assert item_statuses(stream.final["output"]) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "mcp_approval_request completed",
    ]
    assert [entry.tool for entry in mcp_servers.tool_calls.calls_with("some")] == [
        "count_read_only"
    ]


async def test_an_approval_without_its_request_or_server_is_refused(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tool = server(mcp_servers.url("counting"), "unmet", require_approval="always")
    model = fake.script(turn(("count_unsafe", {"key": "unmet"})), reply("no"))
    first = await api.create(model, tools=[tool])
    request = first["output"][1]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": True,
    }
    cases: list[tuple[JSON, str, str]] = [
        ({"input": [answer], "tools": [tool]}, "input", "No approval request found"),
        ({"input": [answer, request], "tools": [tool]}, "input", "No approval request found"),
        (
            {
                "input": [{**answer, "approval_request_id": "mcpr_x"}],
                "previous_response_id": first["id"],
                "tools": [tool],
            },
            "input",
            "'mcpr_x'",
        ),
        (
            {"input": [answer], "previous_response_id": first["id"]},
            "tools",
            "'unmet', which is not among 'tools'",
        ),
    ]
    for body, param, phrase in cases:
        refused = await api.call("POST", "/responses", {"model": model, **body})
        assert (refused.status, refused.error["param"]) == (400, param)
        assert phrase in refused.error["message"]
    assert not mcp_servers.tool_calls.calls_with("unmet")


# --- failures ---


async def test_a_tools_error_reaches_the_model_and_the_model_answers(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("broken", {"why": "no disk"})), reply("It is broken."))
    stream = await read_events(api, model, tools=[server(mcp_servers.url("plain"))])
    _, call_item, message = stream.final["output"]
    assert (stream.final["status"], call_item["status"], message["status"]) == (
        "completed",
        "failed",
        "completed",
    )
    assert call_item["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "no disk"}],
    }
    assert tool_outputs(fake.requests_for(model)[1].messages) == ["Error: no disk"]


CALL_FAULTS: Mapping[str, Fault] = {
    "hangs": hang,
    "dies in the middle": break_off,
    "sends invalid UTF-8": http_answer(200, b'{"jsonrpc": "2.0", "id": 1, "result": "\xff\xfe"}'),
    "sends megabytes": http_answer(200, b'{"jsonrpc": "2.0"' + b" " * 9_000_000 + b"}"),
    "redirects inside": redirect("http://169.254.169.254/latest/meta-data/"),
    "answers nonsense": rpc_result("fine"),
    "answers 500": http_answer(500, b"Traceback (most recent call last):", "text/plain"),
}


@pytest.mark.parametrize("fault", CALL_FAULTS.values(), ids=CALL_FAULTS)
async def test_a_failed_call_reaches_the_model_and_the_model_answers(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers, fault: Fault
) -> None:
    model = fake.script(turn(("echo", {"text": "x"})), reply("I could not."))
    stream = await read_events(
        api, model, tools=[server(mcp_servers.url_with_fault("plain", "tools/call", fault))]
    )
    assert item_statuses(stream.final["output"]) == [
        "mcp_list_tools completed",
        "mcp_call failed",
        "message completed",
    ]
    assert stream.final["output"][1]["error"]
    (output,) = tool_outputs(fake.requests_for(model)[1].messages)
    assert output.startswith("Error: ")
    for secret in ("169.254", "Traceback"):
        assert secret not in json.dumps(stream.final)


@pytest.mark.parametrize(
    "fault",
    [hang, break_off, http_answer(500), http_answer(200, b"\xff"), redirect("http://10.0.0.1/")],
    ids=["hangs", "dies", "500", "bytes", "redirect"],
)
async def test_a_server_without_a_tool_list_fails_the_response(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers, fault: Fault
) -> None:
    model = fake.script(reply("Never."))
    tools = [server(mcp_servers.url_with_fault("plain", "tools/list", fault))]
    stream = await read_events(api, model, tools=tools)
    assert (stream.final["status"], item_statuses(stream.final["output"])) == (
        "failed",
        ["mcp_list_tools failed"],
    )
    assert "response.mcp_list_tools.failed" in {event["type"] for event in stream.events}
    assert "'it'" in stream.final["output"][0]["error"]
    refused = await api.call("POST", "/responses", {"model": model, "input": "Hi.", "tools": tools})
    assert (refused.status, refused.headers["x-should-retry"]) == (424, "false")
    assert (refused.error["type"], refused.error["code"], refused.error["param"]) == (
        "external_connector_error",
        "http_error",
        "tools",
    )
    assert not fake.requests_for(model)


async def test_odd_values_of_a_server_end_nothing(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    bounds = {"minimum": -9223372036854776000, "maximum": 18446744073709552000}
    tools = [
        {"name": "find", "inputSchema": {"properties": {"id": bounds}}, "description": "\ud83d"},
        {"name": 7, "inputSchema": {"type": "object"}},
    ]
    schema = {
        "type": "object",
        "properties": {"id": {name: float(bound) for name, bound in bounds.items()}},
    }
    results = {
        "initialize": {"protocolVersion": "2025-06-18"},
        "tools/list": {"tools": tools},
        "tools/call": {"content": "half \ude00"},
    }

    async def answer(wire: RawExchange) -> None:
        result = results.get(wire.request.rpc)
        await (http_answer(202) if result is None else rpc_result(result))(wire)

    url = mcp_servers.url_with_fault("old", "*", answer)
    model = fake.script(turn(("find", {"id": 1})), reply("Found."), reply("Again."))
    stream = await read_events(api, model, tools=[server(url)])
    assert item_statuses(stream.final["output"]) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "message completed",
    ]
    listing, called, _ = stream.final["output"]
    assert "a tool (without a name)" in listing["error"]
    assert listing["tools"][0]["input_schema"] == schema
    assert called["output"] == "half \ufffd"
    assert fake.requests_for(model)[0].body["tools"][0]["function"]["parameters"] == schema
    assert await api.get(stream.final["id"]) == stream.final
    # The listing has an error, and is one that is not made again.
    for history in (
        {"previous_response_id": stream.final["id"], "input": "More."},
        {"input": [{"role": "user", "content": "Hi."}, *stream.final["output"]]},
    ):
        again = await api.create(model, tools=[server(url)], **history)
        assert item_statuses(again["output"]) == ["message completed"]
    assert len(mcp_servers.requests_to(url, "tools/list")) == 1


async def test_megabytes_of_text_reach_the_model_shortened(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("megabytes", {"count": 3})), reply("Long."))
    response = await api.create(model, tools=[server(mcp_servers.url("plain"))])
    call_item = response["output"][1]
    assert len(call_item["output"]) < 300_000
    assert call_item["output"].endswith("[The rest is left out: the tool's answer was too long.]")
    assert tool_outputs(fake.requests_for(model)[1].messages) == [call_item["output"]]


# --- the guard ---

HOSTILE = r"""
http://localhost.:1/ http://[::1]/ http://[::]/ http://0/ http://0.0.0.0/ http://127.1/
http://127.0.1/ http://2130706433/ http://017700000001/ http://0x7f000001/ http://0x7f.1/
http://0177.0.0.1/ http://127.0.0.01/ http://00127.0.0.1/ http://169.254.169.254/
http://169.254.169.254:80/mcp http://2852039166/ http://0xa9fea9fe/ http://0251.0376.0251.0376/
http://169.254.43518/ http://169.16689662/ http://[::ffff:169.254.169.254]/
http://[::ffff:a9fe:a9fe]/ http://[0:0:0:0:0:ffff:a9fe:a9fe]/ http://[::169.254.169.254]/
http://[64:ff9b::a9fe:a9fe]/ http://[2002:a9fe:a9fe::]/ http://[fe80::1]/
http://[fe80::1%25eth0]/ http://[fc00::1]/ http://[fd00:ec2::254]/ http://[ff02::1]/
http://[2001:db8::1]/ http://[2001::1]/ http://[100::1]/ http://[::ffff:0:0]/ http://10.0.0.1/
http://10.255.255.255/ http://172.16.0.1/ http://172.31.255.254/ http://192.168.1.1/
http://192.0.0.192/ http://100.64.0.1/ http://100.100.100.200/ http://168.63.129.16/
http://198.18.0.1/ http://198.51.100.1/ http://203.0.113.9/ http://224.0.0.1/
http://239.255.255.255/ http://240.0.0.1/ http://255.255.255.255/ http://user@8.8.8.8/
http://8.8.8.8@10.0.0.1/ http://10.0.0.1#@8.8.8.8/ http://8.8.8.8\@10.0.0.1/
http://10.0.0.1\.example.com/ http:\\10.0.0.1/ http:/10.0.0.1/ http:10.0.0.1 //10.0.0.1/
http://8.8.8.8:22/ http://8.8.8.8:25/ http://8.8.8.8:0/ http://8.8.8.8:99999/
http://8.8.8.8:-1/ ftp://8.8.8.8/ file:///etc/passwd gopher://8.8.8.8/
unix:///var/run/docker.sock javascript:alert(1) http:// https:// http://?x http://#x http://[/
http://[::1 http://:80/ http://①⑥⑨.254.169.254/ http://169。254。169。254/ http://１０.0.0.1/
http://exa%6dple.com/%00 http://a..b/ http://-a.com/ http://%31%30.0.0.1/
"""
URLS = [
    *HOSTILE.split(),
    "http://exam\tple.com/",
    "http://10.0.0.1\n.example.com/",
    "http://10.0.0.1\x00.example.com/",
]


def test_the_table_of_hostile_addresses_is_long_enough() -> None:
    assert len(set(URLS)) >= 60


async def test_hostile_addresses_are_refused_before_anything_is_stored(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    """127.0.0.0/8 is allowed here, so other spellings of it must be refused for their spelling."""
    api = tool_stack.api()
    before = await tool_stack.value("SELECT count(*) FROM responses")
    model = fake.script(reply("Never."))
    accepted = []
    for url in URLS:
        answer = await api.call(
            "POST",
            "/responses",
            {"model": model, "input": "Hi.", "tools": [server(url)], "background": True},
        )
        if (
            answer.status != 400
            or answer.error["param"] != "tools[0].server_url"
            or answer.error["code"] != "invalid_value"
        ):
            accepted.append((url, answer.status, answer.raw[:200]))
    assert [entry for entry in accepted if not entry[0].startswith("http://localhost.")] == []
    assert await tool_stack.value("SELECT count(*) FROM responses") <= before + 1
    assert not fake.requests_for(model)


@dataclass(frozen=True, slots=True)
class Redirect:
    status: int
    location: str


@pytest.mark.parametrize(
    "target",
    [
        Redirect(code, url)
        for code in (301, 302, 303, 307, 308)
        for url in ("http://169.254.169.254/", "http://[::ffff:10.0.0.1]/")
    ],
    ids=str,
)
async def test_redirects_of_a_server_are_not_followed(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers, target: Redirect
) -> None:
    """The client gets the status of the redirect, never the content behind it."""
    url = mcp_servers.url_with_fault("plain", "*", redirect(target.location, target.status))
    answer = await api.call(
        "POST",
        "/responses",
        {"model": fake.script(reply("x")), "input": "Hi.", "tools": [server(url)]},
    )
    assert (answer.status, answer.error["code"]) == (424, "http_error")
    assert f"HTTP {target.status}" in answer.error["message"]
    assert "169.254" not in answer.error["message"]
