"""Which calls have an origin that is kept, and how a history shows them to each upstream."""

import json
from dataclasses import replace
from typing import Any

import pytest

from models.config.dialect import CallIdForm
from models.wire.events import Item
from tests.support.api import JSON
from tests.support.chat_turns import call, catalog_with, counter, delta, finish
from worker.translation.chat.request import chat_request
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.request_parameters import Dialect
from worker.translation.returned_content import CallOrigin, ReturnedCalls, accepted_id
from worker.translation.tool_catalog import ToolCatalog
from worker.upstream.chat_chunks import parse_chunk

LONG = "call_1__thought__" + "x" * 600
SIGNATURE = {"extra_content": {"google": {"thought_signature": "AbC="}}}


def origins_of(*chunks: JSON) -> dict[str, CallOrigin]:
    """The id that clients know -> the origin, of the calls of a turn."""
    found: dict[str, CallOrigin] = {}

    def seal(known_id: str, origin: CallOrigin) -> dict[str, str]:
        found[known_id] = CallOrigin.from_json(json.loads(json.dumps(origin.to_json())))
        return {}

    options = ChatOptions(tool_catalog=catalog_with("get", "ping"), upstream="g", seal_origin=seal)
    turn = ChatTranslator(counter(), options)
    entries = [chunk if "choices" in chunk else delta(tool_calls=[chunk]) for chunk in chunks]
    for chunk in (*entries, finish("tool_calls")):
        turn.feed(parse_chunk(json.dumps(chunk).encode()))
    turn.finish(done_seen=True)
    assert set(turn.call_origins) <= {item["id"] for item in turn.output}
    return found


def piece(index: int, **fields: Any) -> JSON:
    return {"index": index, **fields}


NOTHING_TO_KEEP = [
    pytest.param([call(0, "call_a", "get", "{}"), call(1, "9xYzAb_-2", "ping", "{}")], id="plain"),
    pytest.param([call(0, "", "get", "{}")], id="no id"),
    pytest.param([call(0, "a", "get", "{}"), piece(0, extra=None, more=None)], id="nulls"),
]


@pytest.mark.parametrize("chunks", NOTHING_TO_KEEP)
def test_a_call_whose_items_show_all_has_no_origin(chunks: list[JSON]) -> None:
    assert origins_of(*chunks) == {}


KEPT = [
    pytest.param(
        [call(0, "a", "get", "{"), call(0, arguments="}"), piece(0, **SIGNATURE)],
        {"a": CallOrigin("g", "fc_1", None, SIGNATURE)},
        id="fields that come last",
    ),
    pytest.param(
        [piece(0, **SIGNATURE), call(0, "a", "get", "{}"), call(1, "b", "ping", "{}")],
        {"a": CallOrigin("g", "fc_1", None, SIGNATURE), "b": CallOrigin("g", "fc_1")},
        id="fields that come first, and a second call without any",
    ),
    pytest.param(
        [
            call(0, "a", "get", "{}"),
            piece(0, x=1, y={"z": 1}),
            piece(0, x=None, y={"z": 2}, function={"s": "t"}),
        ],
        {"a": CallOrigin("g", "fc_1", None, {"x": 1, "y": {"z": 2}}, {"s": "t"})},
        id="of two values the later counts, except null",
    ),
    pytest.param(
        [
            delta(role="assistant", tool_calls=[call(0, "a", "get", "{}")], x={"y": 1}, z=[]),
            call(1, "b", "ping", "{}"),
        ],
        {"a": CallOrigin("g", "fc_1", message={"x": {"y": 1}}), "b": CallOrigin("g", "fc_1")},
        id="fields of the message",
    ),
    pytest.param(
        [
            delta(content="I look", reasoning_opaque="first"),
            call(0, "a", "get", "{}"),
            delta(extra_content={"s": "last"}),
        ],
        {
            "a": CallOrigin(
                "g", "fc_1", message={"reasoning_opaque": "first", "extra_content": {"s": "last"}}
            )
        },
        id="fields of the message in chunks without calls",
    ),
    pytest.param(
        [call(0, LONG, "get", "{}")],
        {"call_2": CallOrigin("g", "fc_1", LONG)},
        id="an id that is too long for clients",
    ),
    pytest.param(
        [call(0, "functions.get:0", "get", "{}")],
        {"functions.get:0": CallOrigin("g", "fc_1")},
        id="an id that others would not get (Kimi)",
    ),
    pytest.param(
        [call(0, "a", "get", "{}"), piece(1, id="a", function={"name": "ping"}, x=1)],
        {"a": CallOrigin("g", "fc_1"), "call_2": CallOrigin("g", "fc_1", None, {"x": 1})},
        id="an id that is used twice in a turn",
    ),
]


@pytest.mark.parametrize(("chunks", "expected"), KEPT)
def test_what_is_kept(chunks: list[JSON], expected: dict[str, CallOrigin]) -> None:
    found = origins_of(*chunks)
    steps = {origin.step for origin in found.values()}
    assert len(steps) == 1
    assert [origin.position for origin in found.values()] == list(range(len(found)))
    plain = [replace(origin, step="fc_1", position=0) for origin in found.values()]
    assert plain == list(expected.values())


FORMS: list[tuple[str, CallIdForm, str]] = [
    ("call_abc-1", "as_is", "call_abc-1"),
    ("x" * 40, "as_is", "x" * 40),
    ("x" * 41, "as_is", "call_"),
    ("functions.get:0", "as_is", "call_"),
    ("D681PevKs", "alphanumeric_9", "D681PevKs"),
    ("call_abc", "alphanumeric_9", ""),
]


