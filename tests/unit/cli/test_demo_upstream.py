"""The demo upstream, as a process, over HTTP."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI, NotFoundError

from cli import ROOT
from cli.demo_upstream.replies import MARK, SLOW_WORDS
from cli.embedded.process import Process, free_port, port_is_free
from cli.embedded.up import raise_open_file_limit
from tests.support.api import until

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["celsius", "kelvin"]},
                "words": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
}


@pytest.fixture(scope="module")
async def base_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    raise_open_file_limit()  # for us and the process
    port = free_port()
    command = [sys.executable, "-m", "cli.demo_upstream", "--port", str(port)]
    demo = Process("demo-upstream", tmp_path_factory.mktemp("demo") / "demo.log", command)
    demo.directory = ROOT
    demo.launch()
    await until(lambda: demo.exit_code() is not None or not port_is_free("127.0.0.1", port))
    yield f"http://127.0.0.1:{port}/v1"
    demo.kill()


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="any") as client:
        yield client


def user_message(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def post(base_url: str, body: object) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{base_url}/chat/completions", data=json.dumps(body)) as response,
    ):
        return response.status, await response.json()


async def test_lists_its_three_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["demo", "demo-slow", "demo-tools"]


async def test_demo_repeats_the_message_and_names_its_origin(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello  there"}]
    )
    assert completion.choices[0].message.content == f"{MARK} You said: Hello  there"
    assert completion.choices[0].finish_reason == "stop"


async def test_a_request_for_json_gets_an_example_of_the_schema(client: AsyncOpenAI) -> None:
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
    }
    schema = {
        "type": "object",
        "properties": {
            "size": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
            "first": {"$ref": "#/$defs/node"},
        },
        "$defs": {"node": node},
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    completion = await client.chat.completions.create(
        model="demo",
        messages=user_message("Hi"),  # type: ignore[arg-type]
        response_format=wanted,
    )
    example = json.loads(completion.choices[0].message.content or "")
    assert (example["size"], example["tags"], example["first"]["name"]) == (1, ["a"], "Hi")
    whole: Any = {"type": "json_object"}
    completion = await client.chat.completions.create(
        model="demo",
        messages=user_message("Hi"),  # type: ignore[arg-type]
        response_format=whole,
    )
    assert json.loads(completion.choices[0].message.content or "") == {
        "demo": MARK,
        "you_said": "Hi",
    }


async def test_a_request_with_an_effort_gets_reasoning(base_url: str) -> None:
    _, whole = await post(
        base_url, {"model": "demo", "messages": user_message("Hi"), "reasoning_effort": "low"}
    )
    assert whole["choices"][0]["message"]["reasoning"] == f"{MARK} I pretend to think."
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 7
    _, silent = await post(
        base_url, {"model": "demo", "messages": user_message("Hi"), "reasoning_effort": "none"}
    )
    assert "reasoning" not in silent["choices"][0]["message"]


async def test_whole_answer_carries_usage_with_its_details(client: AsyncOpenAI) -> None:
    usage = (
        await client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "one two three"}]
        )
    ).usage
    assert usage is not None
    assert usage.prompt_tokens == 3
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


async def test_stream_sends_twenty_words_a_second_and_ends_with_usage(client: AsyncOpenAI) -> None:
    # Given a question of 20 words
    question = " ".join(["word"] * 20)
    started = time.monotonic()
    # When its echo is streamed with usage
    stream = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    # Then it takes its time, and the last chunk has no choice, but the usage
    assert 1.0 <= time.monotonic() - started < 10
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        == f"{MARK} You said: {question}"
    )
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_stream_without_the_option_has_no_usage(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    assert all([chunk.usage is None and len(chunk.choices) == 1 async for chunk in stream])


async def test_the_last_user_text_of_several_parts_is_repeated(base_url: str) -> None:
    parts = [
        {"type": "text", "text": "part one"},
        {"type": "image_url", "image_url": {"url": "https://x"}},
        {"type": "text", "text": "and two"},
    ]
    messages = [
        *user_message("before"),
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "after"},
    ]
    status, body = await post(base_url, {"model": "demo", "messages": messages})
    assert status == 200
    assert body["choices"][0]["message"]["content"] == f"{MARK} You said: part one and two"


async def test_half_a_surrogate_pair_is_repeated(base_url: str) -> None:
    _, body = await post(base_url, {"model": "demo", "messages": user_message("\ud800")})
    assert body["choices"][0]["message"]["content"] == f"{MARK} You said: \ud800"


async def test_the_answer_stops_at_the_token_limit(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}], max_completion_tokens=2
    )
    assert completion.choices[0].message.content == "[Backburner demo"
    assert completion.choices[0].finish_reason == "length"


async def test_tools_model_calls_the_first_function_with_fitting_arguments(base_url: str) -> None:
    _, body = await post(
        base_url, {"model": "demo-tools", "messages": user_message("Oslo"), "tools": [WEATHER]}
    )
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {
        "city": "Oslo",
        "days": 1,
        "unit": "celsius",
        "words": ["Oslo"],
    }


async def test_streamed_call_comes_in_pieces_under_one_id(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="demo-tools",
        messages=[{"role": "user", "content": "Oslo in May"}],
        tools=[
            {
                "type": "function",
                "function": {"name": "weather", "parameters": WEATHER["function"]["parameters"]},
            }
        ],
        stream=True,
    )
    pieces = [piece async for chunk in stream for piece in chunk.choices[0].delta.tool_calls or []]
    assert [piece.id is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert {piece.index for piece in pieces} == {0}
    arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
    assert json.loads(arguments)["city"] == "Oslo in May"


async def test_tools_model_answers_in_text_after_a_tools_result(base_url: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *user_message("Oslo"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    image = {"type": "text", "text": "The image that tool call call_1 returned:"}
    for more in ([], [{"role": "user", "content": [image]}]):
        _, body = await post(
            base_url,
            {"model": "demo-tools", "messages": [*messages, *more], "tools": [WEATHER]},
        )
        assert body["choices"][0]["message"]["content"] == f"{MARK} The tool answered: rain"


async def test_slow_model_takes_a_minute_and_sends_its_first_word_at_once(base_url: str) -> None:
    limited = {
        "model": "demo-slow",
        "messages": user_message("Hi"),
        "max_tokens": SLOW_WORDS,
        "stream": True,
    }
    async with (
        asyncio.timeout(10),
        aiohttp.ClientSession() as session,
        session.post(f"{base_url}/chat/completions", data=json.dumps(limited)) as response,
    ):
        first = json.loads((await response.content.readline()).removeprefix(b"data: "))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


async def test_it_serves_hundreds_of_slow_streams(base_url: str) -> None:
    """Every stream gets its third word while all are open."""
    opened, all_open = 0, asyncio.Event()
    body = json.dumps({"model": "demo-slow", "messages": user_message("Hi"), "stream": True})

    async def listen(session: aiohttp.ClientSession) -> None:
        nonlocal opened
        async with session.post(f"{base_url}/chat/completions", data=body) as response:
            opened += 1
            if opened == 300:
                all_open.set()
            for _ in range(8):  # four chunks: the role, then three words
                await response.content.readline()
            await all_open.wait()

    connector = aiohttp.TCPConnector(limit=0)
    async with (
        asyncio.timeout(60),
        aiohttp.ClientSession(connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(300):
            group.create_task(listen(session))


async def test_other_models_are_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as caught:
        await client.chat.completions.create(
            model="gpt-9", messages=[{"role": "user", "content": "Hi"}]
        )
    assert caught.value.code == "model_not_found"
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        "",
        [],
        {},
        {"model": "demo"},
        {"model": "demo", "messages": []},
        {"model": "demo", "messages": ["Hi"]},
    ],
)
async def test_a_body_that_is_not_a_completion_request_is_refused(
    base_url: str, body: object
) -> None:
    status, answer = await post(base_url, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
