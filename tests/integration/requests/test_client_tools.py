"""Tools that the client runs, with the official client and over HTTP: what the model is offered, what its calls become, and back."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseToolSearchCall

from tests.support.api import JSON, Api, Stream, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    call,
    done,
    finish,
    reply,
    text,
    usage,
)
from tests.support.strict_types import check_event, check_response

LOOK: JSON = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
}


def calling(*steps: Step) -> list[Step]:
    """A turn that ends with calls."""
    return [*steps, finish("tool_calls"), usage(), done()]


def offered(fake: FakeUpstream, model: str, turn: int = -1) -> dict[str, JSON]:
    """Name -> function, as the upstream was sent them."""
    return {
        tool["function"]["name"]: tool["function"]
        for tool in fake.requests_for(model)[turn].body.get("tools", ())
    }


async def heard(api: Api, script: Script, fake: FakeUpstream, **body: Any) -> Stream:
    """A background stream read to its end: every event obeys the contract and the SDK's types, GET and replay say the same."""
    async with api.post_stream(fake.script(script), background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


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
BOTH: JSON = {"type": "function", "name": "find"}


async def test_equal_names_in_different_namespaces_are_told_apart(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    pieces = [
        call(0, "call_a", "find", "{}"),
        call(1, "call_b", "crm__find", '{"id":', "1}"),
        call(2, "call_c", "shop__find", "{}"),
    ]
    model = fake.script(
        calling(*pieces, call(3, "call_d", "notes__write", '{"input":"n"}')), reply("Found.")
    )
    tools: Any = [CRM, SHOP, BOTH, NOTES]
    async with client.responses.stream(model=model, input="Find.", tools=tools) as stream:
        async for event in stream:
            if event.type == "response.output_item.added" and event.item.type == "function_call":
                assert (event.item.name, event.item.arguments) == ("find", "")
        first = await stream.get_final_response()
    found = [
        (item.name, item.namespace, item.call_id)
        for item in first.output
        if item.type in ("function_call", "custom_tool_call")
    ]
    assert found == [
        ("find", None, "call_a"),
        ("find", "crm", "call_b"),
        ("find", "shop", "call_c"),
        ("write", "notes", "call_d"),
    ]
    assert list(offered(fake, model)) == ["crm__find", "shop__find", "find", "notes__write"]
    assert (
        offered(fake, model)["crm__find"]["description"]
        == "Finds one.\n\nPart of 'crm': The customers."
    )
    outputs: Any = [
        {"type": "function_call_output", "call_id": f"call_{each}", "output": each}
        for each in "abc"
    ]
    outputs.append({"type": "custom_tool_call_output", "call_id": "call_d", "output": "d"})
    await client.responses.create(
        model=model, input=outputs, previous_response_id=first.id, tools=tools
    )
    sent: Any = [
        {"role": "user", "content": "Find."},
        *(item.to_dict() for item in first.output),
        *outputs,
    ]
    await client.responses.create(model=model, input=sent, tools=tools, store=False)
    _, chained, resent = fake.requests_for(model)
    assert chained.messages == resent.messages
    names = [each["function"]["name"] for each in chained.messages[1]["tool_calls"]]
    assert names == ["find", "crm__find", "shop__find", "notes__write"]


NAMESPACED_CHOICES: list[tuple[str, Any, Any, list[str]]] = [
    (
        "one tool",
        {"type": "function", "name": "find", "namespace": "shop"},
        "shop__find",
        ["crm__find", "shop__find", "notes__write"],
    ),
    (
        "a name that is there once",
        {"type": "custom", "name": "write"},
        "notes__write",
        ["crm__find", "shop__find", "notes__write"],
    ),
    ("a whole namespace", {"type": "namespace", "name": "crm"}, None, ["crm__find"]),
    ("both of a name", {"type": "function", "name": "find"}, None, ["crm__find", "shop__find"]),
]


@pytest.mark.parametrize(
    ("choice", "forced", "names"),
    [row[1:] for row in NAMESPACED_CHOICES],
    ids=[row[0] for row in NAMESPACED_CHOICES],
)
async def test_a_choice_reaches_into_namespaces(
    api: Api, fake: FakeUpstream, choice: JSON, forced: str | None, names: list[str]
) -> None:
    chosen = choice if forced else {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    model = fake.script(reply("ok"))
    response = await api.create(model, tools=[CRM, SHOP, NOTES], tool_choice=chosen)
    check_response(response)
    assert (response["tool_choice"], response["tools"][0]["name"]) == (chosen, "crm")
    sent = fake.requests_for(model)[0].body["tool_choice"]
    assert sent == ({"type": "function", "function": {"name": forced}} if forced else "required")
    assert list(offered(fake, model)) == names


async def test_names_too_long_for_an_upstream_come_back_whole(api: Api, fake: FakeUpstream) -> None:
    long = [{"type": "function", "name": "x" * 100 + end} for end in "ab"]
    tools = [
        {"type": "namespace", "name": "n" * 60, "description": "d", "tools": long},
        {"type": "function", "name": "y" * 128},
    ]
    model = fake.script(reply("ok"))
    await api.create(model, tools=tools)
    names = list(offered(fake, model))
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 64
    stream = await heard(
        api,
        calling(*(call(at, f"call_{at}", name, "{}") for at, name in enumerate(names))),
        fake,
        tools=tools,
    )
    told = [(item["name"], item.get("namespace")) for item in stream.final["output"]]
    assert told == [("x" * 100 + "a", "n" * 60), ("x" * 100 + "b", "n" * 60), ("y" * 128, None)]


# Tools of a kind of their own.

COMMANDS = '{"commands": ["ls", "", "wc -l"], "timeout_ms": 5, "max_output_length": 9}'
PATCH = '{"type": "update_file", "path": "a.py", "diff": "@@\\n-a\\n+b"}'
EXEC = '{"command": ["ls", "-l"], "working_directory": "/w", "env": {"A": "b"}, "timeout_ms": 7}'
RAN = [
    {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
]

KINDS: list[tuple[JSON, str, str, JSON, JSON, str]] = [
    (
        {"type": "shell", "environment": {"type": "local"}},
        "shell",
        COMMANDS,
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "", "wc -l"], "timeout_ms": 5, "max_output_length": 9},
        },
        {"type": "shell_call_output", "output": RAN, "max_output_length": 9},
        json.dumps(RAN, separators=(",", ":")),
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
]


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "item", "output", "told"),
    KINDS,
    ids=[row[3]["type"] for row in KINDS],
)
async def test_a_tool_goes_round(
    api: Api,
    fake: FakeUpstream,
    tool: JSON,
    name: str,
    arguments: str,
    item: JSON,
    output: JSON,
    told: str,
) -> None:
    script: list[Step] = [
        text("Let me. "),
        call(0, "call_a", name, *(arguments[at : at + 9] for at in range(0, len(arguments), 9))),
    ]
    stream = await heard(api, calling(*script), fake, tools=[tool, LOOK], tool_choice="auto")
    response = stream.final
    assert response["status"] == "completed", "a call for the client ends the turn"
    assert response["tools"][0] == tool
    message, asked = response["output"]
    assert message["content"][0]["text"] == "Let me. "
    assert asked == {"id": asked["id"], "status": "completed", "call_id": "call_a", **item}
    model = fake.script(reply("Thanks."))
    answer = {"call_id": "call_a", **output}
    chained = await api.create(
        model, input=[answer], previous_response_id=response["id"], tools=[tool]
    )
    resent = await api.create(
        model, input=[{"role": "user", "content": "Hello."}, message, asked, answer], tools=[tool]
    )
    assert (chained["status"], resent["status"]) == ("completed", "completed")
    once, again = fake.requests_for(model)
    assert once.messages == again.messages
    function = once.messages[1]["tool_calls"][0]["function"]
    sent = json.loads(arguments)
    assert (function["name"], json.loads(function["arguments"])) == (
        name,
        sent.get("operation", sent),
    )
    assert once.messages[2] == {"role": "tool", "tool_call_id": "call_a", "content": told}
    items = (await api.call("GET", f"/responses/{chained['id']}/input_items")).body["data"]
    assert items[0] == {"id": items[0]["id"], "status": "completed", **answer}


