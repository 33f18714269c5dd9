"""The tools `code_interpreter` and `shell` with the official client, a real sandbox and real files:
in the foreground, in the background and as a stream."""

import json
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.support.api import Api, Stream, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    call,
    done,
    finish,
    text,
    usage,
)
from tests.support.native_script import begin, end, native_call, native_reply
from tests.support.projects import limited_project
from tests.support.stack import Stack
from tests.support.strict_types import check_event

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
OUTPUTS = ["code_interpreter_call.outputs"]
CHART = """
import csv
rows = list(csv.reader(open("/mnt/data/sales.csv")))
with open("/mnt/data/chart.png", "wb") as chart:
    chart.write(b"\\x89PNG" + repr(rows).encode())
print(len(rows), "rows")
"""


def code(*pieces: str, index: int = 0) -> Step:
    """The model's call of the tool; the code in pieces."""
    encoded = json.dumps({"code": "".join(pieces)})
    return call(index, f"call_{index}", "code_interpreter", encoded[:9], encoded[9:])


def shell(*commands: str, **limits: int) -> Step:
    return call(0, "call_0", "shell", json.dumps({"commands": commands, **limits}))


def calling(*steps: Step) -> Script:
    """A turn that ends with calls."""
    return [*steps, finish("tool_calls"), usage(), done()]


def model_with(fake: FakeUpstream, *turns: Script, answer: str = "Done.") -> str:
    """A model with these turns, and then an answer."""
    return fake.script(*turns, [text(answer), finish(), usage(), done()])


def tool_texts(fake: FakeUpstream, model: str) -> list[str]:
    """What the model got for its calls."""
    messages = fake.requests_for(model)[-1].messages
    return [message["content"] for message in messages if message["role"] == "tool"]


