"""Any history reaches the upstream in order, its calls grouped and paired: generated histories."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidRequest
from models.wire.items import input_items
from models.wire.pairing import require_outputs
from tests.support.api import JSON
from tests.support.histories import (
    HistoryGenerator,
    HistoryTurn,
    expected_messages,
    normalize_messages,
)
from tests.support.properties import examples
from worker.translation.chat.request import chat_request
from worker.translation.request_parameters import Dialect
from worker.translation.tool_catalog import build_tool_catalog


def new_ids() -> Any:
    count = iter(range(10**9))
    return lambda prefix: f"{prefix}_{next(count)}"


def messages(items: list[JSON], **dialect: Any) -> list[JSON]:
    """The messages for a client's items."""
    history = input_items(items, new_ids())
    result: list[JSON] = chat_request(
        model="m",
        parameters={},
        history=history,
        tool_catalog=build_tool_catalog({}, history),
        dialect=Dialect(**dialect),
    )["messages"]
    return result


@st.composite
def histories(draw: st.DrawFn) -> list[HistoryTurn]:
    author = HistoryGenerator(draw(st.randoms(use_true_random=False)))
    turns: list[HistoryTurn] = []
    for at in range(draw(st.integers(1, 8))):
        turns.append(
            author.turn(
                turns[-1].calls if turns else [],
                nonempty=at == 0,
                broken=draw(st.integers(0, 7)) == 0,
            )
        )
    turns.append(HistoryTurn(input_items=author.input_items(turns[-1].calls, nonempty=True)))
    return turns


def flat(turns: list[HistoryTurn]) -> list[JSON]:
    return [item for turn in turns for item in [*turn.input_items, *turn.output_items()]]


@examples(40)
@given(turns=histories())
def test_a_history_becomes_messages_turn_by_turn(turns: list[HistoryTurn]) -> None:
    assert normalize_messages(messages(flat(turns))) == expected_messages(turns)


@examples(40)
@given(turns=histories())
def test_items_that_upstreams_refuse_are_left_out(turns: list[HistoryTurn]) -> None:
    published = messages(flat(turns))
    waiting: list[str] = []
    for message in published:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, f"answers missing behind their calls: {waiting}"
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting
    called = [call["id"] for message in published for call in message.get("tool_calls", ())]
    assert len(called) == len(set(called))
    assert not {turn.broken_call for turn in turns} & set(called)


@examples(40)
@given(turns=histories(), at=st.integers(0, 10**6))
def test_every_cut_between_turns_gives_the_same(turns: list[HistoryTurn], at: int) -> None:
    """The border between two responses does not show."""
    cut = at % len(turns)
    begun = normalize_messages(
        messages(flat([*turns[:cut], HistoryTurn(input_items=turns[cut].input_items)]))
    )
    assert begun == expected_messages(turns[:cut], turns[cut].input_items)


@examples(50)
@given(turns=histories())
def test_one_system_message_does_not_change_the_order_of_others(turns: list[HistoryTurn]) -> None:
    published = normalize_messages(messages(flat(turns), single_system_message=True))
    expected = expected_messages(turns)
    system = [words for role, words in expected if role == "system"]
    assert published == [
        *([("system", "\n\n".join(system))] if system else []),
        *(message for message in expected if message[0] != "system"),
    ]


@examples(40)
@given(turns=histories(), at=st.integers(0, 10**6))
def test_a_missing_or_foreign_output_is_refused(turns: list[HistoryTurn], at: int) -> None:
    items = flat(turns)
    require_outputs(input_items(items, new_ids()))
    answers = [
        place for place, item in enumerate(items) if item.get("type") == "function_call_output"
    ]
    if not answers:
        return
    chosen = answers[at % len(answers)]
    with pytest.raises(InvalidRequest, match="No tool output found for function call"):
        require_outputs(input_items([*items[:chosen], *items[chosen + 1 :]], new_ids()))
    strange = {**items[chosen], "call_id": "call-nobody-made"}
    with pytest.raises(
        InvalidRequest,
        match="No tool call found for function call output with call_id call-nobody-made",
    ):
        require_outputs(input_items([*items[:chosen], strange, *items[chosen:]], new_ids()))


def test_generated_histories_contain_every_kind_of_item() -> None:
    author = HistoryGenerator(random.Random(0))
    seen: set[str] = set()
    turns: list[HistoryTurn] = []
    for at in range(300):
        turns.append(
            author.turn(turns[-1].calls if turns else [], nonempty=False, broken=at % 7 == 0)
        )
        seen |= {str(item.get("type") or item["role"]) for item in turns[-1].input_items}
        seen |= {
            name
            for name in (
                "reasoning",
                "text_before_calls",
                "text_after_calls",
                "refusal",
                "broken_call",
            )
            if getattr(turns[-1], name)
        }
        seen.add(f"{len(turns[-1].calls)} calls")
        seen.add(f"{len(turns[-1].input_items)} given")
    assert seen >= {
        "user",
        "developer",
        "function_call_output",
        "reasoning",
        "text_before_calls",
        "text_after_calls",
        "refusal",
        "broken_call",
        "0 given",
        "3 calls",
        "5 given",
    }
