"""The tests of the Open Responses suite over HTTP: as JSON, as a stream, and in the background.

As there, every request says `stream` in so many words, all tests can run at the same time, a body
that is no Response by the suite's schema fails, and so does a stream with an event that the suite
does not know.
"""

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.api import JSON, Api
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    delta,
    done,
    finish,
    reasoning,
    refusal,
    reply,
    text,
    usage,
)
from tests.support.open_responses import require_event, require_response
from tests.support.search_engine import Page, running
from tests.support.stack import Databases, Stack, SuiteSettings, stack

WEATHER: JSON = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string",
                "description": "The city and state, e.g. San Francisco, CA",
            }
        },
        "required": ["location"],
    },
}
CALLS: list[Step] = [
    call(0, "call_w", "get_weather", '{"location": ', '"San Francisco, CA"}'),
    finish("tool_calls"),
    usage(),
    done(),
]

Ask = Callable[[Api, JSON], Awaitable[JSON]]


def user(content: object) -> JSON:
    return {"type": "message", "role": "user", "content": content}


def red_pixel() -> str:
    """A PNG as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    png = (
        b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
        + chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


PDF = f"data:application/pdf;base64,{base64.b64encode(b'%PDF-1.1 a title %%EOF').decode()}"


async def as_json(api: Api, body: JSON) -> JSON:
    answer = await api.call("POST", "/responses", {**body, "stream": False})
    assert answer.status == 200, answer.raw
    require_response(answer.body)
    return answer.body


async def as_stream(api: Api, body: JSON) -> JSON:
    async with api.post_stream(**body) as stream:
        events = await stream.to_end()
    assert events
    for event in events:
        require_event(event)
    assert_stream_obeys_contract(events)
    require_response(stream.final)
    return stream.final


async def in_background(api: Api, body: JSON) -> JSON:
    answer = await api.call("POST", "/responses", {**body, "stream": False, "background": True})
    assert answer.status == 200, answer.raw
    require_response(answer.body)
    ended = await api.wait_for_end(answer.body["id"])
    require_response(ended)
    return ended


WAYS: list[Ask] = [as_json, as_stream, in_background]


def require_completed(response: JSON) -> None:
    assert response["output"]
    assert response["status"] == "completed"


async def basic_response(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    require_completed(
        await ask(
            api,
            {
                "model": fake.script(reply("Hello ", "to you.")),
                "input": [user("Say hello in exactly 3 words.")],
            },
        )
    )


async def system_prompt(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    system_message = {
        "type": "message",
        "role": "system",
        "content": "You are a pirate. Always respond in pirate speak.",
    }
    model = fake.script(reply("Arr."))
    require_completed(
        await ask(api, {"model": model, "input": [system_message, user("Say hello.")]})
    )
    assert fake.requests_for(model)[0].messages[0] == {
        "role": "system",
        "content": system_message["content"],
    }


async def tool_calling(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    response = await ask(
        api,
        {
            "model": fake.script(CALLS),
            "input": [user("What's the weather like in San Francisco?")],
            "tools": [WEATHER],
        },
    )
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert response["tools"][0] == {**WEATHER, "strict": None}


async def function_call_roundtrip(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    model = fake.script(CALLS, reply("18 degrees."))
    forced = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
    first = await ask(api, {"model": model, "input": "Use the weather tool.", **forced})
    [called] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {
        "type": "function_call_output",
        "call_id": called["call_id"],
        "output": json.dumps({"temperature": "18C"}),
    }
    require_completed(
        await ask(api, {"model": model, "previous_response_id": first["id"], "input": [output]})
    )
    assert [message["role"] for message in fake.requests_for(model)[1].messages] == [
        "user",
        "assistant",
        "tool",
    ]


async def image_input(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    model = fake.script(reply("A red dot."))
    shown = [
        {"type": "input_text", "text": "What do you see?"},
        {"type": "input_image", "image_url": red_pixel()},
    ]
    require_completed(await ask(api, {"model": model, "input": [user(shown)]}))
    assert fake.requests_for(model)[0].messages[0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": red_pixel()},
    }


async def file_input(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    model = fake.script(reply("A title."))
    shown = [
        {"type": "input_text", "text": "Its title?"},
        {"type": "input_file", "filename": "fixture.pdf", "file_data": PDF},
    ]
    require_completed(await ask(api, {"model": model, "input": [user(shown)]}))
    assert fake.requests_for(model)[0].messages[0]["content"][1] == {
        "type": "file",
        "file": {"filename": "fixture.pdf", "file_data": PDF},
    }


async def multi_turn(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    model = fake.script(reply("Alice."))
    earlier = {"type": "message", "role": "assistant", "content": "Hello Alice! Nice to meet you."}
    require_completed(
        await ask(
            api,
            {
                "model": model,
                "input": [user("My name is Alice."), earlier, user("What is my name?")],
            },
        )
    )
    assert [message["role"] for message in fake.requests_for(model)[0].messages] == [
        "user",
        "assistant",
        "user",
    ]


async def previous_response_id(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    model = fake.script(reply("OK."), reply("papaya"))
    first = await ask(
        api, {"model": model, "input": "Remember this code word: papaya. Reply with only OK."}
    )
    require_completed(first)
    second = await ask(
        api,
        {
            "model": model,
            "previous_response_id": first["id"],
            "input": "What code word did I ask you to remember?",
        },
    )
    require_completed(second)
    assert second["previous_response_id"] == first["id"]
    assert "papaya" in fake.requests_for(model)[1].body_text


async def reasoning_and_logprobs(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    """Not a test of the suite, but its schema describes all of this."""
    token = {
        "token": "Hi",
        "logprob": -0.5,
        "bytes": None,
        "top_logprobs": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}],
    }
    cited = {
        "type": "url_citation",
        "url_citation": {
            "url": "https://a.example/",
            "title": "A",
            "start_index": 0,
            "end_index": 2,
        },
    }
    summed = {"type": "reasoning.summary", "summary": "In short.", "index": 0}
    earlier = [
        reasoning("hm"),
        delta({"reasoning_details": [summed]}),
        delta({"content": "Hi"}, logprobs={"content": [token]}),
    ]
    model = fake.script(
        [
            *earlier,
            delta({"annotations": [cited]}),
            refusal("No."),
            finish(),
            usage(reasoning_tokens=3),
            done(),
        ]
    )
    options = {
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    response = await ask(api, {"model": model, "input": "Go.", **options})
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]


async def what_breaks_off(api: Api, fake: FakeUpstream, ask: Ask) -> None:
    """Another ending that the suite's streams may have."""
    model = fake.script([text("Hal"), finish("length"), usage(), done()])
    response = await ask(api, {"model": model, "input": "Go.", "max_output_tokens": 16})
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")


