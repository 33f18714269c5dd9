"""Reasoning between turns: what is sealed, what is sent back to which upstream, and when."""

import json
from typing import Any

import orjson
import pytest

from models.config.dialect import EffortField, ReasoningBack
from tests.support.chat_turns import call as call_piece
from tests.support.chat_turns import calls, delta, finish, translate
from tests.unit.translation.test_chat_request import (
    assistant_texts,
    body,
    call,
    calling,
    output,
    tool,
    user,
)
from worker.translation.returned_content import reasoning_payload

Json = dict[str, Any]


def thought(*texts: str, **fields: Any) -> Json:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {
        "id": "rs_1",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": content,
        **fields,
    }


def text_detail(text: str, **fields: Any) -> Json:
    return {"type": "reasoning.text", "text": text, **fields}


# What is kept.


def test_pieces_of_a_detail_are_joined_and_keep_the_signature() -> None:
    pieces = [
        text_detail("I ", index=0, format="anthropic-claude-v1", signature=None),
        text_detail("think.", index=0),
        text_detail("", index=0, signature="sig"),
        text_detail("More.", index=1),
        {"type": "reasoning.encrypted", "data": "a", "index": 2},
        {"type": "reasoning.encrypted", "data": "b", "index": 2},
        {"type": "reasoning.summary", "summary": "In ", "index": 3},
        {"type": "reasoning.summary", "summary": "short.", "index": 3},
        {"unheard": ["of"]},
    ]
    assert reasoning_payload("I think.More.", pieces) == {
        "text": "I think.More.",
        "details": [
            text_detail("I think.", index=0, format="anthropic-claude-v1", signature="sig"),
            text_detail("More.", index=1),
            *pieces[4:6],
            {"type": "reasoning.summary", "summary": "In short.", "index": 3},
            {"unheard": ["of"]},
        ],
    }
    assert pieces[0]["text"] == "I "