@pytest.mark.parametrize(("known_id", "form", "expected"), FORMS)
def test_an_id_for_another_upstream_has_its_form_and_is_always_the_same(
    known_id: str, form: CallIdForm, expected: str
) -> None:
    made = accepted_id(known_id, form)
    assert made == accepted_id(known_id, form)
    if form == "alphanumeric_9":
        assert len(made) == 9
        assert made.isalnum()
    assert len(made) <= 40
    assert made.startswith(expected[:5])
    assert accepted_id(made, form) == made
    assert accepted_id(known_id + "2", form) != made


def test_an_id_with_name_and_index_counts_the_calls_of_the_history() -> None:
    third = {**CALLS[0], "id": "fc_c", "call_id": "c"}
    output = {**OUTPUTS[0], "id": "o_c", "call_id": "c"}
    own = {"fc_b b": CallOrigin("g", "s", "functions.get:7")}
    ids = [
        call["id"]
        for message in shown([*CALLS, *OUTPUTS, third, output], own, form="name_and_index")
        for call in message["tool_calls"]
    ]
    assert ids == ["functions.get:0", "functions.get:7", "functions.get:2"]


CALLS: list[Item] = [
    {"id": f"fc_{name}", "type": "function_call", "call_id": name, "name": "get", "arguments": "{}"}
    for name in ("a", "b")
]
OUTPUTS: list[Item] = [
    {"id": f"o_{name}", "type": "function_call_output", "call_id": name, "output": name}
    for name in ("a", "b")
]
OWN = {
    "fc_a a": CallOrigin("g", "s", "own a", {"x": 1}, {"y": 2}, {"z": 3}),
    "fc_b b": CallOrigin("g", "s"),
}
FOREIGN = {"x": "skip"}


def shown(
    history: list[Item],
    origins: dict[str, CallOrigin],
    upstream: str = "g",
    form: CallIdForm = "as_is",
) -> list[JSON]:
    """The messages of the model."""
    body = chat_request(
        model="m",
        parameters={},
        history=history,
        tool_catalog=ToolCatalog(),
        dialect=Dialect(),
        returned_calls=ReturnedCalls(upstream, origins, form, FOREIGN),
    )
    return [message for message in body["messages"] if message["role"] == "assistant"]


def test_fields_go_back_to_their_calls_also_if_the_outputs_come_between() -> None:
    for history in (
        [*CALLS, *OUTPUTS],
        [CALLS[0], OUTPUTS[0], CALLS[1], OUTPUTS[1]],
    ):
        function = {"name": "get", "arguments": "{}"}
        assert shown(history, OWN) == [
            {
                "role": "assistant",
                "content": None,
                "z": 3,
                "tool_calls": [
                    {"id": "own a", "type": "function", "x": 1, "function": {**function, "y": 2}},
                    {"id": "b", "type": "function", "function": function},
                ],
            }
        ]


def test_calls_of_a_turn_go_back_in_their_first_order() -> None:
    origins = {**OWN, "fc_b b": CallOrigin("g", "s", position=1)}
    [message] = shown([CALLS[1], CALLS[0], *OUTPUTS], origins)
    assert [call["id"] for call in message["tool_calls"]] == ["own a", "b"]
    [message] = shown([CALLS[1], CALLS[0], *OUTPUTS], {"fc_a a": OWN["fc_a a"]})
    assert [call["id"] for call in message["tool_calls"]] == ["b", "own a"]


def test_only_the_first_call_of_an_unsigned_message_gets_the_fields_for_foreign_calls() -> None:
    for origins, upstream in (({}, "g"), (OWN, "other")):
        [message] = shown([*CALLS, *OUTPUTS], origins, upstream)
        assert [set(call) - {"id", "type", "function"} for call in message["tool_calls"]] == [
            {"x"},
            set(),
        ]
        assert "own a" not in json.dumps(message)
        assert "z" not in message


def test_calls_of_two_turns_stay_in_two_messages() -> None:
    origins = {**OWN, "fc_b b": CallOrigin("g", "another step")}
    history = [CALLS[0], OUTPUTS[0], CALLS[1], OUTPUTS[1]]
    assert len(shown(history, origins)) == 2


def test_a_call_with_an_origin_is_never_mixed_up_with_one_that_has_the_same_item_id() -> None:
    history = [*CALLS, *OUTPUTS]
    history[1] = {**history[1], "id": "fc_a"}
    [message] = shown(history, {"fc_a a": OWN["fc_a a"]})
    assert [call["id"] for call in message["tool_calls"]] == ["own a", "b"]


SERVER_CALLS: list[Item] = [
    {"type": "web_search_call", "action": {"type": "search", "query": "q"}, "answer": "found"},
    {"type": "file_search_call", "queries": ["q"], "answer": "found"},
    {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "output": "found"},
]


@pytest.mark.parametrize("item", SERVER_CALLS, ids=lambda item: item["type"])
@pytest.mark.parametrize("turn", [1, None])
def test_calls_of_server_tools_have_their_origins_and_stay_in_one_message(
    item: Item, turn: int | None
) -> None:
    numbered = {} if turn is None else {"turn": turn}
    history = [{**item, "id": name, "status": "completed", **numbered} for name in ("a_1", "a_2")]
    origins = {"a_1": CallOrigin("g", "s", LONG, SIGNATURE), "a_2": CallOrigin("g", "s", "own 2")}
    [message] = shown(history, origins)
    assert [(call["id"], "extra_content" in call) for call in message["tool_calls"]] == [
        (LONG, True),
        ("own 2", False),
    ]
    messages = [] if turn is None else shown(history, origins, "other")
    for message in messages:
        assert [call["id"] for call in message["tool_calls"]] == ["a_1", "a_2"]
