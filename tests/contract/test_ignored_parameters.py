"""A header names what of a request has no effect, and another one says when to poll again: read by
the unchanged official client (docs/wire.md)."""

import asyncio
from typing import Any

import openai
import pytest

from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, finish, reply, text, wait_for

IGNORED = "x-ignored-parameters"
POLL_AFTER = "openai-poll-after-ms"
FUNCTION: Any = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
SIDES = ("input", "output")
ITEM: Any = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "Hi.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    ],
}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, None),
        ({"reasoning": {"effort": "low"}, "text": {}, "tools": [FUNCTION]}, None),
        ({"prompt_cache_retention": None, "tools": [FUNCTION | {"async": None}]}, None),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ({"prompt_cache_key": "k", "user": "u"}, "prompt_cache_key, user"),
        ({"reasoning": {"effort": "low", "mode": "pro"}}, "reasoning.mode"),
        ({"service_tier": "flex"}, None),
        ({"service_tier": "ultrafast", "top_logprobs": 2}, "service_tier, top_logprobs"),
        ({"tools": [FUNCTION, FUNCTION | {"name": "b", "async": True}]}, "tools[1].async"),
        ({"input": [ITEM]}, "input[0].content[0].prompt_cache_breakpoint"),
        (
            {"input": [{"role": "user", "content": "x", "made_up": {"a": "secret"}}]},
            "input[0].made_up",
        ),
        ({"cache": {"ttl": 1, "made_up": 1}}, "cache.made_up"),
        ({"text": {"made_up": 1}, "metadata": {"any": "key"}}, "text.made_up"),
    ],
)
async def test_the_header_names_what_has_no_effect(
    client: openai.AsyncOpenAI, fake: FakeUpstream, given: Any, named: str | None
) -> None:
    model = fake.script(reply("ok"))
    body = {"input": "Hi.", **given}
    extra = {name: body.pop(name) for name in ("text", "cache") if name in body}
    answer = await client.responses.with_raw_response.create(model=model, extra_body=extra, **body)
    assert answer.headers.get(IGNORED) == named
    assert answer.parse().output_text == "ok"


async def test_names_that_may_be_secrets_and_more_than_twenty_are_not_shown(
    api: Api, fake: FakeUpstream
) -> None:
    item = {"role": "user", "content": "x", "sk-abc": 1, "ключ": 1, "line\r\nbreak": 1, "a" * 41: 1}
    body = {"model": fake.script(reply("ok")), "input": [item]}
    answer = await api.call("POST", "/responses", body)
    assert answer.headers[IGNORED] == "input[0].*"
    many = {"role": "user", "content": "x"} | {f"name_{number}": 1 for number in range(1000)}
    body = {"model": fake.script(reply("ok")), "input": [many]}
    names = (await api.call("POST", "/responses", body)).headers[IGNORED].split(", ")
    assert (len(names), names[19], names[20]) == (21, "input[0].name_19", "...")


async def test_a_stream_a_background_create_and_a_count_have_the_header(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("ok"), reply("ok"))
    async with api.post_stream(model, prompt_cache_retention="24h") as stream:
        assert stream.headers[IGNORED] == "prompt_cache_retention"
        await stream.to_end()
    body = {"model": model, "input": "x", "background": True, "safety_identifier": "s"}
    body |= {"background_options": {"completion_window": "2h", "other": 1}}
    answer = await api.call("POST", "/responses", body)
    assert answer.headers[IGNORED] == "background_options.other, safety_identifier"
    await api.wait_for_end(answer.body["id"])
    body = {"model": model, "input": "x", "personality": "p", "tools": [FUNCTION | {"async": True}]}
    answer = await api.call("POST", "/responses/input_tokens", body)
    assert answer.headers[IGNORED] == "personality, tools[0].async"


async def test_a_request_that_only_prepares_a_cache_calls_no_model(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("never"))
    response = await client.responses.create(
        model=model, input="Hi.", prompt_cache_options={"prewarm": True}
    )
    assert (response.status, response.output) == ("completed", [])
    assert not fake.requests_for(model)


async def test_polls_say_when_to_ask_again_until_the_response_has_ended(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("x"), wait_for(released), finish()])
    created = await client.responses.with_raw_response.create(
        model=model, input="x", background=True
    )
    assert created.headers[POLL_AFTER] == "1000"
    response = created.parse()
    running = await client.responses.with_raw_response.retrieve(response.id)
    assert 1000 <= int(running.headers[POLL_AFTER]) < 10_000
    released.set()

    async def has_ended() -> bool:
        polled = await client.responses.with_raw_response.retrieve(response.id)
        is_open = polled.parse().status != "completed"
        assert (POLL_AFTER in polled.headers) is is_open
        return not is_open

    await until(has_ended)
    cancelled = await client.responses.with_raw_response.create(
        model=fake.script([text("x"), wait_for(asyncio.Event())]), input="x", background=True
    )
    ended = await client.responses.with_raw_response.cancel(cancelled.parse().id)
    assert POLL_AFTER not in ended.headers
