"""Undocumented requests that clients are known to send, and what they need in the answers."""

from typing import Any

import openai
import pytest
from openai import pydantic_function_tool
from openai.types.responses import ParsedResponse
from pydantic import BaseModel

from tests.support.api import JSON, Api
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    finish,
    reasoning,
    reply,
    text,
    usage,
)
from tests.support.mcp_servers import McpServers
from tests.support.stack import Stack
from tests.support.strict_types import check_response

PIXEL = "data:image/png;base64,iVBORw0KGgo="
LOOK_TOOL: JSON = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
}
ALL_NULL: JSON = dict.fromkeys(
    (
        *(
            "background",
            "conversation",
            "include",
            "instructions",
            "max_output_tokens",
            "max_tool_calls",
            "metadata",
            "parallel_tool_calls",
        ),
        *(
            "previous_response_id",
            "prompt",
            "prompt_cache_key",
            "prompt_cache_retention",
            "reasoning",
            "safety_identifier",
            "service_tier",
        ),
        *(
            "store",
            "stream",
            "stream_options",
            "temperature",
            "text",
            "tool_choice",
            "tools",
            "top_logprobs",
            "top_p",
            "truncation",
            "user",
        ),
        *(
            "context_management",
            "moderation",
            "prompt_cache_options",
            "client_metadata",
            "image",
            "access_programs",
        ),
    )
)
"""Clients that build their body from an object send every field of it."""

HISTORIES: list[tuple[str, list[JSON], list[JSON]]] = [
    (
        "messages without a type",
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        ],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
    ),
    (
        "an assistant's turn as a plain string",
        [
            {"role": "user", "content": "Hi."},
            {"type": "message", "role": "assistant", "content": "Hello."},
            {"role": "assistant", "content": "And?"},
            {"role": "user", "content": "Bye."},
        ],
        [
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello.\n\nAnd?"},
            {"role": "user", "content": "Bye."},
        ],
    ),
    (
        "a call whose item has no id and whose output is a list",
        [
            {"role": "user", "content": "Look."},
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "look",
                "arguments": "{}",
                "status": None,
                "id": None,
            },
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "a"}],
                "status": None,
            },
        ],
        [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "a"},
        ],
    ),
    (
        "items with keys of other makers and other days",
        [
            {
                "role": "user",
                "content": "Look.",
                "cache_control": {"type": "ephemeral"},
                "name": "ada",
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": None,
                "encrypted_content": None,
                "format": "unknown",
            },
            {
                **dict.fromkeys(("async_", "caller", "namespace")),
                "async": False,
                "parsed_arguments": {},
                "created_by": "x",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "look",
                "arguments": "{}",
                "status": "completed",
                "type": "function_call",
            },
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": "a",
                "caller": {"type": "direct"},
                "created_by": None,
            },
        ],
        [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "a"},
        ],
    ),
]


@pytest.mark.parametrize(
    ("sent", "expected"), [row[1:] for row in HISTORIES], ids=[row[0] for row in HISTORIES]
)
async def test_history_in_every_known_shape_is_accepted(
    api: Api, fake: FakeUpstream, sent: list[JSON], expected: list[JSON]
) -> None:
    model = fake.script(reply("ok"))
    check_response(await api.create(model, input=sent, store=False))
    assert fake.requests_for(model)[0].messages == expected


async def test_every_parameter_may_be_null(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("ok"))
    response = await api.create(model, **ALL_NULL)
    check_response(response)
    assert set(fake.requests_for(model)[0].body) == {
        "model",
        "messages",
        "stream",
        "stream_options",
    }


@pytest.mark.parametrize(
    "given",
    [{}, {"format": None}, {"format": {"type": "text"}, "verbosity": None}],
    ids=["empty", "null", "nulls inside"],
)
async def test_text_may_be_empty(api: Api, fake: FakeUpstream, given: JSON) -> None:
    model = fake.script(reply("ok"))
    assert (await api.create(model, text=given))["text"]["format"] == {"type": "text"}
    assert "response_format" not in fake.requests_for(model)[0].body


