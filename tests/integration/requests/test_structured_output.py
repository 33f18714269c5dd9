"""Structured output through the whole product: what the upstream is asked for, what is echoed, what is refused before anything is stored."""

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
"""Keys in an order that nobody would sort them into."""
FORMAT: JSON = {
    "type": "json_schema",
    "name": "thing",
    "schema": SCHEMA,
    "strict": True,
    "description": "A thing.",
}


class Event(BaseModel):
    """What the official client is to parse."""

    name: str
    when: str


def in_order(value: Any) -> str:
    """JSON as it stands: equal only with its keys in the same order."""
    return json.dumps(value)


@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("background", [True, False])
async def test_a_schema_reaches_the_upstream_and_comes_back_as_it_was(
    api: Api, fake: FakeUpstream, strict: bool | None, background: bool
) -> None:
    wanted = {
        name: value for name, value in (FORMAT | {"strict": strict}).items() if value is not None
    }
    model = fake.script(reply('{"zulu": "z", "alpha": 1, "mike": []}'))
    created = await api.create(
        model, text={"format": wanted, "verbosity": "low"}, background=background
    )
    for response in (created, await api.wait_for_end(created["id"])):
        check_response(response)
        assert in_order(response["text"]["format"]["schema"]) == in_order(SCHEMA)
        assert response["text"] == {"format": wanted, "verbosity": "low"}
    sent = fake.requests_for(model)[0].body["response_format"]
    assert sent["type"] == "json_schema"
    assert in_order(sent["json_schema"]["schema"]) == in_order(SCHEMA)
    assert sent["json_schema"] == {name: value for name, value in wanted.items() if name != "type"}


async def test_any_object(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply('{"a": 1}'))
    response = await api.create(model, text={"format": {"type": "json_object"}})
    assert response["text"]["format"] == {"type": "json_object"}
    assert fake.requests_for(model)[0].body["response_format"] == {"type": "json_object"}


async def test_the_official_client_parses(client: openai.AsyncOpenAI, fake: FakeUpstream) -> None:
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
        "text.format.schema", "invalid_json_schema",
        "Invalid schema for response_format 'thing': 'type' must be one of",
    ),
    (
        "not to be obeyed",
        {"text": {"format": FORMAT | {"schema": {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}}}},
        "text.format.schema", "invalid_json_schema",
        "Invalid schema for response_format 'thing': 'required' is required to be supplied and to be an array including every key in properties.",
    ),
    (
        "a function",
        {"tools": [{"type": "function", "name": "look", "parameters": {"type": "object", "required": "all"}}]},
        "tools[0].parameters", "invalid_function_parameters",
        "Invalid schema for function 'look': 'required' must be an array of strings, not 'all'.",
    ),
    (
        "a strict function in a namespace",
        {
            "tools": [
                {"type": "namespace", "name": "n", "description": "", "tools": [{"type": "function", "name": "look", "strict": True, "parameters": {"type": "object"}}]}
            ]
        },
        "tools[0].tools[0].parameters", "invalid_function_parameters",
        "Invalid schema for function 'look': 'additionalProperties' is required to be supplied and to be false.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
async def test_what_cannot_be_obeyed_is_refused_at_once(
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


# Upstreams that know no schemas.


@pytest.fixture(scope="module")
async def unschooled(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with an upstream for each way in which structured output can be asked for."""
    folder = tmp_path_factory.mktemp("unschooled")
    ways = ("json_object", "guided_json", "prompt")
    verbose = 'passthrough = ["verbosity"]'
    lines = [
        f'[upstreams.{way}]\nbase_url = "{fake.base_url}"\nstructured_output = "{way}"\n{verbose}\n'
        for way in ways
    ]
    routes = [f'"{way}-*" = "{way}"' for way in ways]
    (folder / "backburner.toml").write_text("\n".join([*lines, "[routes]", *routes]))
    settings = {"BACKBURNER_CONFIG": str(folder / "backburner.toml")}
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as one:
        yield one


@pytest.mark.parametrize("way", ["json_object", "prompt"])
async def test_who_knows_no_schema_is_told_it_and_may_answer_in_a_fence(
    unschooled: Stack, fake: FakeUpstream, way: str
) -> None:
    model = fake.script(
        reply("``", '`json\n{"name": "Fair",', ' "when": "Friday"}\n`', "``"), name=f"{way}-1"
    )
    client = unschooled.openai()
    response = await client.responses.parse(
        model=model, input="When?", instructions="Be brief.", text_format=Event
    )
    assert response.output_parsed == Event(name="Fair", when="Friday")
    sent = fake.requests_for(model)[0].body
    assert sent.get("response_format") == (
        {"type": "json_object"} if way == "json_object" else None
    )
    told = sent["messages"][0]["content"]
    assert told.startswith("Be brief.\n\n")
    assert '"required":["name","when"]' in told


async def test_old_vllm_is_asked_in_its_own_words(unschooled: Stack, fake: FakeUpstream) -> None:
    model = fake.script(reply("{}"), name="guided_json-1")
    await unschooled.api().create(model, text={"format": FORMAT})
    sent = fake.requests_for(model)[0].body
    assert in_order(sent["guided_json"]) == in_order(SCHEMA)
    assert "response_format" not in sent
    assert [message["role"] for message in sent["messages"]] == ["user"]


async def test_verbosity_reaches_who_knows_it(
    api: Api, unschooled: Stack, fake: FakeUpstream
) -> None:
    for asked, model, told in (
        (unschooled.api(), "prompt-2", "low"),
        (api, "plain-verbosity", None),
    ):
        response = await asked.create(
            fake.script(reply("x"), name=model), text={"verbosity": "low"}
        )
        assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
        assert fake.requests_for(model)[0].body.get("verbosity") == told