Template = Callable[[Api, FakeUpstream, Ask], Awaitable[None]]
TEMPLATES: list[Template] = [
    basic_response,
    system_prompt,
    tool_calling,
    function_call_roundtrip,
    image_input,
    file_input,
    multi_turn,
    previous_response_id,
    reasoning_and_logprobs,
    what_breaks_off,
]


@pytest.mark.parametrize("ask", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.__name__)
async def test_a_template_of_the_suite_passes(
    api: Api, fake: FakeUpstream, template: Template, ask: Ask
) -> None:
    await template(api, fake, ask)


async def test_all_templates_pass_at_the_same_time(api: Api, fake: FakeUpstream) -> None:
    await asyncio.gather(*(template(api, fake, ask) for template in TEMPLATES for ask in WAYS))


async def test_tool_calling_streaming(api: Api, fake: FakeUpstream) -> None:
    """A test of an older version of the suite."""
    async with api.post_stream(
        fake.script(CALLS), input=[user("Weather?")], tools=[WEATHER]
    ) as stream:
        events = await stream.to_end()
    kinds = [event["type"] for event in events]
    assert [kind for kind in kinds if "output_item" in kind] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" in kinds


async def test_streams_are_cut_into_whole_events(api: Api, fake: FakeUpstream) -> None:
    """The suite's parser loses half an event at the end of a read: each read must end with an
    event.
    """
    async with api.post_stream(
        fake.script(reply(*"Count from 1 to 5.", gap=0.002)), input=[user("Count from 1 to 5.")]
    ) as stream:
        await stream.to_end()
    assert stream.is_done
    assert all(piece.endswith(b"\n\n") for _, piece in stream.reads)


@pytest.fixture(scope="module")
async def search_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment that can search the web."""
    async with running() as engine:
        engine.set_results(
            "OpenResponses", Page("Open Responses", "https://or.example/", "A specification.")
        )
        settings = {
            "BACKBURNER_WEB_SEARCH__PROVIDER": "tavily",
            "BACKBURNER_WEB_SEARCH__BASE_URL": engine.url,
            "BACKBURNER_WEB_SEARCH__API_KEY": "key",
        }
        async with stack(
            tmp_path_factory.mktemp("open-responses"),
            database_server,
            suite_settings,
            fake,
            settings=settings,
        ) as one:
            yield one


@pytest.mark.parametrize("ask", [as_json, in_background], ids=lambda way: way.__name__)
async def test_offline_web_search(search_stack: Stack, fake: FakeUpstream, ask: Ask) -> None:
    """Optional in the suite.

    Not as a stream: its validator does not know events of server tools.
    """
    asks = [
        call(0, "call_s", "web_search", '{"query": "OpenResponses"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    body = {
        "model": fake.script(asks, reply("A specification.")),
        "input": "Find the most relevant cached result for OpenResponses.",
        "tools": [{"type": "web_search", "external_web_access": False}],
        "tool_choice": {"type": "web_search"},
        "include": ["web_search_call.action.sources"],
    }
    response = await ask(search_stack.api(), body)
    assert [item["type"] for item in response["output"]] == ["web_search_call", "message"]
    assert response["output"][0]["action"]["sources"] == [
        {"type": "url", "url": "https://or.example/"}
    ]


async def test_file_search_in_a_store_that_does_not_exist_is_refused(api: Api) -> None:
    """The suite's other optional test; tests/integration/tools/test_file_search.py has the rest."""
    tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    answer = await api.call(
        "POST",
        "/responses",
        {"model": "m", "input": "x", "tools": tools, "include": ["file_search_call.results"]},
    )
    assert (answer.status, answer.error["param"]) == (404, "tools[0].vector_store_ids")
