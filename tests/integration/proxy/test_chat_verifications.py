"""llama-stack's checks of a chat-completions API, with the official client, whole and streamed.

The model is scripted. The tests prove that no part of a request or an answer is lost here.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.support.api import JSON
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    done,
    finish,
    reply,
    status,
    text,
    usage,
)

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER: JSON = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
            "additionalProperties": False,
        },
    },
}

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@dataclass
class ChatAnswer:
    """The model's answer, streamed or not."""

    role: str = ""
    content: str = ""
    calls: list[JSON] = field(default_factory=list)
    """`{"id", "name", "arguments"}` each."""
    finish_reason: str | None = None
    tokens: int | None = None


async def complete(
    client: openai.AsyncOpenAI, model: str, messages: list[JSON], *, stream: bool, **more: Any
) -> ChatAnswer:
    """One completion through the official client."""
    create: Any = client.chat.completions.create
    if stream:
        return await _read_stream(
            await create(
                model=model,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                **more,
            )
        )
    completion = await create(model=model, messages=messages, **more)
    choice = completion.choices[0]
    calls = [
        {"id": call.id, **call.function.model_dump()} for call in choice.message.tool_calls or ()
    ]
    return ChatAnswer(
        choice.message.role,
        choice.message.content or "",
        calls,
        choice.finish_reason,
        completion.usage.total_tokens,
    )


async def _read_stream(chunks: Any) -> ChatAnswer:
    answer = ChatAnswer("assistant")
    async for chunk in chunks:
        answer.tokens = chunk.usage.total_tokens if chunk.usage else answer.tokens
        for choice in chunk.choices:
            answer.content += choice.delta.content or ""
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            for piece in choice.delta.tool_calls or ():
                _add_call_piece(answer, piece)
    return answer


def _add_call_piece(answer: ChatAnswer, piece: Any) -> None:
    if piece.id:
        answer.calls.append({"id": piece.id, "name": piece.function.name, "arguments": ""})
    answer.calls[piece.index]["arguments"] += piece.function.arguments or ""


def calls_weather(call_id: str = "call_1") -> list[Step]:
    """A turn that calls get_weather."""
    return [
        call(0, call_id, "get_weather", '{"location": ', '"San Francisco"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]


def user(content: Any) -> JSON:
    return {"role": "user", "content": content}


@both
@pytest.mark.parametrize(
    ("question", "expected"),
    [("Which planet do we live on?", "Earth"), ("Which one has rings?", "Saturn")],
)
async def test_text_arrives_with_role_finish_reason_and_usage(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, question: str, expected: str
) -> None:
    model = fake.script(reply(f"It is {expected[:2]}", f"{expected[2:]}."))
    answer = await complete(client, model, [user(question)], stream=stream)
    assert (answer.role, answer.content, answer.finish_reason, answer.tokens) == (
        "assistant",
        f"It is {expected}.",
        "stop",
        18,
    )
    assert fake.requests_for(model)[0].messages == [user(question)]
    assert fake.requests_for(model)[0].body.get("stream", False) is stream


INVALID: list[tuple[str, JSON]] = [
    ("no messages", {"messages": []}),
    ("no content", {"messages": [{"role": "user"}]}),
    ("an unknown role", {"messages": [{"role": "fake_role", "content": "Hi."}]}),
    (
        "tool_choice without tools",
        {"messages": [user("Hi.")], "tools": [], "tool_choice": "required"},
    ),
    (
        "an unknown tool_choice",
        {"messages": [user("Hi.")], "tools": [WEATHER], "tool_choice": "invalid"},
    ),
    ("tools of an unknown type", {"messages": [user("Hi.")], "tools": [{"type": "invalid"}]}),
    ("tools that are no list", {"messages": [user("Hi.")], "tools": "none"}),
]


@both
@pytest.mark.parametrize("code", [400, 422])
@pytest.mark.parametrize("invalid", [pytest.param(body, id=name) for name, body in INVALID])
async def test_input_errors_have_the_upstreams_status(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, code: int, invalid: JSON
) -> None:
    error = {
        "message": f"This request is wrong ({code}).",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "theirs",
    }
    model = fake.script([status(code, {"error": error})])
    with pytest.raises(openai.APIStatusError) as raised:
        await client.post(
            "/chat/completions", cast_to=object, body={"model": model, "stream": stream, **invalid}
        )
    assert raised.value.status_code == code
    assert raised.value.body == error
    assert fake.requests_for(model)[0].body == {"model": model, "stream": stream, **invalid}


@both
async def test_an_image_address_reaches_the_upstream_unchanged(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool
) -> None:
    model = fake.script(reply("A llama."))
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/llama.jpg"}},
    ]
    assert (await complete(client, model, [user(content)], stream=stream)).content == "A llama."
    assert fake.requests_for(model)[0].messages == [user(content)], (
        "the upstream fetches the address"
    )


@both
async def test_images_reach_the_upstream_over_several_turns(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool
) -> None:
    model = fake.script(reply("A cup."), reply("A bed."), reply("Both."))
    image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
    messages: list[JSON] = []
    for question, expected in (
        ("What is this?", "A cup."),
        ("And this?", "A bed."),
        ("Which had both?", "Both."),
    ):
        messages.append(user([{"type": "text", "text": question}, image]))
        answer = await complete(client, model, messages, stream=stream)
        assert answer.content == expected
        messages.append({"role": "assistant", "content": answer.content})
    assert fake.requests_for(model)[2].messages == messages[:-1]


class Event(BaseModel):
    name: str
    date: str
    participants: list[str]


class Deduction(BaseModel):
    explanation: str
    output: str


class Reasoned(BaseModel):
    steps: list[Deduction]
    final_answer: str


@both
@pytest.mark.parametrize(
    "expected",
    [
        Event(name="Science fair", date="Friday", participants=["Alice", "Bob"]),
        Reasoned(
            steps=[Deduction(explanation="Subtract 7", output="8x = -30")], final_answer="x = -3.75"
        ),
    ],
    ids=["an event", "a proof"],
)
async def test_structured_output_validates_against_its_schema(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, expected: BaseModel
) -> None:
    answer_json = expected.model_dump_json()
    model = fake.script(reply(answer_json[:10], answer_json[10:]))
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "expected", "schema": type(expected).model_json_schema()},
    }
    answer = await complete(
        client,
        model,
        [{"role": "system", "content": "Extract."}, user("…")],
        stream=stream,
        response_format=schema,
    )
    assert type(expected).model_validate_json(answer.content) == expected
    assert fake.requests_for(model)[0].body["response_format"] == schema


