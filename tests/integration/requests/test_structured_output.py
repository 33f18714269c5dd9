"""Structured output: what the upstream gets, what is echoed, what is refused at create."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.support.api import JSON, Api
from tests.support.fake_upstream import FakeUpstream, finish, refusal, reply, usage
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_response

SCHEMA: JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "zulu": {"type": "string", "description": "Comes first."},
        "alpha": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "mike": {"type": "array", "items": {"$ref": "#/$defs/yankee"}},
    },
    "required": ["zulu", "alpha", "mike"],
    "additionalProperties": False,
    "$defs": {
        "yankee": {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        }
    },
}
"""The keys are not in alphabetical order."""
FORMAT: JSON = {
    "type": "json_schema",
    "name": "thing",
    "schema": SCHEMA,
    "strict": True,
    "description": "A thing.",
}


class Event(BaseModel):
    """The type that the official client parses."""

    name: str
    when: str


def in_order(value: Any) -> str:
    """JSON whose keys keep their order: equal only if the order is equal."""
    return json.dumps(value)


@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("background", [True, False])
async def test_a_schema_reaches_the_upstream_and_is_echoed_unchanged(
    api: Api, fake: FakeUpstream, strict: bool | None, background: bool
) -> None:
    expected_format = {
        name: value for name, value in (FORMAT | {"strict": strict}).items() if value is not None
    }
    model = fake.script(reply('{"zulu": "z", "alpha": 1, "mike": []}'))
    created = await api.create(
        model, text={"format": expected_format, "verbosity": "low"}, background=background
    )
    for response in (created, await api.wait_for_end(created["id"])):
        check_response(response)
        assert in_order(response["text"]["format"]["schema"]) == in_order(SCHEMA)
        echoed = {"description": None, "strict": None, **expected_format}
        assert response["text"] == {"format": echoed, "verbosity": "low"}
    sent = fake.requests_for(model)[0].body["response_format"]
    assert sent["type"] == "json_schema"
    assert in_order(sent["json_schema"]["schema"]) == in_order(SCHEMA)
    assert sent["json_schema"] == {
        name: value for name, value in expected_format.items() if name != "type"
    }


async def test_a_json_object_format_reaches_the_upstream_and_is_echoed(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply('{"a": 1}'))
    response = await api.create(model, text={"format": {"type": "json_object"}})
    assert response["text"]["format"] == {"type": "json_object"}
    assert fake.requests_for(model)[0].body["response_format"] == {"type": "json_object"}


async def test_the_official_client_parses_the_answer(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply('{"name": "Fair", ', '"when": "Friday"}'))
    response = await client.responses.parse(model=model, input="When?", text_format=Event)
    assert response.output_parsed == Event(name="Fair", when="Friday")
    sent = fake.requests_for(model)[0].body["response_format"]["json_schema"]
    assert (sent["name"], sent["strict"], list(sent["schema"]["properties"])) == (
        "Event",
        True,
        ["name", "when"],
    )


async def test_a_refusal_is_no_json_and_stays_a_refusal(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script([refusal("I will", " not."), finish(), usage()])
    response = await client.responses.parse(model=model, input="When?", text_format=Event)
    assert response.output_parsed is None
    assert response.output[0].to_dict()["content"] == [
        {"type": "refusal", "refusal": "I will not."}
    ]
    model = fake.script([refusal("No."), finish(), usage()])
    async with client.responses.stream(model=model, input="When?", text_format=Event) as stream:
        kinds = [event.type async for event in stream]
    assert "response.refusal.done" in kinds


REFUSED: list[tuple[str, JSON, str, str, str]] = [
    (
        "no schema",
        {"text": {"format": FORMAT | {"schema": {"type": "objekt"}, "strict": False}}},
        "text.format.schema",
        "invalid_json_schema",
        "Invalid schema for response_format 'thing': 'type' must be one of",
    ),
    (
        "a function",
        {
            "tools": [
                {
                    "type": "function",
                    "name": "look",
                    "parameters": {"type": "object", "required": "all"},
                }
            ]
        },
        "tools[0].parameters",
        "invalid_function_parameters",
        "Invalid schema for function 'look': 'required' must be an array of strings, not 'all'.",
    ),
]
NOT_STRICT: list[tuple[JSON, str, str, str]] = [
    (
        {
            "text": {
                "format": FORMAT
                | {
                    "schema": {
                        "type": "object",
                        "properties": {"a": {"type": "string"}},
                        "additionalProperties": False,
                    }
                }
            }
        },
        "text.format.schema",
        "invalid_json_schema",
        (
            "Invalid schema for response_format 'thing': 'required' is required to be supplied and"
            " to be an array including every key in properties."
        ),
    ),
    (
        {
            "tools": [
                {
                    "type": "namespace",
                    "name": "n",
                    "description": "",
                    "tools": [
                        {
                            "type": "function",
                            "name": "look",
                            "strict": True,
                            "parameters": {"type": "object"},
                        }
                    ],
                }
            ]
        },
        "tools[0].tools[0].parameters",
        "invalid_function_parameters",
        (
            "Invalid schema for function 'look': 'additionalProperties' is required to be supplied"
            " and to be false."
        ),
    ),
]
"""What OpenAI refuses, with `param`, `code` and the beginning of its message."""


@pytest.mark.parametrize(
    ("body", "param", "code", "message"), NOT_STRICT, ids=["a format", "a function"]
)
async def test_strict_schemas_follow_openais_rules_only_where_a_setting_asks_for_them(
    api: Api, tool_stack: Stack, fake: FakeUpstream, body: JSON, param: str, code: str, message: str
) -> None:
    model = fake.script(reply("{}"))
    assert (await api.create(model, **body))["status"] == "completed"
    [sent] = fake.requests_for(model)
    if "text" in body:
        schema = body["text"]["format"]["schema"]
        assert sent.body["response_format"]["json_schema"]["schema"] == schema
        assert sent.body["response_format"]["json_schema"]["strict"] is True
    refused = await tool_stack.api().call(
        "POST", "/responses", {"model": model, "input": "x", **body}
    )
    error = refused.body["error"]
    assert (refused.status, error["param"], error["code"]) == (400, param, code)
    assert error["message"].startswith(message)
    if "tools" in body:
        items = [{"type": "additional_tools", "role": "developer", "tools": body["tools"]}]
        path, place = "/conversations", f"items[0].{param}"
        refused = await tool_stack.api().call("POST", path, {"items": items})
        assert (refused.status, refused.body["error"]["param"]) == (400, place)
    assert len(fake.requests_for(model)) == 1


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
async def test_an_unusable_schema_is_refused_before_anything_is_stored(
    api: Api, fake: FakeUpstream, body: JSON, param: str, code: str, message: str
) -> None:
    model = fake.script(reply("never"))
    for background in (True, False):
        answer = await api.call(
            "POST", "/responses", {"model": model, "input": "x", "background": background, **body}
        )
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
        assert (answer.error["param"], answer.error["code"]) == (param, code)
        assert answer.error["message"].startswith(message)
    assert fake.requests_for(model) == []


# Upstreams without support for schemas.


@pytest.fixture(scope="module")
async def no_schema_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with one upstream for each way to request structured output."""
    folder = tmp_path_factory.mktemp("no-schema")
    methods = ("json_object", "guided_json", "prompt")
    quirk = 'passthrough = ["verbosity"]'
    lines = [
        f'[upstreams.{method}]\nbase_url = "{fake.base_url}"\n'
        f'structured_output = "{method}"\n{quirk}\n'
        for method in methods
    ]
    routes = [f'"{method}-*" = "{method}"' for method in methods]
    (folder / "backburner.toml").write_text("\n".join([*lines, "[routes]", *routes]))
    settings = {"BACKBURNER_CONFIG": str(folder / "backburner.toml")}
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as own_stack:
        yield own_stack


