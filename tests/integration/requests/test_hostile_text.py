"""Text that breaks JSON libraries and databases, and very large text, from clients and models."""

import json
from typing import Any

import pytest

from tests.support.api import Api, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    delta,
    done,
    finish,
    raw,
    reasoning,
    reply,
    status,
    text,
    usage,
)

LONE_SURROGATE = "\ud800"
HOSTILE = [
    (f"a{LONE_SURROGATE}b", "a\ufffdb"),
    ("a\0b", "a\ufffdb"),
    ("\udfff\ud800", "\ufffd\ufffd"),
    ("\U0001f600", "\U0001f600"),
]
hostile = pytest.mark.parametrize(
    ("sent", "cleaned"),
    HOSTILE,
    ids=["lone surrogate", "nul", "surrogates reversed", "a true pair"],
)


def escaped(content: dict[str, Any]) -> bytes:
    r"""JSON in pure ASCII, where every other character is written \uXXXX."""
    return json.dumps(content, ensure_ascii=True).encode()


@hostile
async def test_hostile_text_of_a_client_is_stored_and_sent_cleaned(
    api: Api, fake: FakeUpstream, sent: str, cleaned: str
) -> None:
    model = fake.script(reply("ok"))
    body = {
        "model": model,
        "input": sent,
        "instructions": sent,
        "metadata": {"key": sent},
        "background": True,
    }
    answer = await api.call("POST", "/responses", escaped(body))
    assert answer.status == 200, answer.raw
    ended = await api.wait_for_end(answer.body["id"])
    assert ended["status"] == "completed"
    assert (ended["instructions"], ended["metadata"]) == (cleaned, {"key": cleaned})
    assert [message["content"] for message in fake.requests_for(model)[0].messages] == [
        cleaned,
        cleaned,
    ]
    items = (await api.call("GET", f"/responses/{ended['id']}/input_items")).body["data"]
    assert items[0]["content"][0]["text"] == cleaned


async def test_numbers_beyond_64_bits_reach_the_upstream(api: Api, fake: FakeUpstream) -> None:
    """As JavaScript writes 2^64, in the tools of a client; in what it has stored too."""
    bounds = {"minimum": -9223372036854776000, "maximum": 18446744073709552000, "const": 10**99}
    tools = [{"type": "function", "name": "find", "parameters": {"properties": {"id": bounds}}}]
    schema = {"properties": {"id": {name: float(bound) for name, bound in bounds.items()}}}
    extra = {"type": "additional_tools", "role": "developer", "tools": tools}
    model = fake.script(reply("ok"), reply("ok"))
    first = await api.create(model, tools=tools, background=True)
    ended = await api.wait_for_end(first["id"])
    for response in (first, ended):
        assert response["tools"][0]["parameters"] == schema
    added = await api.create(model, input=[extra, {"role": "user", "content": "Hi."}])
    items = (await api.call("GET", f"/responses/{added['id']}/input_items?order=asc")).body["data"]
    assert items[0]["tools"][0]["parameters"] == {"properties": {"id": bounds}}
    for request in fake.requests_for(model):
        sent = request.body["tools"][0]["function"]["parameters"]
        assert sent["properties"] == schema["properties"]


@hostile
async def test_hostile_text_of_a_model_is_shown_and_stored_cleaned(
    api: Api, fake: FakeUpstream, sent: str, cleaned: str
) -> None:
    chunks: list[Step] = [
        _escaped_chunk({"reasoning": sent}),
        _escaped_chunk({"content": sent}),
        _escaped_chunk(
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "f", "arguments": sent},
                    }
                ]
            }
        ),
    ]
    model = fake.script([*chunks, finish("tool_calls"), usage(), done()])
    async with api.post_stream(model, background=True) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert stream.final["status"] == "completed"
    thought, message, call_item = stream.final["output"]
    assert thought["content"][0]["text"] == cleaned
    assert message["content"][0]["text"] == cleaned
    assert call_item["arguments"] == cleaned
    assert await api.get(stream.response_id) == stream.final
    assert await api.replay(stream.response_id) == stream.frames


