"""Wrong bodies of the routes of conversations, and their errors (docs/wire.md)."""

from collections.abc import Callable
from typing import Any

import pytest

from models.errors import InvalidRequest
from models.wire.conversation import parse_addition, parse_conversation, parse_update
from models.wire.without_effect import UnknownFields

USER = {"role": "user", "content": "x"}


def new_id(prefix: str) -> str:
    return f"{prefix}_new"


def too_many(count: int) -> str:
    return (
        "Invalid 'items': array too long. Expected an array with maximum length 20, "
        f"but got an array with length {count} instead."
    )


ITEMS: list[tuple[str, Any, str, str, str | None]] = [
    (
        "no list",
        "Hi.",
        "items",
        "invalid_type",
        "Invalid type for 'items': expected an array, but got a string instead.",
    ),
    ("an object", {}, "items", "invalid_type", None),
    ("too many", [USER] * 21, "items", "array_above_max_length", too_many(21)),
    ("far too many", [USER] * 5000, "items", "array_above_max_length", too_many(5000)),
    ("no item", [USER, 1], "items[1]", "invalid_type", None),
    ("null", [None], "items[0]", "invalid_type", None),
    (
        "no type",
        [{}],
        "items[0].type",
        "missing_required_parameter",
        "Missing required parameter: 'items[0].type'.",
    ),
    ("another type", [USER, {"type": "thought"}], "items[1].type", "invalid_value", None),
    ("another role", [{"role": "king", "content": "x"}], "items[0].role", "invalid_value", None),
    ("no content", [{"role": "user"}], "items[0].content", "missing_required_parameter", None),
    (
        "a part of another type",
        [{"role": "user", "content": [{"type": "x"}]}],
        "items[0].content[0].type",
        "invalid_value",
        None,
    ),
    (
        "a number for text",
        [{"role": "user", "content": [{"type": "input_text", "text": 1}]}],
        "items[0].content[0].text",
        "invalid_type",
        None,
    ),
    (
        "a call without a name",
        [{"type": "function_call", "call_id": "c", "arguments": "{}"}],
        "items[0].name",
        "missing_required_parameter",
        None,
    ),
    ("an id of another type", [{**USER, "id": 1}], "items[0].id", "invalid_type", None),
    (
        "the same id twice",
        [{**USER, "id": "a"}, {**USER, "id": "a"}],
        "items",
        "invalid_value",
        None,
    ),
    ("a trigger", [USER, {"type": "compaction_trigger"}], "items[1]", "invalid_value", None),
    (
        "a file by its path",
        [{"role": "user", "content": [{"type": "input_file", "file_id": "a/b"}]}],
        "items[0].content[0].file_id",
        "invalid_value",
        None,
    ),
]


@pytest.mark.parametrize(
    ("items", "param", "code", "message"), [pytest.param(*row[1:], id=row[0]) for row in ITEMS]
)
def test_the_error_names_the_wrong_item(
    items: Any, param: str, code: str, message: str | None
) -> None:
    for parse in (parse_conversation, parse_addition):
        with pytest.raises(InvalidRequest) as refusal:
            parse({"items": items}, new_id=new_id, unknown=UnknownFields())
        error = refusal.value
        assert (error.status, error.param, error.code) == (400, param, code)
        assert message in (None, error.message)


def new_conversation(body: Any) -> object:
    return parse_conversation(body, new_id=new_id, unknown=UnknownFields())


def addition(body: Any) -> object:
    return parse_addition(body, new_id=new_id, unknown=UnknownFields())


Parsers = tuple[Callable[[Any], object], ...]
BODIES: list[tuple[str, Parsers, Any, str | None, str]] = [
    ("items are missing", (addition,), {}, "items", "missing_required_parameter"),
    ("items are null", (addition,), {"items": None}, "items", "missing_required_parameter"),
    ("items are empty", (addition,), {"items": []}, "items", "empty_array"),
    (
        "metadata with items",
        (addition,),
        {"items": [USER], "metadata": {}},
        "metadata",
        "unknown_parameter",
    ),
    ("metadata is missing", (parse_update,), {}, "metadata", "missing_required_parameter"),
    (
        "items with metadata",
        (parse_update,),
        {"metadata": {}, "items": []},
        "items",
        "unknown_parameter",
    ),
    *(
        (name, (parse_update, new_conversation), body, param, code)
        for name, body, param, code in (
            ("no object", [], None, "invalid_type"),
            ("metadata is a list", {"metadata": []}, "metadata", "invalid_type"),
            ("metadata of numbers", {"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
            (
                "metadata of 17 pairs",
                {"metadata": {str(at): "x" for at in range(17)}},
                "metadata",
                "object_above_max_properties",
            ),
            (
                "a long key",
                {"metadata": {"k" * 65: "x"}},
                f"metadata.{'k' * 65}",
                "string_above_max_length",
            ),
            (
                "a long value",
                {"metadata": {"a": "x" * 513}},
                "metadata.a",
                "string_above_max_length",
            ),
            (
                "a parameter of responses",
                {"metadata": {}, "model": "m"},
                "model",
                "unknown_parameter",
            ),
        )
    ),
]


@pytest.mark.parametrize(
    ("parsers", "body", "param", "code"), [pytest.param(*row[1:], id=row[0]) for row in BODIES]
)
def test_the_error_names_what_is_wrong_in_a_body(
    parsers: Parsers, body: Any, param: str | None, code: str
) -> None:
    for parse in parsers:
        with pytest.raises(InvalidRequest) as refusal:
            parse(body)
        assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, param, code)
