"""The unchanged official client against the running product: everything that its users do."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, Response, ResponseTextDeltaEvent
from pydantic import BaseModel

from tests.support.api import Api, until
from tests.support.fake_upstream import (
    ALWAYS_LISTED_MODEL,
    FakeUpstream,
    call,
    delta,
    done,
    finish,
    hang,
    reasoning,
    refusal,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Stack
from tests.support.strict_types import check_response

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather somewhere.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Person(BaseModel):
    """The structured output of the model."""

    name: str
    age: int


async def _polled(client: openai.AsyncOpenAI, response: Response) -> Response:
    """Polls as OpenAI's guide to background mode shows it."""

    async def ended() -> Response | None:
        response_now = await client.responses.retrieve(response.id)
        return None if response_now.status in {"queued", "in_progress"} else response_now

    response_now = await until(ended)
    assert response_now is not None
    return response_now


async def test_create_answers_with_the_text_and_its_usage(
    api: Api, client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(
        [text("Hello, ", "world."), finish(), usage(11, 7, cached=5, reasoning_tokens=3), done()]
    )
    response = await client.responses.create(
        model=model, input="Say hello.", instructions="Be brief."
    )
    assert response.output_text == "Hello, world."
    assert response.status == "completed"
    assert response.usage is not None
    assert (
        response.usage.input_tokens,
        response.usage.output_tokens,
        response.usage.total_tokens,
    ) == (11, 7, 18)
    assert (
        response.usage.input_tokens_details.cached_tokens,
        response.usage.output_tokens_details.reasoning_tokens,
    ) == (5, 3)
    check_response(await api.get(response.id))
    [request] = fake.requests_for(model)
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert [message["content"] for message in request.messages] == ["Be brief.", "Say hello."]
    assert request.headers["authorization"] == "Bearer upstream-secret"
    assert request.body["stream"] is True
    assert request.body["stream_options"] == {"include_usage": True}


async def test_a_foreground_stream_gives_events_as_they_happen(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    first_delta_read = asyncio.Event()
    model = fake.script(
        [text("first"), wait_for(first_delta_read), text(" second"), finish(), usage(), done()]
    )
    kinds = []
    async for event in await client.responses.create(model=model, input="Go.", stream=True):
        kinds.append(event.type)
        if isinstance(event, ResponseTextDeltaEvent) and event.delta == "first":
            # The stream would never end if the first delta came only with the last.
            first_delta_read.set()
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_the_stream_helper_accumulates_reasoning_text_and_calls(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    calls = [
        call(0, "call_a", "get_weather", '{"city":', '"Bonn"}'),
        call(1, "call_b", "get_weather", '{"city":"Ulm"}'),
    ]
    model = fake.script(
        [
            reasoning("hm", "m"),
            text("Let me ", "look."),
            *calls,
            finish("tool_calls"),
            usage(),
            done(),
        ]
    )
    async with client.responses.stream(model=model, input="Weather?", tools=[WEATHER]) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                assert "Let me look.".startswith(event.snapshot)
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert final.output_text == "Let me look."
    parsed = [
        (item.call_id, item.parsed_arguments)
        for item in final.output
        if item.type == "function_call"
    ]
    assert parsed == [("call_a", {"city": "Bonn"}), ("call_b", {"city": "Ulm"})]


async def test_parse_gives_the_pydantic_object(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply('{"name": "Ada",', ' "age": 36}'))
    response = await client.responses.parse(model=model, input="Who?", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)
    wanted = fake.requests_for(model)[0].body["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["name"] == "Person"
    assert wanted["json_schema"]["strict"] is True
    assert set(wanted["json_schema"]["schema"]["properties"]) == {"name", "age"}


async def test_the_stream_helper_parses_structured_output(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply('{"name": "Ada", "age": 36}'))
    async with client.responses.stream(model=model, input="Who?", text_format=Person) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == Person(name="Ada", age=36)


async def test_a_refusal_arrives_as_a_refusal(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script([refusal("I can", "not."), finish(), usage(), done()])
    response = await client.responses.create(model=model, input="Do it.")
    assert response.output[0].type == "message"
    [part] = response.output[0].content
    assert part.type == "refusal"
    assert part.refusal == "I cannot."
    assert response.output_text == ""


async def test_requested_log_probabilities_arrive(
    api: Api, client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    score = {
        "token": "Hi",
        "logprob": -0.25,
        "bytes": [72, 105],
        "top_logprobs": [{"token": "Hi", "logprob": -0.25, "bytes": None}],
    }
    model = fake.script(
        [delta({"content": "Hi"}, logprobs={"content": [score]}), finish(), usage(), done()]
    )
    response = await client.responses.create(
        model=model, input="Hi.", include=["message.output_text.logprobs"], top_logprobs=1
    )
    assert response.output[0].type == "message"
    part = response.output[0].content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [
        (one.token, one.logprob, one.bytes, one.top_logprobs[0].bytes) for one in part.logprobs
    ] == [("Hi", -0.25, [72, 105], [])]
    body = fake.requests_for(model)[0].body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)
    check_response(await api.get(response.id))


async def test_a_background_response_is_queued_and_then_polled(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("part"), wait_for(opened), text("ner"), finish(), usage(), done()])
    created = await client.responses.create(model=model, input="Go.", background=True)
    assert created.status == "queued"
    assert created.background is True

    async def is_running() -> bool:
        return (await client.responses.retrieve(created.id)).status == "in_progress"

    await until(is_running)
    opened.set()
    ended = await _polled(client, created)
    assert ended.status == "completed"
    assert ended.output_text == "partner"


async def test_a_background_stream_is_resumed_by_number(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script(
        [text("a", "b", "c"), wait_for(opened), text("d", "e"), finish(), usage(), done()]
    )
    seen = []
    stream = await client.responses.create(model=model, input="Go.", background=True, stream=True)
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta" and event.delta == "b":
            break
    await stream.close()
    assert seen[0].type == "response.created"
    response_id = seen[0].response.id
    opened.set()
    rest = await client.responses.retrieve(
        response_id, stream=True, starting_after=seen[-1].sequence_number
    )
    seen += [event async for event in rest]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert (
        "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        == "abcde"
    )
    assert seen[-1].type == "response.completed"


async def test_the_stream_helper_follows_an_existing_response(
    api: Api, client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script(
        [text("a", "b", "c"), wait_for(opened), text("d"), finish(), usage(), done()]
    )
    async with client.responses.stream(model=model, input="Go.", background=True) as first:
        seen = [await anext(first) for _ in range(6)]
    assert seen[0].type == "response.created"
    opened.set()
    async with client.responses.stream(
        response_id=seen[0].response.id, starting_after=seen[-1].sequence_number
    ) as second:
        seen += [event async for event in second]
        final = await second.get_final_response()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert final.output_text == "abcd"
    check_response(await api.get(final.id))


async def test_a_cancelled_response_keeps_its_output(
    api: Api, client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script([text("so far"), hang()])
    stream = await client.responses.create(model=model, input="Go.", background=True, stream=True)
    first = await anext(stream)
    assert first.type == "response.created"
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    cancelled = await client.responses.cancel(first.response.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text == "so far"
    assert cancelled.output[0].type == "message"
    assert cancelled.output[0].status == "incomplete"
    check_response(await api.get(cancelled.id))
    rest = [event async for event in stream]
    assert rest[-1].type == "response.failed"
    assert rest[-1].response.status == "cancelled"
    assert await client.responses.cancel(first.response.id) == cancelled


async def test_a_deleted_response_is_gone(client: openai.AsyncOpenAI, fake: FakeUpstream) -> None:
    response = await client.responses.create(model=fake.script(reply("x")), input="Hi.")
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(response.id)


async def test_input_items_are_listed_page_by_page(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    sent = [f"line {number}" for number in range(5)]
    model = fake.script(reply("x"))
    response = await client.responses.create(
        model=model, input=[{"role": "user", "content": line} for line in sent]
    )

    async def lines(**query: Any) -> list[str]:
        texts = []
        async for item in client.responses.input_items.list(response.id, **query):
            assert item.type == "message"
            assert item.id
            part = item.content[0]
            assert part.type == "input_text"
            texts.append(part.text)
        return texts

    assert await lines() == sent[::-1], "the default order is newest first"
    assert await lines(order="asc") == sent
    assert await lines(order="asc", limit=2) == sent
    assert await lines(order="desc", limit=1) == sent[::-1]
    page = await client.responses.input_items.list(response.id, order="asc", limit=2)
    listed = page.to_dict()
    assert [listed["object"], listed["has_more"]] == ["list", True]
    assert [listed["first_id"], listed["last_id"]] == [item.id for item in page.data]
    rest = await client.responses.input_items.list(
        response.id, order="asc", limit=5, after=str(listed["last_id"])
    )
    assert (len(rest.data), rest.has_more) == (3, False)


async def test_models_are_those_of_the_upstream(client: openai.AsyncOpenAI) -> None:
    known = {model.id: model async for model in client.models.list()}
    assert known[ALWAYS_LISTED_MODEL].owned_by == "fake"
    assert known[ALWAYS_LISTED_MODEL].object == "model"


async def test_a_function_call_is_answered_in_the_next_response(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    first = fake.script(
        [call(0, "call_1", "get_weather", '{"city":"Bonn"}'), finish("tool_calls"), usage(), done()]
    )
    called = await client.responses.create(
        model=first, input="Weather?", tools=[WEATHER], tool_choice="required"
    )
    assert called.status == "completed"
    assert called.output[0].type == "function_call"
    assert (called.output[0].call_id, called.output[0].arguments) == ("call_1", '{"city":"Bonn"}')
    second = fake.script(reply("Rain."))
    answered = await client.responses.create(
        model=second,
        previous_response_id=called.id,
        input=[{"type": "function_call_output", "call_id": "call_1", "output": "rain"}],
    )
    assert answered.output_text == "Rain."
    user, assistant, tool = fake.requests_for(second)[0].messages
    assert (user["role"], user["content"]) == ("user", "Weather?")
    assert assistant["role"] == "assistant"
    assert assistant["tool_calls"] == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Bonn"}'},
        }
    ]
    assert (tool["role"], tool["tool_call_id"], tool["content"]) == ("tool", "call_1", "rain")
    [tool] = fake.requests_for(first)[0].body["tools"]
    assert tool["type"] == "function"
    assert tool["function"]["name"] == "get_weather"
    assert tool["function"]["strict"] is True
    assert fake.requests_for(first)[0].body["tool_choice"] == "required"
    assert "tool_choice" not in fake.requests_for(second)[0].body, (
        "tools are not inherited, and no tools means no choice"
    )


async def test_the_named_tool_choice_is_nested_for_the_upstream(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("x"))
    choice: Any = {"type": "function", "name": "get_weather"}
    response = await client.responses.create(
        model=model, input="Hi.", tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False
    )
    assert fake.requests_for(model)[0].body["tool_choice"] == {
        "type": "function",
        "function": {"name": "get_weather"},
    }
    assert fake.requests_for(model)[0].body["parallel_tool_calls"] is False
    assert response.to_dict()["tool_choice"] == choice


async def test_sampling_parameters_reach_the_upstream_only_when_set(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("x"))
    await client.responses.create(model=model, input="Hi.")
    await client.responses.create(
        model=model,
        input="Hi.",
        temperature=0.25,
        top_p=0.5,
        max_output_tokens=99,
        reasoning={"effort": "low"},
    )
    plain, tuned = (request.body for request in fake.requests_for(model))
    assert not {
        "temperature",
        "top_p",
        "max_completion_tokens",
        "max_tokens",
        "reasoning_effort",
        "store",
        "background",
    } & set(plain)
    assert (
        tuned["temperature"],
        tuned["top_p"],
        tuned["max_completion_tokens"],
        tuned["reasoning_effort"],
    ) == (0.25, 0.5, 99, "low")


async def test_a_length_stop_is_an_incomplete_response(
    api: Api, client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script([text("cut o"), finish("length"), usage(), done()])
    response = await client.responses.create(model=model, input="Hi.")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "cut o"
    assert response.output[0].type == "message"
    assert response.output[0].status == "incomplete"
    check_response(await api.get(response.id))


async def test_a_content_filter_is_an_incomplete_response(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script([text("cut o"), finish("content_filter"), usage(), done()])
    async with client.responses.stream(model=model, input="Hi.") as stream:
        last = [event async for event in stream][-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "content_filter"


async def test_a_wrong_key_is_an_authentication_error(shared_stack: Stack) -> None:
    other_client = shared_stack.openai(key="bb-not-a-key-of-this-server")
    with pytest.raises(openai.AuthenticationError) as error:
        await other_client.responses.create(model="any", input="Hi.")
    assert error.value.code == "invalid_api_key"


async def test_a_failed_background_response_shows_its_error(client: openai.AsyncOpenAI) -> None:
    created = await client.responses.create(model="no-such-model", input="Go.", background=True)
    ended = await _polled(client, created)
    assert ended.status == "failed"
    assert ended.error is not None
    assert "no-such-model" in ended.error.message


async def test_the_synchronous_client_works(shared_stack: Stack, fake: FakeUpstream) -> None:
    model = fake.script(reply("from ", "a thread"))
    url = f"http://127.0.0.1:{shared_stack.webs[0].port}/v1"

    def talk() -> tuple[str, list[str]]:
        with openai.OpenAI(
            base_url=url, api_key=shared_stack.key, max_retries=0, timeout=60
        ) as sync:
            whole = sync.responses.create(model=model, input="Hi.").output_text
            with sync.responses.stream(model=model, input="Hi.", background=True) as stream:
                return whole, [event.type for event in stream]

    whole, kinds = await asyncio.to_thread(talk)
    assert whole == "from a thread"
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"


async def test_a_completion_window_is_stored_and_shown(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("ok"), reply("ok"))
    options: Any = {"completion_window": "2h", "continuation_id": "a thread: \u00e9\u4e16"}
    created = await client.responses.create(
        model=model, input="Hi.", background=True, background_options=options
    )
    assert (created.model_extra or {})["background_options"] == options
    events = [event async for event in await client.responses.retrieve(created.id, stream=True)]
    for event in (events[0], events[-1]):
        shown: Any = event
        assert shown.response.background_options == options
    plain = await client.responses.create(model=model, input="Hi.", background=True)
    assert "background_options" not in (plain.model_extra or {})
    for wrong, param in (
        ({"background_options": options}, "background_options.completion_window"),
        (
            {"background": True, "service_tier": "priority", "background_options": options},
            "background_options.completion_window",
        ),
        (
            {"background": True, "background_options": {"continuation_id": "a" * 257}},
            "background_options.continuation_id",
        ),
    ):
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(model=model, input="Hi.", **wrong)
        assert refusal.value.param == param
