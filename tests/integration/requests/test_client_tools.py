"""Tools that the client runs: what the model gets, which items its calls become, and the way back.

Tested with the official client and over HTTP.
"""

import asyncio
import base64
import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseCompletedEvent, ResponseToolSearchCall

from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, Stream, decode, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    call,
    delta,
    done,
    finish,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.process_logs import line_of
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.strict_types import check_event, check_response

LOOK: JSON = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
}


def call_turn(*steps: Step) -> list[Step]:
    """A turn that ends with calls."""
    return [*steps, finish("tool_calls"), usage(), done()]


def functions_sent(fake: FakeUpstream, model: str, turn: int = -1) -> dict[str, JSON]:
    """Name -> function, as the upstream received them."""
    return {
        tool["function"]["name"]: tool["function"]
        for tool in fake.requests_for(model)[turn].body.get("tools", ())
    }


async def read_events(api: Api, script: Script, fake: FakeUpstream, **body: Any) -> Stream:
    """Reads a background stream to its end and checks it.

    Every event obeys the contract and the SDK's types. GET and replay return the same.
    """
    async with api.post_stream(fake.script(script), background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


# One call at a time.


def arguments(index: int, piece: str) -> Step:
    """One piece of the arguments of the call with this number."""
    return delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})


class LastCall:
    """A client that takes every delta for one of the call that was added last, as some do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def feed(self, event: JSON) -> None:
        if event["type"] == "response.output_item.added":
            self.calls.append((event["item"]["name"], ""))
        elif event["type"] == "response.function_call_arguments.delta":
            name, arguments = self.calls.pop()
            self.calls.append((name, arguments + event["delta"]))


async def test_a_client_that_knows_only_the_last_call_gets_interleaved_calls_right(
    api: Api, fake: FakeUpstream
) -> None:
    script = call_turn(
        call(0, "call_a", "look", ""),
        call(1, "call_b", "look", ""),
        arguments(0, '{"at":'),
        arguments(1, '{"at": "B'),
        arguments(0, ' "Ulm"}'),
        arguments(1, 'onn"}'),
    )
    client = LastCall()
    stream = await read_events(api, script, fake, tools=[LOOK])
    for event in stream.events:
        client.feed(event)
    assert client.calls == [("look", '{"at": "Ulm"}'), ("look", '{"at": "Bonn"}')]


# Namespaces.

CRM: JSON = {
    "type": "namespace",
    "name": "crm",
    "description": "The customers.",
    "tools": [
        {
            "type": "function",
            "name": "find",
            "description": "Finds one.",
            "parameters": {"type": "object", "properties": {}},
        }
    ],
}
SHOP: JSON = {
    "type": "namespace",
    "name": "shop",
    "description": "The wares.",
    "tools": [{"type": "function", "name": "find"}],
}
NOTES: JSON = {
    "type": "namespace",
    "name": "notes",
    "description": "Notes.",
    "tools": [{"type": "custom", "name": "write"}],
}
FUNCTION_FIND: JSON = {"type": "function", "name": "find"}


async def test_equal_names_in_different_namespaces_stay_separate(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    calls = [
        call(0, "call_a", "find", "{}"),
        call(1, "call_b", "crm__find", '{"id":', "1}"),
        call(2, "call_c", "shop__find", "{}"),
    ]
    model = fake.script(
        call_turn(*calls, call(3, "call_d", "notes__write", '{"input":"n"}')), reply("Found.")
    )
    tools: Any = [CRM, SHOP, FUNCTION_FIND, NOTES]
    async with client.responses.stream(model=model, input="Find.", tools=tools) as stream:
        async for event in stream:
            if event.type == "response.output_item.added" and event.item.type == "function_call":
                assert (event.item.name, event.item.arguments) == ("find", "")
        first = await stream.get_final_response()
    called = [
        (item.name, item.namespace, item.call_id)
        for item in first.output
        if item.type in ("function_call", "custom_tool_call")
    ]
    assert called == [
        ("find", None, "call_a"),
        ("find", "crm", "call_b"),
        ("find", "shop", "call_c"),
        ("write", "notes", "call_d"),
    ]
    assert list(functions_sent(fake, model)) == ["crm__find", "shop__find", "find", "notes__write"]
    assert (
        functions_sent(fake, model)["crm__find"]["description"]
        == "Finds one.\n\nPart of 'crm': The customers."
    )
    outputs: Any = [
        {"type": "function_call_output", "call_id": f"call_{letter}", "output": letter}
        for letter in "abc"
    ]
    outputs.append({"type": "custom_tool_call_output", "call_id": "call_d", "output": "d"})
    await client.responses.create(
        model=model, input=outputs, previous_response_id=first.id, tools=tools
    )
    history: Any = [
        {"role": "user", "content": "Find."},
        *(item.to_dict() for item in first.output),
        *outputs,
    ]
    await client.responses.create(model=model, input=history, tools=tools, store=False)
    _, chained, resent = fake.requests_for(model)
    assert chained.messages == resent.messages
    names = [entry["function"]["name"] for entry in chained.messages[1]["tool_calls"]]
    assert names == ["find", "crm__find", "shop__find", "notes__write"]


NAMESPACED_CHOICES: list[tuple[str, Any, Any, list[str]]] = [
    (
        "one tool",
        {"type": "function", "name": "find", "namespace": "shop"},
        "shop__find",
        ["crm__find", "shop__find", "notes__write"],
    ),
    (
        "a unique name",
        {"type": "custom", "name": "write"},
        "notes__write",
        ["crm__find", "shop__find", "notes__write"],
    ),
    ("a whole namespace", {"type": "namespace", "name": "crm"}, None, ["crm__find"]),
    (
        "a name in two namespaces",
        {"type": "function", "name": "find"},
        None,
        ["crm__find", "shop__find"],
    ),
]


@pytest.mark.parametrize(
    ("choice", "forced", "names"),
    [row[1:] for row in NAMESPACED_CHOICES],
    ids=[row[0] for row in NAMESPACED_CHOICES],
)
async def test_a_tool_choice_can_name_a_tool_in_a_namespace(
    api: Api, fake: FakeUpstream, choice: JSON, forced: str | None, names: list[str]
) -> None:
    tool_choice = (
        choice if forced else {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    )
    model = fake.script(reply("ok"))
    response = await api.create(model, tools=[CRM, SHOP, NOTES], tool_choice=tool_choice)
    check_response(response)
    assert (response["tool_choice"], response["tools"][0]["name"]) == (tool_choice, "crm")
    sent = fake.requests_for(model)[0].body["tool_choice"]
    assert sent == ({"type": "function", "function": {"name": forced}} if forced else "required")
    assert list(functions_sent(fake, model)) == names


async def test_names_too_long_for_an_upstream_are_shown_whole_to_the_client(
    api: Api, fake: FakeUpstream
) -> None:
    long_named = [{"type": "function", "name": "x" * 100 + end} for end in "ab"]
    tools = [
        {"type": "namespace", "name": "n" * 60, "description": "d", "tools": long_named},
        {"type": "function", "name": "y" * 128},
    ]
    model = fake.script(reply("ok"))
    await api.create(model, tools=tools)
    names = list(functions_sent(fake, model))
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 64
    stream = await read_events(
        api,
        call_turn(*(call(index, f"call_{index}", name, "{}") for index, name in enumerate(names))),
        fake,
        tools=tools,
    )
    shown = [(item["name"], item.get("namespace")) for item in stream.final["output"]]
    assert shown == [("x" * 100 + "a", "n" * 60), ("x" * 100 + "b", "n" * 60), ("y" * 128, None)]


# Tools with item types of their own.

COMMANDS = '{"commands": ["ls", "", "wc -l"], "timeout_ms": 5, "max_output_length": 9}'
PATCH = '{"type": "update_file", "path": "a.py", "diff": "@@\\n-a\\n+b"}'
EXEC = '{"command": ["ls", "-l"], "working_directory": "/w", "env": {"A": "b"}, "timeout_ms": 7}'
SHELL_RESULTS = [
    {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
]

CLICK: JSON = {"type": "click", "x": 1, "y": 2, "button": "left"}
SCREENSHOT: JSON = {
    "type": "computer_screenshot",
    "image_url": "data:image/png;base64,iVBORw0KGgo=",
}
PREVIEW: JSON = {
    "type": "computer_use_preview",
    "display_width": 1024,
    "display_height": 768,
    "environment": "browser",
}

KINDS: list[tuple[JSON, str, str, JSON, JSON, str]] = [
    (
        {"type": "shell", "environment": {"type": "local"}},
        "shell",
        COMMANDS,
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "", "wc -l"], "timeout_ms": 5, "max_output_length": 9},
        },
        {"type": "shell_call_output", "output": SHELL_RESULTS, "max_output_length": 9},
        json.dumps(SHELL_RESULTS, separators=(",", ":")),
    ),
    (
        {"type": "local_shell"},
        "local_shell",
        EXEC,
        {
            "type": "local_shell_call",
            "action": {
                "type": "exec",
                "command": ["ls", "-l"],
                "env": {"A": "b"},
                "timeout_ms": 7,
                "working_directory": "/w",
            },
        },
        {"type": "local_shell_call_output", "output": "total 0"},
        "total 0",
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        PATCH,
        {
            "type": "apply_patch_call",
            "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"},
        },
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
        "failed: no such file",
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        '{"operation": {"type": "delete_file", "path": "a.py"}}',
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a.py"}},
        {"type": "apply_patch_call_output", "status": "completed"},
        "completed",
    ),
    (
        {
            "type": "tool_search",
            "execution": "client",
            "description": "Finds.",
            "parameters": {"type": "object", "properties": {"q": {}}},
        },
        "tool_search",
        '{"q": "weather"}',
        {"type": "tool_search_call", "execution": "client", "arguments": {"q": "weather"}},
        {"type": "tool_search_output", "execution": "client", "tools": [SHOP]},
        "These tools can be called now: shop__find.",
    ),
    (
        {"type": "computer"},
        "computer",
        json.dumps({"actions": [CLICK, {"type": "type", "text": "Ulm"}]}),
        {
            "type": "computer_call",
            "actions": [CLICK, {"type": "type", "text": "Ulm"}],
            "pending_safety_checks": [],
        },
        {"type": "computer_call_output", "output": SCREENSHOT},
        "[image: see the next user message]",
    ),
    (
        PREVIEW,
        "computer",
        json.dumps(CLICK),
        {"type": "computer_call", "action": CLICK, "pending_safety_checks": []},
        {
            "type": "computer_call_output",
            "output": SCREENSHOT,
            "acknowledged_safety_checks": [{"id": "s", "code": "c", "message": "m"}],
        },
        "[image: see the next user message]",
    ),
]


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "item", "output", "tool_message"),
    KINDS,
    ids=[row[3]["type"] for row in KINDS],
)
async def test_a_client_tool_completes_its_round_trip(
    api: Api,
    fake: FakeUpstream,
    tool: JSON,
    name: str,
    arguments: str,
    item: JSON,
    output: JSON,
    tool_message: str,
) -> None:
    script: list[Step] = [
        text("Let me. "),
        call(0, "call_a", name, *(arguments[at : at + 9] for at in range(0, len(arguments), 9))),
    ]
    stream = await read_events(
        api, call_turn(*script), fake, tools=[tool, LOOK], tool_choice="auto"
    )
    response = stream.final
    assert response["status"] == "completed", "a call of a client tool ends the turn"
    assert response["tools"][0] == tool
    message, call_item = response["output"]
    assert message["content"][0]["text"] == "Let me. "
    assert call_item == {"id": call_item["id"], "status": "completed", "call_id": "call_a", **item}
    model = fake.script(reply("Thanks."))
    output_item = {"call_id": "call_a", **output}
    chained = await api.create(
        model, input=[output_item], previous_response_id=response["id"], tools=[tool]
    )
    resent = await api.create(
        model,
        input=[{"role": "user", "content": "Hello."}, message, call_item, output_item],
        tools=[tool],
    )
    assert (chained["status"], resent["status"]) == ("completed", "completed")
    chained_request, resent_request = fake.requests_for(model)
    assert chained_request.messages == resent_request.messages
    function = chained_request.messages[1]["tool_calls"][0]["function"]
    sent = json.loads(arguments)
    assert (function["name"], json.loads(function["arguments"])) == (
        name,
        sent.get("operation", sent),
    )
    assert chained_request.messages[2] == {
        "role": "tool",
        "tool_call_id": "call_a",
        "content": tool_message,
    }
    items = (await api.call("GET", f"/responses/{chained['id']}/input_items")).body["data"]
    assert items[0] == {"id": items[0]["id"], "status": "completed", **output_item}


async def test_the_commands_of_a_shell_call_are_streamed(api: Api, fake: FakeUpstream) -> None:
    stream = await read_events(
        api, call_turn(call(0, "call_a", "shell", COMMANDS)), fake, tools=[{"type": "shell"}]
    )
    events = [event for event in stream.events if event.get("output_index") == 0]
    kinds = [event["type"].removeprefix("response.") for event in events]
    command = ["shell_call_command.added", "shell_call_command.delta", "shell_call_command.done"]
    assert kinds == [
        "output_item.added",
        *command,
        command[0],
        command[2],
        *command,
        "output_item.done",
    ]
    assert events[0]["item"]["action"] == {"commands": [], "timeout_ms": 5, "max_output_length": 9}
    assert [event["command"] for event in events if event["type"].endswith("command.done")] == [
        "ls",
        "",
        "wc -l",
    ]


INVALID_ARGUMENTS: list[tuple[str, str, str]] = [
    ("no JSON", "shell", "ls -l"),
    ("no object", "shell", '["ls"]'),
    ("no commands", "shell", '{"commands": []}'),
    ("commands that are no strings", "shell", '{"commands": [1, null]}'),
    ("empty arguments", "shell", ""),
    ("a program as a string", "local_shell", '{"command": "ls"}'),
    ("an environment of numbers", "local_shell", '{"command": ["ls"], "env": {"A": 1}}'),
    ("an unknown operation", "apply_patch", '{"type": "rename_file", "path": "a"}'),
    ("no diff", "apply_patch", '{"type": "update_file", "path": "a"}'),
    ("no path", "apply_patch", '{"type": "delete_file", "path": ""}'),
    ("nested too deeply", "apply_patch", '{"a":' * 1000 + "1" + "}" * 1000),
    ("an unknown action", "computer", '{"actions": [{"type": "fly"}]}'),
    ("NaN", "tool_search", '{"a": NaN}'),
    ("two objects", "tool_search", '{"a": 1}{"b": 2}'),
]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [row[1:] for row in INVALID_ARGUMENTS],
    ids=[row[0] for row in INVALID_ARGUMENTS],
)
async def test_invalid_arguments_become_a_function_call(
    api: Api, fake: FakeUpstream, name: str, arguments: str
) -> None:
    """The client gets the model's exact text and can answer the call."""
    tools = [
        {"type": "shell"},
        {"type": "local_shell"},
        {"type": "apply_patch"},
        {"type": "tool_search", "execution": "client"},
        {"type": "computer"},
    ]
    stream = await read_events(
        api,
        call_turn(call(0, "call_a", name, arguments), call(1, "call_b", "look", "{}")),
        fake,
        tools=[*tools, LOOK],
    )
    assert stream.final["status"] == "completed"
    items = {item["call_id"]: item for item in stream.final["output"]}
    assert (items["call_a"]["type"], items["call_a"]["name"]) == ("function_call", name)
    assert items["call_a"]["arguments"] == (arguments or "{}")
    model = fake.script(reply("I see."))
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": "invalid"}
        for call_id in items
    ]
    answer = await api.create(
        model, input=outputs, previous_response_id=stream.response_id, tools=tools
    )
    assert answer["status"] == "completed"