async def read(api: Api, model: str, **body: Any) -> Stream:
    """Reads a background stream to its end and checks the events, GET and replay."""
    async with api.post_stream(model, background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


async def uploaded(client: openai.AsyncOpenAI) -> str:
    file = await client.files.create(
        file=("sales.csv", b"month,sold\n1,5\n2,7\n"), purpose="user_data"
    )
    return file.id


@pytest.mark.parametrize("way", ["foreground", "background", "stream"])
async def test_a_client_sends_a_table_and_gets_a_chart_back(code_stack: Stack, way: str) -> None:
    client = code_stack.openai()
    model = model_with(
        code_stack.fake,
        calling(code(CHART)),
        answer="Here: [chart](sandbox:/mnt/data/chart.png).",
    )
    tool: Any = {
        "type": "code_interpreter",
        "container": {"type": "auto", "file_ids": [await uploaded(client)]},
    }
    body: Any = {"model": model, "input": "Draw it.", "tools": [tool], "include": OUTPUTS}
    if way == "stream":
        async with client.responses.stream(**body) as stream:
            response: Any = await stream.get_final_response()
    else:
        response = await client.responses.create(**body, background=way == "background")
    response = await until(lambda: _ended(client, response.id), 30)
    ran, message = response.output
    assert (ran.type, ran.status, ran.code) == ("code_interpreter_call", "completed", CHART)
    assert ran.outputs[0].logs == "3 rows"
    part = message.content[0]
    [cited] = part.annotations
    assert (cited.type, cited.filename) == ("container_file_citation", "chart.png")
    assert part.text[cited.start_index : cited.end_index] == "sandbox:/mnt/data/chart.png"
    assert cited.container_id == ran.container_id
    content = await client.containers.files.content.retrieve(
        cited.file_id, container_id=cited.container_id
    )
    assert content.content.startswith(b"\x89PNG[['month', 'sold']")


async def _ended(client: openai.AsyncOpenAI, response_id: str) -> Any:
    response = await client.responses.retrieve(
        response_id, include=["code_interpreter_call.outputs"]
    )
    return response if response.status == "completed" else None


async def test_the_code_streams_and_variables_stay_between_calls(code_stack: Stack) -> None:
    model = model_with(
        code_stack.fake, calling(code("x = 6\n", "print('begun')")), calling(code("x * 7"))
    )
    stream = await read(code_stack.api(), model, tools=[AUTO], include=OUTPUTS)
    first, second, _ = stream.final["output"]
    assert first["outputs"] == [{"type": "logs", "logs": "begun"}]
    assert second["outputs"] == [{"type": "logs", "logs": "42"}]
    assert first["container_id"] == second["container_id"]
    of_first = [event["type"] for event in stream.events if event.get("item_id") == first["id"]]
    named = [kind.removeprefix("response.code_interpreter_call") for kind in of_first]
    assert [kind for kind in named if kind != "_code.delta"] == [
        ".in_progress",
        "_code.done",
        ".interpreting",
        ".completed",
    ]
    deltas = [e["delta"] for e in stream.events if e["type"].endswith("call_code.delta")]
    assert "".join(deltas) == "x = 6\nprint('begun')x * 7"


async def test_without_include_the_outputs_are_hidden(code_stack: Stack) -> None:
    model = model_with(code_stack.fake, calling(code("print(1)")))
    stream = await read(code_stack.api(), model, tools=[AUTO])
    assert "outputs" not in stream.final["output"][0]


async def test_an_exception_of_the_code_is_what_the_model_gets(code_stack: Stack) -> None:
    model = model_with(code_stack.fake, calling(code("1 / 0")))
    stream = await read(code_stack.api(), model, tools=[AUTO])
    assert stream.final["output"][0]["status"] == "completed"
    assert "ZeroDivisionError" in tool_texts(code_stack.fake, model)[0]


async def test_a_continuation_uses_the_container_of_the_call_before(code_stack: Stack) -> None:
    client = code_stack.openai()
    first: Any = await client.responses.create(
        model=model_with(code_stack.fake, calling(code("kept = 'still here'"))),
        input="Remember.",
        tools=[AUTO],  # type: ignore[list-item]
    )
    model = model_with(code_stack.fake, calling(code("print(kept)")))
    second: Any = await client.responses.create(
        model=model,
        input="And now?",
        previous_response_id=first.id,
        tools=[AUTO],  # type: ignore[list-item]
    )
    assert second.output[0].container_id == first.output[0].container_id
    assert "still here" in tool_texts(code_stack.fake, model)[-1]


async def test_commands_run_in_a_container_and_their_output_is_an_item(code_stack: Stack) -> None:
    model = model_with(
        code_stack.fake,
        calling(shell("echo hello > out.txt; cat out.txt", "ls /nowhere")),
        answer="It is in /mnt/data/out.txt",
    )
    stream = await read(code_stack.api(), model, tools=[SHELL])
    ran, output, message = stream.final["output"]
    assert (ran["type"], ran["status"]) == ("shell_call", "completed")
    assert output["call_id"] == ran["call_id"]
    first, second = output["output"]
    assert (first["stdout"], first["outcome"]) == ("hello\n", {"type": "exit", "exit_code": 0})
    assert second["outcome"]["exit_code"] != 0
    [cited] = message["content"][0]["annotations"]
    assert (cited["type"], cited["filename"]) == ("container_file_citation", "out.txt")


async def test_two_calls_of_a_turn_run_one_after_the_other(code_stack: Stack) -> None:
    model = model_with(
        code_stack.fake,
        calling(code("seen = ['first']"), code("seen.append('second'); print(seen)", index=1)),
    )
    stream = await read(code_stack.api(), model, tools=[AUTO], include=OUTPUTS)
    first, second, _ = stream.final["output"]
    assert (first["status"], second["status"]) == ("completed", "completed")
    assert second["outputs"][0]["logs"] == "['first', 'second']"


async def test_a_client_that_keeps_the_history_sends_the_calls_back(code_stack: Stack) -> None:
    api = code_stack.api()
    both = [AUTO, SHELL]
    model = model_with(code_stack.fake, calling(code("y = 5; print(y)")), calling(shell("ls")))
    first = await api.create(model, tools=both, include=OUTPUTS, store=False)
    history = [
        {"role": "user", "content": "Go."},
        *first["output"],
        {"role": "user", "content": "?"},
    ]
    again = model_with(code_stack.fake, calling(code("print(y + 1)")))
    second = await api.create(again, tools=both, include=OUTPUTS, store=False, input=history)
    assert tool_texts(code_stack.fake, again)[0] == "5"
    assert second["output"][0]["outputs"][0]["logs"] == "6"


async def test_a_file_that_a_client_adds_reaches_the_session(code_stack: Stack) -> None:
    client = code_stack.openai()
    container = await client.containers.create(name="mine")
    tool = {"type": "code_interpreter", "container": container.id}
    await code_stack.api().create(model_with(code_stack.fake, calling(code("1"))), tools=[tool])
    await client.containers.files.create(container.id, file=("late.txt", b"added later"))
    model = model_with(code_stack.fake, calling(code("print(open('/mnt/data/late.txt').read())")))
    response = await code_stack.api().create(model, tools=[tool], include=OUTPUTS)
    assert response["output"][0]["outputs"][0]["logs"] == "added later"


async def test_a_choice_of_the_tool_is_a_choice_of_its_function(code_stack: Stack) -> None:
    look = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    model = model_with(code_stack.fake, calling(code("1")))
    choice = {"type": "code_interpreter"}
    await code_stack.api().create(model, tools=[look, AUTO], tool_choice=choice)
    first, second = code_stack.fake.requests_for(model)
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["code_interpreter"]
    assert first.body["tool_choice"] == "required"
    assert second.body["tool_choice"] == "auto"


async def test_a_cancelled_response_interrupts_its_code(code_stack: Stack) -> None:
    api = code_stack.api()
    container = await code_stack.openai().containers.create(name="mine")
    tool = {"type": "code_interpreter", "container": container.id}
    model = model_with(code_stack.fake, calling(code("import time\nwhile True: time.sleep(0.01)")))
    created = await api.create(model, background=True, tools=[tool])
    await until(lambda: _is_interpreting(api, created["id"]))
    await api.cancel(created["id"])
    after = model_with(code_stack.fake, calling(code("print('free again')")))
    stream = await read(api, after, tools=[tool], include=OUTPUTS)
    assert stream.final["output"][0]["outputs"][0]["logs"] == "free again"


async def _is_interpreting(api: Api, response_id: str) -> bool:
    response = await api.get(response_id)
    return any(item["type"] == "code_interpreter_call" for item in response["output"])


async def test_another_projects_container_is_not_found(code_stack: Stack) -> None:
    container = await code_stack.openai().containers.create(name="mine")
    tool = {"type": "code_interpreter", "container": container.id}
    other = await limited_project(code_stack)
    body = {"model": "m", "input": "x", "tools": [tool]}
    answer = await other.api().call("POST", "/responses", body)
    assert (answer.status, answer.error["param"]) == (404, "tools[0].container")


async def test_a_native_upstream_uses_a_container_of_this_server_as_a_function(
    code_stack: Stack,
) -> None:
    api, fake = code_stack.api(), code_stack.fake
    container = await code_stack.openai().containers.create(name="mine")
    tool = {"type": "code_interpreter", "container": container.id}
    arguments = json.dumps({"code": "open('/mnt/data/n.txt', 'w').write('n')"})
    model = fake.script(
        [begin(), native_call("call_1", "code_interpreter", arguments), end()],
        native_reply("It is in /mnt/data/n.txt now."),
        name="native-own",
    )
    stream = await read(api, model, tools=[tool])
    ran, message = stream.final["output"]
    assert (ran["type"], ran["status"]) == ("code_interpreter_call", "completed")
    assert message["content"][0]["annotations"][0]["type"] == "container_file_citation"
    first, second = fake.requests_for(model)
    assert [each["type"] for each in first.body["tools"]] == ["function"]
    assert second.body["input"][-1]["type"] == "function_call_output"


async def test_a_native_upstream_makes_its_own_containers(code_stack: Stack) -> None:
    model = code_stack.fake.script(native_reply("Done."), name="native-auto")
    await code_stack.api().create(model, tools=[AUTO, SHELL])
    [request] = code_stack.fake.requests_for(model)
    assert request.body["tools"] == [AUTO, SHELL]


async def test_code_reaches_the_hosts_that_the_request_names(code_stack: Stack) -> None:
    client = code_stack.openai()
    host = f"localhost:{urlsplit(code_stack.fake.base_url).port}"
    fetch = f"""
import urllib.request
for url in ("http://{host}/v1/models", "http://a.example/"):
    try:
        print(urllib.request.urlopen(url).status)
    except OSError as error:
        print(getattr(error, "code", error.args))
"""
    model = model_with(code_stack.fake, calling(code(fetch)))
    policy = {"type": "allowlist", "allowed_domains": [host]}
    tool: Any = {
        "type": "code_interpreter",
        "container": {"type": "auto", "network_policy": policy},
    }
    body: Any = {"model": model, "input": "Fetch it.", "tools": [tool], "include": OUTPUTS}
    response: Any = await client.responses.create(**body)
    ran = response.output[0]
    assert ran.outputs[0].logs == "200\n403"
    offered = code_stack.fake.requests_for(model)[0].body["tools"][0]["function"]["description"]
    assert f"these hosts only: {host}." in offered
    container = await client.containers.retrieve(ran.container_id)
    assert container.network_policy is not None
    assert container.network_policy.model_dump() == policy

    # A request without the policy gets another container, without network.
    model = model_with(code_stack.fake, calling(code(fetch)))
    later: Any = {**body, "model": model, "tools": [AUTO], "previous_response_id": response.id}
    ran = (await client.responses.create(**later)).output[0]
    assert ran.container_id != container.id
    assert "200" not in ran.outputs[0].logs
    [answer] = tool_texts(code_stack.fake, model)[-1:]
    assert "another network policy" in answer

    named: Any = {
        "type": "shell",
        "environment": {
            "type": "container_auto",
            "network_policy": {"type": "allowlist", "allowed_domains": ["b.org"]},
        },
    }
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=model, input="Hi.", tools=[named])
    assert refused.value.param == "tools[0].environment.network_policy.allowed_domains[0]"