CHOICES: list[Any] = [
    None,
    "auto",
    "required",
    {"type": "function", "function": {"name": "get_weather"}},
]


@both
@pytest.mark.parametrize("choice", CHOICES, ids=["absent", "auto", "required", "by name"])
async def test_a_tool_call_and_the_tool_choice_arrive_unchanged(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, choice: Any
) -> None:
    model = fake.script(calls_weather())
    more = {} if choice is None else {"tool_choice": choice}
    answer = await complete(
        client,
        model,
        [user("What's the weather in San Francisco?")],
        stream=stream,
        tools=[WEATHER],
        **more,
    )
    assert answer.calls == [
        {"id": "call_1", "name": "get_weather", "arguments": '{"location": "San Francisco"}'}
    ]
    assert answer.finish_reason == "tool_calls"
    assert fake.requests_for(model)[0].body["tools"] == [WEATHER]
    assert fake.requests_for(model)[0].body.get("tool_choice") == choice


@both
async def test_no_tool_is_called_when_tool_choice_is_none(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool
) -> None:
    model = fake.script(reply("I cannot look."))
    answer = await complete(
        client,
        model,
        [user("What's the weather?")],
        stream=stream,
        tools=[WEATHER],
        tool_choice="none",
    )
    assert (answer.content, answer.calls) == ("I cannot look.", [])
    assert fake.requests_for(model)[0].body["tool_choice"] == "none"


@both
async def test_two_tools_are_called_in_one_turn(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool
) -> None:
    turn = [
        call(0, "call_a", "get_weather", '{"location": "A"}'),
        call(1, "call_b", "get_weather", '{"location":', ' "B"}'),
        finish("tool_calls"),
    ]
    answer = await complete(
        client,
        fake.script([*turn, usage(), done()]),
        [user("A and B?")],
        stream=stream,
        tools=[WEATHER],
    )
    assert [
        (called["id"], json.loads(called["arguments"])["location"]) for called in answer.calls
    ] == [
        ("call_a", "A"),
        ("call_b", "B"),
    ]


CONVERSATIONS: list[tuple[str, list[list[Step]]]] = [
    ("text, then a tool", [reply("Sol."), calls_weather(), reply("70 degrees and foggy.")]),
    ("a tool, then text", [calls_weather(), reply("Foggy.")]),
    (
        "two tools, one after the other",
        [calls_weather("call_1"), reply("Foggy."), calls_weather("call_2"), reply("Still.")],
    ),
    ("text beside a call", [[text("Let me see. "), *calls_weather()], reply("Foggy.")]),
]


@both
@pytest.mark.parametrize("turns", [pytest.param(turns, id=name) for name, turns in CONVERSATIONS])
async def test_tool_calls_and_results_arrive_over_several_turns(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, turns: list[list[Step]]
) -> None:
    """The client sends a question. When the model calls, it sends the result and calls again."""
    model = fake.script(*turns)
    messages: list[JSON] = []
    for number in range(len(turns)):
        if not messages or messages[-1]["role"] != "tool":
            messages.append(user(f"Question {number}."))
        answer = await complete(client, model, messages, stream=stream, tools=[WEATHER])
        message: JSON = {"role": "assistant", "content": answer.content or None}
        if answer.calls:
            named_calls = [
                {"name": called["name"], "arguments": called["arguments"]}
                for called in answer.calls
            ]
            message["tool_calls"] = [
                {"id": called["id"], "type": "function", "function": function}
                for called, function in zip(answer.calls, named_calls, strict=True)
            ]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": called["id"], "content": "{'response': '70 degrees'}"}
            for called in answer.calls
        ]
    assert fake.requests_for(model)[-1].messages == messages[:-1]
    assert len(fake.requests_for(model)) == len(turns)


async def test_the_official_clients_stream_helper_reads_the_whole_answer(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hello ", "world"))
    async with client.chat.completions.stream(
        model=model, messages=[{"role": "user", "content": "Hi."}]
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello world"


async def test_an_unknown_model_and_a_wrong_key_raise_the_official_clients_errors(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(
            model="no-such-model", messages=[{"role": "user", "content": "Hi."}]
        )
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="bb-wrong").chat.completions.create(
            model="x", messages=[{"role": "user", "content": "Hi."}]
        )
