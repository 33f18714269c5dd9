"""MCP over HTTP, as a client meets it: the official openai client or curl in front, real MCP servers behind, only the model is played.

The behaviours are those of llama-stack's Responses suite and of OpenAI's guide, in our own words. How servers may fail is told in full by
tests/integration/tools/test_mcp_source.py.
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
    """The official client of it."""
    return tool_stack.openai()


def server(url: str, label: str = "it", **more: Any) -> Any:
    """The tool as a request names it; without approvals, unless it says otherwise."""
    return {
        "type": "mcp",
        "server_label": label,
        "server_url": url,
        "require_approval": "never",
        **more,
    }


def turn(*calls: tuple[str, JSON | str]) -> list[Step]:
    """A turn of the model that calls tools: (name, arguments) each."""
    written = [
        (name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for name, arguments in calls
    ]
    return [
        *(call(nr, f"call_{nr}", name, arguments) for nr, (name, arguments) in enumerate(written)),
        finish("tool_calls"),
        usage(),
        done(),
    ]


def results_told(messages: list[JSON]) -> list[Any]:
    """What the model was told by tools."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def thinking(next_call: Callable[[list[Any]], tuple[str, JSON]]) -> list[Step]:
    """A turn whose call depends on what the tools have said so far."""

    async def step(exchange: Exchange) -> None:
        name, arguments = next_call(results_told(exchange.request.messages))
        await call(0, "call_0", name, json.dumps(arguments))(exchange)

    return [step, finish("tool_calls"), usage(), done()]


def kinds(output: list[JSON]) -> list[str]:
    """Type and status of each item."""
    return [f"{item['type']} {item['status']}" for item in output]


async def heard(api: Api, model: str, **body: Any) -> Stream:
    """A background stream read to its end; the events obey the contract and the SDK's types, GET and replay say the same."""
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
    stream = await heard(api, model, tools=[server(mcp_servers.url("plain"))])
    listing, called, message = stream.final["output"]
    assert kinds(stream.final["output"]) == [
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
    assert (called["name"], called["server_label"]) == ("get_user_id", "it")
    assert json.loads(called["arguments"]) == {"username": "alice"}
    assert called["output"] == "user_4711"
    assert stream.final["output_text"] == message["content"][0]["text"] == "It is user_4711."
    first, second = fake.requests_for(model)
    offered = {tool["function"]["name"]: tool["function"] for tool in first.body["tools"]}
    assert offered["get_user_id"]["description"] == "The id of a user."
    assert offered["get_user_id"]["parameters"]["properties"]["username"]["type"] == "string"
    assert results_told(second.messages) == ["user_4711"]
    told = [
        event["type"].removeprefix("response.")
        for event in stream.events
        if event.get("output_index") in (0, 1)
    ]
    assert told == [
        *(
            "output_item.added",
            "mcp_list_tools.in_progress",
            "mcp_list_tools.completed",
            "output_item.done",
        ),
        *(
            "output_item.added",
            "mcp_call.in_progress",
            "mcp_call_arguments.delta",
            "mcp_call_arguments.done",
        ),
        *("mcp_call.completed", "output_item.done"),
    ]
    assert stream.final["usage"]["total_tokens"] == 36


CHAIN: list[Script] = [
    thinking(lambda told: ("get_user_id", {"username": "bob"})),
    thinking(lambda told: ("get_user_permissions", {"user_id": told[0]})),
    thinking(
        lambda told: ("check_file_access", {"permissions": told[1], "filename": "salaries.txt"})
    ),
    reply("No, bob may not."),
]
"""Each call needs the result of the one before: a user's id, its permissions, its access to a file."""


@pytest.mark.parametrize("way", ["whole", "streamed", "background"])
async def test_calls_that_need_each_others_results(
    api: Api, client: Any, fake: FakeUpstream, mcp_servers: McpServers, way: str
) -> None:
    model = fake.script(*CHAIN)
    tools = [server(mcp_servers.url("old"))]
    if way == "whole":
        output = (
            await client.responses.create(
                model=model, input="May bob read salaries.txt?", tools=tools
            )
        ).to_dict()["output"]
    elif way == "streamed":
        async with client.responses.stream(
            model=model, input="May bob read salaries.txt?", tools=tools
        ) as events:
            async for _ in events:
                pass
            output = (await events.get_final_response()).to_dict()["output"]
    else:
        output = (await api.wait_for_end(await api.create_background(model, tools=tools)))["output"]
    assert kinds(output) == [
        "mcp_list_tools completed",
        *["mcp_call completed"] * 3,
        "message completed",
    ]
    assert [item["output"] for item in output[1:4]] == ["user_0815", "guest", "no"]
    assert results_told(fake.requests_for(model)[3].messages) == ["user_0815", "guest", "no"]
    assert [
        len(message.get("tool_calls", ()))
        for message in fake.requests_for(model)[3].messages
        if message["role"] == "assistant"
    ] == [1, 1, 1]


async def test_the_older_transport_does_too(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("echo", {"text": "over SSE"})), reply("Said."))
    response = await client.responses.create(
        model=model, input="Say it.", tools=[server(mcp_servers.url("plain", "sse"))]
    )
    assert response.output[1].to_dict()["output"] == "over SSE"