def test_a_signature_ends_what_it_signs() -> None:
    blocks = [
        {"type": "thinking", "thinking": "a", "signature": ""},
        {"type": "thinking", "thinking": "b", "signature": "s1"},
    ]
    more = [
        {"type": "thinking", "thinking": "c"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    assert reasoning_payload("abc", [*blocks, *more])["details"] == [
        {"type": "thinking", "thinking": "ab", "signature": "s1"},
        {"type": "thinking", "thinking": "c", "signature": "s2"},
        {"type": "redacted_thinking", "data": "x"},
    ]


def test_no_detail_of_an_upstream_breaks_the_turn() -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    junk = [
        {"deep": deep, "type": {"a": 1}, "text": "h", "index": [], "big": 10**400, "ok": 1.5},
        3,
        None,
        "x",
        ["y"],
        {},
        {"text": {"a": 1}},
    ]
    sealed: list[Json] = []

    def seal(kept: Json) -> str:
        sealed.append(json.loads(orjson.dumps(kept)))
        return "sealed"

    turn = translate(
        [
            delta(reasoning_details=junk),
            delta(reasoning_details=[{"text": "m"}]),
            delta(content="Hi"),
            finish(),
        ],
        seal=seal,
    )
    assert turn.items == ["reasoning hm", "message Hi"]
    assert sealed == [{"text": "hm", "details": [{"text": "h", "ok": 1.5}, {}, {}, {"text": "m"}]}]


def test_completed_reasoning_is_sealed_once_and_shown_with_its_item() -> None:
    sealed: list[Json] = []

    def seal(kept: Json) -> str:
        sealed.append(kept)
        return f"sealed {len(sealed)}"

    detail = text_detail("hm", index=0, signature="sig")
    turn = translate(
        [delta(reasoning="hm", reasoning_details=[detail]), delta(content="Hi"), finish()],
        seal=seal,
    )
    assert sealed == [{"text": "hm", "details": [detail]}]
    assert turn.output[0]["encrypted_content"] == "sealed 1"
    assert "encrypted_content" not in turn.events[0]["item"]


def test_incomplete_reasoning_is_not_sealed() -> None:
    turn = translate([delta(reasoning="hm")], cut=True, seal=lambda _: "sealed")
    assert "encrypted_content" not in turn.output[0]


SECRET = {"type": "reasoning.encrypted", "data": "x"}


@pytest.mark.parametrize(
    ("chunks", "items", "kept"),
    [
        pytest.param(
            [delta(reasoning_details=[SECRET]), delta(content="Hi"), finish()],
            ["reasoning ", "message Hi"],
            [[SECRET]],
            id="first",
        ),
        pytest.param(
            [
                delta(content="Hel"),
                delta(reasoning_details=[SECRET]),
                delta(content="lo"),
                finish(),
            ],
            ["message Hello"],
            [],
            id="in a message: it is not torn",
        ),
        pytest.param(
            [
                delta(content="Hel"),
                delta(reasoning_details=[SECRET]),
                delta(content="lo"),
                calls(call_piece(0, "call_a", "f", "{}")),
                finish(),
            ],
            ["message Hello", "reasoning ", "f/call_a {}"],
            [[SECRET]],
            id="in a message before a call",
        ),
        pytest.param(
            [
                delta(content="Hi"),
                delta(reasoning_details=[SECRET], tool_calls=[call_piece(0, "call_a", "f", "{}")]),
                finish(),
            ],
            ["message Hi", "reasoning ", "f/call_a {}"],
            [[SECRET]],
            id="with a call",
        ),
        pytest.param(
            [
                delta(reasoning="hm"),
                delta(reasoning_details=[SECRET]),
                delta(content="Hi"),
                finish(),
            ],
            ["reasoning hm", "message Hi"],
            [[SECRET]],
            id="after what was shown",
        ),
    ],
)
def test_details_without_text_are_kept_if_they_can_be_sealed(
    chunks: list[Json], items: list[str], kept: list[list[Json]]
) -> None:
    sealed: list[Json] = []

    def seal(one: Json) -> str:
        sealed.append(one)
        return "sealed"

    turn = translate(chunks, seal=seal)
    assert turn.items == items
    assert [one.get("details") for one in sealed] == kept
    assert "reasoning " not in translate(chunks).items


def test_a_summary_has_events_of_its_own_and_a_new_number_begins_a_new_part() -> None:
    def piece(text: str, index: int | None = None) -> Json:
        return delta(
            reasoning=text,
            reasoning_details=[
                {
                    "type": "reasoning.summary",
                    "summary": text,
                    **({} if index is None else {"index": index}),
                }
            ],
        )

    turn = translate(
        [piece("Let "), piece("me.", 0), piece("Then", 7), delta(content="Hi"), finish()]
    )
    assert turn.lines[:11] == [
        "0 +reasoning",
        "0.0 +summary_text",
        "0.0 'Let '",
        "0.0 'me.'",
        "0.0 ='Let me.'",
        "0.0 -summary_text",
        "0.1 +summary_text",
        "0.1 'Then'",
        "0.1 ='Then'",
        "0.1 -summary_text",
        "0 -reasoning completed",
    ]
    assert turn.output[0]["summary"] == [
        {"type": "summary_text", "text": "Let me."},
        {"type": "summary_text", "text": "Then"},
    ]
    assert turn.output[0]["content"] == []


# What goes back.

LOOP = [
    user("go"),
    thought("I look."),
    call("a"),
    output("a"),
    thought("Again."),
    call("b"),
    output("b"),
]


@pytest.mark.parametrize("way", ["reasoning_content", "reasoning"])
def test_in_a_tool_loop_the_model_gets_its_reasoning_back_with_its_calls(
    way: ReasoningBack,
) -> None:
    published = body(history=LOOP, reasoning_back=way)["messages"]
    first, second = calling("a") | {way: "I look."}, calling("b") | {way: "Again."}
    assert published == [{"role": "user", "content": "go"}, first, tool("a"), second, tool("b")]


def test_reasoning_is_sent_back_only_to_upstreams_that_want_it() -> None:
    assert body(history=LOOP)["messages"] == [
        {"role": "user", "content": "go"},
        calling("a"),
        tool("a"),
        calling("b"),
        tool("b"),
    ]


def test_reasoning_before_a_user_message_is_not_sent_back() -> None:
    published = body(
        history=[*LOOP, assistant_texts("Done."), user("more")], reasoning_back="reasoning"
    )["messages"]
    assert not [message for message in published if "reasoning" in message]


def test_a_client_can_have_the_reasoning_of_all_turns_sent_back() -> None:
    history = [user("go"), thought("Easy."), assistant_texts("Done."), user("more")]
    published = body({"reasoning": {"context": "all_turns"}}, history, reasoning_back="reasoning")[
        "messages"
    ]
    assert [message.get("reasoning") for message in published] == [None, "Easy.", None]


def test_calls_of_one_turn_stay_together_with_the_reasoning_between_them() -> None:
    history = [
        user("go"),
        thought("One."),
        call("a"),
        thought("Two."),
        call("b"),
        output("a"),
        output("b"),
    ]
    published = body(history=history, reasoning_back="reasoning")["messages"]
    assert published[1:] == [
        calling("a", "b") | {"reasoning": "One.\n\nTwo."},
        tool("a"),
        tool("b"),
    ]


def test_reasoning_after_a_call_belongs_to_the_call() -> None:
    history = [
        user("go"),
        call("a"),
        thought("One."),
        output("a"),
        thought("Two."),
        call("b"),
        output("b"),
    ]
    published = body(history=history, reasoning_back="reasoning")["messages"]
    assert [
        message.get("reasoning") for message in published if message["role"] == "assistant"
    ] == [
        "One.",
        "Two.",
    ]


def test_server_calls_of_one_turn_stay_together() -> None:
    ran = {
        "type": "mcp_call",
        "status": "completed",
        "server_label": "s",
        "name": "f",
        "arguments": "{}",
        "output": "x",
        "turn": 1,
    }
    history = [
        user("go"),
        thought("One."),
        {**ran, "id": "mcp_1"},
        thought("Two."),
        {**ran, "id": "mcp_2"},
        thought("Three."),
        {**ran, "id": "mcp_3", "turn": 2},
    ]
    published = body(history=history, reasoning_back="reasoning")["messages"]
    assert [
        (message.get("reasoning"), len(message.get("tool_calls", ())))
        for message in published
        if message["role"] == "assistant"
    ] == [
        ("One.\n\nTwo.", 2),
        ("Three.", 1),
    ]


def test_details_are_sent_back_unchanged_and_text_if_there_are_none() -> None:
    detail = text_detail("I look.", signature="sig")
    history = [
        user("go"),
        thought("I look.", sealed={"text": "I look.", "details": [detail]}),
        call("a"),
        output("a"),
    ]
    assert body(history=history, reasoning_back="reasoning_details")["messages"][1] == calling(
        "a"
    ) | {"reasoning_details": [detail]}
    assert body(history=LOOP[:4], reasoning_back="reasoning_details")["messages"][1] == calling(
        "a"
    ) | {"reasoning": "I look."}


def test_think_tags_are_at_the_start_of_the_text() -> None:
    history = [user("go"), thought("I look."), assistant_texts("Wait."), call("a"), output("a")]
    assert (
        body(history=history, reasoning_back="think_tags")["messages"][1]["content"]
        == "<think>\nI look.\n</think>\n\nWait."
    )
    assert (
        body(history=LOOP[:4], reasoning_back="think_tags")["messages"][1]["content"]
        == "<think>\nI look.\n</think>\n\n"
    )


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(
            {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": []}, id="bare"
        ),
        pytest.param(thought(), id="no text"),
        pytest.param(
            thought(summary=[{"type": "summary_text", "text": "x"}], encrypted_content="foreign"),
            id="of another server",
        ),
    ],
)
def test_an_empty_reasoning_item_adds_nothing(item: Json) -> None:
    for way in ("reasoning_content", "reasoning", "reasoning_details", "think_tags"):
        published = body(history=[user("go"), item, call("a"), output("a")], reasoning_back=way)[
            "messages"
        ]
        assert published == [{"role": "user", "content": "go"}, calling("a"), tool("a")]


def test_a_reasoning_item_without_text_gets_it_from_the_sealed_content() -> None:
    copy = thought(sealed={"text": "I look."})
    published = body(
        history=[user("go"), copy, call("a"), output("a")], reasoning_back="reasoning_content"
    )["messages"]
    assert published[1] == calling("a") | {"reasoning_content": "I look."}


# How effort is spelled.


@pytest.mark.parametrize(
    ("field", "low", "none"),
    [
        ("reasoning_effort", {"reasoning_effort": "low"}, {"reasoning_effort": "none"}),
        ("reasoning", {"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "none"}}),
        (
            "enable_thinking",
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        ("thinking", {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}),
        ("think", {"think": True}, {"think": False}),
        ("none", {}, {}),
    ],
)
def test_effort_is_sent_in_the_upstreams_own_field(
    field: EffortField, low: Json, none: Json
) -> None:
    words = ("reasoning_effort", "reasoning", "chat_template_kwargs", "thinking", "think")
    for effort, expected in (("low", low), ("none", none)):
        sent = body({"reasoning": {"effort": effort}}, effort_field=field)
        assert {name: sent[name] for name in words if name in sent} == expected
    assert not set(words) & set(body({"reasoning": {"summary": "auto"}}, effort_field=field))


def test_the_clients_own_template_arguments_win() -> None:
    parameters = {
        "reasoning": {"effort": "low"},
        "chat_template_kwargs": {"enable_thinking": False, "x": 1},
    }
    sent = body(parameters, effort_field="enable_thinking", passthrough=("chat_template_kwargs",))
    assert sent["chat_template_kwargs"] == {"enable_thinking": False, "thinking": True, "x": 1}
    assert "x" not in body(parameters, effort_field="enable_thinking")["chat_template_kwargs"]
