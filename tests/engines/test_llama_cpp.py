"""The product before llama.cpp's own server: what a scripted double cannot prove.

The model is too small to say anything of use, and it is not repeatable. What it says is judged by
its form alone.
"""

import asyncio
import json
from collections.abc import Callable

import openai
import pytest

from tests.engines.conftest import NATIVE_MODEL
from tests.engines.llama_cpp import LlamaServer
from tests.support.api import JSON, Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.stack import Stack

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),  # the first one may have to install the engine
]

MODEL = "smollm2"
FREED_WITHIN = 5
"""Seconds until the engine's slot is free when its caller has left; it takes some tenths."""
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmM"
    "IQAAAABJRU5ErkJggg=="
)


def tokens(count: int) -> JSON:
    """Options for exactly so many tokens: the model may not end by itself."""
    return {"max_output_tokens": count, "ignore_eos": True}


def text_of(response: JSON) -> str:
    [message] = response["output"]
    text: str = message["content"][0]["text"]
    return text


# --- answers ---


async def test_text_has_the_usage_that_the_count_of_input_tokens_promised(api: Api) -> None:
    requests: list[JSON] = [
        {"input": "Say hello."},
        {"input": "Ich heiße Jürgen 🐘", "instructions": "Answer in one word."},
        {
            "input": [
                {"role": "user", "content": "One."},
                {"role": "assistant", "content": "Two."},
                {"role": "user", "content": "Three."},
            ]
        },
    ]
    for request in requests:
        counted = await api.call("POST", "/responses/input_tokens", {"model": MODEL, **request})
        response = await api.create(MODEL, **request, **tokens(16))
        assert counted.body["input_tokens"] == response["usage"]["input_tokens"]
        assert response["usage"]["output_tokens"] == 16


@pytest.mark.parametrize("model", [MODEL, NATIVE_MODEL])
async def test_a_stream_is_what_the_finished_response_says(api: Api, model: str) -> None:
    async with api.post_stream(model, input="Say hello.", max_output_tokens=40) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == text_of(stream.final) == text_of(await api.get(stream.response_id))


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        NATIVE_MODEL,
    ],
)
async def test_the_length_limit_makes_a_response_incomplete(api: Api, model: str) -> None:
    """In its own Responses API llama.cpp reports it as `completed`."""
    response = await api.create(model, **tokens(16))
    assert response["usage"]["output_tokens"] == 16
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_strict_schema_is_obeyed(api: Api) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "name": "person", "strict": True, "schema": schema}
    response = await api.create(MODEL, input="Invent a person.", text={"format": named})
    assert response["status"] == "completed"
    person = json.loads(text_of(response))
    assert set(person) == {"name", "age"}
    assert 0 <= person["age"] <= 99


async def test_log_probabilities_belong_to_the_text(api: Api) -> None:
    include = ["message.output_text.logprobs"]
    response = await api.create(
        MODEL,
        input="Count from one to twenty.",
        temperature=0,
        include=include,
        top_logprobs=2,
        **tokens(16),
    )
    [part] = response["output"][0]["content"]
    assert len(part["logprobs"]) == 16
    assert b"".join(bytes(each["bytes"]) for each in part["logprobs"]).decode() == part["text"]
    assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])
    assert all(each["logprob"] <= 0 for each in part["logprobs"])


# --- requests that cannot succeed ---


async def test_a_text_that_is_too_long_is_refused_with_the_code_for_it(api: Api) -> None:
    answer = await api.call("POST", "/responses", {"model": MODEL, "input": "word " * 300})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    ended = await api.wait_for_end(await api.create_background(MODEL, input="word " * 300))
    assert (ended["status"], ended["error"]["code"]) == ("failed", "context_length_exceeded")


async def test_truncation_leaves_out_the_beginning_of_a_conversation(api: Api) -> None:
    first = await api.create(MODEL, input="word " * 100, **tokens(16))
    response = await api.create(
        MODEL,
        input="word " * 130,
        previous_response_id=first["id"],
        truncation="auto",
        **tokens(16),
    )
    assert response["usage"]["output_tokens"] == 16
    assert 130 < response["usage"]["input_tokens"] < 230


async def test_an_image_is_refused_at_once(api: Api) -> None:
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}]
    answer = await api.call("POST", "/responses", {"model": MODEL, "input": image})
    assert answer.status == 400
    assert "image input is not supported" in answer.error["message"]
    ended = await api.wait_for_end(await api.create_background(MODEL, input=image), 5)
    assert ended["status"] == "failed"
    assert ended["error"]["code"] != "server_error"


# --- background responses ---