async def test_a_call_cut_off_at_the_token_limit_is_incomplete(
    api: Api, fake: FakeUpstream
) -> None:
    script = [call(0, "call_a", "shell", '{"commands": ["rm -r'), finish("length"), usage(), done()]
    stream = await read_events(api, script, fake, tools=[{"type": "shell"}])
    assert stream.final["status"] == "incomplete"
    [item] = stream.final["output"]
    assert (item["type"], item["status"], item["arguments"]) == (
        "function_call",
        "incomplete",
        '{"commands": ["rm -r',
    )
    continued = await api.create(fake.script(reply("ok")), previous_response_id=stream.response_id)
    assert continued["status"] == "completed", "an incomplete call needs no output"


async def test_items_keep_the_order_of_the_models_output(api: Api, fake: FakeUpstream) -> None:
    script = [
        call(0, "call_a", "apply_patch", PATCH),
        call(1, "call_b", "look", "{}"),
        text("Now: "),
        call(2, "call_c", "shell", COMMANDS),
    ]
    stream = await read_events(
        api, call_turn(*script), fake, tools=[{"type": "shell"}, {"type": "apply_patch"}, LOOK]
    )
    assert [item["type"] for item in stream.final["output"]] == [
        "apply_patch_call",
        "function_call",
        "message",
        "shell_call",
    ]


