"""The fold of the events, and the closing of what a dead attempt left open."""

import json
import random

import pytest

from models.wire.snapshot import closing_events, find_unfinished, fold
from tests.support.api import JSON
from tests.support.chat_turns import brief, call, calls, counter, decoded, delta, finish, translate
from tests.support.contract_rules import assert_items_obey_contract
from tests.support.strict_types import check_event, check_item
from worker.translation.chat.chunk import Chunk
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.upstream.chat_chunks import parse_chunk

CITED = [{"type": "url_citation", "url_citation": {"url": "https://x"}}]
SCORED = {
    "choices": [
        {"delta": {"content": "sc"}, "logprobs": {"content": [{"token": "sc", "logprob": -1.0}]}}
    ]
}
SUMMED = [
    {"type": "reasoning.summary", "summary": text, "index": nr}
    for nr, text in ((0, "In "), (0, "short."), (1, "And."))
]
CHUNKS: list[JSON] = [
    *(delta(reasoning_details=[detail]) for detail in SUMMED),
    delta(reasoning="h"),
    delta(reasoning="m"),
    delta(content="Hi "),
    SCORED,
    delta(content="there", annotations=CITED),
    delta(refusal="but "),
    delta(refusal="no"),
    calls(call(0, "call_a", "look", '{"a"'), call(1, "call_b", "hear", "{")),
    calls(call(1, arguments="}"), call(0, arguments=":1}")),
    calls(call(2, "call_c", "ping", "")),
    finish("tool_calls"),
]
EVENTS = translate(CHUNKS, want_logprobs=True).events


def test_the_fold_of_a_whole_stream_is_its_output() -> None:
    turn = translate(CHUNKS, want_logprobs=True)
    assert fold(turn.events) == turn.output
    assert find_unfinished(turn.events).items == []
    assert closing_events(find_unfinished(turn.events)) == []


@pytest.mark.parametrize("length", range(len(EVENTS) + 1))
def test_whatever_was_left_open_can_be_closed(length: int) -> None:
    """Cut after any event, the closing makes a stream that obeys the contract, and its fold is what was said, `incomplete`."""
    heard = EVENTS[:length]
    closing = decoded(closing_events(find_unfinished(heard)))
    for event in closing:
        check_event(event)
    done = assert_items_obey_contract([*heard, *closing])
    before = fold(heard)
    expected = [
        {**item, "status": "incomplete"} if item["status"] == "in_progress" else item
        for item in before
    ]
    assert [item for _, item in sorted(done.items())] == expected == fold([*heard, *closing])
    for item in before:
        check_item(item)


def test_the_closing_says_what_the_translators_cut_says() -> None:
    for length in range(len(CHUNKS)):
        translator = ChatTranslator(counter(), ChatOptions(want_logprobs=True))
        heard = [event for chunk in CHUNKS[:length] for event in translator.feed(_parsed(chunk))]
        left = find_unfinished(decoded(heard))
        assert closing_events(left) == translator.close_incomplete()


def _parsed(chunk: JSON) -> Chunk:
    return parse_chunk(json.dumps(chunk).encode())


def test_events_of_another_attempts_items_are_ignored() -> None:
    first = translate([delta(content="gone")], cut=True).events
    later = translate([delta(content="stays"), finish()], first_index=1).events
    closing = [event for event in first if not event["type"].endswith("added")]
    assert fold([*closing, *later]) == fold(later)
    assert find_unfinished([*closing, *later]).highest_index == 1


def test_the_highest_index_counts_closed_and_foreign_items_too() -> None:
    assert find_unfinished([]).highest_index == -1
    assert find_unfinished([{"type": "response.created", "response": {}}]).highest_index == -1
    assert find_unfinished(EVENTS).highest_index == 4
    assert (
        find_unfinished(
            [{"type": "response.output_item.done", "output_index": 7, "item": {}}]
        ).highest_index
        == 7
    )


def test_the_output_is_in_the_order_of_its_indices() -> None:
    turn = translate(
        [calls(call(0, "call_a", "f", "{"), call(1, "call_b", "g", "{}")), finish("length")]
    )
    shuffled = sorted(
        turn.events,
        key=lambda event: (event["type"] != "response.output_item.added", -event["output_index"]),
    )
    assert [item["call_id"] for item in fold(shuffled)] == ["call_a", "call_b"]


def test_a_partial_view_shows_what_was_said_so_far() -> None:
    spoken = [event for event in EVENTS if event["output_index"] == 1][:4]
    assert [brief(event) for event in spoken] == [
        "1 +message",
        "1.0 +output_text",
        "1.0 'Hi '",
        "1.0 'sc'",
    ]
    [message] = fold(spoken)
    assert message["status"] == "in_progress"
    assert message["content"][0]["text"] == "Hi sc"
    assert [score["token"] for score in message["content"][0]["logprobs"]] == ["sc"]


def test_the_events_are_left_as_they_were() -> None:
    before = repr(EVENTS)
    fold(EVENTS)
    closing_events(find_unfinished(EVENTS[:12]))
    assert repr(EVENTS) == before


def test_any_split_of_the_text_has_the_same_fold() -> None:
    chance = random.Random(3)
    text = "The same words, however they were cut."
    folds = []
    for _ in range(100):
        cuts = sorted(chance.sample(range(1, len(text)), chance.randint(0, 10)))
        pieces = [
            text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
        ]
        folds.append(fold(translate([delta(content=piece) for piece in pieces]).events))
    assert all(one == folds[0] for one in folds)
