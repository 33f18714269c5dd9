"""Every call needs an output, every output a call (docs/wire.md)."""

from typing import Any

import pytest

from models.errors import InvalidRequest
from models.wire.pairing import require_outputs, unanswered_calls


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id}


def custom(call_id: str) -> dict[str, Any]:
    return {"type": "custom_tool_call", "call_id": call_id}


def custom_output(call_id: str) -> dict[str, Any]:
    return {"type": "custom_tool_call_output", "call_id": call_id}


USER = {"type": "message", "role": "user", "content": []}

GOOD: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    ("nothing", [USER], []),
    ("a pair", [call("a"), output("a")], []),
    ("another order", [call("a"), call("b"), USER, output("b"), output("a")], []),
    ("an open call answered", [output("a"), USER], ["a"]),
    ("an open custom call answered", [custom_output("a")], ["a"]),
    ("an open call sent again with its output", [call("a"), output("a")], ["a"]),
    ("an incomplete call", [call("a") | {"status": "incomplete"}, USER], []),
    (
        "an incomplete call with an output",
        [call("a") | {"status": "incomplete"}, output("a")],
        [],
    ),
    ("the same id in two turns", [call("a"), output("a"), call("a"), output("a")], []),
]

BAD: list[tuple[str, list[dict[str, Any]], list[str], str]] = [
    ("no output", [call("a")], [], "No tool output found for function call a."),
    ("no custom output", [custom("a")], [], "No tool output found for custom tool call a."),
    ("an open call ignored", [USER], ["a"], "No tool output found for function call a."),
    (
        "one of two open calls",
        [output("a")],
        ["a", "b"],
        "No tool output found for function call b.",
    ),
    (
        "output first",
        [output("a"), call("a")],
        [],
        "No tool call found for function call output with call_id a.",
    ),
    (
        "the same id, answered once",
        [call("a"), output("a"), call("a")],
        [],
        "No tool output found for function call a.",
    ),
    ("no call", [output("a")], [], "No tool call found for function call output with call_id a."),
    (
        "no custom call",
        [custom_output("a")],
        ["b"],
        "No tool call found for custom tool call output with call_id a.",
    ),
]


@pytest.mark.parametrize(
    ("items", "open_calls"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD]
)
def test_calls_with_outputs_are_accepted(
    items: list[dict[str, Any]], open_calls: list[str]
) -> None:
    require_outputs(items, open_calls)


@pytest.mark.parametrize(
    ("items", "open_calls", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_a_call_or_an_output_alone_is_refused(
    items: list[dict[str, Any]], open_calls: list[str], message: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        require_outputs(items, open_calls)
    assert (refusal.value.message, refusal.value.param, refusal.value.code) == (
        message,
        "input",
        None,
    )


def test_unanswered_calls_are_listed_in_their_order() -> None:
    broken = call("d") | {"status": "incomplete"}
    assert unanswered_calls([call("b"), USER, custom("a"), call("c"), output("c"), broken]) == [
        "b",
        "a",
    ]
