"""Stream checks of other projects' suites, with the official client.

They follow openai-agents' stream handler and llama-stack's suite. Its checks of MCP and web search
are in the files for those tools.
"""

import asyncio

import openai
from openai.types.responses import FunctionToolParam, ResponseStreamEvent

from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    delta,
    done,
    finish,
    refusal,
    reply,
    silence_until,
    text,
    usage,
    wait_for,
)

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather somewhere.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": False,
}
RED = "data:image/png;base64,iVBORw0KGgo="
BLUE = "https://pictures.example/blue.png"


async def read_events(
    client: openai.AsyncOpenAI, model: str, **body: object
) -> list[ResponseStreamEvent]:
    """Returns all events of a stream."""
    stream = await client.responses.create(model=model, input="Go.", stream=True, **body)  # type: ignore[call-overload]
    return [event async for event in stream]


async def test_the_response_is_created_before_the_model_has_answered(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    """Proved without a clock: the upstream answers only after the client has read these events."""
    in_progress_read = asyncio.Event()
    model = fake.script([silence_until(in_progress_read), *reply("Hello, ", "world.")])
    kinds = []
    async for event in await client.responses.create(model=model, input="Go.", stream=True):
        kinds.append(event.type)
        if event.type == "response.created":
            assert (event.sequence_number, event.response.status) == (0, "in_progress")
            assert (event.response.output, event.response.output_text, event.response.usage) == (
                [],
                "",
                None,
            )
        if event.type == "response.in_progress":
            in_progress_read.set()
        if event.type == "response.completed":
            assert event.response.output_text == "Hello, world."
            assert event.response.usage is not None
    assert kinds[:2] == ["response.created", "response.in_progress"]


async def test_each_delta_holds_only_the_new_text(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    pieces = ["One", " two", "", " thr", "ee."]
    events = await read_events(client, fake.script([text(*pieces), finish(), usage(), done()]))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == [piece for piece in pieces if piece]
    [whole] = [event.text for event in events if event.type == "response.output_text.done"]
    assert whole == "".join(pieces)
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_arguments_of_a_call_are_streamed_as_they_arrive(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    """Name and id are whole when the call is added, also if the upstream splits them."""
    item_added, second_delta_read = asyncio.Event(), asyncio.Event()
    head = {
        "index": 0,
        "id": "call_a",
        "type": "function",
        "function": {"name": "get_", "arguments": ""},
    }
    model = fake.script(
        [
            delta({"tool_calls": [head]}),
            delta({"tool_calls": [{"index": 0, "function": {"name": "weather"}}]}),
            delta({"tool_calls": [{"index": 0, "function": {"arguments": '{"ci'}}]}),
            wait_for(item_added),
            delta({"tool_calls": [{"index": 0, "function": {"arguments": 'ty": "Bo'}}]}),
            wait_for(second_delta_read),
            delta({"tool_calls": [{"index": 0, "function": {"arguments": 'nn"}'}}]}),
            finish("tool_calls"),
            usage(),
            done(),
        ]
    )
    deltas = []
    async for event in await client.responses.create(
        model=model, input="Weather?", stream=True, tools=[WEATHER]
    ):
        if event.type == "response.output_item.added":
            assert event.item.type == "function_call"
            assert (event.item.name, event.item.call_id, event.item.arguments) == (
                "get_weather",
                "call_a",
                "",
            )
            item_added.set()
        if event.type == "response.function_call_arguments.delta":
            deltas.append(event.delta)
            if len(deltas) == 2:
                second_delta_read.set()
        if event.type == "response.function_call_arguments.done":
            assert event.arguments == '{"city": "Bonn"}'
    assert deltas == ['{"ci', 'ty": "Bo', 'nn"}']


async def test_a_call_for_the_client_ends_the_turn(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(
        [
            call(0, "call_a", "get_weather", '{"city": "Bonn"}'),
            finish("tool_calls"),
            usage(),
            done(),
        ]
    )
    response = await client.responses.create(model=model, input="Weather?", tools=[WEATHER])
    assert response.status == "completed"
    [item] = response.output
    assert item.type == "function_call"
    assert (item.status, item.name, item.arguments) == (
        "completed",
        "get_weather",
        '{"city": "Bonn"}',
    )
    assert len(fake.requests_for(model)) == 1


async def test_log_probabilities_come_with_their_deltas_and_all_together_at_the_end(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    def logprobs(token: str, logprob: float) -> dict[str, object]:
        other = {"token": "x", "logprob": -5.0, "bytes": [120]}
        return {
            "content": [
                {
                    "token": token,
                    "logprob": logprob,
                    "bytes": list(token.encode()),
                    "top_logprobs": [other],
                }
            ]
        }

    model = fake.script(
        [
            delta({"content": "Hi"}, logprobs=logprobs("Hi", -0.5)),
            delta({"content": "!"}, logprobs=logprobs("!", -0.1)),
            finish(),
            usage(),
            done(),
        ]
    )
    events = await read_events(
        client, model, include=["message.output_text.logprobs"], top_logprobs=1
    )
    deltas = [
        [(entry.token, entry.logprob) for entry in event.logprobs]
        for event in events
        if event.type == "response.output_text.delta"
    ]
    assert deltas == [[("Hi", -0.5)], [("!", -0.1)]]
    [text_done] = [event for event in events if event.type == "response.output_text.done"]
    assert [entry.token for entry in text_done.logprobs] == ["Hi", "!"]
    [part] = [event.part for event in events if event.type == "response.content_part.done"]
    assert part.type == "output_text"
    assert [(entry.token, entry.top_logprobs[0].token) for entry in part.logprobs or []] == [
        ("Hi", "x"),
        ("!", "x"),
    ]


async def test_a_refusal_is_streamed_as_it_arrives(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    events = await read_events(
        client, fake.script([refusal("I can", "not."), finish(), usage(), done()])
    )
    assert [event.delta for event in events if event.type == "response.refusal.delta"] == [
        "I can",
        "not.",
    ]
    assert [event.refusal for event in events if event.type == "response.refusal.done"] == [
        "I cannot."
    ]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output[0].to_dict()["content"] == [
        {"type": "refusal", "refusal": "I cannot."}
    ]


async def test_usage_comes_with_its_details(client: openai.AsyncOpenAI, fake: FakeUpstream) -> None:
    events = await read_events(
        client,
        fake.script([text("Hi"), finish(), usage(11, 7, cached=5, reasoning_tokens=3), done()]),
    )
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.usage is not None
    assert last.response.usage.to_dict() == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 18,
    }


async def test_images_stay_in_the_history_over_several_turns(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Red."), reply("Blue."), reply("Red and blue."))
    first = await client.responses.create(
        model=model,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": RED, "detail": "auto"},
                ],
            }
        ],
    )
    second = await client.responses.create(
        model=model,
        previous_response_id=first.id,
        input=[
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": BLUE, "detail": "low"}],
            }
        ],
    )
    third = await client.responses.create(
        model=model, previous_response_id=second.id, input="Which colours were they?"
    )
    assert (first.output_text, second.output_text, third.output_text) == (
        "Red.",
        "Blue.",
        "Red and blue.",
    )
    messages = fake.requests_for(model)[2].messages
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert messages[0]["content"][1] == {"type": "image_url", "image_url": {"url": RED}}
    assert messages[2]["content"] == [
        {"type": "image_url", "image_url": {"url": BLUE, "detail": "low"}}
    ]
