"""Reasoning that waits for its summary: what comes behind it waits too, in its order."""

import json
from typing import Any

from models.wire.events import Event
from tests.support.chat_turns import (
    call,
    calls,
    catalog_with,
    counter,
    decoded,
    delta,
    finish,
)
from tests.support.contract_rules import assert_items_obey_contract
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.upstream.chat_chunks import parse_chunk

USAGE: dict[str, Any] = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 5,
}


class SummarisedTurn:
    """A turn whose reasoning gets summaries."""

    def __init__(self) -> None:
        options = ChatOptions(tool_catalog=catalog_with("look"), summarised=True)
        self.turn = ChatTranslator(counter(), options)
        self.events: list[Event] = []

    def feed(self, *chunks: dict[str, Any]) -> None:
        for chunk in chunks:
            self.events += self.turn.feed(parse_chunk(json.dumps(chunk).encode()))

    def check(self) -> None:
        done = assert_items_obey_contract(decoded(self.events))
        assert [item for _, item in sorted(done.items())] == self.turn.output


def test_summaries_that_come_in_another_order_are_sent_in_the_order_of_their_items() -> None:
    one = SummarisedTurn()
    one.feed(delta(reasoning="a"), delta(content="b"), delta(reasoning="c"))
    one.feed(calls(call(0, "call_a", "look", "{}")), finish("tool_calls"))
    first, second = one.turn.take_unsummarised()
    assert one.turn.take_unsummarised() == []
    waiting = len(one.events)
    one.events += one.turn.end_summary(second, "C.", USAGE)
    assert len(one.events) == waiting
    one.events += one.turn.end_summary(first, "A.", USAGE)
    assert len(one.events) > waiting
    one.events += one.turn.end_reasoning(done_seen=True)
    one.events += one.turn.finish(done_seen=True)
    one.check()
    summaries = [item["summary"] for item in one.turn.output if item["type"] == "reasoning"]
    assert summaries == [
        [{"type": "summary_text", "text": "A."}],
        [{"type": "summary_text", "text": "C."}],
    ]
    assert one.turn.usage is not None
    assert one.turn.usage["output_tokens_details"] == {"reasoning_tokens": 4}
    assert one.turn.upstream_usage is None


def test_reasoning_at_the_end_of_a_turn_gets_a_summary_too() -> None:
    one = SummarisedTurn()
    one.feed(delta(reasoning="a"), finish())
    assert one.turn.take_unsummarised() == []
    one.events += one.turn.end_reasoning(done_seen=True)
    [item] = one.turn.take_unsummarised()
    one.events += one.turn.end_summary(item, "", None)
    one.events += one.turn.finish(done_seen=True)
    one.check()
    assert one.turn.output[0]["status"] == "completed"


def test_reasoning_whose_summary_is_not_there_yet_is_complete_when_the_turn_is_stopped() -> None:
    one = SummarisedTurn()
    one.feed(delta(reasoning="a"), delta(content="b"))
    [item] = one.turn.take_unsummarised()
    one.events += one.turn.close_incomplete()
    assert one.turn.end_summary(item, "late", None) == []
    one.check()
    assert [each["status"] for each in one.turn.output] == ["completed", "incomplete"]
