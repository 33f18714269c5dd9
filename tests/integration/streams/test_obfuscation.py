"""Padding of deltas (contract §4.1): only for who asks, the same for all who ask, and stored nowhere."""

import json

import pytest

from tests.support.api import JSON, Api, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, call, done, finish, reasoning, text, usage
from tests.support.strict_types import check_event

PADDED: JSON = {"stream_options": {"include_obfuscation": True}}
WORDS = ["a", "bc", "Überlänge, " * 9, '{"quoted": "\\"}"}\n\n', "🤔", "x" * 63, "y" * 64]


def spoken(fake: FakeUpstream) -> str:
    said = [
        reasoning("hm"),
        text(*WORDS),
        call(0, "call_a", "f", '{"a"', ": 1}"),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    return fake.script(said)


def bare(frame: bytes) -> JSON:
    return {name: value for name, value in decode(frame).items() if name != "obfuscation"}


@pytest.mark.parametrize("background", [True, False])
async def test_deltas_are_padded_to_lengths_that_say_nothing(
    api: Api, fake: FakeUpstream, background: bool
) -> None:
    async with api.post_stream(spoken(fake), background=background, **PADDED) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for frame, event in zip(stream.frames, events, strict=True):
        check_event(event)
        assert ("obfuscation" in event) == event["type"].endswith(".delta")
        assert "obfuscation" not in event or len(frame) % 64 == 0
    assert [
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    ] == WORDS
    assert "obfuscation" not in json.dumps(stream.final)


async def test_every_reader_who_asks_gets_the_same_bytes_and_who_does_not_the_plain_ones(
    api: Api, fake: FakeUpstream
) -> None:
    async with api.post_stream(spoken(fake), background=True, **PADDED) as live:
        await live.to_end()
    plain = await api.replay(live.response_id)
    assert b"obfuscation" not in b"".join(plain)
    assert [bare(frame) for frame in live.frames] == [decode(frame) for frame in plain]
    for wanted, frames in (("true", live.frames), ("false", plain)):
        for after in (0, 3, 7):
            params = {"stream": "true", "include_obfuscation": wanted, "starting_after": str(after)}
            answer = await api.call("GET", f"/responses/{live.response_id}", params=params)
            assert answer.raw == b"".join(frames[after + 1 :]) + b"data: [DONE]\n\n"


async def test_nobody_is_padded_who_does_not_ask(api: Api, fake: FakeUpstream) -> None:
    silent: list[JSON] = [
        {},
        {"stream_options": {}},
        {"stream_options": {"include_obfuscation": False}},
    ]
    for options in silent:
        async with api.post_stream(spoken(fake), **options) as stream:
            await stream.to_end()
        assert b"obfuscation" not in b"".join(stream.frames)
