"""What llama-stack's verification suite asks of a chat-completions API, in our own words, with the official client, whole and streamed.

The model is scripted; what is shown is that nothing of a request or an answer is lost on the way through this server.
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

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER: JSON = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"], "additionalProperties": False},
    },
}  # fmt: skip

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@dataclass
class Said:
    """What the model said, however it came."""

    role: str = ""
    content: str = ""
    calls: list[JSON] = field(default_factory=list)
    """`{"id", "name", "arguments"}` each."""
    finish_reason: str | None = None
    tokens: int | None = None


async def ask(
    client: openai.AsyncOpenAI, model: str, messages: list[JSON], *, stream: bool, **more: Any
) -> Said:
    """One completion through the official client."""
    create: Any = client.chat.completions.create
    if stream:
        return await _streamed(
            await create(
                model=model,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                **more,
            )
        )
    whole = await create(model=model, messages=messages, **more)
    choice = whole.choices[0]
    calls = [{"id": one.id, **one.function.model_dump()} for one in choice.message.tool_calls or ()]
    return Said(
        choice.message.role,
        choice.message.content or "",
        calls,
        choice.finish_reason,
        whole.usage.total_tokens,
    )


async def _streamed(chunks: Any) -> Said:
    said = Said("assistant")
    async for chunk in chunks:
        said.tokens = chunk.usage.total_tokens if chunk.usage else said.tokens
        for choice in chunk.choices:
            said.content += choice.delta.content or ""
            said.finish_reason = choice.finish_reason or said.finish_reason
            for piece in choice.delta.tool_calls or ():
                if piece.id:
                    said.calls.append(
                        {"id": piece.id, "name": piece.function.name, "arguments": ""}
                    )
                said.calls[piece.index]["arguments"] += piece.function.arguments or ""
    return said


def calls_weather(call_id: str = "call_1") -> list[Step]:
    """A turn that asks for the weather."""
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
    ("question", "answer"),
    [("Which planet do we live on?", "Earth"), ("Which one has rings?", "Saturn")],
)
async def test_text(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, question: str, answer: str
) -> None:
    model = fake.script(reply(f"It is {answer[:2]}", f"{answer[2:]}."))
    said = await ask(client, model, [user(question)], stream=stream)
    assert (said.role, said.content, said.finish_reason, said.tokens) == (
        "assistant",
        f"It is {answer}.",
        "stop",
        18,
    )
    assert fake.requests_for(model)[0].messages == [user(question)]
    assert fake.requests_for(model)[0].body.get("stream", False) is stream


WRONG: list[tuple[str, JSON]] = [
    ("no messages", {"messages": []}),
    ("no content", {"messages": [{"role": "user"}]}),
    ("an unknown role", {"messages": [{"role": "fake_role", "content": "Hi."}]}),
    ("a choice of no tool", {"messages": [user("Hi.")], "tools": [], "tool_choice": "required"}),
    (
        "a choice that is none",
        {"messages": [user("Hi.")], "tools": [WEATHER], "tool_choice": "invalid"},
    ),
    ("tools of no kind", {"messages": [user("Hi.")], "tools": [{"type": "invalid"}]}),
    ("tools that are none", {"messages": [user("Hi.")], "tools": "none"}),
]


@both
@pytest.mark.parametrize("code", [400, 422])
@pytest.mark.parametrize("wrong", [pytest.param(body, id=name) for name, body in WRONG])
async def test_input_errors_have_the_upstreams_status(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, code: int, wrong: JSON
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
            "/chat/completions", cast_to=object, body={"model": model, "stream": stream, **wrong}
        )
    assert raised.value.status_code == code
    assert raised.value.body == error
    assert fake.requests_for(model)[0].body == {"model": model, "stream": stream, **wrong}


@both
async def test_an_image(client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool) -> None:
    model = fake.script(reply("A llama."))
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/llama.jpg"}},
    ]
    assert (await ask(client, model, [user(content)], stream=stream)).content == "A llama."
    assert fake.requests_for(model)[0].messages == [user(content)], (
        "the address is the upstream's to fetch"
    )


@both
async def test_images_over_several_turns(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool
) -> None:
    model = fake.script(reply("A cup."), reply("A bed."), reply("Both."))
    image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
    messages: list[JSON] = []
    for question, answer in (
        ("What is this?", "A cup."),
        ("And this?", "A bed."),
        ("Which had both?", "Both."),
    ):
        messages.append(user([{"type": "text", "text": question}, image]))
        said = await ask(client, model, messages, stream=stream)
        assert said.content == answer
        messages.append({"role": "assistant", "content": said.content})
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
    "wanted",
    [
        Event(name="Science fair", date="Friday", participants=["Alice", "Bob"]),
        Reasoned(
            steps=[Deduction(explanation="Subtract 7", output="8x = -30")], final_answer="x = -3.75"
        ),
    ],
    ids=["an event", "a proof"],
)
async def test_structured_output(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, wanted: BaseModel
) -> None:
    told = wanted.model_dump_json()
    model = fake.script(reply(told[:10], told[10:]))
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "wanted", "schema": type(wanted).model_json_schema()},
    }
    said = await ask(
        client,
        model,
        [{"role": "system", "content": "Extract."}, user("…")],
        stream=stream,
        response_format=schema,
    )
    assert type(wanted).model_validate_json(said.content) == wanted
    assert fake.requests_for(model)[0].body["response_format"] == schema


CHOICES: list[Any] = [
    None,
    "auto",
    "required",
    {"type": "function", "function": {"name": "get_weather"}},
]


@both
@pytest.mark.parametrize("choice", CHOICES, ids=["none said", "auto", "required", "by name"])
async def test_a_tool_is_called(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, choice: Any
) -> None:
    model = fake.script(calls_weather())
    more = {} if choice is None else {"tool_choice": choice}
    said = await ask(
        client,
        model,
        [user("What's the weather in San Francisco?")],
        stream=stream,
        tools=[WEATHER],
        **more,
    )
    assert said.calls == [
        {"id": "call_1", "name": "get_weather", "arguments": '{"location": "San Francisco"}'}
    ]
    assert said.finish_reason == "tool_calls"
    assert fake.requests_for(model)[0].body["tools"] == [WEATHER]
    assert fake.requests_for(model)[0].body.get("tool_choice") == choice


@both
async def test_no_tool_is_called_when_none_may_be(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool
) -> None:
    model = fake.script(reply("I cannot look."))
    said = await ask(
        client,
        model,
        [user("What's the weather?")],
        stream=stream,
        tools=[WEATHER],
        tool_choice="none",
    )
    assert (said.content, said.calls) == ("I cannot look.", [])
    assert fake.requests_for(model)[0].body["tool_choice"] == "none"


@both
async def test_two_tools_are_called_side_by_side(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool
) -> None:
    turn = [
        call(0, "call_a", "get_weather", '{"location": "A"}'),
        call(1, "call_b", "get_weather", '{"location":', ' "B"}'),
        finish("tool_calls"),
    ]
    said = await ask(
        client,
        fake.script([*turn, usage(), done()]),
        [user("A and B?")],
        stream=stream,
        tools=[WEATHER],
    )
    assert [(one["id"], json.loads(one["arguments"])["location"]) for one in said.calls] == [
        ("call_a", "A"),
        ("call_b", "B"),
    ]


TALKS: list[tuple[str, list[list[Step]]]] = [
    ("words, then a tool", [reply("Sol."), calls_weather(), reply("70 degrees and foggy.")]),
    ("a tool, then words", [calls_weather(), reply("Foggy.")]),
    (
        "two tools, one after the other",
        [calls_weather("call_1"), reply("Foggy."), calls_weather("call_2"), reply("Still.")],
    ),
    ("words beside a call", [[text("Let me see. "), *calls_weather()], reply("Foggy.")]),
]


@both
@pytest.mark.parametrize("turns", [pytest.param(turns, id=name) for name, turns in TALKS])
async def test_tools_over_several_turns(
    client: openai.AsyncOpenAI, fake: FakeUpstream, stream: bool, turns: list[list[Step]]
) -> None:
    """The client asks; whenever the model calls, it answers the call and asks again."""
    model = fake.script(*turns)
    messages: list[JSON] = []
    for number in range(len(turns)):
        if not messages or messages[-1]["role"] != "tool":
            messages.append(user(f"Question {number}."))
        said = await ask(client, model, messages, stream=stream, tools=[WEATHER])
        spoken: JSON = {"role": "assistant", "content": said.content or None}
        if said.calls:
            functions = [{"name": one["name"], "arguments": one["arguments"]} for one in said.calls]
            spoken["tool_calls"] = [
                {"id": one["id"], "type": "function", "function": each}
                for one, each in zip(said.calls, functions, strict=True)
            ]
        messages.append(spoken)
        messages += [
            {"role": "tool", "tool_call_id": one["id"], "content": "{'response': '70 degrees'}"}
            for one in said.calls
        ]
    assert fake.requests_for(model)[-1].messages == messages[:-1]
    assert len(fake.requests_for(model)) == len(turns)


async def test_the_stream_of_the_official_helper(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hello ", "world"))
    async with client.chat.completions.stream(
        model=model, messages=[{"role": "user", "content": "Hi."}]
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello world"


async def test_an_unknown_model_and_a_wrong_key_have_their_classes(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(
            model="nobody", messages=[{"role": "user", "content": "Hi."}]
        )
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="bb-wrong").chat.completions.create(
            model="x", messages=[{"role": "user", "content": "Hi."}]
        )