def _escaped_chunk(fields: dict[str, Any]) -> Step:
    choice = {"index": 0, "delta": fields, "finish_reason": None}
    return raw(
        b"data: "
        + escaped(
            {
                "id": "x",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
        )
        + b"\n\n"
    )


async def test_hostile_metadata_keys_are_cleaned_too(api: Api, fake: FakeUpstream) -> None:
    body = {
        "model": fake.script(reply("ok")),
        "input": "x",
        "metadata": {f"k{LONE_SURROGATE}": "v"},
    }
    answer = await api.call("POST", "/responses", escaped(body))
    assert answer.status == 200, answer.raw
    assert answer.body["metadata"] == {"k\ufffd": "v"}


async def test_invalid_utf8_from_a_model_becomes_the_replacement_character(
    api: Api, fake: FakeUpstream
) -> None:
    chunk = (
        b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m",'
        b'"choices":[{"index":0,"delta":{"content":"a\xffb"}}]}\n\n'
    )
    response = await api.create(fake.script([raw(chunk), finish(), usage(), done()]))
    assert response["output_text"] == "a\ufffdb"


async def test_hostile_text_in_an_upstreams_error_becomes_an_ordinary_error(
    api: Api, fake: FakeUpstream
) -> None:
    body = escaped(
        {"error": {"message": f"bad{LONE_SURROGATE}\0", "type": "x", "param": None, "code": None}}
    )
    ended = await api.wait_for_end(await api.create_background(fake.script([status(400, body)])))
    assert ended["status"] == "failed"
    answer = await api.call(
        "POST", "/responses", {"model": fake.script([status(400, body)]), "input": "x"}
    )
    assert answer.status == 400
    assert "\0" not in answer.error["message"]


async def test_line_separators_stay_inside_their_event(api: Api, fake: FakeUpstream) -> None:
    separators = "a\n\nb\r\n\r\nc\u2028d\u2029e\x85f\x0bg\x0ch\x1ei: \n\ndata: {}\n\nevent: x\n\n"
    async with api.post_stream(fake.script(reply(separators)), background=True) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert stream.final["output_text"] == separators
    assert await api.replay(stream.response_id) == stream.frames


async def test_a_large_output_in_many_pieces_arrives_whole(api: Api, fake: FakeUpstream) -> None:
    deltas = ["é" * 1000] * 1000
    async with api.post_stream(fake.script(reply(*deltas)), background=True) as stream:
        await stream.to_end()
    assert_stream_obeys_contract([decode(frame) for frame in stream.frames])
    assert stream.final["output_text"] == "".join(deltas)
    assert await api.replay(stream.response_id) == stream.frames
    assert (await api.get(stream.response_id))["output_text"] == "".join(deltas)


async def test_a_large_input_reaches_the_model_whole(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("ok"))
    long_text = "word " * 500_000
    assert (await api.create(model, input=long_text))["status"] == "completed"
    assert fake.requests_for(model)[0].messages[0]["content"] == long_text


async def test_very_many_items_are_kept_in_order(api: Api, fake: FakeUpstream) -> None:
    steps: list[Step] = []
    for number in range(150):
        steps += [
            reasoning(f"r{number}"),
            text(f"t{number}"),
            call(number, f"call_{number}", "f", "{}"),
        ]
    async with api.post_stream(
        fake.script([*steps, finish("tool_calls"), usage(), done()]), background=True
    ) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    calls = [item["call_id"] for item in stream.final["output"] if item["type"] == "function_call"]
    assert calls == [f"call_{number}" for number in range(150)]
    assert await api.get(stream.response_id) == stream.final


async def test_thousands_of_one_character_deltas_are_all_numbered(
    api: Api, fake: FakeUpstream
) -> None:
    async with api.post_stream(
        fake.script([delta({"role": "assistant", "content": ""}), *reply(*"x" * 5000)])
    ) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert stream.final["output_text"] == "x" * 5000