async def test_schemas_may_name_their_dialect(api: Api, fake: FakeUpstream) -> None:
    """Zod and TypeScript tools send it. The upstream receives the schema unchanged."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"n": {"type": "string"}},
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    model = fake.script(reply("{}"))
    formatted: JSON = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    response = await api.create(
        model,
        tools=[{"type": "function", "name": "f", "parameters": schema}],
        text={"format": formatted},
    )
    assert response["text"]["format"]["schema"] == response["tools"][0]["parameters"] == schema
    body = fake.requests_for(model)[0].body
    assert (
        body["tools"][0]["function"]["parameters"]
        == body["response_format"]["json_schema"]["schema"]
        == schema
    )


OUTPUTS: list[tuple[str, Any, str]] = [
    ("a string", "rain", "rain"),
    ("an empty string", "", "(empty)"),
    (
        "a list of text",
        [{"type": "input_text", "text": "rain"}, {"type": "input_text", "text": "wind"}],
        "rain\nwind",
    ),
    ("an empty list", [], "(empty)"),
]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
@pytest.mark.parametrize(
    ("output", "expected"), [row[1:] for row in OUTPUTS], ids=[row[0] for row in OUTPUTS]
)
async def test_a_tool_output_is_a_string_or_a_list(
    api: Api, fake: FakeUpstream, kind: str, output: Any, expected: str
) -> None:
    model = fake.script(reply("ok"))
    tool_call = {
        "type": kind,
        "call_id": "call_1",
        "name": "look",
        "arguments" if kind == "function_call" else "input": "{}",
    }
    items = [
        {"role": "user", "content": "Look."},
        tool_call,
        {"type": f"{kind}_output", "call_id": "call_1", "output": output},
    ]
    response = await api.create(model, input=items)
    answer = fake.requests_for(model)[0].messages[-1]
    assert (answer["role"], answer["content"]) == ("tool", expected)
    listed = (await api.call("GET", f"/responses/{response['id']}/input_items?order=asc")).body[
        "data"
    ]
    assert [item["type"] for item in listed] == ["message", kind, f"{kind}_output"]
    assert listed[2]["output"] == output, "an output stays what it was"


async def test_user_text_is_listed_in_parts(api: Api, fake: FakeUpstream) -> None:
    """Clients read `content[0].text`, also if they sent a string."""
    history = [
        {"role": "user", "content": "words"},
        {"role": "assistant", "content": "answer"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": PIXEL},
            ],
        },
    ]
    response = await api.create(fake.script(reply("ok")), input=history)
    listed = (await api.call("GET", f"/responses/{response['id']}/input_items?order=asc")).body[
        "data"
    ]
    assert [[part["type"] for part in item["content"]] for item in listed] == [
        ["input_text"],
        ["output_text"],
        ["input_text", "input_image"],
    ]
    assert [item["content"][0]["text"] for item in listed] == ["words", "answer", "see"]
    assert all(item["id"] and item["status"] == "completed" for item in listed)


async def test_calls_of_mcp_tools_have_a_status(
    tool_stack: Stack, mcp_servers: McpServers, fake: FakeUpstream
) -> None:
    """openai-agents reads the optional status and sends items back, perhaps with many nulls."""
    tool = {
        "type": "mcp",
        "server_label": "plain",
        "server_url": mcp_servers.url("plain"),
        "require_approval": "never",
    }
    model = fake.script(
        [call(0, "call_1", "echo", '{"text": "hi"}'), finish("tool_calls"), usage(), done()],
        reply("ok"),
    )
    response = await tool_stack.openai().responses.create(model=model, input="Go.", tools=[tool])  # type: ignore[list-item]
    listing, called, _ = response.output
    assert listing.type == "mcp_list_tools"
    assert called.type == "mcp_call"
    assert called.status == "completed"
    assert called.output == "hi"
    for items in (
        [item.to_dict() for item in response.output],
        [item.model_dump() for item in response.output],
    ):
        again: Any = [
            {"role": "user", "content": "Go."},
            *items,
            {"role": "user", "content": "On."},
        ]
        await tool_stack.openai().responses.create(model=model, input=again, store=False)
    plain, nulls = fake.requests_for(model)[-2:]
    assert plain.messages == nulls.messages
    without = {
        key: value for key, value in called.to_dict().items() if key not in ("status", "output")
    }
    await tool_stack.openai().responses.create(
        model=model,
        input=[without, {"role": "user", "content": "On."}],  # type: ignore[list-item]
    )


async def test_a_reasoning_item_has_a_summary_and_may_come_back_without_one(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([reasoning("hm"), *reply("ok")])
    response = await api.create(model)
    thought = response["output"][0]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    summaries: list[JSON] = [
        {},
        {"summary": []},
        {"summary": [{"type": "summary_text", "text": "Thought."}]},
    ]
    for summary in summaries:
        item = {**{key: value for key, value in thought.items() if key != "summary"}, **summary}
        again = await api.create(
            model,
            input=[item, *response["output"][1:], {"role": "user", "content": "On."}],
            store=False,
        )
        assert again["status"] == "completed"


class Look(BaseModel):
    """Where to look."""

    where: str


class Seen(BaseModel):
    """What was seen."""

    what: str


async def test_parsed_objects_are_accepted_as_the_client_dumps_them(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    """`parse` adds `parsed` and `parsed_arguments` to items; `model_dump` writes every null and
    `async_`.
    """
    asks = [
        reasoning("hm"),
        text('{"what": "a"}'),
        call(0, "call_1", "Look", '{"where":"up"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    model = fake.script(asks, reply('{"what": "b"}'))
    tool: Any = pydantic_function_tool(Look)
    flat: Any = {"type": "function", **tool["function"]}
    first: ParsedResponse[Seen] = await client.responses.parse(
        model=model, input="Look.", text_format=Seen, tools=[flat]
    )
    dumps: list[list[Any]] = [
        list(first.output),
        [item.to_dict() for item in first.output],
        [item.model_dump() for item in first.output],
        [item.model_dump(mode="json", by_alias=True) for item in first.output],
    ]
    answer = {"type": "function_call_output", "call_id": "call_1", "output": "sky"}
    for items in dumps:
        again: Any = [{"role": "user", "content": "Look."}, *items, answer]
        second = await client.responses.parse(
            model=model, input=again, text_format=Seen, tools=[flat], store=False
        )
        assert second.output_parsed == Seen(what="b")
    messages = [request.messages for request in fake.requests_for(model)[1:]]
    assert messages == [messages[0]] * len(dumps)
    assert [message["role"] for message in messages[0]] == ["user", "assistant", "tool"]
