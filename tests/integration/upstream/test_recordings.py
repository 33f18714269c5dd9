"""Recorded streams of real models end to end: POST, worker, PostgreSQL, Redis, SSE, GET.

One recording of each kind for each vendor; all of them are read by
tests/unit/translation/test_translator_recordings.py.
"""

import json
from typing import Any

import pytest

from tests.support.api import JSON, Api, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.stack import SuiteSettings
from tests.support.strict_types import check_event, check_response

_suite_settings = SuiteSettings()
_files = sorted(_suite_settings.recordings.glob("*.jsonl"))
_lines = [
    (file.stem, line, json.loads(text))
    for file in _files
    for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
]


def _kind(recorded: JSON) -> tuple[bool, ...]:
    """What the request asked for and what the model sent."""
    choices = [choice for chunk in recorded["chunks"] for choice in chunk["choices"]]
    deltas = [choice.get("delta") or {} for choice in choices]
    return (
        bool(recorded["request"].get("tools")),
        bool(recorded["request"].get("logprobs")),
        any(delta.get("tool_calls") for delta in deltas),
        any(delta.get("reasoning") or delta.get("reasoning_content") for delta in deltas),
        any(choice.get("finish_reason") == "length" for choice in choices),
    )


_sample = {
    (row[0], _kind(row[2])): pytest.param(*row, id=f"{row[0]}:{row[1]}") for row in reversed(_lines)
}
_recordings = list(_sample.values())
each_recording = pytest.mark.parametrize(("file", "line", "recorded"), _recordings)
each_third = [
    pytest.mark.parametrize(("file", "line", "recorded"), _recordings[start::3])
    for start in range(3)
]


class Expected:
    """What the chunks contain, read by simple code that shares nothing with the product."""

    def __init__(self, chunks: list[JSON]) -> None:
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        deltas = [choice.get("delta") or {} for choice in choices]
        self.text = "".join(delta.get("content") or "" for delta in deltas)
        self.reasoning = "".join(
            delta.get("reasoning") or delta.get("reasoning_content") or "" for delta in deltas
        )
        self.calls: list[list[str]] = []
        for piece in (piece for delta in deltas for piece in delta.get("tool_calls") or []):
            function = piece["function"]
            if piece.get("id") and [piece["id"]] not in [entry[:1] for entry in self.calls]:
                self.calls.append([piece["id"], function["name"], ""])
            self.calls[-1][2] += function.get("arguments") or ""
        ends = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        self.status = "incomplete" if ends == ["length"] else "completed"
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        self.usage = _usage(usages[-1]) if usages else None
        self.tokens = _tokens(choices)
        self.text_tokens = _tokens(
            [choice for choice in choices if (choice.get("delta") or {}).get("content")]
        )


def _tokens(choices: list[JSON]) -> list[str]:
    contents = [choice["logprobs"]["content"] or [] for choice in choices if choice.get("logprobs")]
    return [token["token"] for content in contents for token in content]


def _usage(usage: JSON) -> JSON:
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens") or 0,
            "cache_write_tokens": prompt.get("cache_write_tokens") or 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens") or 0},
        "total_tokens": usage["total_tokens"],
    }


def body(recorded: JSON) -> JSON:
    """A one-message request with the recording's tools, and log probabilities if it had them."""
    request = recorded["request"]
    body_fields: JSON = {"input": [{"role": "user", "content": "Please answer as recorded."}]}
    if tools := request.get("tools"):
        body_fields["tools"] = [{**tool["function"], "type": "function"} for tool in tools]
    if request.get("logprobs"):
        body_fields["include"] = ["message.output_text.logprobs"]
    return body_fields


def assert_response_is(response: JSON, recorded: JSON, model: str) -> None:
    """Checks that the final object has what the chunks contain."""
    check_response(response)
    expected = Expected(recorded["chunks"])
    output = response["output"]
    assert response["status"] == expected.status
    assert response["model"] == model
    assert _joined(output, "message", "output_text") == expected.text == response["output_text"]
    assert _joined(output, "reasoning", "reasoning_text") == expected.reasoning
    assert [
        [item["call_id"], item["name"], item["arguments"]]
        for item in output
        if item["type"] == "function_call"
    ] == expected.calls
    assert response["usage"] == expected.usage
    if recorded["request"].get("logprobs"):
        # Bedrock also scores tokens of function calls; a response has no field for those.
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        tokens = [score["token"] for part in parts for score in part["logprobs"]]
        assert _is_part(expected.text_tokens, tokens)
        assert _is_part(tokens, expected.tokens)


def _is_part(part: list[str], whole: list[str]) -> bool:
    """Whether `some` is `whole` with items left out."""
    remaining = iter(whole)
    return all(item in remaining for item in part)


def _joined(output: list[JSON], item_type: str, part_type: str) -> str:
    parts = [
        part for item in output if item["type"] == item_type for part in item.get("content", [])
    ]
    return "".join(part["text"] for part in parts if part["type"] == part_type)


def assert_stream_is(events: list[JSON], response: JSON) -> None:
    """The stream obeys the contract and the SDK's types and has the response's content."""
    for event in events:
        check_event(event)
    assert_stream_obeys_contract(events)
    assert events[-1]["response"] == response
    # With one attempt, the done items in the order of their indexes are the output.
    dones = [event for event in events if event["type"] == "response.output_item.done"]
    assert [
        event["item"] for event in sorted(dones, key=lambda event: int(event["output_index"]))
    ] == response["output"]


def test_all_recordings_exist() -> None:
    if not _files:
        message = (
            f"no recordings in {_suite_settings.recordings}"
            " (BACKBURNER_RECORDINGS names another folder)"
        )
        assert not _suite_settings.require_recordings, message
        pytest.skip(message)
    assert len(_lines) >= 115
    assert len(_recordings) >= 25


@each_recording
async def test_a_background_stream_has_the_recorded_output(
    api: Api, file: str, line: int, recorded: Any
) -> None:
    model = f"recording:{file}:{line}"
    async with api.post_stream(model, background=True, **body(recorded)) as stream:
        events = await stream.to_end()
        assert stream.is_done
    stored = await api.get(stream.response_id)
    assert_stream_is(events, stored)
    assert_response_is(stored, recorded, model)
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert await api.replay(stream.response_id) == stream.frames


@each_third[0]
async def test_a_foreground_stream_has_the_recorded_output(
    api: Api, file: str, line: int, recorded: Any
) -> None:
    model = f"recording:{file}:{line}"
    async with api.post_stream(model, **body(recorded)) as stream:
        events = await stream.to_end()
    stored = await api.get(stream.response_id)
    assert_stream_is(events, stored)
    assert_response_is(stored, recorded, model)
    assert [decode(frame)["type"] for frame in stream.frames[:2]] == [
        "response.created",
        "response.in_progress",
    ]


@each_third[1]
async def test_a_foreground_answer_has_the_recorded_output(
    api: Api, file: str, line: int, recorded: Any
) -> None:
    model = f"recording:{file}:{line}"
    response = await api.create(model, **body(recorded))
    assert_response_is(response, recorded, model)
    assert await api.get(response["id"]) == response


@each_third[2]
async def test_a_polled_background_response_has_the_recorded_output(
    api: Api, file: str, line: int, recorded: Any
) -> None:
    model = f"recording:{file}:{line}"
    created = await api.create(model, background=True, **body(recorded))
    check_response(created)
    assert created["status"] == "queued"
    assert_response_is(await api.wait_for_end(created["id"]), recorded, model)