@pytest.mark.parametrize("method", ["json_object", "prompt"])
async def test_an_upstream_without_schemas_gets_it_as_text_and_may_answer_in_a_code_fence(
    no_schema_stack: Stack, fake: FakeUpstream, method: str
) -> None:
    model = fake.script(
        reply("``", '`json\n{"name": "Fair",', ' "when": "Friday"}\n`', "``"), name=f"{method}-1"
    )
    client = no_schema_stack.openai()
    response = await client.responses.parse(
        model=model, input="When?", instructions="Be brief.", text_format=Event
    )
    assert response.output_parsed == Event(name="Fair", when="Friday")
    sent = fake.requests_for(model)[0].body
    assert sent.get("response_format") == (
        {"type": "json_object"} if method == "json_object" else None
    )
    instructions = sent["messages"][0]["content"]
    assert instructions.startswith("Be brief.\n\n")
    assert '"required":["name","when"]' in instructions


async def test_an_old_vllm_gets_the_schema_as_guided_json(
    no_schema_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("{}"), name="guided_json-1")
    await no_schema_stack.api().create(model, text={"format": FORMAT})
    sent = fake.requests_for(model)[0].body
    assert in_order(sent["guided_json"]) == in_order(SCHEMA)
    assert "response_format" not in sent
    assert [message["role"] for message in sent["messages"]] == ["user"]


async def test_verbosity_reaches_only_an_upstream_that_supports_it(
    api: Api, no_schema_stack: Stack, fake: FakeUpstream
) -> None:
    for client, model, instructions in (
        (no_schema_stack.api(), "prompt-2", "low"),
        (api, "plain-verbosity", None),
    ):
        response = await client.create(
            fake.script(reply("x"), name=model), text={"verbosity": "low"}
        )
        assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
        assert fake.requests_for(model)[0].body.get("verbosity") == instructions
