"""Every recorded stream of a real model, through the whole product: POST, worker, Postgres, Redis, SSE, GET."""

import json
from typing import Any

import pytest

from tests.support.api import JSON, Api, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.stack import SuiteSettings
from tests.support.strict_types import check_event, check_response

_surroundings = SuiteSettings()
_files = sorted(_surroundings.recordings.glob("*.jsonl"))
_recordings = [
    pytest.param(file.stem, line, json.loads(text), id=f"{file.stem}:{line}")
    for file in _files
    for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
]
each = pytest.mark.parametrize(("file", "line", "recorded"), _recordings)
each_third = [
    pytest.mark.parametrize(("file", "line", "recorded"), _recordings[start::3])
    for start in range(3)
]


class Expected:
    """What the chunks say, read as plainly as possible: none of the product's code is used here."""

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
            if piece.get("id") and [piece["id"]] not in [found[:1] for found in self.calls]:
                self.calls.append([piece["id"], function["name"], ""])
            self.calls[-1][2] += function.get("arguments") or ""
        ends = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        self.status = "incomplete" if ends == ["length"] else "completed"
        counts = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        self.usage = _usage(counts[-1]) if counts else None
        self.tokens = _tokens(choices)
        self.spoken_tokens = _tokens(
            [choice for choice in choices if (choice.get("delta") or {}).get("content")]
        )


def _tokens(choices: list[JSON]) -> list[str]:
    scored = [choice["logprobs"]["content"] or [] for choice in choices if choice.get("logprobs")]
    return [token["token"] for content in scored for token in content]


def _usage(counted: JSON) -> JSON:
    prompt = counted.get("prompt_tokens_details") or {}
    completion = counted.get("completion_tokens_details") or {}
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens") or 0,
            "cache_write_tokens": prompt.get("cache_write_tokens") or 0,
        },
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens") or 0},
        "total_tokens": counted["total_tokens"],
    }


def body(recorded: JSON) -> JSON:
    """A plain one-message request with the recording's tools; log probabilities are asked for where they were."""
    asked = recorded["request"]
    told: JSON = {"input": [{"role": "user", "content": "Please answer as recorded."}]}
    if tools := asked.get("tools"):
        told["tools"] = [{**tool["function"], "type": "function"} for tool in tools]
    if asked.get("logprobs"):
        told["include"] = ["message.output_text.logprobs"]
    return told


def assert_response_is(response: JSON, recorded: JSON, model: str) -> None:
    """The final object says what the chunks said."""
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
        # Bedrock scores tokens that are no text as well; a Response has no place for those of a function call
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        told = [score["token"] for part in parts for score in part["logprobs"]]
        assert _is_part(expected.spoken_tokens, told)
        assert _is_part(told, expected.tokens)


def _is_part(some: list[str], whole: list[str]) -> bool:
    """Whether `some` is what remains of `whole` when items are left out."""
    rest = iter(whole)
    return all(item in rest for item in some)


def _joined(output: list[JSON], item_type: str, part_type: str) -> str:
    parts = [
        part for item in output if item["type"] == item_type for part in item.get("content", [])
    ]
    return "".join(part["text"] for part in parts if part["type"] == part_type)


def assert_stream_is(events: list[JSON], response: JSON) -> None:
    """The stream obeys the contract, each event is what the SDK's types say, and it tells the same as the final object."""
    for event in events:
        check_event(event)
    assert_stream_obeys_contract(events)
    assert events[-1]["response"] == response
    # fold: with one attempt, the items in the order they were opened are the output
    dones = [event for event in events if event["type"] == "response.output_item.done"]
    assert [
        event["item"] for event in sorted(dones, key=lambda event: int(event["output_index"]))
    ] == response["output"]


def test_all_recordings_are_there() -> None:
    if not _files:
        message = f"no recordings in {_surroundings.recordings} (BACKBURNER_RECORDINGS names another folder)"
        assert not _surroundings.require_recordings, message
        pytest.skip(message)
    assert len(_recordings) >= 115


@each
async def test_a_background_stream_tells_what_was_recorded(
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
async def test_a_foreground_stream_tells_what_was_recorded(
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
async def test_a_foreground_answer_tells_what_was_recorded(
    api: Api, file: str, line: int, recorded: Any
) -> None:
    model = f"recording:{file}:{line}"
    response = await api.create(model, **body(recorded))
    assert_response_is(response, recorded, model)
    assert await api.get(response["id"]) == response


@each_third[2]
async def test_a_polled_background_answer_tells_what_was_recorded(
    api: Api, file: str, line: int, recorded: Any
) -> None:
    model = f"recording:{file}:{line}"
    created = await api.create(model, background=True, **body(recorded))
    check_response(created)
    assert created["status"] == "queued"
    assert_response_is(await api.wait_for_end(created["id"]), recorded, model)