@pytest.mark.parametrize("name", ["shell", "local_shell", "apply_patch", "tool_search"])
async def test_a_built_in_tool_can_be_chosen(api: Api, fake: FakeUpstream, name: str) -> None:
    tool: JSON = {"type": name} | ({"execution": "client"} if name == "tool_search" else {})
    model = fake.script(reply("ok"))
    forced = await api.create(model, tools=[tool, LOOK], tool_choice={"type": name})
    allowed = await api.create(
        model,
        tools=[tool, LOOK],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": name}]},
    )
    # The SDK has no type for the choice of the other tools.
    for response in (forced, allowed) if name in ("shell", "apply_patch") else (allowed,):
        check_response(response)
    assert (forced["tool_choice"], allowed["tool_choice"]["tools"]) == (
        {"type": name},
        [{"type": name}],
    )
    assert fake.requests_for(model)[0].body["tool_choice"] == {
        "type": "function",
        "function": {"name": name},
    }
    assert (list(functions_sent(fake, model)), fake.requests_for(model)[1].body["tool_choice"]) == (
        [name],
        "auto",
    )


async def test_a_function_may_have_the_name_of_a_built_in_tool(
    api: Api, fake: FakeUpstream
) -> None:
    tools = [{"type": "shell"}, {"type": "function", "name": "shell"}]
    model = fake.script(reply("ok"))
    await api.create(model, tools=tools)
    shell_name, function_name = functions_sent(fake, model)
    assert function_name == "shell"
    stream = await read_events(
        api,
        call_turn(call(0, "a", function_name, "{}"), call(1, "b", shell_name, COMMANDS)),
        fake,
        tools=tools,
    )
    assert [item["type"] for item in stream.final["output"]] == ["function_call", "shell_call"]


