"""What an upstream sends with a tool call comes back to it, and to no other one.

The upstreams here are as strict as the reports about real ones say: one refuses a call without the
fields and the id that it sent, one takes ids of nine letters and digits, one of at most 40.
"""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from models.db.database import open_pool
from models.ids import parse_response_id
from tests.support import keys
from tests.support.api import JSON, Api
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    UpstreamRequest,
    delta,
    done,
    finish,
    reasoning,
    reply,
    status,
    usage,
)
from tests.support.mcp_servers import McpServers
from tests.support.sql import run_sql
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_response
from tests.support.tool_turns import TOOL_SETTINGS, counting_server
from tests.support.worker_rows import settings_for

LOOK: JSON = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
}
UPSTREAMS = {
    "gemini": "foreign_call_fields = {extra_content = {google = {thought_signature = 'skip'}}}",
    "mistral": 'call_id_form = "alphanumeric_9"',
    "plain": "",
}
SECRET = "Z2VtaW5p/+=\u00e9"


def signed(turn: int) -> JSON:
    google = {"thought_signature": f"{SECRET}{turn}", "n": 2**70, "f": 1.5, "none": None}
    return {"extra_content": {"google": google}}


LONG_ID = f"call_1__thought__{SECRET}" * 20
"""As LiteLLM sends it: the signature is in the id."""


