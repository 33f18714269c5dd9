"""The rules in tests/support/contract_rules.py find each fault that is put into a valid stream."""

import copy
from collections.abc import Callable

import pytest

from tests.support.api import JSON
from tests.support.chat_turns import call, calls, delta, finish, translate
from tests.support.contract_rules import assert_stream_obeys_contract


def _stream() -> list[JSON]:
    turn = translate(
        [
            delta(reasoning="hm"),
            delta(content="Hel"),
            delta(content="lo"),
            calls(call(0, "call_a", "f", "{}")),
            finish(),
        ]
    )
    opening = [
        {"type": f"response.{kind}", "response": {"id": "resp_1", "output": []}}
        for kind in ("created", "queued", "in_progress")
    ]
    ending = {
        "type": "response.completed",
        "response": {"id": "resp_1", "status": "completed", "output": turn.output},
    }
    return [
        {**event, "sequence_number": number}
        for number, event in enumerate([*opening, *turn.events, ending])
    ]


def _renumbered(events: list[JSON]) -> list[JSON]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _first(events: list[JSON], suffix: str) -> int:
    return next(at for at, event in enumerate(events) if event["type"].endswith(suffix))


def _without(suffix: str) -> Callable[[list[JSON]], list[JSON]]:
    return lambda events: _renumbered(
        [event for at, event in enumerate(events) if at != _first(events, suffix)]
    )


def _twice(suffix: str) -> Callable[[list[JSON]], list[JSON]]:
    return lambda events: _renumbered(
        [*events[: _first(events, suffix) + 1], *events[_first(events, suffix) :]]
    )


def _with(suffix: str, **changes: object) -> Callable[[list[JSON]], list[JSON]]:
    def change(events: list[JSON]) -> list[JSON]:
        events[_first(events, suffix)] |= changes
        return events

    return change


FAULTS = [
    *(
        pytest.param(_without(suffix), id=f"without {suffix}")
        for suffix in (
            "response.created",
            "output_item.added",
            "output_item.done",
            "content_part.added",
            "content_part.done",
            "output_text.delta",
            "output_text.done",
            "reasoning_text.done",
            "arguments.delta",
            "arguments.done",
            "response.completed",
        )
    ),
    *(
        pytest.param(_twice(suffix), id=f"twice {suffix}")
        for suffix in (
            "response.created",
            "output_item.added",
            "output_item.done",
            "content_part.added",
            "content_part.done",
            "output_text.delta",
            "output_text.done",
            "arguments.delta",
            "arguments.done",
            "response.completed",
        )
    ),
    pytest.param(lambda events: events[1:], id="numbers from 1"),
    pytest.param(lambda events: [*events[:5], *events[6:]], id="a hole"),
    pytest.param(_with("output_text.delta", output_index=0), id="a delta for another item"),
    pytest.param(_with("output_text.delta", item_id="msg_9"), id="a delta with another item's id"),
    pytest.param(_with("output_text.delta", content_index=1), id="a delta for another part"),
    pytest.param(_with("output_text.delta", delta=""), id="an empty delta"),
    pytest.param(_with("output_text.done", text="Hullo"), id="done says something else"),
    pytest.param(
        _with(
            "response.completed",
            response={"id": "resp_1", "status": "completed", "output": [{"id": "x"}]},
        ),
        id="an item nobody saw",
    ),
    pytest.param(
        _with("response.completed", response={"id": "resp_2", "status": "completed", "output": []}),
        id="another response's id",
    ),
    pytest.param(
        lambda events: _renumbered([*events[:-2], events[-1], events[-2]]),
        id="something after the terminal event",
    ),
]


def test_a_good_stream_passes_whole_and_cut_anywhere() -> None:
    events = _stream()
    assert_stream_obeys_contract(events)
    for length in range(len(events) + 1):
        assert_stream_obeys_contract(events[:length], terminal=False)
        assert_stream_obeys_contract(events[length:], terminal=False, first=length)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_contract_rules_find_a_fault(fault: Callable[[list[JSON]], list[JSON]]) -> None:
    events = fault(copy.deepcopy(_stream()))
    with pytest.raises(AssertionError):
        assert_stream_obeys_contract(events)