async def test_a_grammar_reaches_the_model_in_the_description(api: Api, fake: FakeUpstream) -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
    model = fake.script(reply("ok"))
    response = await api.create(
        model, tools=[{"type": "custom", "name": "sh", "description": "Runs.", "format": grammar}]
    )
    assert response["tools"][0]["format"] == grammar
    function = functions_sent(fake, model)["sh"]
    assert function["description"] == "Runs."
    assert (
        function["parameters"]["properties"]["input"]["description"]
        == 'Must match this lark grammar:\nstart: "a"+'
    )


async def test_skills_reach_the_model_in_the_description(api: Api, fake: FakeUpstream) -> None:
    skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
    model = fake.script(reply("ok"))
    await api.create(
        model, tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}]
    )
    assert functions_sent(fake, model)["shell"]["description"].endswith(
        "\n- pdf (/skills/pdf): Reads PDFs."
    )


# Tools that are added later.


async def test_tools_loaded_by_a_client_search_can_be_called_in_later_turns(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    deferred: JSON = {"type": "function", "name": "later", "defer_loading": True}
    tools: Any = [
        {"type": "tool_search", "execution": "client"},
        deferred,
        CRM | {"tools": [deferred]},
    ]
    search, found_call = (
        call(0, "call_s", "tool_search", '{"query": "wares"}'),
        call(0, "call_f", "shop__find", "{}"),
    )
    model = fake.script(call_turn(search), call_turn(found_call), reply("Done."))
    first = await client.responses.create(model=model, input="Find.", tools=tools)
    assert list(functions_sent(fake, model)) == ["tool_search"], (
        "a tool with defer_loading is not sent before it is loaded"
    )
    [item] = first.output
    assert isinstance(item, ResponseToolSearchCall)
    assert (item.execution, item.arguments) == ("client", {"query": "wares"})
    loaded = SHOP | {"tools": [{"type": "function", "name": "find", "defer_loading": True}]}
    output: Any = {
        "type": "tool_search_output",
        "call_id": "call_s",
        "execution": "client",
        "status": "completed",
        "tools": [loaded],
    }
    second = await client.responses.create(
        model=model, input=[output], previous_response_id=first.id, tools=tools
    )
    assert list(functions_sent(fake, model)) == ["tool_search", "shop__find"]
    assert second.output[0].type == "function_call"
    assert (second.output[0].name, second.output[0].namespace) == ("find", "shop")
    answer: Any = {"type": "function_call_output", "call_id": "call_f", "output": "hats"}
    await client.responses.create(
        model=model, input=[answer], previous_response_id=second.id, tools=tools
    )
    assert list(functions_sent(fake, model)) == ["tool_search", "shop__find"], (
        "in every later turn too"
    )
    assert [message["role"] for message in fake.requests_for(model)[2].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


async def test_an_empty_tool_search_is_shown_to_the_model(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("ok"))
    history = [
        {
            "type": "tool_search_call",
            "call_id": "s",
            "execution": "client",
            "arguments": {"query": "x"},
        },
        {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": []},
        {"type": "tool_search_call", "execution": "server", "arguments": {"paths": []}},
        {"type": "tool_search_output", "execution": "server", "tools": [LOOK]},
    ]
    await api.create(model, input=history)
    assert fake.requests_for(model)[0].messages[1] == {
        "role": "tool",
        "tool_call_id": "s",
        "content": "No tools were found.",
    }
    assert len(fake.requests_for(model)[0].messages) == 2, (
        "the model is not shown a search that another server ran"
    )
    assert list(functions_sent(fake, model)) == ["look"], "the tools of that search are available"


async def test_a_developer_item_adds_tools_for_later_turns(api: Api, fake: FakeUpstream) -> None:
    added = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [SHOP, {"type": "custom", "name": "sh"}],
    }
    model = fake.script(
        reply("ok"), reply("ok"), call_turn(call(0, "call_a", "sh", '{"input":"ls"}')), reply("ok")
    )
    first = await api.create(model, tools=[LOOK])
    body: JSON = {
        "input": [added, {"role": "user", "content": "Now."}],
        "previous_response_id": first["id"],
        "tools": [LOOK],
    }
    second = await api.create(model, **body, tool_choice={"type": "function", "name": "find"})
    check_response(second)
    assert fake.requests_for(model)[1].body["tool_choice"] == {
        "type": "function",
        "function": {"name": "shop__find"},
    }
    third = await api.create(model, input="And now.", previous_response_id=second["id"])
    assert (third["output"][0]["type"], third["output"][0]["input"], third["tools"]) == (
        "custom_tool_call",
        "ls",
        [],
    )
    assert [list(functions_sent(fake, model, turn)) for turn in range(3)] == [
        ["look"],
        ["look", "shop__find", "sh"],
        ["shop__find", "sh"],
    ]
    assert fake.requests_for(model)[2].messages[-1] == {"role": "user", "content": "And now."}
    items = (await api.call("GET", f"/responses/{second['id']}/input_items?order=asc")).body["data"]
    assert items[0] == {"id": items[0]["id"], "status": "completed", **added}


async def test_a_later_tool_replaces_an_earlier_one_of_the_same_name(
    api: Api, fake: FakeUpstream
) -> None:
    newer = LOOK | {"description": "newer"}
    model = fake.script(reply("ok"))
    await api.create(
        model,
        tools=[LOOK],
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [newer]},
            {"role": "user", "content": "x"},
        ],
    )
    assert [function.get("description") for function in functions_sent(fake, model).values()] == [
        "newer"
    ]


