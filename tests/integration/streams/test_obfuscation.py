"""Padding of deltas hides their lengths: only on request, equal for all readers, never stored."""

import json

import pytest

from tests.support.api import JSON, Api, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, call, done, finish, reasoning, text, usage
from tests.support.strict_types import check_event

PADDED: JSON = {"stream_options": {"include_obfuscation": True}}
PIECES = ["a", "bc", "Überlänge, " * 9, '{"quoted": "\\"}"}\n\n', "🤔", "x" * 63, "y" * 64]


def scripted_model(fake: FakeUpstream) -> str:
    script = [
        reasoning("hm"),
        text(*PIECES),
        call(0, "call_a", "f", '{"a"', ": 1}"),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    return fake.script(script)


def without_padding(frame: bytes) -> JSON:
    return {name: value for name, value in decode(frame).items() if name != "obfuscation"}


@pytest.mark.parametrize("background", [True, False])
async def test_padded_deltas_do_not_show_their_lengths(
    api: Api, fake: FakeUpstream, background: bool
) -> None:
    async with api.post_stream(scripted_model(fake), background=background, **PADDED) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for frame, event in zip(stream.frames, events, strict=True):
        check_event(event)
        assert ("obfuscation" in event) == event["type"].endswith(".delta")
        assert "obfuscation" not in event or len(frame) % 64 == 0
    assert [
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    ] == PIECES
    assert "obfuscation" not in json.dumps(stream.final)


async def test_every_reader_with_padding_gets_the_same_bytes_and_others_get_plain_ones(
    api: Api, fake: FakeUpstream
) -> None:
    async with api.post_stream(scripted_model(fake), background=True, **PADDED) as padded:
        await padded.to_end()
    plain = await api.replay(padded.response_id)
    assert b"obfuscation" not in b"".join(plain)
    assert [without_padding(frame) for frame in padded.frames] == [decode(frame) for frame in plain]
    for include, frames in (("true", padded.frames), ("false", plain)):
        for after in (0, 3, 7):
            params = {
                "stream": "true",
                "include_obfuscation": include,
                "starting_after": str(after),
            }
            answer = await api.call("GET", f"/responses/{padded.response_id}", params=params)
            assert answer.raw == b"".join(frames[after + 1 :]) + b"data: [DONE]\n\n"


async def test_deltas_are_not_padded_without_a_request_for_it(api: Api, fake: FakeUpstream) -> None:
    plain_options: list[JSON] = [
        {},
        {"stream_options": {}},
        {"stream_options": {"include_obfuscation": False}},
    ]
    for options in plain_options:
        async with api.post_stream(scripted_model(fake), **options) as stream:
            await stream.to_end()
        assert b"obfuscation" not in b"".join(stream.frames)