async def test_the_commands_of_a_shell_have_events(api: Api, fake: FakeUpstream) -> None:
    stream = await heard(
        api, calling(call(0, "call_a", "shell", COMMANDS)), fake, tools=[{"type": "shell"}]
    )
    told = [event for event in stream.events if event.get("output_index") == 0]
    kinds = [event["type"].removeprefix("response.") for event in told]
    one = ["shell_call_command.added", "shell_call_command.delta", "shell_call_command.done"]
    assert kinds == ["output_item.added", *one, one[0], one[2], *one, "output_item.done"]
    assert told[0]["item"]["action"] == {"commands": [], "timeout_ms": 5, "max_output_length": 9}
    assert [event["command"] for event in told if event["type"].endswith("command.done")] == [
        "ls",
        "",
        "wc -l",
    ]


UNFIT: list[tuple[str, str, str]] = [
    ("no JSON", "shell", "ls -l"),
    ("no object", "shell", '["ls"]'),
    ("no commands", "shell", '{"commands": []}'),
    ("commands that are none", "shell", '{"commands": [1, null]}'),
    ("nothing", "shell", ""),
    ("a program as a string", "local_shell", '{"command": "ls"}'),
    ("an environment of numbers", "local_shell", '{"command": ["ls"], "env": {"A": 1}}'),
    ("another operation", "apply_patch", '{"type": "rename_file", "path": "a"}'),
    ("no diff", "apply_patch", '{"type": "update_file", "path": "a"}'),
    ("no path", "apply_patch", '{"type": "delete_file", "path": ""}'),
    ("nested too deeply", "apply_patch", '{"a":' * 1000 + "1" + "}" * 1000),
    ("NaN", "tool_search", '{"a": NaN}'),
    ("twice", "tool_search", "{}{}"),
]