# Codex.


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_sees_that_a_search_of_codex_was_left_out(
    shared_stack: Stack, api: Api, fake: FakeUpstream, stream: bool
) -> None:
    function = {"type": "function", "name": "look"}
    search = {"type": "web_search", "external_web_access": True}
    model = fake.script(reply("ok"))
    body = {"model": model, "input": "x", "tools": [search, function], "stream": stream}
    answer = await api.call("POST", "/responses", body)
    assert (answer.status, answer.headers["x-omitted-tools"]) == (200, "web_search")
    created = answer.raw.partition(b"\ndata: ")[2].partition(b"\n")[0]
    response = json.loads(created)["response"] if stream else answer.body
    assert [tool["type"] for tool in response["tools"]] == ["function"]
    [request] = fake.requests_for(model)
    assert [tool["function"]["name"] for tool in request.body["tools"]] == ["look"]
    request_id = answer.headers["x-request-id"]
    line = await line_of(shared_stack.webs[0], "tools_omitted", request=request_id)
    assert line["tools"] == ["web_search"]
    assert line["setting"] == "BACKBURNER_WEB_SEARCH__PROVIDER"


async def test_a_search_that_no_client_sends_unasked_is_refused(api: Api) -> None:
    answer = await api.call(
        "POST", "/responses", {"model": "m", "input": "x", "tools": [{"type": "web_search"}]}
    )
    assert (answer.status, answer.error["param"]) == (400, "tools[0]")
    assert "BACKBURNER_WEB_SEARCH__PROVIDER" in answer.error["message"]


