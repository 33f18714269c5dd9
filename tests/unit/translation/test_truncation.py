"""Which items of a long history are dropped: the oldest turns, never half of a pair."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from models.wire.compaction import PREAMBLE
from worker.translation.history.size import DROPPED_SHARES, shortened_histories, without_oldest

Item = dict[str, Any]


def text_message(role: str, text: str) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "id": f"msg_{text}",
        "type": "message",
        "status": "completed",
        "role": role,
        "content": [{"type": kind, "text": text}],
    }


def called(call_id: str) -> Item:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": "look",
        "arguments": "{}",
    }


def answered(call_id: str) -> Item:
    return {
        "id": f"fco_{call_id}",
        "type": "function_call_output",
        "status": "completed",
        "call_id": call_id,
        "output": "x" * 40,
    }


def item_ids(history: list[Item]) -> list[str]:
    return [item["id"] for item in history]


HISTORY = [
    text_message("developer", "rules"),
    text_message("user", "one"),
    text_message("assistant", "uno"),
    text_message("user", "two"),
    called("a"),
    called("b"),
    answered("b"),
    answered("a"),
    text_message("assistant", "dos"),
    text_message("user", "three"),
]


def test_the_oldest_turn_goes_first_and_the_newest_question_stays() -> None:
    assert item_ids(without_oldest(HISTORY, 0)) == item_ids(HISTORY)
    assert item_ids(without_oldest(HISTORY, 0.01)) == [
        one for one in item_ids(HISTORY) if one != "msg_uno"
    ]
    assert item_ids(without_oldest(HISTORY, 0.125)) == ["msg_rules", *item_ids(HISTORY)[3:]]
    assert item_ids(without_oldest(HISTORY, 1)) == ["msg_rules", "msg_three"]


def test_of_a_turn_the_user_message_goes_last() -> None:
    assert item_ids(without_oldest(HISTORY, 0.4)) == [
        "msg_rules",
        "msg_two",
        "fc_b",
        "fco_b",
        "msg_dos",
        "msg_three",
    ]


def test_a_long_tool_loop_is_shortened_and_keeps_its_user_message() -> None:
    loop = [item for number in range(50) for item in (called(f"c{number}"), answered(f"c{number}"))]
    left = without_oldest([text_message("user", "go"), *loop], 0.5)
    assert left[0]["id"] == "msg_go"
    assert item_ids(left[1:]) == item_ids(loop)[-len(left) + 1 :]
    assert 40 <= len(left) <= 60


def test_a_call_with_its_output_in_the_next_turn_is_dropped_with_it() -> None:
    history = [
        text_message("user", "one"),
        called("a"),
        text_message("user", "two"),
        answered("a"),
        text_message("assistant", "done"),
        text_message("user", "three"),
    ]
    for share in DROPPED_SHARES:
        left = item_ids(without_oldest(history, share))
        assert ("fc_a" in left) == ("fco_a" in left)


def test_approvals_stay_with_requests_and_reasoning_with_the_next_item() -> None:
    request = {
        "id": "mcpr_1",
        "type": "mcp_approval_request",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
        "status": "completed",
    }
    answer = {
        "id": "mcpa_1",
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": True,
        "status": "completed",
    }
    ran = {
        "id": "mcp_1",
        "type": "mcp_call",
        "approval_request_id": "mcpr_1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    }
    reasoning_item = {"id": "rs_1", "type": "reasoning", "summary": [], "status": "completed"}
    history = [
        text_message("user", "one"),
        reasoning_item,
        request,
        answer,
        ran,
        text_message("assistant", "x" * 400),
        text_message("user", "two"),
    ]
    left = [item_ids(without_oldest(history, share)) for share in DROPPED_SHARES]
    assert all(
        len({one in ids for one in ("rs_1", "mcpr_1", "mcpa_1", "mcp_1")}) == 1 for ids in left
    )
    assert "mcpr_1" not in left[-1]


def test_reasoning_before_an_instruction_may_be_dropped() -> None:
    reasoning_item = {"id": "rs_1", "type": "reasoning", "summary": [], "status": "completed"}
    history = [
        text_message("user", "old"),
        reasoning_item,
        text_message("developer", "rules"),
        text_message("user", "new"),
    ]
    assert without_oldest(history, 1.0) == history[2:]


def test_summaries_and_added_tools_are_never_dropped() -> None:
    added = {
        "id": "at_1",
        "type": "additional_tools",
        "role": "developer",
        "tools": [],
        "status": "completed",
    }
    listed = {
        "id": "mcpl_1",
        "type": "mcp_list_tools",
        "server_label": "s",
        "tools": [],
        "status": "completed",
    }
    summary = text_message("user", PREAMBLE + "what there was")
    assert without_oldest([added, summary, text_message("assistant", "x"), listed], 1) == [
        added,
        summary,
        listed,
    ]


def test_shares_that_drop_nothing_more_are_skipped() -> None:
    assert [share for share, _ in shortened_histories([text_message("user", "only")])] == [0.0]
    assert [
        share
        for share, _ in shortened_histories(
            [text_message("user", "one"), text_message("user", "two")]
        )
    ] == [
        0.0,
        0.125,
    ]
    tried = list(shortened_histories(HISTORY, 0.25))
    assert tried[0][0] == 0.25
    assert all(len(after) < len(before) for (_, before), (_, after) in itertools.pairwise(tried))


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    """Any mix of turns; calls are answered at once, late, in another order, or never, and ids
    may repeat."""
    history: list[Item] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(0, 25))):
        step = draw(st.sampled_from(["user", "assistant", "developer", "call", "answer", "think"]))
        if step == "call":
            waiting.append(draw(st.sampled_from(["a", "b", f"c{number}"])))
            history.append({**called(waiting[-1]), "id": f"fc_{number}"})
        elif step == "answer" and waiting:
            call_id = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            history.append({**answered(call_id), "id": f"fco_{number}"})
        elif step == "think":
            history.append(
                {"id": f"rs_{number}", "type": "reasoning", "summary": [], "status": "completed"}
            )
        elif step != "answer":
            history.append(
                {**text_message(step, "x" * draw(st.integers(0, 300))), "id": f"msg_{number}"}
            )
    return history


def pairs(history: list[Item]) -> list[tuple[str, str]]:
    """Each output with the last call of its id before it."""
    calls: dict[str, str] = {}
    result = []
    for item in history:
        if item["type"] == "function_call":
            calls[item["call_id"]] = item["id"]
        elif item["type"] == "function_call_output":
            result.append((item["id"], calls[item["call_id"]]))
    return result


@given(histories(), st.floats(0, 1))
def test_a_shortened_history_is_in_order_complete_and_has_its_question(
    history: list[Item], share: float
) -> None:
    left = without_oldest(history, share)
    ids = item_ids(left)
    assert ids == [one for one in item_ids(history) if one in set(ids)]
    lasting = [item["id"] for item in history if item.get("role") == "developer"]
    users = [item["id"] for item in history if item.get("role") == "user"]
    assert set(lasting) <= set(ids)
    assert users[-1:] == [one for one in ids if one in users][-1:]
    assert pairs(left) == [pair for pair in pairs(history) if pair[0] in ids], (
        "a pair goes whole or stays whole"
    )
    assert {output for output, _ in pairs(left)} == {one for one in ids if one.startswith("fco_")}
    whole = [one for one in item_ids(history) if one not in lasting]
    if whole and whole[0] in users:
        assert next(one for one in ids if one not in lasting) in users, (
            "it began with a user, and still does"
        )


@given(histories(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_drops_what_a_smaller_one_does(
    history: list[Item], one: float, other: float
) -> None:
    less, more = sorted((one, other))
    assert set(item_ids(without_oldest(history, more))) <= set(
        item_ids(without_oldest(history, less))
    )