async def test_a_listing_in_the_history_is_not_made_again(
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
    resent[1]["unknown"] = None  # as codex and the agents SDK send items back
    again = fake.script(turn(("echo", {"text": "b"})), reply("ok"))
    third = await client.responses.create(model=again, input=resent, tools=tools, store=False)
    assert [item.type for item in third.output] == ["mcp_call", "message"]
    assert len(mcp_servers.requests_to(url, "tools/list")) == 1


async def test_the_history_tells_the_model_what_was_called_before(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("echo", {"text": "first"})), reply("Said."))
    first = await client.responses.create(
        model=model, input="Say.", tools=[server(mcp_servers.url("plain"))]
    )
    later = fake.script(reply("Still said."))
    await client.responses.create(model=later, input="And?", previous_response_id=first.id)
    assert results_told(fake.requests_for(later)[0].messages) == ["first"]
    (asked,) = [
        message["tool_calls"]
        for message in fake.requests_for(later)[0].messages
        if message.get("tool_calls")
    ]
    assert (asked[0]["function"]["name"], json.loads(asked[0]["function"]["arguments"])) == (
        "echo",
        {"text": "first"},
    )


async def test_servers_with_equal_tool_names_are_told_apart(
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
    stream = await heard(api, model, tools=tools)
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


async def test_a_choice_of_a_server_offers_its_tools_alone(
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
        chosen: Any = choice
        await client.responses.create(model=model, input="Hi.", tools=tools, tool_choice=chosen)
        assert {
            tool["function"]["name"] for tool in fake.requests_for(model)[0].body["tools"]
        } == names


async def test_three_hundred_tools_are_offered(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("tool_299", {})), reply("ok"))
    response = await client.responses.create(
        model=model, input="Hi.", tools=[server(mcp_servers.url("many"))]
    )
    assert len(fake.requests_for(model)[0].body["tools"]) == 300
    assert response.output[1].to_dict()["output"] == "tool_299"


async def test_an_image_goes_to_the_model_as_one_and_stays_in_the_history(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("picture", {})), reply("Red."), reply("Still red."))
    first = await client.responses.create(
        model=model, input="Look.", tools=[server(mcp_servers.url("plain"))]
    )
    shown = first.output[1].to_dict()["output"]
    assert isinstance(shown, str)
    assert shown.startswith("a red pixel\n[image: image/png, ")
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