async def test_a_request_of_codex_runs(api: Api, fake: FakeUpstream) -> None:
    """As Codex CLI sends it: its tools in the input, its own ids and keys, nothing stored."""
    exec_tool: JSON = {
        "type": "custom",
        "name": "exec",
        "description": "d",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    }
    functions: JSON = {
        "type": "namespace",
        "name": "functions",
        "description": "Local.",
        "tools": [exec_tool],
    }
    search = {
        "type": "web_search",
        "external_web_access": True,
        "search_content_types": ["text", "image"],
    }
    added = [
        functions,
        {
            "type": "tool_search",
            "execution": "client",
            "description": "d",
            "parameters": {"type": "object"},
        },
        search,
    ]
    codex_fields = {
        "caller": None,
        "async": False,
        "internal_chat_message_metadata": {"turn_id": "t"},
    }
    body: JSON = {
        "store": False,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "text": {"verbosity": "low"},
        "input": [
            {"type": "additional_tools", "id": "at-local", "role": "developer", "tools": added},
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Be useful."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "List."}],
                **codex_fields,
            },
            {
                "type": "reasoning",
                "id": "rs_x",
                "summary": [],
                "content": None,
                "encrypted_content": "blob",
            },
            {
                "type": "custom_tool_call",
                "id": "ctc_x",
                "call_id": "call_1",
                "name": "exec",
                "namespace": "functions",
                "input": "ls",
                "status": "completed",
                **codex_fields,
            },
            {
                "type": "custom_tool_call_output",
                "call_id": "call_1",
                "name": "exec",
                "output": [{"type": "input_text", "text": "a.py"}],
            },
            {
                "type": "local_shell_call",
                "call_id": "call_2",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": None, "user": None},
            },
            {"type": "function_call_output", "call_id": "call_2", "output": "a.py"},
        ],
    }
    stream = await read_foreground(
        api, call_turn(call(0, "call_3", "functions__exec", '{"input":"cat a.py"}')), fake, **body
    )
    [item] = stream.final["output"]
    assert (item["type"], item["name"], item["namespace"], item["input"]) == (
        "custom_tool_call",
        "exec",
        "functions",
        "cat a.py",
    )
    [request] = fake.requests_for(stream.final["model"])
    assert [tool["function"]["name"] for tool in request.body["tools"]] == [
        "functions__exec",
        "tool_search",
    ]
    assert [message["role"] for message in request.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert request.messages[2]["tool_calls"][0]["function"] == {
        "name": "functions__exec",
        "arguments": '{"input":"ls"}',
    }
    assert request.messages[4]["tool_calls"][0]["function"] == {
        "name": "local_shell",
        "arguments": '{"command":["ls"]}',
    }


async def read_foreground(api: Api, script: Script, fake: FakeUpstream, **body: Any) -> Stream:
    """Reads a foreground stream to its end and checks its events."""
    async with api.post_stream(fake.script(script), **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    return stream


# A computer.


@pytest.mark.parametrize(
    ("chosen", "tool"),
    [("computer", {"type": "computer"}), ("computer_use", PREVIEW), (PREVIEW["type"], PREVIEW)],
)
async def test_a_computer_can_be_chosen(
    api: Api, fake: FakeUpstream, chosen: str, tool: JSON
) -> None:
    model = fake.script(reply("ok"))
    response = await api.create(model, tools=[tool, LOOK], tool_choice={"type": chosen})
    check_response(response)
    assert fake.requests_for(model)[0].body["tool_choice"] == {
        "type": "function",
        "function": {"name": "computer"},
    }
    function = functions_sent(fake, model)["computer"]
    is_preview = tool is PREVIEW
    assert ("actions" in function["parameters"]["properties"]) != is_preview
    assert ("1024 x 768" in function["description"]) == is_preview


def computer_turn(call_id: str, *actions: JSON) -> Script:
    return call_turn(call(0, call_id, "computer", json.dumps({"actions": actions})))


async def test_a_client_operates_a_computer_until_the_model_answers(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    """The loop of OpenAI's guide: streamed, in the background, with `truncation: auto`, and with
    screenshots by address and as a stored file."""
    model = fake.script(
        computer_turn("call_1", {"type": "screenshot"}),
        computer_turn("call_2", {"type": "click", "x": "10", "y": 20}, {"type": "wait"}),
        computer_turn("call_3", {"action": "key", "text": "ctrl+c"}),
        reply("Copied."),
    )
    png = b"\x89PNG\r\n\x1a\n" + bytes(16)
    stored = await client.files.create(file=("screen.png", png), purpose="user_data")
    tools: list[Any] = [{"type": "computer"}]
    done: list[JSON] = []
    given: Any = "Copy it."
    before: str | None = None
    previous: str | None = None
    for turn in range(4):
        stream = await client.responses.create(
            model=model,
            input=given,
            previous_response_id=previous,
            tools=tools,
            truncation="auto",
            background=turn % 2 == 1,
            stream=True,
        )
        events = [event async for event in stream]
        assert isinstance(events[-1], ResponseCompletedEvent)
        response = events[-1].response
        calls = [item for item in response.output if item.type == "computer_call"]
        done += [
            action.model_dump(exclude_unset=True) for it in calls for action in it.actions or ()
        ]
        source = {"file_id": stored.id} if turn == 1 else {"image_url": SCREENSHOT["image_url"]}
        given = [
            {
                "type": "computer_call_output",
                "call_id": each.call_id,
                "acknowledged_safety_checks": each.pending_safety_checks,
                "output": {"type": "computer_screenshot", **source},
            }
            for each in calls
        ]
        before, previous = previous, response.id
    assert response.output_text == "Copied."
    assert done == [
        {"type": "screenshot"},
        {"type": "click", "button": "left", "x": 10, "y": 20},
        {"type": "wait"},
        {"type": "keypress", "keys": ["ctrl", "c"]},
    ]
    images = [
        part["image_url"]["url"]
        for message in fake.requests_for(model)[-1].messages
        if message["role"] == "user" and isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]
    as_data = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    assert images == [SCREENSHOT["image_url"], as_data, SCREENSHOT["image_url"]]
    assert before is not None
    [kept] = (await client.responses.input_items.list(before)).data
    assert kept.type == "computer_call_output"
    assert (kept.output.file_id, kept.output.image_url) == (stored.id, None)


@pytest.mark.long
async def test_a_worker_dies_while_the_model_operates_a_computer(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The actions reach the client once and complete, and it goes on."""
    ended = asyncio.Event()
    half = call(0, "call_1", "computer", '{"actions": [{"type": "click", "x": 10,')
    model = fake.script(
        [half, wait_for(ended)], computer_turn("call_2", {"type": "wait"}), reply("Done.")
    )
    async with private_stack(settings=SHORT_LEASES) as running:
        api, tools = running.api(), [{"type": "computer"}]
        created = await api.create_background(model, tools=tools)
        await until(lambda: fake.requests_for(model))
        running.kill(running.workers[0])
        await running.start_worker()
        response = await api.wait_for_end(created)
        assert response["status"] == "completed"
        assert_one_stream(await api.replay(created))
        [made] = (item for item in response["output"] if item["type"] == "computer_call")
        assert (made["call_id"], made["actions"]) == ("call_2", [{"type": "wait"}])
        answer = {"type": "computer_call_output", "call_id": "call_2", "output": SCREENSHOT}
        after = await api.create(model, tools=tools, input=[answer], previous_response_id=created)
        assert after["output_text"] == "Done."
    ended.set()


async def test_a_computer_call_in_the_history_reaches_the_model(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("ok"))
    history = [
        {
            "type": "computer_call",
            "id": "cu_1",
            "call_id": "c",
            "status": "completed",
            "actions": [CLICK],
            "pending_safety_checks": [],
        },
        {"type": "computer_call_output", "call_id": "c", "output": SCREENSHOT},
        {"role": "user", "content": "What now?"},
    ]
    response = await api.create(model, input=history)
    call_message, tool_message, image_message, _ = fake.requests_for(model)[0].messages
    assert call_message["tool_calls"][0]["function"]["name"] == "computer"
    assert json.loads(call_message["tool_calls"][0]["function"]["arguments"]) == {
        "actions": [CLICK]
    }
    assert tool_message["content"] == "[image: see the next user message]"
    assert image_message["content"][1] == {
        "type": "image_url",
        "image_url": {"url": SCREENSHOT["image_url"]},
    }
    items = (await api.call("GET", f"/responses/{response['id']}/input_items?order=asc")).body[
        "data"
    ]
    assert items[1]["output"] == SCREENSHOT


# What is refused.

CONTAINER: JSON = {"type": "container_reference", "container_id": "x"}


def additional_tools(role: str, *tools: JSON) -> JSON:
    return {"type": "additional_tools", "role": role, "tools": list(tools)}


REFUSED: list[tuple[str, JSON, str]] = [
    (
        "a shell in a container, without a sandbox",
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        "tools[0]",
    ),
    (
        "a shell in an existing container, without a sandbox",
        {"tools": [LOOK, {"type": "shell", "environment": CONTAINER}]},
        "tools[1]",
    ),
    (
        "a search by somebody else",
        {"tools": [{"type": "tool_search", "execution": "nobody"}]},
        "tools[0].execution",
    ),
    (
        "a computer without a display",
        {"tools": [PREVIEW | {"display_width": None}]},
        "tools[0].display_width",
    ),
    (
        "a namespace without a name",
        {"tools": [{"type": "namespace", "description": "", "tools": []}]},
        "tools[0].name",
    ),
    ("a namespace of namespaces", {"tools": [CRM | {"tools": [SHOP]}]}, "tools[0].tools[0].type"),
    (
        "a shell in a namespace",
        {"tools": [CRM | {"tools": [{"type": "shell"}]}]},
        "tools[0].tools[0].type",
    ),
    ("a name twice in a namespace", {"tools": [CRM, CRM]}, "tools[1].tools[0].name"),
    (
        "a choice of an unknown namespace",
        {
            "tools": [CRM],
            "tool_choice": {"type": "function", "name": "find", "namespace": "shop"},
        },
        "tool_choice",
    ),
    (
        "a choice of a name in two namespaces",
        {"tools": [CRM, SHOP], "tool_choice": {"type": "function", "name": "find"}},
        "tool_choice",
    ),
    (
        "a choice of a shell that is not a tool",
        {"tools": [LOOK], "tool_choice": {"type": "shell"}},
        "tool_choice",
    ),
    (
        "a choice of a namespace",
        {"tools": [CRM], "tool_choice": {"type": "namespace", "name": "crm"}},
        "tool_choice.type",
    ),
    (
        "an MCP server inside an item",
        {"input": [additional_tools("developer", {"type": "mcp", "server_label": "x"})]},
        "input[0].tools[0].type",
    ),
    ("tools from a user", {"input": [additional_tools("user")]}, "input[0].role"),
    (
        "a call without an output",
        {"input": [{"type": "shell_call", "call_id": "a", "action": {"commands": []}}]},
        "input",
    ),
    (
        "an output without a call",
        {"input": [{"type": "apply_patch_call_output", "call_id": "a", "status": "completed"}]},
        "input",
    ),
    (
        "an output without a call id",
        {"input": [{"type": "local_shell_call_output", "output": "x"}]},
        "input[0].call_id",
    ),
    (
        "a patch of an unknown type",
        {"input": [{"type": "apply_patch_call", "call_id": "a", "operation": {"type": "rename"}}]},
        "input[0].operation.type",
    ),
    (
        "an outcome without a type",
        {
            "input": [
                {
                    "type": "shell_call_output",
                    "call_id": "a",
                    "output": [{"stdout": "", "stderr": "", "outcome": {}}],
                }
            ]
        },
        "input[0].output[0].outcome.type",
    ),
    (
        "a screenshot without an image",
        {
            "input": [
                {
                    "type": "computer_call_output",
                    "call_id": "a",
                    "output": {"type": "computer_screenshot"},
                }
            ]
        },
        "input[0].output",
    ),
]


@pytest.mark.parametrize(
    ("body", "param"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
async def test_an_unsupported_tool_or_item_is_refused_with_its_position(
    api: Api, fake: FakeUpstream, body: JSON, param: str
) -> None:
    model = fake.script(reply("never"))
    answer = await api.call("POST", "/responses", {"model": model, "input": "x", **body})
    assert (answer.status, answer.error["param"], answer.error["type"]) == (
        400,
        param,
        "invalid_request_error",
    )
    assert fake.requests_for(model) == []