@pytest.fixture(scope="module")
async def strict_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with these upstreams, each of which says its name in a header."""
    folder = tmp_path_factory.mktemp("strict")
    upstreams = "".join(
        f'[upstreams.{name}]\nbase_url = "{fake.base_url}"\nheaders = {{x-upstream = "{name}"}}\n'
        f"{settings}\n"
        for name, settings in UPSTREAMS.items()
    )
    routes = "".join(f'"{name}-*" = "{name}"\n' for name in UPSTREAMS)
    routes += '"both-*" = ["gemini", "mistral"]\n"*" = "plain"\n'
    (folder / "backburner.toml").write_text(f"{upstreams}[routes]\n{routes}")
    settings = {
        **SHORT_LEASES,
        **TOOL_SETTINGS,
        "BACKBURNER_CONFIG": str(folder / "backburner.toml"),
    }
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as own_stack:
        yield own_stack


@pytest.fixture
def api(strict_stack: Stack) -> Api:
    return strict_stack.api()


def piece(index: int, **fields: Any) -> Step:
    """A chunk with one piece of a call."""
    return delta({"tool_calls": [{"index": index, **fields}]})


def calls(*steps: Step) -> list[Step]:
    return [*steps, finish("tool_calls"), usage(), done()]


def signed_turn(
    function: str = "look", arguments: str = "{}", call_id: str = "gSIMJiOkT", turn: int = 1
) -> list[Step]:
    """Two calls as Gemini makes them: only the first is signed. Its fields come in several
    pieces, the last alone."""
    thought = {"name": function, "arguments": "", "thought": SECRET}
    whole = {"name": function, "arguments": arguments}
    return calls(
        delta(
            {
                "tool_calls": [{"index": 0, "id": call_id, "function": thought}],
                "thought_marks": [turn],
            }
        ),
        piece(0, function={"arguments": arguments}, extra_content=None),
        piece(1, id=LONG_ID, type="function", function=whole),
        piece(0, **signed(turn)),
    )


def signed_with_thoughts() -> list[Step]:
    """The same with all fields in the first piece, after readable reasoning."""
    function = {"name": "look", "arguments": "{}"}
    first = {"id": "gSIMJiOkT", "function": {**function, "thought": SECRET}, **signed(1)}
    second = {"index": 1, "id": LONG_ID, "function": function}
    return calls(reasoning("Hm."), delta({"tool_calls": [{"index": 0, **first}, second]}))


def signed_calls(
    function: str = "look", arguments: str = "{}", call_id: str = "gSIMJiOkT", turn: int = 1
) -> list[JSON]:
    """What the upstream must get back."""
    named = {"name": function, "arguments": arguments}
    first = {"id": call_id, "type": "function", "function": {**named, "thought": SECRET}}
    return [{**first, **signed(turn)}, {"id": LONG_ID, "type": "function", "function": named}]


def shown_calls(fake: FakeUpstream, model: str, request: int = -1) -> list[JSON]:
    """The calls of all messages that the upstream got; each has its output behind it."""
    messages = fake.requests_for(model)[request].messages
    found = [call for message in messages for call in message.get("tool_calls", ())]
    outputs = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert outputs == [call["id"] for call in found]
    return found


def marks(fake: FakeUpstream, model: str) -> list[Any]:
    """What the last request has of the fields of messages with calls."""
    messages = fake.requests_for(model)[-1].messages
    return [message.get("thought_marks") for message in messages if message.get("tool_calls")]


def outputs_of(response: JSON) -> list[JSON]:
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
        for item in response["output"]
    ]


def assert_hidden(*bodies: Any) -> None:
    for body in bodies:
        text = body.decode() if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False)
        for word in ("Z2V", "thought", "extra_content", '"origin"', "call_key"):
            assert word not in text, word


@pytest.mark.parametrize(
    "history", ["chain", "conversation", "items", "four fields", "unstored", "references"]
)
async def test_calls_go_back_as_they_came(api: Api, fake: FakeUpstream, history: str) -> None:
    # The second turn uses the ids of the first one again, as some upstreams do.
    turns = [signed_turn(turn=number) for number in (1, 2)]
    model = fake.script(*turns, reply("ok"), name=f"gemini-{history.replace(' ', '-')}")
    fields: JSON = {"tools": [LOOK]}
    if history == "conversation":
        fields["conversation"] = (await api.call("POST", "/conversations", {})).body["id"]
    fields["store"] = fields["background"] = history != "unstored"
    items: list[JSON] = [{"role": "user", "content": "Look."}]
    new, response = list(items), dict[str, Any]()
    for turn in range(3):
        async with api.post_stream(model, input=new, **fields) as stream:
            events = await stream.to_end()
            assert_hidden(*stream.frames)
        response = events[-1]["response"]
        if turn == 2:
            break
        call_ids = [item["call_id"] for item in response["output"]]
        assert [item["type"] for item in response["output"]] == ["function_call"] * 2
        assert all(len(call_id) <= 64 for call_id in call_ids)
        new = outputs_of(response)
        if history == "chain":
            fields["previous_response_id"] = response["id"]
        elif history != "conversation":
            items += [_copied(item, history) for item in response["output"]] + new
            new = items
    assert shown_calls(fake, model) == signed_calls() + signed_calls(turn=2)
    assert marks(fake, model) == [[1], [2]]
    assert response["status"] == "completed"
    if history == "unstored":
        return
    assert_hidden(
        await api.get(response["id"]),
        (await api.call("GET", f"/responses/{response['id']}/input_items")).body,
        *await api.replay(response["id"]),
    )
    if history == "conversation":
        path = f"/conversations/{fields['conversation']}/items"
        assert_hidden((await api.call("GET", path)).body)


def _copied(item: JSON, history: str) -> JSON:
    if history == "four fields":
        return {name: item[name] for name in ("type", "call_id", "name", "arguments")}
    return {"type": "item_reference", "id": item["id"]} if history == "references" else item


async def test_a_client_that_keeps_sealed_reasoning_needs_no_row(
    strict_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    """As codex does. Nothing of the first response is stored any more when it comes back."""
    model = fake.script(signed_with_thoughts(), reply("ok"), name="gemini-sealed")
    fields: JSON = {
        "store": False,
        "tools": [LOOK],
        "include": ["reasoning.encrypted_content"],
    }
    async with api.post_stream(model, **fields) as stream:
        assert_stream_obeys_contract(await stream.to_end())
        first = stream.final
        assert_hidden(*stream.frames)
    check_response(first)
    kinds = [item["type"] for item in first["output"]]
    assert kinds == ["reasoning", "function_call", "reasoning", "function_call"]
    async with open_pool(settings_for(strict_stack.dsn), "deleting", 1) as pool:
        values = {"id": parse_response_id(first["id"])}
        await run_sql(pool, "DELETE FROM responses WHERE id = %(id)s", values)
    copied = [
        {name: value for name, value in item.items() if name not in ("id", "status", "content")}
        for item in first["output"]
    ]
    answers = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    await api.create(model, input=[*copied, *answers], **fields)
    assert shown_calls(fake, model) == signed_calls()
    [message] = [m for m in fake.requests_for(model)[1].messages if m["role"] == "assistant"]
    assert set(message) == {"role", "content", "tool_calls"}


@pytest.mark.parametrize("upstream", ["gemini", "mistral", "plain"])
async def test_calls_of_server_tools_go_back_as_they_came(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers, upstream: str
) -> None:
    tools = [counting_server(mcp_servers)]
    arguments = json.dumps({"key": f"origin {upstream}"})
    turn = signed_turn("count_read_only", arguments)
    model = fake.script(turn, turn, reply("ok"), reply("ok"), name=f"{upstream}-loop")
    first = await api.create(model, tools=tools)
    assert_hidden(first)
    expected = signed_calls("count_read_only", arguments)
    assert shown_calls(fake, model) == expected * 2
    await api.create(model, tools=tools, previous_response_id=first["id"])
    assert shown_calls(fake, model) == expected * 2
    # The client sends the items back. Which calls were made in one turn is known.
    again = fake.script(reply("ok"), name=f"{upstream}-copied")
    question = {"role": "user", "content": "Go on."}
    await api.create(again, tools=tools, input=[*first["output"], question])
    assert shown_calls(fake, again) == expected * 2
    sizes = [len(m.get("tool_calls", ())) for m in fake.requests_for(again)[0].messages]
    assert [size for size in sizes if size] == [2, 2]


async def test_another_upstream_gets_ids_in_its_form_and_no_fields(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tools = [LOOK, counting_server(mcp_servers)]
    arguments = json.dumps({"key": "changed model"})
    kimi = calls(
        piece(
            0,
            id="functions.count_read_only:0",
            function={"name": "count_read_only", "arguments": arguments},
        ),
        piece(1, id="functions.look:1", function={"name": "look", "arguments": "{}"}),
    )
    names = {name: f"{name}-changed" for name in UPSTREAMS}
    fake.script(kimi, reply("ok"), name=names["plain"])
    fake.script(reply("ok"), reply("ok"), name=names["mistral"])
    fake.script(reply("ok"), name=names["gemini"])
    first = await api.create(names["plain"], tools=tools)
    output = {
        "type": "function_call_output",
        "call_id": first["output"][-1]["call_id"],
        "output": "seen",
    }
    assert output["call_id"] == "functions.look:1"
    fields: JSON = {"previous_response_id": first["id"], "input": [output], "tools": tools}
    await api.create(names["mistral"], **fields)
    second = await api.create(names["mistral"], **fields)
    nine = [[call["id"] for call in shown_calls(fake, names["mistral"], nr)] for nr in (0, 1)]
    assert nine[0] == nine[1]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in nine[0])
    fields = {"previous_response_id": second["id"], "input": "And?", "tools": tools}
    await api.create(names["gemini"], **fields)
    shown = shown_calls(fake, names["gemini"])
    assert shown[0]["extra_content"] == {"google": {"thought_signature": "skip"}}
    assert "extra_content" not in shown[1]
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,40}", call["id"]) for call in shown)
    await api.create(names["plain"], **fields)
    assert [call["id"] for call in shown_calls(fake, names["plain"])] == [
        "functions.count_read_only:0",
        "functions.look:1",
    ]


async def test_a_fallback_in_a_run_gets_none_of_it_and_the_first_upstream_all(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    arguments = json.dumps({"key": "fallback"})
    expected = signed_calls("count_read_only", arguments)
    seen: list[tuple[str, list[JSON]]] = []

    def decide(request: UpstreamRequest) -> Script:
        upstream = request.headers["x-upstream"]
        shown = [call for message in request.messages for call in message.get("tool_calls", ())]
        if upstream == "gemini" and len(seen) == 1:
            seen.append((upstream, shown))
            return [status(500)]
        seen.append((upstream, shown))
        if len(seen) == 1:
            return signed_turn("count_read_only", arguments)
        if upstream == "mistral":
            function = {"name": "count_read_only", "arguments": arguments}
            return calls(piece(0, id="D681PevKs", function=function))
        return reply("ok")

    fake.decide("both-1", decide)
    response = await api.create("both-1", tools=[counting_server(mcp_servers)])
    assert response["status"] == "completed", response
    assert [upstream for upstream, _ in seen] == ["gemini", "gemini", "mistral", "gemini"]
    assert seen[1][1] == expected
    for call in seen[2][1]:
        assert re.fullmatch("[A-Za-z0-9]{9}", call["id"])
        assert set(call) == {"id", "type", "function"}
        assert set(call["function"]) == {"name", "arguments"}
    assert seen[3][1][:2] == expected
    assert seen[3][1][2]["extra_content"] == {"google": {"thought_signature": "skip"}}


async def test_an_approved_call_goes_back_as_it_came(
    api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tools = [{**counting_server(mcp_servers), "require_approval": "always"}]
    arguments = json.dumps({"key": "approved"})
    turn = signed_turn("count_read_only", arguments)
    model = fake.script(turn, reply("ok"), reply("ok"), name="gemini-approved")
    first = await api.create(model, tools=tools)
    requests = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
    answers = [
        {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": approve}
        for item, approve in zip(requests, (True, False), strict=True)
    ]
    second = await api.create(model, tools=tools, input=answers, previous_response_id=first["id"])
    expected = signed_calls("count_read_only", arguments)
    by_id = {call["id"]: call for call in shown_calls(fake, model)}
    assert by_id == {call["id"]: call for call in expected}
    assert_hidden(first, second)
    await api.create(model, tools=tools, input="And?", previous_response_id=second["id"])
    by_id = {call["id"]: call for call in shown_calls(fake, model)}
    assert by_id == {call["id"]: call for call in expected}


async def test_another_project_gets_nothing_by_an_id(
    strict_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(signed_turn(call_id="mineAlone"), name="gemini-mine")
    first = await api.create(model, tools=[LOOK])
    copied = [_copied(item, "four fields") for item in first["output"]]
    items = [*copied, *outputs_of(first)]
    other_project = strict_stack.api(key=keys.create(strict_stack.dsn, "guesses-ids"))
    foreign = fake.script(reply("ok"), name="gemini-theirs")
    await other_project.create(foreign, input=items)
    shown = shown_calls(fake, foreign)
    assert shown[0]["extra_content"] == {"google": {"thought_signature": "skip"}}
    assert SECRET not in json.dumps(shown, ensure_ascii=False)
    assert marks(fake, foreign) == [None]
    own = fake.script(reply("ok"), reply("ok"), name="gemini-own")
    await api.create(own, input=items)
    assert shown_calls(fake, own) == signed_calls(call_id="mineAlone")
    # It goes with the response.
    await api.call("DELETE", f"/responses/{first['id']}")
    await api.create(own, input=items)
    assert SECRET not in json.dumps(shown_calls(fake, own), ensure_ascii=False)