@pytest.mark.parametrize(
    ("name", "arguments"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT]
)
async def test_arguments_that_fit_no_such_item_are_a_plain_call(
    api: Api, fake: FakeUpstream, name: str, arguments: str
) -> None:
    """The client learns what the model wrote, as it wrote it, and can answer; no item pretends to be more."""
    tools = [
        {"type": "shell"},
        {"type": "local_shell"},
        {"type": "apply_patch"},
        {"type": "tool_search", "execution": "client"},
    ]
    stream = await heard(
        api,
        calling(call(0, "call_a", name, arguments), call(1, "call_b", "look", "{}")),
        fake,
        tools=[*tools, LOOK],
    )
    assert stream.final["status"] == "completed"
    found = {item["call_id"]: item for item in stream.final["output"]}
    assert (found["call_a"]["type"], found["call_a"]["name"]) == ("function_call", name)
    assert found["call_a"]["arguments"] == (arguments or "{}")
    model = fake.script(reply("I see."))
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": "invalid"}
        for call_id in found
    ]
    answer = await api.create(
        model, input=outputs, previous_response_id=stream.response_id, tools=tools
    )
    assert answer["status"] == "completed"


async def test_a_call_cut_off_at_the_token_limit_is_incomplete(
    api: Api, fake: FakeUpstream
) -> None:
    script = [call(0, "call_a", "shell", '{"commands": ["rm -r'), finish("length"), usage(), done()]
    stream = await heard(api, script, fake, tools=[{"type": "shell"}])
    assert stream.final["status"] == "incomplete"
    [item] = stream.final["output"]
    assert (item["type"], item["status"], item["arguments"]) == (
        "function_call",
        "incomplete",
        '{"commands": ["rm -r',
    )
    answered = await api.create(fake.script(reply("ok")), previous_response_id=stream.response_id)
    assert answered["status"] == "completed", "what broke off waits for no output"