async def test_a_background_stream_is_resumed_and_replayed_byte_for_byte(api: Api) -> None:
    async with api.post_stream(MODEL, background=True, **tokens(60)) as stream:
        await stream.until("response.output_text.delta", count=10)
    async with api.follow(stream.response_id, after=stream.last_number) as rest:
        await rest.to_end()
    assert_one_stream([*stream.frames, *rest.frames])
    assert await api.replay(stream.response_id) == [*stream.frames, *rest.frames]


@pytest.mark.long
async def test_twenty_background_responses_share_one_slot(api: Api) -> None:
    create = [api.create_background(MODEL, input=f"{n}", **tokens(16)) for n in range(20)]
    ids = await asyncio.gather(*create)
    ended = [await api.wait_for_end(each, 60) for each in ids]
    assert {each["usage"]["output_tokens"] for each in ended} == {16}


@pytest.mark.long
async def test_a_killed_worker_leaves_no_hole_in_a_long_generation(
    engine_stack: Stack, api: Api
) -> None:
    response_id = await api.create_background(MODEL, **tokens(150))
    async with api.follow(response_id) as reader:
        await reader.until("response.output_text.delta", count=20)
        engine_stack.kill(engine_stack.workers[0])
        engine_stack.spawn_worker()
        await reader.to_end()
    assert_one_stream(reader.frames)
    assert reader.final["usage"]["output_tokens"] == 150
    assert await api.replay(response_id) == reader.frames


# --- callers that leave ---


async def test_a_cancel_frees_the_slot(engine: LlamaServer, api: Api) -> None:
    response_id = await api.create_background(MODEL, **tokens(220))
    await until(lambda: engine.is_busy)
    assert (await api.cancel(response_id)).body["status"] == "cancelled"
    await until(lambda: not engine.is_busy, FREED_WITHIN)


async def test_a_client_that_disconnects_frees_the_slot(engine: LlamaServer, api: Api) -> None:
    async with api.post_stream(MODEL, **tokens(220)) as stream:
        await stream.until("response.output_text.delta")
        assert engine.is_busy
    await until(lambda: not engine.is_busy, FREED_WITHIN)


# --- tools ---

WEATHER: JSON = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_forced_call_that_the_engine_does_not_make_is_named(
    api: Api, choice: object
) -> None:
    """llama.cpp forces no call where the model's template has no tools, as that of this model."""
    options = {"tools": [WEATHER], "tool_choice": choice, "stop": [" "]}
    response = await api.create(MODEL, input="Weather in Paris?", **options)
    assert [item["type"] for item in response["output"]] == ["message"]
    assert (response["status"], response["unmet_parameter"]) == ("completed", "tool_choice")


# --- an engine that restarts ---


@pytest.mark.long
@pytest.mark.parametrize("end", [LlamaServer.stop, LlamaServer.kill], ids=["SIGTERM", "SIGKILL"])
async def test_background_responses_outlive_a_restart_of_the_engine(
    engine: LlamaServer, api: Api, end: Callable[[LlamaServer], None]
) -> None:
    ids = [await api.create_background(MODEL, **tokens(60)) for _ in range(2)]
    async with api.follow(ids[0]) as reader:
        await reader.until("response.output_text.delta", count=10)
        await asyncio.to_thread(end, engine)
        await engine.start()
        await reader.to_end()
    assert_one_stream(reader.frames)
    ended = [await api.wait_for_end(each, 60) for each in ids]
    assert [each["usage"]["output_tokens"] for each in ended] == [60, 60]


# --- embeddings ---


async def _ingest(client: openai.AsyncOpenAI, name: str, text: str) -> tuple[str, str]:
    """The id of a store with this file, and the state of the file."""
    store = await client.vector_stores.create()
    file = await client.files.create(file=(name, text.encode()), purpose="assistants")
    await client.vector_stores.files.create(
        store.id,
        file_id=file.id,
        chunking_strategy={
            "type": "static",
            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0},
        },
    )

    async def state() -> str | None:
        shown = await client.vector_stores.files.retrieve(file.id, vector_store_id=store.id)
        return None if shown.status == "in_progress" else shown.status

    return store.id, str(await until(state, 20))


async def test_a_file_is_found_by_the_embeddings_of_the_engine(engine_stack: Stack) -> None:
    client = engine_stack.openai()
    store, state = await _ingest(client, "bread.txt", "Bread is made of flour and water.")
    assert state == "completed"
    [found] = (await client.vector_stores.search(store, query="What is bread made of?")).data
    assert found.filename == "bread.txt"


@pytest.mark.long
async def test_a_chunk_larger_than_the_physical_batch_is_split(engine_stack: Stack) -> None:
    client = engine_stack.openai()
    text = "Bread is made of flour and water. It rises for an hour. " * 20
    store, state = await _ingest(client, "long.txt", text)
    assert state == "completed"
    assert (await client.vector_stores.search(store, query="bread")).data
