"""An upstream that speaks the Responses API itself: the same promises hold (docs/adr/0015)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, until
from tests.support.chaos.attempts import assert_abandoned, assert_one_stream
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    UpstreamRequest,
    call,
    done,
    drop,
    finish,
    hang,
    raw,
    reasoning,
    reply,
    reset,
    status,
    text,
    usage,
)
from tests.support.mcp_servers import McpServers
from tests.support.native_script import (
    begin,
    end,
    message_item,
    native_call,
    native_events,
    native_reply,
    reasoning_item,
    server_tool_item,
)
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_response
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses

FILE = """
[upstreams.big]
base_url = "{fake}"
api_key = "upstream-secret"
api = "responses"
passthrough = ["top_k"]
account_ids = ["*"]
max_retries = 0

[upstreams.small]
base_url = "{fake}"
api_key = "upstream-secret"
max_retries = 0

[routes]
"*" = "big"
"small-*" = "small"
"either-*" = ["big", "small"]
"""

WEB_SEARCH: JSON = {"type": "web_search"}
FILE_SEARCH: JSON = {"type": "file_search", "vector_store_ids": ["vs_1"]}
FILE_SEARCH_CALL: JSON = {
    "id": "fs_upstream",
    "type": "file_search_call",
    "status": "completed",
    "queries": ["q"],
    "results": None,
}
WEB_SEARCH_CALL: JSON = {
    "id": "ws_upstream",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "q"},
}
CODE_CALL: JSON = {
    "id": "ci_upstream",
    "type": "code_interpreter_call",
    "status": "completed",
    "container_id": "cntr_1",
    "code": "1+1",
    "outputs": [{"type": "logs", "logs": "2"}],
}


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
    folder = tmp_path_factory.mktemp("native")
    (folder / "backburner.toml").write_text(FILE.format(fake=fake.base_url))
    settings = {
        **SHORT_LEASES,
        **TOOL_SETTINGS,
        "BACKBURNER_CONFIG": str(folder / "backburner.toml"),
        "BACKBURNER_LIMITS__TOKEN_GAP": "3",
        "BACKBURNER_LIMITS__TURNS": "6",
    }
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as running:
        yield running


@pytest.fixture
def api(own_stack: Stack) -> Api:
    return own_stack.api()


async def read_stream(api: Api, model: str, **body: Any) -> tuple[JSON, list[JSON]]:
    """Reads a stream to its end; returns the response and its events, both checked."""
    async with api.post_stream(model, **body) as stream:
        await stream.to_end()
    check_response(stream.final)
    return stream.final, assert_one_stream(stream.frames)


# --- answers ---


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
async def test_an_answer_is_the_same_with_and_without_streaming(
    api: Api, fake: FakeUpstream, background: bool
) -> None:
    model = fake.script(native_reply("Hello ", "world"))
    streamed, events = await read_stream(api, model, background=background)
    if background:
        plain = await api.wait_for_end(await api.create_background(model))
    else:
        plain = await api.create(model)
    check_response(plain)
    for response in (streamed, plain):
        assert (response["status"], response["output_text"], response["model"]) == (
            "completed",
            "Hello world",
            model,
        )
        assert response["usage"] == {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 18,
        }
        assert response["service_tier"] == "flex"
        assert response["metadata"] == {}
    assert [event["delta"] for event in events if event["type"].endswith("text.delta")] == [
        "Hello ",
        "world",
    ]
    assert "upstream" not in json.dumps(events), "an id of the upstream was shown"
    assert (await api.get(streamed["id"]))["output"] == streamed["output"]


async def test_the_upstream_stores_nothing_and_gets_the_clients_parameters(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(native_reply("ok"))
    parameters = {
        "instructions": "Be brief.",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "top_k": 7,
    }
    await api.create(
        model,
        **parameters,
        background=True,
        metadata={"ours": "alone"},
        truncation="auto",
        store=True,
    )
    await until(lambda: fake.requests_for(model))
    request = fake.requests_for(model)[0]
    assert request.path == "/v1/responses"
    assert request.headers["authorization"] == "Bearer upstream-secret"
    assert request.body == {
        "model": model,
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hello."}],
            }
        ],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        **parameters,
    }


SENT_UNCHANGED: JSON = {
    "moderation": {"model": "m", "policy": {"input": {"mode": "block"}}},
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low", "next_year": {"deep": [None, 1]}},
    "parallel_tool_calls": False,
    "tools": [
        {
            "type": "function",
            "name": "f",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
            "async": True,
            "allowed_callers": ["programmatic"],
            "output_schema": {"type": ["object", "null"], "default": None},
            "defer_loading": True,
        },
        {"type": "image_generation", "next_year": {"a": None}},
    ],
}
CALL_WITH_CALLER: JSON = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
    "status": "completed",
    "caller": {"type": "program", "caller_id": "prog_1"},
}
ITEMS_UNCHANGED: list[JSON] = [
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
        ],
        "next_year": [1],
    },
    CALL_WITH_CALLER,
    {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": "done",
        "caller": {"type": "program", "caller_id": "prog_1"},
    },
]


async def test_what_this_server_does_not_serve_reaches_the_upstream_unchanged(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(native_reply("ok"))
    answered = await api.create(model, input=ITEMS_UNCHANGED, **SENT_UNCHANGED)
    body = fake.requests_for(model)[0].body
    assert {name: body[name] for name in SENT_UNCHANGED} == SENT_UNCHANGED
    assert body["input"] == ITEMS_UNCHANGED
    assert answered["tools"][0]["async"] is True


async def test_items_of_a_conversation_reach_the_upstream_unchanged(
    api: Api, fake: FakeUpstream
) -> None:
    answer = await api.call("POST", "/conversations", {"items": ITEMS_UNCHANGED})
    model = fake.script(native_reply("ok"))
    await api.create(model, input="On.", conversation=answer.body["id"])
    assert fake.requests_for(model)[0].body["input"][:-1] == ITEMS_UNCHANGED


async def test_what_only_the_upstream_knows_reaches_the_client_and_returns(
    api: Api, fake: FakeUpstream
) -> None:
    part = {
        "type": "output_text",
        "text": "Hi",
        "annotations": [],
        "logprobs": [],
        "next_year": {"a": 1},
    }
    message: JSON = {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        "phase": "final_answer",
        "next_year": "x",
    }
    thought: JSON = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "status": "completed",
        "next_year": 2,
    }
    failed = {"type": "error", "code": "x", "message": "m"}
    checked = {"input": failed, "output": failed}
    steps: list[Step] = [begin()]
    for index, item in enumerate((thought, message)):
        steps.append(
            native_events(
                {
                    "type": "response.output_item.done",
                    "output_index": index,
                    "item": {**item, "id": f"up_{index}"},
                }
            )
        )
    terminal = end(output=[], moderation=checked, next_year={"a": [None]})
    model = fake.script([*steps, terminal], native_reply("ok"))
    streamed, events = await read_stream(api, model)
    for shown in (streamed, await api.get(streamed["id"]), events[-1]["response"]):
        assert [without_id(item) for item in shown["output"]] == [thought, message]
        assert shown["moderation"] == checked
        assert shown["next_year"] == {"a": [None]}
    await api.create(model, previous_response_id=streamed["id"])
    sent = [without_id(item) for item in fake.requests_for(model)[-1].body["input"][1:3]]
    del thought["status"]
    assert sent == [thought, message]


def without_id(item: JSON) -> JSON:
    """The item without its id, which this server makes."""
    return {name: value for name, value in item.items() if name != "id"}


async def test_the_official_client_streams_from_it(own_stack: Stack, fake: FakeUpstream) -> None:
    model = fake.script(
        [begin(), reasoning_item("blob", "Let me ", "see."), message_item("Hello ", "world"), end()]
    )
    async with own_stack.openai().responses.stream(model=model, input="Hi.") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "Hello world"
    assert [item.type for item in final.output] == ["reasoning", "message"]


# --- conversations ---


async def test_a_chain_sends_the_whole_history_with_the_upstreams_own_reasoning(
    api: Api, fake: FakeUpstream
) -> None:
    first_turn = [
        begin(),
        reasoning_item("only they can read it", "I think."),
        native_call("call_1", "look", '{"a":', "1}"),
        end(),
    ]
    model = fake.script(first_turn, native_reply("seen"), native_reply("bye"))
    look = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    first, _ = await read_stream(api, model, tools=[look], include=["reasoning.encrypted_content"])
    assert item_statuses(first) == ["reasoning completed", "function_call completed"]
    assert first["output"][0]["encrypted_content"].endswith("only they can read it")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "a view"}
    second = await api.create(model, input=[output], previous_response_id=first["id"], tools=[look])
    await api.create(model, input="Thanks.", previous_response_id=second["id"])
    history = fake.requests_for(model)[2].body["input"]
    assert [item["type"] for item in history] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]
    assert history[1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I think."}],
        "encrypted_content": "only they can read it",
    }
    assert history[2] == {
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "look",
        "arguments": '{"a":1}',
    }
    assert history[3] == {"type": "function_call_output", "call_id": "call_1", "output": "a view"}
    assert history[4]["content"][0]["text"] == "seen"
    assert not any("previous_response_id" in request.body for request in fake.requests_for(model))


async def test_a_client_that_keeps_the_history_may_leave_out_the_ids(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(
        [begin(), reasoning_item("blob"), message_item("one"), end()], native_reply("two")
    )
    first = await api.create(model, store=False, include=["reasoning.encrypted_content"])
    copied = [
        {name: value for name, value in item.items() if name != "id"} for item in first["output"]
    ]
    await api.create(
        model,
        store=False,
        input=[{"role": "user", "content": "1"}, *copied, {"role": "user", "content": "2"}],
    )
    history = fake.requests_for(model)[1].body["input"]
    assert [item["type"] for item in history] == ["message", "reasoning", "message", "message"]
    assert history[1] == {"type": "reasoning", "summary": [], "encrypted_content": "blob"}


async def test_a_conversation_can_continue_at_an_upstream_of_the_other_kind(
    api: Api, fake: FakeUpstream
) -> None:
    native_model = fake.script(
        [
            begin(),
            reasoning_item("blob"),
            server_tool_item(FILE_SEARCH_CALL),
            native_call("c", "f", "{}"),
            end(),
        ],
        native_reply("back"),
    )
    fake.script(reply("in chat"), name="small-1")
    first, _ = await read_stream(
        api, native_model, tools=[FILE_SEARCH, {"type": "function", "name": "f"}]
    )
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    second = await api.create("small-1", input=[output], previous_response_id=first["id"])
    assert [message["role"] for message in fake.requests_for("small-1")[-1].messages] == [
        "user",
        "assistant",
        "tool",
    ]
    await api.create(native_model, previous_response_id=second["id"])
    types = [item["type"] for item in fake.requests_for(native_model)[-1].body["input"]]
    assert types == [
        "message",
        "reasoning",
        "file_search_call",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]


# --- tools ---


async def test_a_search_in_stores_of_this_server_is_a_function_for_the_upstream(
    own_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    client = own_stack.openai()
    store = await client.vector_stores.create()
    await client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("a.md", b"Bread rises in an hour."), poll_interval_ms=50
    )
    turns = iter([[begin(), native_call("c", "file_search", '{"queries": ["bread"]}'), end()]])

    def decide(request: UpstreamRequest) -> Script:
        marker = "".join(re.findall(r"\[cite:\w+\]", request.body_text)[-1:])
        return next(turns, None) or [begin(), message_item(f"An hour {marker}."), end()]

    model = fake.script()
    fake.decide(model, decide)
    tool = {"type": "file_search", "vector_store_ids": [store.id]}
    response, _ = await read_stream(
        api, model, tools=[tool], tool_choice={"type": "file_search"}, max_tool_calls=2
    )
    assert item_statuses(response) == ["file_search_call completed", "message completed"]
    [part] = response["output"][1]["content"]
    assert (part["text"], part["annotations"][0]["filename"]) == ("An hour.", "a.md")
    first, second = (request.body for request in fake.requests_for(model))
    assert [each["type"] for each in first["tools"]] == ["function"]
    assert first["tool_choice"] == {"type": "function", "name": "file_search"}
    assert [item["type"] for item in second["input"]] == [
        *("message", "function_call", "function_call_output"),
    ]
    unknown = {"type": "file_search", "vector_store_ids": [store.id, "vs_1"]}
    refused = await api.call(
        "POST", "/responses", {"model": model, "input": "x", "tools": [unknown]}
    )
    assert (refused.status, refused.error["param"]) == (404, "tools[0].vector_store_ids")


async def test_mcp_tools_run_here_and_are_functions_for_the_upstream(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    calls = [
        native_call(f"call_{number}", tool, json.dumps({"key": f"native-{number}"}))
        for number, tool in enumerate(("count_unsafe", "count_read_only"))
    ]
    model = fake.script(
        [begin(), reasoning_item("blob"), message_item("Let me see."), *calls, end()],
        native_reply("done"),
    )
    response, _ = await read_stream(
        api, model, tools=[counting_server(tool_servers)], tool_choice="required"
    )
    assert item_statuses(response) == [
        "mcp_list_tools completed",
        "reasoning completed",
        "message completed",
        "mcp_call completed",
        "mcp_call completed",
        "message completed",
    ]
    assert response["usage"]["total_tokens"] == 36
    first, second = fake.requests_for(model)
    assert {tool["type"] for tool in first.body["tools"]} == {"function"}
    assert (first.body["tool_choice"], second.body["tool_choice"]) == ("required", "auto")
    history = second.body["input"]
    assert [item["type"] for item in history] == [
        "message",
        "reasoning",
        "message",
        *["function_call", "function_call_output"] * 2,
    ]
    assert history[3]["name"] == "count_unsafe"
    assert [history[4]["output"], history[6]["output"]] == [
        "count_unsafe native-0: call 1",
        "count_read_only native-1: call 1",
    ]
    assert len(tool_servers.tool_calls.calls_with("native-0")) == 1


async def test_a_native_upstream_searches_tools_itself(
    api: Api, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    search: JSON = {"type": "tool_search"}
    later: JSON = {"type": "function", "name": "later", "parameters": {}, "defer_loading": True}
    server = counting_server(tool_servers) | {"defer_loading": True}
    model = fake.script(native_reply("done"))
    await read_stream(api, model, tools=[search, later, server])
    sent = fake.requests_for(model)[0].body["tools"]
    assert sent[0] == search
    assert sent[1]["name"] == "later"
    assert len(sent) == 5
    assert all(tool["defer_loading"] for tool in sent[1:])


async def test_tools_of_the_upstream_pass_through_with_their_items_and_events(
    api: Api, fake: FakeUpstream
) -> None:
    progress = [
        {"type": f"response.web_search_call.{step}"}
        for step in ("in_progress", "searching", "completed")
    ]
    code: list[JSON] = [
        {"type": "response.code_interpreter_call_code.delta", "delta": piece}
        for piece in ("1", "+1")
    ]
    model = fake.script(
        [
            begin(),
            server_tool_item(WEB_SEARCH_CALL, *progress),
            server_tool_item(CODE_CALL, *code),
            server_tool_item(FILE_SEARCH_CALL),
            message_item("It is 2."),
            end(),
        ],
        native_reply("as I said"),
    )
    tools = [
        WEB_SEARCH,
        FILE_SEARCH,
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "image_generation"},
    ]
    response, events = await read_stream(
        api, model, tools=tools, tool_choice={"type": "file_search"}, max_tool_calls=5
    )
    assert item_statuses(response) == [
        f"{kind} completed"
        for kind in ("web_search_call", "code_interpreter_call", "file_search_call", "message")
    ]
    assert response["output"][1] == {**CODE_CALL, "id": response["output"][1]["id"]}
    assert response["tools"] == tools
    request = fake.requests_for(model)[0].body
    assert (request["tools"], request["tool_choice"], request["max_tool_calls"]) == (
        tools,
        {"type": "file_search"},
        5,
    )
    types = [event["type"] for event in events]
    assert types.count("response.web_search_call.searching") == 1
    assert types.count("response.code_interpreter_call_code.delta") == 2
    await api.create(model, previous_response_id=response["id"])
    history = fake.requests_for(model)[1].body["input"]
    assert [item["type"] for item in history[1:-1]] == [item["type"] for item in response["output"]]
    assert [item["id"] for item in history[1:-1]] == [item["id"] for item in response["output"]]


async def test_tools_that_only_a_native_upstream_can_run_are_refused_for_others(
    api: Api, fake: FakeUpstream
) -> None:
    fake.script(reply("never"), name="small-2")
    answer = await api.call(
        "POST", "/responses", {"model": "small-2", "input": "Hi.", "tools": [FILE_SEARCH]}
    )
    assert (answer.status, answer.error["param"]) == (404, "tools[0].vector_store_ids")
    code_tool = {
        "type": "code_interpreter",
        "container": {"network_policy": {"domain_secrets": [{"value": "s3cret"}]}},
    }
    answer = await api.call(
        "POST",
        "/responses",
        {"model": "big-one", "input": "Hi.", "tools": [FILE_SEARCH, code_tool]},
    )
    assert (answer.status, answer.error["param"], answer.error["code"]) == (
        400,
        "tools[1]",
        "unsupported_parameter",
    )
    assert "s3cret" not in answer.raw.decode()
    body = {
        "model": "big-one",
        "input": "Hi.",
        "tools": [FILE_SEARCH],
        "tool_choice": {"type": "image_generation"},
    }
    answer = await api.call("POST", "/responses", body)
    assert (answer.status, answer.error["param"]) == (400, "tool_choice")
    assert not fake.requests_for("small-2")


async def test_the_next_upstream_is_tried_only_if_it_supports_the_tools(
    api: Api, fake: FakeUpstream
) -> None:
    unavailable = [status(503)]
    fake.script(unavailable, reply("from chat"), name="either-1")
    assert (await api.create("either-1", tools=[WEB_SEARCH]))["output_text"] == "from chat"
    assert [request.path for request in fake.requests_for("either-1")] == [
        "/v1/responses",
        "/v1/chat/completions",
    ]
    fake.script(unavailable, reply("never"), name="either-2")
    answer = await api.call(
        "POST", "/responses", {"model": "either-2", "input": "Hi.", "tools": [FILE_SEARCH]}
    )
    assert answer.status == 502
    assert len(fake.requests_for("either-2")) == 1, "a chat upstream was sent a file search"


async def test_moderation_is_left_to_no_upstream_that_does_not_know_it(
    api: Api, fake: FakeUpstream
) -> None:
    """Where a model has another upstream, this server moderates."""
    fake.script([status(200, {"results": [{"flagged": False}]})], name="guard-3")
    fake.script([status(503)], reply("Hello."), name="either-3")
    asked = {"model": "guard-3", "policy": {"input": {"mode": "block"}}}
    body = {"model": "either-3", "input": "Hi.", "moderation": asked}
    assert (await api.call("POST", "/responses", body)).body["status"] == "completed"
    sent = fake.requests_for("either-3")
    assert [request.path for request in sent] == ["/v1/responses", "/v1/chat/completions"]
    assert not any("moderation" in request.body for request in sent)
    assert len(fake.requests_for("guard-3")) == 2


async def test_the_header_names_only_what_this_server_does_itself(
    api: Api, fake: FakeUpstream
) -> None:
    """Codex sends `client_metadata`."""
    body = {"model": fake.script(native_reply("ok")), "input": "Hi.", **SENT_UNCHANGED}
    answer = await api.call("POST", "/responses", body | {"client_metadata": {"a": "b"}})
    assert answer.headers["x-ignored-parameters"] == "client_metadata"


async def test_a_completion_window_is_not_sent_to_an_upstream(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(native_reply("ok"))
    options = {"completion_window": "8h", "continuation_id": "a"}
    created = await api.create_background(model, background_options=options)
    assert (await api.wait_for_end(created))["background_options"] == options
    [request] = fake.requests_for(model)
    assert "background_options" not in request.body


# --- damaged streams, missing endings, refusals ---


def _delta(text: str, **more: Any) -> JSON:
    return {"type": "response.output_text.delta", "delta": text, **more}


WHOLE_MESSAGE = {
    "type": "message",
    "id": "msg_upstream",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "so far"}],
}
DAMAGED_STREAMS: list[tuple[str, list[Step]]] = [
    ("only deltas", [native_events(_delta("so "), _delta("far")), end()]),
    ("nothing but the end", [end(output=[WHOLE_MESSAGE])]),
    (
        "a json body",
        [status(200, {"object": "response", "status": "completed", "output": [WHOLE_MESSAGE]})],
    ),
    (
        "no item was done",
        [begin(), message_item("so ", "far", closed=False), end(output=[WHOLE_MESSAGE])],
    ),
    (
        "more output in the end",
        [begin(), message_item("so", closed=False), end(output=[WHOLE_MESSAGE])],
    ),
    ("an empty list at the end", [begin(), message_item("so ", "far"), end(output=[])]),
    ("no usage", [begin(), message_item("so ", "far"), end(usage=None)]),
    ("done instead of an end", [begin(), message_item("so ", "far"), done()]),
    ("done after the end", [begin(), message_item("so ", "far"), end(), done()]),
    (
        "events of new kinds",
        [
            native_events({"type": "response.novelty"}, {"type": "keepalive"}),
            message_item("so ", "far"),
            native_events({"type": "x.y"}),
            end(),
        ],
    ),
    ("numbers twice", [begin(), native_events(), begin(), message_item("so ", "far"), end()]),
    (
        "items after the end",
        [begin(), message_item("so ", "far"), end(), message_item("and more"), end("failed")],
    ),
    (
        "bytes that are no utf-8 in an unknown event",
        [
            native_events({"type": "response.novelty"}),
            raw(b'data: {"type":"x","y":"\xff"}\n\n'),
            message_item("so ", "far"),
            end(),
        ],
    ),
]


@pytest.mark.parametrize(
    "script", [pytest.param(script, id=name) for name, script in DAMAGED_STREAMS]
)
async def test_a_damaged_stream_becomes_a_valid_one(
    api: Api, fake: FakeUpstream, script: list[Step]
) -> None:
    response, _ = await read_stream(api, fake.script(script))
    assert (response["status"], response["output_text"]) == ("completed", "so far")
    assert (await api.get(response["id"]))["output"] == response["output"]


BAD_ENDINGS: list[tuple[str, list[Step], str]] = [
    ("no ending", [], "upstream"),
    ("a reset", [reset()], "upstream"),
    ("a closed connection", [drop()], "upstream"),
    ("done in the middle", [done()], "upstream"),
    ("garbage", [raw(b"data: {nonsense\n\n")], "upstream"),
    ("no event at all", [raw(b'data: {"some": "json"}\n\n')], "upstream"),
    (
        "an error event",
        [
            native_events(
                {"type": "error", "code": "server_error", "message": "overloaded", "param": None}
            )
        ],
        "overloaded",
    ),
    (
        "an error of the other shape",
        [native_events({"type": "error", "error": {"message": "overloaded"}})],
        "overloaded",
    ),
    ("an error outside an event", [raw(b'\n{"error": {"message": "overloaded"}}\n')], "overloaded"),
    (
        "a failed response",
        [end("failed", error={"code": "server_error", "message": "overloaded"})],
        "overloaded",
    ),
    ("a cancelled response", [end("cancelled")], "cancelled"),
    ("silence", [hang()], "silent"),
]


@pytest.mark.parametrize(
    ("ending", "phrase"),
    [pytest.param(script, phrase, id=name) for name, script, phrase in BAD_ENDINGS],
)
async def test_a_stream_with_a_bad_ending_keeps_its_output(
    api: Api, fake: FakeUpstream, ending: list[Step], phrase: str
) -> None:
    model = fake.script([begin(), message_item("so ", "far", closed=False), *ending])
    response, _ = await read_stream(api, model)
    assert (response["status"], response["output_text"]) == ("failed", "so far")
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert phrase in response["error"]["message"].lower()
    assert await api.get(response["id"]) == response
    assert len(fake.requests_for(model)) == 1, "a foreground turn is not repeated"


async def test_a_bad_ending_repeats_the_turn_of_a_background_response(
    api: Api, fake: FakeUpstream
) -> None:
    async def check(name: str, ending: list[Step]) -> None:
        broken = [begin(), message_item("so ", "far", closed=False), *ending]
        response, events = await read_stream(
            api, fake.script(broken, native_reply("whole")), background=True
        )
        if name in ("garbage", "no event at all"):
            assert (response["status"], response["output_text"]) == ("failed", "so far"), name
        else:
            assert (response["status"], response["output_text"]) == ("completed", "whole"), name
            assert_abandoned(events, items=1)

    await asyncio.gather(*[check(name, ending) for name, ending, _ in BAD_ENDINGS])


async def test_a_completed_answer_of_as_many_tokens_as_allowed_is_incomplete(
    api: Api, fake: FakeUpstream
) -> None:
    used = {"input_tokens": 11, "output_tokens": 16, "total_tokens": 27}
    model = fake.script([begin(), message_item("so ", "far"), end(usage=used)])
    response, _ = await read_stream(api, model, max_output_tokens=16)
    assert (response["status"], response["output_text"]) == ("incomplete", "so far")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


REFUSALS: list[tuple[str, list[Step], int, str]] = [
    ("a bad request", [status(400, {"error": {"message": "no such thing"}})], 400, "no such thing"),
    ("our key", [status(401)], 502, "credential"),
    ("too many requests", [status(429, headers={"retry-after": "7"})], 429, ""),
    ("broken", [status(500)], 502, ""),
    (
        "an error instead of an answer",
        [native_events({"type": "error", "message": "overloaded"})],
        502,
        "overloaded",
    ),
    ("an empty stream", [raw(b": nothing\n\n")], 502, ""),
    ("an unknown path", [status(404, {"detail": "Not Found"})], 404, "'api'"),
    ("a wrong method", [status(405, {"detail": "Method Not Allowed"})], 400, "'api'"),
    ("an answer of the chat API", [*reply("Hello")], 502, "'api'"),
    (
        "a web page",
        [status(200, b"<html>hello</html>", {"content-type": "text/html"})],
        502,
        "",
    ),
]


@pytest.mark.parametrize(
    ("script", "expected", "phrase"),
    [pytest.param(*values, id=name) for name, *values in REFUSALS],
)
async def test_a_refusal_becomes_an_error_and_a_failed_response(
    api: Api, fake: FakeUpstream, script: list[Step], expected: int, phrase: str
) -> None:
    answer = await api.call("POST", "/responses", {"model": fake.script(script), "input": "Hi."})
    assert answer.status == expected, answer.raw
    assert phrase in answer.error["message"]
    assert "upstream-secret" not in answer.raw.decode()
    async with api.post_stream(fake.script(script)) as stream:
        response = (await stream.to_end())[-1]["response"]
    assert (response["status"], response["output"]) == ("failed", [])


@pytest.mark.parametrize(
    "script", [[status(404, {"detail": "Not Found"})]], ids=["an unknown path"]
)
async def test_a_chat_upstream_without_the_api_gets_a_hint_about_the_setting(
    api: Api, fake: FakeUpstream, script: list[Step]
) -> None:
    fake.script(script, name="small-404")
    answer = await api.call("POST", "/responses", {"model": "small-404", "input": "Hi."})
    assert answer.status == 404
    assert "'api'" in answer.error["message"]


async def test_an_unknown_model_is_a_400(api: Api) -> None:
    answer = await api.call("POST", "/responses", {"model": "no-such-model", "input": "Hi."})
    assert (answer.status, answer.error["code"]) == (400, "model_not_found")


async def test_an_incomplete_answer_is_incomplete(api: Api, fake: FakeUpstream) -> None:
    cut = [
        begin(),
        message_item("so ", "far", closed=False),
        end("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    ]
    response, _ = await read_stream(api, fake.script(cut))
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["usage"]["total_tokens"] == 18


# --- cancel, death ---


async def test_a_cancel_closes_the_upstream(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(
        [
            begin(),
            server_tool_item(FILE_SEARCH_CALL),
            message_item("so ", "far", closed=False),
            hang(),
        ]
    )
    async with api.post_stream(model, background=True, tools=[FILE_SEARCH]) as stream:
        await stream.until("response.output_text.delta", count=2)
        assert (await api.cancel(stream.response_id)).body["status"] == "cancelled"
        await stream.to_end()
    assert_one_stream(stream.frames)
    assert item_statuses(stream.final) == ["file_search_call completed", "message incomplete"]
    await until(lambda: fake.requests_for(model)[0].closed_by_client)


async def test_a_client_that_disconnects_closes_the_connection_to_the_upstream(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([begin(), message_item("so ", "far", closed=False), hang()])
    async with own_stack.api().post_stream(model) as stream:
        await stream.until("response.output_text.delta")
    await until(lambda: fake.requests_for(model)[0].closed_by_client)


def _added_call(index: int, name: str) -> JSON:
    item = {"id": name, "type": "function_call", "call_id": name, "name": name, "arguments": ""}
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _arguments(index: int, name: str, piece: str) -> JSON:
    kind = "response.function_call_arguments.delta"
    return {"type": kind, "output_index": index, "item_id": name, "delta": piece}


async def test_interleaved_calls_are_streamed_one_after_the_other(
    api: Api, fake: FakeUpstream
) -> None:
    events = [
        _added_call(0, "f"),
        _added_call(1, "g"),
        _arguments(1, "g", "{"),
        _arguments(0, "f", "{"),
        _arguments(1, "g", "}"),
        _arguments(0, "f", "}"),
    ]
    model = fake.script([begin(), native_events(*events), end()])
    tools = [
        {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
        for name in ("f", "g")
    ]
    async with api.post_stream(model, background=True, tools=tools) as stream:
        await stream.to_end()
    assert_one_stream(stream.frames)
    assert [(item["name"], item["arguments"]) for item in stream.final["output"]] == [
        ("f", "{}"),
        ("g", "{}"),
    ]


CUT_OFF_TURN: list[Step] = [
    begin(),
    native_events(
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**CODE_CALL, "code": "", "status": "in_progress"},
        },
        {
            "type": "response.code_interpreter_call_code.delta",
            "output_index": 0,
            "item_id": "ci_upstream",
            "delta": "1+",
        },
        {
            "type": "response.reasoning_summary_text.delta",
            "output_index": 1,
            "item_id": "rs_2",
            "summary_index": 0,
            "delta": "half a thought",
        },
    ),
    hang(),
]


async def test_another_worker_continues_after_the_last_finished_turn(
    own_stack: Stack, fake: FakeUpstream, tool_servers: McpServers
) -> None:
    """kill -9 in the second turn, in the middle of its code. The reasoning that the upstream sends
    beside the code is held back until the code is closed, so no reader has it."""
    api = own_stack.api()
    first_turn = [
        begin(),
        reasoning_item("blob", "I think."),
        native_call("call_1", "count_unsafe", '{"key": "killed"}'),
        end(),
    ]
    model = fake.script(
        first_turn,
        CUT_OFF_TURN,
        [begin(), server_tool_item(CODE_CALL), message_item("whole"), end()],
    )
    tools = [
        counting_server(tool_servers),
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    async with api.post_stream(model, background=True, tools=tools) as stream:
        await stream.until("response.code_interpreter_call_code.delta")
        killed = own_stack.workers[0]
        successor = own_stack.spawn_worker()
        own_stack.kill(killed)
        await own_stack.wait_until_claiming(successor)
        await stream.to_end()
    events = assert_one_stream(stream.frames)
    assert stream.final["status"] == "completed"
    assert item_statuses(stream.final)[1:] == [
        "reasoning completed",
        "mcp_call completed",
        "code_interpreter_call completed",
        "message completed",
    ]
    abandoned = [
        event["item"]
        for event in events
        if event["type"] == "response.output_item.done" and event["item"]["status"] == "incomplete"
    ]
    assert [(item["type"], item.get("code"), item.get("summary")) for item in abandoned] == [
        ("code_interpreter_call", "1+", None),
    ]
    assert len(tool_servers.tool_calls.calls_with("killed")) == 1
    assert await api.get(stream.response_id) == stream.final
    third_request = fake.requests_for(model)[2].body["input"]
    assert [item["type"] for item in third_request] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert third_request[1]["encrypted_content"] == "blob"


async def test_a_running_response_shows_its_output_so_far(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(
        [
            begin(),
            reasoning_item("blob", "I think."),
            message_item("so ", "far", closed=False),
            hang(),
        ]
    )
    response_id = await api.create_background(model)

    async def shows_output() -> bool:
        shown = await api.get(response_id)
        return [item["status"] for item in shown["output"]] == [
            "completed",
            "in_progress",
        ] and shown["output_text"] == "so far"

    await until(shows_output)
    await api.cancel(response_id)


# --- another deployment as the upstream ---


async def test_this_server_can_be_the_upstream_of_another(
    own_stack: Stack, fake: FakeUpstream, private_stack: PrivateStack
) -> None:
    """The other deployment translates from chat; its answers pass through here natively."""
    look = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    fake.script(
        [
            reasoning("hm, ", "well"),
            text("Let me see."),
            call(0, "call_1", "look", '{"a":', "1}"),
            finish("tool_calls"),
            usage(),
            done(),
        ],
        [text("Se", "en."), finish("length"), usage(), done()],
        name="small-far",
    )
    settings = {
        "BACKBURNER_UPSTREAM__BASE_URL": own_stack.api().base_url,
        "BACKBURNER_UPSTREAM__API_KEY": own_stack.key,
        "BACKBURNER_UPSTREAM__API": "responses",
    }
    async with private_stack(settings=settings) as near:
        first, _ = await read_stream(near.api(), "small-far", tools=[look], background=True)
        assert item_statuses(first) == [
            "reasoning completed",
            "message completed",
            "function_call completed",
        ]
        assert (first["output"][0]["content"][0]["text"], first["output"][2]["arguments"]) == (
            "hm, well",
            '{"a":1}',
        )
        assert first["usage"]["total_tokens"] == 18
        output = {"type": "function_call_output", "call_id": "call_1", "output": "a view"}
        second, _ = await read_stream(
            near.api(), "small-far", input=[output], previous_response_id=first["id"]
        )
        assert (second["status"], second["output_text"]) == ("incomplete", "Seen.")
        assert [message["role"] for message in fake.requests_for("small-far")[1].messages] == [
            "user",
            "assistant",
            "tool",
        ]
        unknown = await near.api().call(
            "POST", "/responses", {"model": "no-such-far", "input": "Hi."}
        )
        assert unknown.status == 400
        assert "does not exist" in unknown.error["message"]


async def test_a_history_is_compacted_by_a_native_upstream(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(native_reply("a summary"), native_reply("on it goes"))
    history = [
        {"role": "user", "content": "Remember 42."},
        {"role": "assistant", "content": "I do."},
    ]
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": history})
    assert answer.status == 200, answer.raw
    await api.create(
        model, input=[*answer.body["output"], {"role": "user", "content": "Which number?"}]
    )
    assert "a summary" in json.dumps(fake.requests_for(model)[1].body["input"])
    assert {request.path for request in fake.requests_for(model)} == {"/v1/responses"}


async def test_a_native_upstream_writes_the_summary_and_gets_it_back(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(native_reply("The cat is Momo."), native_reply("Rex."))
    history = [
        {"role": "user", "content": "My cat is called Momo."},
        {"role": "assistant", "content": "x" * 6000},
        {"role": "user", "content": "And?"},
    ]
    response, events = await read_stream(
        api,
        model,
        input=history,
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    assert item_statuses(response) == ["compaction completed", "message completed"]
    assert "response.compaction.compacting" in [event["type"] for event in events]
    summary_request, turn = (
        request.body for request in fake.requests_for(model) if request.path == "/v1/responses"
    )  # the count requests have another path
    assert "context_management" not in turn
    assert "tools" not in summary_request
    assert [item["type"] for item in turn["input"]] == ["message"] * 3
    assert "The cat is Momo." in json.dumps(turn["input"][1])