async def test_items_keep_the_order_in_which_the_model_spoke(api: Api, fake: FakeUpstream) -> None:
    script = [
        call(0, "call_a", "apply_patch", PATCH), call(1, "call_b", "look", "{}"), text("Now: "), call(2, "call_c", "shell", COMMANDS),
    ]  # fmt: skip
    stream = await heard(
        api, calling(*script), fake, tools=[{"type": "shell"}, {"type": "apply_patch"}, LOOK]
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
    for response in (
        (forced, allowed) if name in ("shell", "apply_patch") else (allowed,)
    ):  # the SDK knows no choice of the others
        check_response(response)
    assert (forced["tool_choice"], allowed["tool_choice"]["tools"]) == (
        {"type": name},
        [{"type": name}],
    )
    assert fake.requests_for(model)[0].body["tool_choice"] == {
        "type": "function",
        "function": {"name": name},
    }
    assert (list(offered(fake, model)), fake.requests_for(model)[1].body["tool_choice"]) == (
        [name],
        "auto",
    )


async def test_a_function_may_be_called_as_a_built_in_tool_is(api: Api, fake: FakeUpstream) -> None:
    tools = [{"type": "shell"}, {"type": "function", "name": "shell"}]
    model = fake.script(reply("ok"))
    await api.create(model, tools=tools)
    built_in, own = offered(fake, model)
    assert own == "shell"
    stream = await heard(
        api, calling(call(0, "a", own, "{}"), call(1, "b", built_in, COMMANDS)), fake, tools=tools
    )
    assert [item["type"] for item in stream.final["output"]] == ["function_call", "shell_call"]


async def test_a_grammar_reaches_the_model_in_words(api: Api, fake: FakeUpstream) -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
    model = fake.script(reply("ok"))
    response = await api.create(
        model, tools=[{"type": "custom", "name": "sh", "description": "Runs.", "format": grammar}]
    )
    assert response["tools"][0]["format"] == grammar
    function = offered(fake, model)["sh"]
    assert function["description"] == "Runs."
    assert (
        function["parameters"]["properties"]["input"]["description"]
        == 'Must match this lark grammar:\nstart: "a"+'
    )


async def test_skills_are_told(api: Api, fake: FakeUpstream) -> None:
    skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
    model = fake.script(reply("ok"))
    await api.create(
        model, tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}]
    )
    assert offered(fake, model)["shell"]["description"].endswith(
        "\n- pdf (/skills/pdf): Reads PDFs."
    )


# Tools that come on the way.


