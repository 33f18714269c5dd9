"""Recorded streams of real models: bytes, chunks, events, frames, and the fold of the frames."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_turns import TranslatedTurn, translate

FOLDER = Path(__file__).parents[4] / "shared" / "upstream-recordings"
RECORDINGS = [
    pytest.param(json.loads(line), id=f"{file.stem}:{number}")
    for file in sorted(FOLDER.glob("*.jsonl"))
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
]
each = pytest.mark.parametrize("recorded", RECORDINGS)


def test_all_recordings_are_there() -> None:
    if not RECORDINGS:
        pytest.skip(
            f"no recordings in {FOLDER}; "
            "tests/integration/upstream/test_recordings.py fails where they are required"
        )
    assert len(RECORDINGS) >= 115


def _deltas(recorded: Any) -> list[Any]:
    return [choice["delta"] for chunk in recorded["chunks"] for choice in chunk["choices"]]


def _joined(turn: TranslatedTurn, kind: str) -> str:
    return "".join(
        part["text"] for item in turn.output if item["type"] == kind for part in item["content"]
    )


@each
def test_a_recorded_stream_keeps_its_text_calls_and_usage(recorded: Any) -> None:
    turn = translate(recorded["chunks"], done_seen=False, want_logprobs=True)

    deltas = _deltas(recorded)
    assert _joined(turn, "message") == "".join(delta["content"] or "" for delta in deltas)
    assert _joined(turn, "reasoning") == "".join(delta.get("reasoning") or "" for delta in deltas)
    pieces = [piece for delta in deltas for piece in delta["tool_calls"] or ()]
    heads = [(piece["id"], piece["function"]["name"]) for piece in pieces if piece["id"]]
    assert [(item["call_id"], item["name"]) for item in turn.calls] == heads
    assert "".join(item["arguments"] for item in turn.calls) == "".join(
        piece["function"]["arguments"] or "" for piece in pieces
    )
    for item in turn.calls:
        assert isinstance(json.loads(item["arguments"]), dict)

    assert turn.outcome is not None
    reasons = {
        choice["finish_reason"] for chunk in recorded["chunks"] for choice in chunk["choices"]
    } - {None}
    assert turn.outcome.status == ("incomplete" if reasons == {"length"} else "completed")
    counted = [chunk["usage"] for chunk in recorded["chunks"] if chunk["usage"]]
    assert (turn.usage is None) == (not counted)
    if turn.usage is not None:
        assert turn.usage["total_tokens"] == counted[-1]["total_tokens"]


def _tokens_of_text(recorded: Any) -> list[str]:
    """The tokens up to the last one with text. The later tokens of Bedrock are markup and arguments
    of calls."""
    events: list[str] = []
    texts = 0
    for choice in (choice for chunk in recorded["chunks"] for choice in chunk["choices"]):
        events += [token["token"] for token in (choice["logprobs"] or {}).get("content") or ()]
        texts = len(events) if choice["delta"]["content"] else texts
    return events[:texts]


@each
def test_log_probabilities_are_kept_when_asked_and_dropped_when_not(recorded: Any) -> None:
    published = []
    for wanted in (True, False):
        turn = translate(recorded["chunks"], want_logprobs=wanted)
        parts = [
            part for item in turn.output if item["type"] == "message" for part in item["content"]
        ]
        published.append([score["token"] for part in parts for score in part["logprobs"]])
    assert published == [_tokens_of_text(recorded), []]


@each
def test_a_recorded_stream_may_be_cut_after_any_chunk(recorded: Any) -> None:
    for length in range(0, len(recorded["chunks"]) + 1, 7):
        turn = translate(recorded["chunks"][:length], cut=True)
        assert turn.outcome is None