async def test_a_server_that_wants_a_token(
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
    assert (failed["status"], kinds(failed["output"])) == ("failed", ["mcp_list_tools failed"])
    assert "'it'" in failed["error"]["message"]
    assert not fake.requests_for(model)
    for proof in (
        {"authorization": "t0ken-of-the-client"},
        {"headers": {"Authorization": "Bearer t0ken-of-the-client"}},
    ):
        response = await api.create(model, tools=[server(url, **proof)])
        check_response(response)
        assert kinds(response["output"]) == ["mcp_list_tools completed", "message completed"]
        assert "t0ken" not in json.dumps(response)
        (echoed,) = response["tools"]
        assert set(echoed) == {"type", "server_label", "server_url", "require_approval"}
        assert echoed["server_url"] == "/".join(url.split("/")[:3])


# --- approvals ---


async def asked_for_approval(
    client: openai.AsyncOpenAI, fake: FakeUpstream, tool: Any
) -> tuple[Any, Any]:
    """A response that ended with an approval request, and the request."""
    model = fake.script(turn(("count_unsafe", {"key": tool["server_label"]})))
    response = await client.responses.create(model=model, input="Count.", tools=[tool])
    assert response.status == "completed"
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_approval_request"]
    return response, response.output[1]


async def test_a_call_waits_for_approval_unless_that_is_waived(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tool = server(mcp_servers.url("counting"), "approve-chained")
    del tool["require_approval"]
    first, request = await asked_for_approval(client, fake, tool)
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
    called, message = (item.to_dict() for item in second.output)
    assert (called["type"], called["status"], called["approval_request_id"]) == (
        "mcp_call",
        "completed",
        request.id,
    )
    assert called["output"] == "count_unsafe approve-chained: call 1"
    assert message["type"] == "message"
    assert results_told(fake.requests_for(model)[0].messages) == [called["output"]]
    # a further turn does not make the call again
    await client.responses.create(
        model=fake.script(reply("ok")),
        input="Thanks.",
        previous_response_id=second.id,
        tools=[tool],
    )
    assert len(mcp_servers.tool_calls.calls_with("approve-chained")) == 1


async def test_an_approval_works_with_the_whole_history_sent_again(
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
    stream = await heard(api, fake.script(reply("Counted.")), input=history, tools=[tool])
    assert kinds(stream.final["output"]) == ["mcp_call completed", "message completed"]
    later = await api.create(
        fake.script(reply("ok")),
        input=[*history, *stream.final["output"], {"role": "user", "content": "Ok."}],
        tools=[tool],
    )
    assert kinds(later["output"]) == ["message completed"]
    assert len(mcp_servers.tool_calls.calls_with("approve-resent")) == 1


async def test_a_refusal_is_told_to_the_model(
    client: openai.AsyncOpenAI, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tool = server(mcp_servers.url("counting"), "refuse", require_approval="always")
    first, request = await asked_for_approval(client, fake, tool)
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
    assert results_told(fake.requests_for(model)[0].messages) == [
        "The user refused this call. Reason: too costly"
    ]
    assert not mcp_servers.tool_calls.calls_with("refuse")


async def test_approval_may_be_asked_for_some_tools_only(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    some = {"never": {"read_only": True}, "always": {"tool_names": ["count_unsafe"]}}
    tool = server(mcp_servers.url("counting"), "some", require_approval=some)
    calls = turn(("count_read_only", {"key": "some"}), ("count_unsafe", {"key": "some"}))
    stream = await heard(api, fake.script(calls), tools=[tool])
    assert kinds(stream.final["output"]) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "mcp_approval_request completed",
    ]
    assert [one.tool for one in mcp_servers.tool_calls.calls_with("some")] == ["count_read_only"]


async def test_an_approval_without_its_request_or_its_server_is_refused(
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
    for body, param, words in cases:
        refused = await api.call("POST", "/responses", {"model": model, **body})
        assert (refused.status, refused.error["param"]) == (400, param)
        assert words in refused.error["message"]
    assert not mcp_servers.tool_calls.calls_with("unmet")


# --- what goes wrong ---


async def test_a_tools_own_error_is_told_and_the_model_answers(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("broken", {"why": "no disk"})), reply("It is broken."))
    stream = await heard(api, model, tools=[server(mcp_servers.url("plain"))])
    _, called, message = stream.final["output"]
    assert (stream.final["status"], called["status"], message["status"]) == (
        "completed",
        "failed",
        "completed",
    )
    assert called["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "no disk"}],
    }
    assert results_told(fake.requests_for(model)[1].messages) == ["Error: no disk"]


BAD_CALLS: Mapping[str, Fault] = {
    "hangs": hang,
    "dies in the middle": break_off,
    "sends invalid UTF-8": http_answer(200, b'{"jsonrpc": "2.0", "id": 1, "result": "\xff\xfe"}'),
    "sends megabytes": http_answer(200, b'{"jsonrpc": "2.0"' + b" " * 9_000_000 + b"}"),
    "redirects inside": redirect("http://169.254.169.254/latest/meta-data/"),
    "answers nonsense": rpc_result({"content": "none"}),
    "answers 500": http_answer(500, b"Traceback (most recent call last):", "text/plain"),
}


@pytest.mark.parametrize("fault", BAD_CALLS.values(), ids=BAD_CALLS)
async def test_a_server_that_fails_a_call_ends_with_an_answer_without_it(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers, fault: Fault
) -> None:
    model = fake.script(turn(("echo", {"text": "x"})), reply("I could not."))
    stream = await heard(
        api, model, tools=[server(mcp_servers.url_with_fault("plain", "tools/call", fault))]
    )
    assert kinds(stream.final["output"]) == [
        "mcp_list_tools completed",
        "mcp_call failed",
        "message completed",
    ]
    assert stream.final["output"][1]["error"]
    (told,) = results_told(fake.requests_for(model)[1].messages)
    assert told.startswith("Error: ")
    for secret in ("169.254", "Traceback"):
        assert secret not in json.dumps(stream.final)


@pytest.mark.parametrize(
    "fault",
    [hang, break_off, http_answer(500), http_answer(200, b"\xff"), redirect("http://10.0.0.1/")],
    ids=["hangs", "dies", "500", "bytes", "redirect"],
)
async def test_a_server_that_cannot_be_listed_ends_the_response(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers, fault: Fault
) -> None:
    model = fake.script(reply("Never asked."))
    tools = [server(mcp_servers.url_with_fault("plain", "tools/list", fault))]
    stream = await heard(api, model, tools=tools)
    assert (stream.final["status"], kinds(stream.final["output"])) == (
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


async def test_megabytes_of_text_reach_the_model_cut(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    model = fake.script(turn(("megabytes", {"count": 3})), reply("Long."))
    response = await api.create(model, tools=[server(mcp_servers.url("plain"))])
    called = response["output"][1]
    assert len(called["output"]) < 300_000
    assert called["output"].endswith("[The rest is left out: the tool's answer was too long.]")
    assert results_told(fake.requests_for(model)[1].messages) == [called["output"]]


# --- the guard ---

HOSTILE = r"""
http://localhost.:1/ http://[::1]/ http://[::]/ http://0/ http://0.0.0.0/ http://127.1/ http://127.0.1/ http://2130706433/ http://017700000001/
http://0x7f000001/ http://0x7f.1/ http://0177.0.0.1/ http://127.0.0.01/ http://00127.0.0.1/ http://169.254.169.254/ http://169.254.169.254:80/mcp
http://2852039166/ http://0xa9fea9fe/ http://0251.0376.0251.0376/ http://169.254.43518/ http://169.16689662/ http://[::ffff:169.254.169.254]/
http://[::ffff:a9fe:a9fe]/ http://[0:0:0:0:0:ffff:a9fe:a9fe]/ http://[::169.254.169.254]/ http://[64:ff9b::a9fe:a9fe]/ http://[2002:a9fe:a9fe::]/
http://[fe80::1]/ http://[fe80::1%25eth0]/ http://[fc00::1]/ http://[fd00:ec2::254]/ http://[ff02::1]/ http://[2001:db8::1]/ http://[2001::1]/
http://[100::1]/ http://[::ffff:0:0]/ http://10.0.0.1/ http://10.255.255.255/ http://172.16.0.1/ http://172.31.255.254/ http://192.168.1.1/
http://192.0.0.192/ http://100.64.0.1/ http://100.100.100.200/ http://168.63.129.16/ http://198.18.0.1/ http://198.51.100.1/ http://203.0.113.9/
http://224.0.0.1/ http://239.255.255.255/ http://240.0.0.1/ http://255.255.255.255/ http://user@8.8.8.8/ http://8.8.8.8@10.0.0.1/
http://10.0.0.1#@8.8.8.8/ http://8.8.8.8\@10.0.0.1/ http://10.0.0.1\.example.com/ http:\\10.0.0.1/ http:/10.0.0.1/ http:10.0.0.1 //10.0.0.1/
http://8.8.8.8:22/ http://8.8.8.8:25/ http://8.8.8.8:0/ http://8.8.8.8:99999/ http://8.8.8.8:-1/ ftp://8.8.8.8/ file:///etc/passwd gopher://8.8.8.8/
unix:///var/run/docker.sock javascript:alert(1) http:// https:// http://?x http://#x http://[/ http://[::1 http://:80/ http://①⑥⑨.254.169.254/
http://169。254。169。254/ http://１０.0.0.1/ http://exa%6dple.com/%00 http://a..b/ http://-a.com/ http://%31%30.0.0.1/
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
    """This deployment allows 127.0.0.0/8, so what spells that address is refused for its spelling alone."""
    api = tool_stack.api()
    before = await tool_stack.value("SELECT count(*) FROM responses")
    model = fake.script(reply("Never asked."))
    taken = []
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
            taken.append((url, answer.status, answer.raw[:200]))
    assert [entry for entry in taken if not entry[0].startswith("http://localhost.")] == []
    assert await tool_stack.value("SELECT count(*) FROM responses") <= before + 1
    assert not fake.requests_for(model)


@dataclass(frozen=True, slots=True)
class Lead:
    status: int
    location: str


@pytest.mark.parametrize(
    "lead",
    [
        Lead(code, url)
        for code in (301, 302, 303, 307, 308)
        for url in ("http://169.254.169.254/", "http://[::ffff:10.0.0.1]/")
    ],
    ids=str,
)
async def test_redirects_lead_nowhere(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers, lead: Lead
) -> None:
    """Wherever a server sends us, in a listing or an opening: the client hears that it did, and not what was there."""
    url = mcp_servers.url_with_fault("plain", "*", redirect(lead.location, lead.status))
    answer = await api.call(
        "POST",
        "/responses",
        {"model": fake.script(reply("x")), "input": "Hi.", "tools": [server(url)]},
    )
    assert (answer.status, answer.error["code"]) == (424, "http_error")
    assert f"HTTP {lead.status}" in answer.error["message"]
    assert "169.254" not in answer.error["message"]