async def test_tools_are_found_by_the_client_and_called_from_then_on(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    late: JSON = {"type": "function", "name": "later", "defer_loading": True}
    tools: Any = [{"type": "tool_search", "execution": "client"}, late, CRM | {"tools": [late]}]
    search, found = (
        call(0, "call_s", "tool_search", '{"query": "wares"}'),
        call(0, "call_f", "shop__find", "{}"),
    )
    model = fake.script(calling(search), calling(found), reply("Done."))
    first = await client.responses.create(model=model, input="Find.", tools=tools)
    assert list(offered(fake, model)) == ["tool_search"], (
        "what is to be loaded on demand is not offered before"
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
    assert list(offered(fake, model)) == ["tool_search", "shop__find"]
    assert second.output[0].type == "function_call"
    assert (second.output[0].name, second.output[0].namespace) == ("find", "shop")
    answer: Any = {"type": "function_call_output", "call_id": "call_f", "output": "hats"}
    await client.responses.create(
        model=model, input=[answer], previous_response_id=second.id, tools=tools
    )
    assert list(offered(fake, model)) == ["tool_search", "shop__find"], "in every later turn too"
    assert [message["role"] for message in fake.requests_for(model)[2].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


async def test_a_search_that_found_nothing_says_so(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("ok"))
    searched = [
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
    await api.create(model, input=searched)
    assert fake.requests_for(model)[0].messages[1] == {
        "role": "tool",
        "tool_call_id": "s",
        "content": "No tools were found.",
    }
    assert len(fake.requests_for(model)[0].messages) == 2, (
        "a search that somebody else ran has no answer that the model could be shown"
    )
    assert list(offered(fake, model)) == ["look"], "its tools are there all the same"


async def test_a_developer_adds_tools_in_the_middle(api: Api, fake: FakeUpstream) -> None:
    added = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [SHOP, {"type": "custom", "name": "sh"}],
    }
    model = fake.script(
        reply("ok"), reply("ok"), calling(call(0, "call_a", "sh", '{"input":"ls"}')), reply("ok")
    )
    first = await api.create(model, tools=[LOOK])
    body: JSON = {
        "input": [added, {"role": "user", "content": "Now."}],
        "previous_response_id": first["id"],
        "tools": [LOOK],
    }
    chosen = await api.create(model, **body, tool_choice={"type": "function", "name": "find"})
    check_response(chosen)
    assert fake.requests_for(model)[1].body["tool_choice"] == {
        "type": "function",
        "function": {"name": "shop__find"},
    }
    third = await api.create(model, input="And now.", previous_response_id=chosen["id"])
    assert (third["output"][0]["type"], third["output"][0]["input"], third["tools"]) == (
        "custom_tool_call",
        "ls",
        [],
    )
    assert [list(offered(fake, model, turn)) for turn in range(3)] == [
        ["look"],
        ["look", "shop__find", "sh"],
        ["shop__find", "sh"],
    ]
    assert fake.requests_for(model)[2].messages[-1] == {"role": "user", "content": "And now."}
    items = (await api.call("GET", f"/responses/{chosen['id']}/input_items?order=asc")).body["data"]
    assert items[0] == {"id": items[0]["id"], "status": "completed", **added}


async def test_a_later_tool_takes_the_place_of_an_earlier_one(api: Api, fake: FakeUpstream) -> None:
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
    assert [function.get("description") for function in offered(fake, model).values()] == ["newer"]


# Codex.


async def test_codex_is_understood(api: Api, fake: FakeUpstream) -> None:
    """What Codex CLI sends: everything at once, its own ids, keys that are no API's, nothing stored, its tools inside the input."""
    code: JSON = {
        "type": "custom",
        "name": "exec",
        "description": "d",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    }
    functions: JSON = {
        "type": "namespace",
        "name": "functions",
        "description": "Local.",
        "tools": [code],
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
    meta = {"caller": None, "async": False, "internal_chat_message_metadata": {"turn_id": "t"}}
    body: JSON = {
        "store": False, "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"x": "y"}, "text": {"verbosity": "low"},
        "input": [
            {"type": "additional_tools", "id": "at-local", "role": "developer", "tools": added},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be useful."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List."}], **meta},
            {"type": "reasoning", "id": "rs_x", "summary": [], "content": None, "encrypted_content": "blob"},
            {"type": "custom_tool_call", "id": "ctc_x", "call_id": "call_1", "name": "exec", "namespace": "functions", "input": "ls", "status": "completed", **meta},
            {"type": "custom_tool_call_output", "call_id": "call_1", "name": "exec", "output": [{"type": "input_text", "text": "a.py"}]},
            {"type": "local_shell_call", "call_id": "call_2", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": None, "user": None}},
            {"type": "function_call_output", "call_id": "call_2", "output": "a.py"},
        ],
    }  # fmt: skip
    stream = await heard_once(
        api, calling(call(0, "call_3", "functions__exec", '{"input":"cat a.py"}')), fake, **body
    )
    [item] = stream.final["output"]
    assert (item["type"], item["name"], item["namespace"], item["input"]) == (
        "custom_tool_call",
        "exec",
        "functions",
        "cat a.py",
    )
    [asked] = fake.requests_for(stream.final["model"])
    assert [tool["function"]["name"] for tool in asked.body["tools"]] == [
        "functions__exec",
        "tool_search",
    ]
    assert [message["role"] for message in asked.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert asked.messages[2]["tool_calls"][0]["function"] == {
        "name": "functions__exec",
        "arguments": '{"input":"ls"}',
    }
    assert asked.messages[4]["tool_calls"][0]["function"] == {
        "name": "local_shell",
        "arguments": '{"command":["ls"]}',
    }


async def heard_once(api: Api, script: Script, fake: FakeUpstream, **body: Any) -> Stream:
    """A foreground stream read to its end."""
    async with api.post_stream(fake.script(script), **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    return stream


# Computers, in what was said before.


async def test_what_a_computer_did_is_told(api: Api, fake: FakeUpstream) -> None:
    click = {"type": "click", "x": 1, "y": 2, "button": "left"}
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    model = fake.script(reply("ok"))
    history = [
        {
            "type": "computer_call",
            "id": "cu_1",
            "call_id": "c",
            "status": "completed",
            "actions": [click],
            "pending_safety_checks": [],
        },
        {"type": "computer_call_output", "call_id": "c", "output": shot},
        {"role": "user", "content": "What now?"},
    ]
    response = await api.create(model, input=history)
    called, answered, shown, _ = fake.requests_for(model)[0].messages
    assert called["tool_calls"][0]["function"]["name"] == "computer"
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"actions": [click]}
    assert answered["content"] == "[image: see the next user message]"
    assert shown["content"][1] == {"type": "image_url", "image_url": {"url": shot["image_url"]}}
    items = (await api.call("GET", f"/responses/{response['id']}/input_items?order=asc")).body[
        "data"
    ]
    assert items[1]["output"] == shot


# What is refused.

REFUSED: list[tuple[str, JSON, str]] = [
    ("a shell in a container", {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "tools[0].environment.type"),
    ("a shell in that container", {"tools": [LOOK, {"type": "shell", "environment": {"type": "container_reference", "container_id": "x"}}]}, "tools[1].environment.type"),
    ("a search by the server", {"tools": [{"type": "tool_search"}]}, "tools[0].execution"),
    ("the same, said", {"tools": [{"type": "tool_search", "execution": "server"}]}, "tools[0].execution"),
    ("a computer", {"tools": [{"type": "computer_use_preview"}]}, "tools[0].type"),
    ("a namespace without a name", {"tools": [{"type": "namespace", "description": "", "tools": []}]}, "tools[0].name"),
    ("a namespace of namespaces", {"tools": [CRM | {"tools": [SHOP]}]}, "tools[0].tools[0].type"),
    ("a shell in a namespace", {"tools": [CRM | {"tools": [{"type": "shell"}]}]}, "tools[0].tools[0].type"),
    ("a name twice in a namespace", {"tools": [CRM, CRM]}, "tools[1].tools[0].name"),
    ("a namespace that is not there", {"tools": [CRM], "tool_choice": {"type": "function", "name": "find", "namespace": "shop"}}, "tool_choice"),
    ("a name that is there twice", {"tools": [CRM, SHOP], "tool_choice": {"type": "function", "name": "find"}}, "tool_choice"),
    ("a shell that is not there", {"tools": [LOOK], "tool_choice": {"type": "shell"}}, "tool_choice"),
    ("a namespace demanded", {"tools": [CRM], "tool_choice": {"type": "namespace", "name": "crm"}}, "tool_choice.type"),
    ("an MCP server inside an item", {"input": [{"type": "additional_tools", "role": "developer", "tools": [{"type": "mcp", "server_label": "x"}]}]}, "input[0].tools[0].type"),
    ("tools from a user", {"input": [{"type": "additional_tools", "role": "user", "tools": []}]}, "input[0].role"),
    ("a call without an answer", {"input": [{"type": "shell_call", "call_id": "a", "action": {"commands": []}}]}, "input"),
    ("an answer without a call", {"input": [{"type": "apply_patch_call_output", "call_id": "a", "status": "completed"}]}, "input"),
    ("an answer to nobody", {"input": [{"type": "local_shell_call_output", "output": "x"}]}, "input[0].call_id"),
    ("a patch of no kind", {"input": [{"type": "apply_patch_call", "call_id": "a", "operation": {"type": "rename"}}]}, "input[0].operation.type"),
    ("an outcome of no kind", {"input": [{"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "", "stderr": "", "outcome": {}}]}]}, "input[0].output[0].outcome.type"),
    ("a picture that is nowhere", {"input": [{"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot", "file_id": "f"}}]}, "input[0].output.image_url"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
async def test_what_cannot_be_done_is_refused_by_its_place(
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
