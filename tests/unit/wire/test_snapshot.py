"""The output after a list of events, and the closing of what a dead attempt left unfinished."""

import json
import random

import pytest

from models.wire.snapshot import closing_events, find_unfinished, fold
from tests.support.api import JSON
from tests.support.chat_turns import brief, call, calls, counter, decoded, delta, finish, translate
from tests.support.contract_rules import assert_items_obey_contract
from tests.support.strict_types import check_event, check_item
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.upstream_events import ChatChunk
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
def test_after_a_crash_at_any_event_the_stream_can_be_closed(length: int) -> None:
    """The closed stream follows the rules of the API. Its items have their text so far."""
    events = EVENTS[:length]
    closing = decoded(closing_events(find_unfinished(events)))
    for event in closing:
        check_event(event)
    done = assert_items_obey_contract([*events, *closing])
    before = fold(events)
    expected = [
        {**item, "status": "incomplete"} if item["status"] == "in_progress" else item
        for item in before
    ]
    assert [item for _, item in sorted(done.items())] == expected == fold([*events, *closing])
    for item in before:
        check_item(item)


def test_a_recovery_closes_a_stream_with_the_events_of_the_translator() -> None:
    for length in range(len(CHUNKS)):
        translator = ChatTranslator(counter(), ChatOptions(want_logprobs=True))
        events = [event for chunk in CHUNKS[:length] for event in translator.feed(_parsed(chunk))]
        closing = closing_events(find_unfinished(decoded(events)))
        # Then come the items that were held back: a recovery does not know them.
        assert translator.close_incomplete()[: len(closing)] == closing


def _parsed(chunk: JSON) -> ChatChunk:
    return parse_chunk(json.dumps(chunk).encode())


def test_events_about_items_of_another_attempt_are_ignored() -> None:
    first = translate([delta(content="old")], cut=True).events
    later = translate([delta(content="new"), finish()], first_index=1).events
    closing = [event for event in first if not event["type"].endswith("added")]
    assert fold([*closing, *later]) == fold(later)
    assert find_unfinished([*closing, *later]).highest_index == 1


def test_a_recovery_never_uses_an_output_index_again() -> None:
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


def test_an_unfinished_response_shows_its_text_so_far() -> None:
    events = [event for event in EVENTS if event["output_index"] == 1][:4]
    assert [brief(event) for event in events] == [
        "1 +message",
        "1.0 +output_text",
        "1.0 'Hi '",
        "1.0 'sc'",
    ]
    [message] = fold(events)
    assert message["status"] == "in_progress"
    assert message["content"][0]["text"] == "Hi sc"
    assert [score["token"] for score in message["content"][0]["logprobs"]] == ["sc"]


def test_the_events_are_not_changed() -> None:
    before = repr(EVENTS)
    fold(EVENTS)
    closing_events(find_unfinished(EVENTS[:12]))
    assert repr(EVENTS) == before


def test_the_output_does_not_depend_on_how_the_text_is_split() -> None:
    chance = random.Random(3)
    text = "The same text in any number of deltas."
    folds = []
    for _ in range(100):
        cuts = sorted(chance.sample(range(1, len(text)), chance.randint(0, 10)))
        pieces = [
            text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
        ]
        folds.append(fold(translate([delta(content=piece) for piece in pieces]).events))
    assert all(fold_of_split == folds[0] for fold_of_split in folds)
