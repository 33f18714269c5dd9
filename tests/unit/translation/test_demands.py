"""Demands of a request that a completed answer does not meet."""

from typing import Any

import pytest

from tests.support.api import JSON
from worker.translation.request_parameters import unmet_demand

NAMED: JSON = {"type": "function", "name": "look"}
ALLOWED: JSON = {"type": "allowed_tools", "tools": [NAMED], "mode": "required"}
SCHEMA: JSON = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
OBJECT: JSON = {"type": "json_object"}


def _message(text: str, kind: str = "output_text") -> JSON:
    field = "text" if kind == "output_text" else "refusal"
    return {"type": "message", "content": [{"type": kind, field: text}]}


TEXT, JSON_TEXT = _message("Sure!"), _message(' {"a": [1]}\n')
REASONING: JSON = {"type": "reasoning"}
CALL: JSON = {"type": "function_call", "name": "look", "arguments": "{}"}
SEARCH: JSON = {"type": "web_search_call"}
LIST: JSON = {"type": "mcp_list_tools"}


@pytest.mark.parametrize(
    ("choice", "output", "expected"),
    [
        ("auto", [TEXT], None),
        ("none", [TEXT], None),
        ("required", [TEXT], "tool_choice_unmet"),
        ("required", [], "tool_choice_unmet"),
        ("required", [LIST, REASONING, TEXT], "tool_choice_unmet"),
        ("required", [TEXT, CALL], None),
        ("required", [SEARCH, TEXT], None),
        ("required", [{"type": "mcp_approval_request"}], None),
        (NAMED, [TEXT], "tool_choice_unmet"),
        (NAMED, [CALL], None),
        ({"type": "custom", "name": "look"}, [TEXT], "tool_choice_unmet"),
        ({"type": "custom", "name": "look"}, [{"type": "custom_tool_call"}], None),
        ({"type": "mcp", "server_label": "s"}, [LIST, TEXT], "tool_choice_unmet"),
        ({"type": "mcp", "server_label": "s"}, [LIST, {"type": "mcp_call"}, TEXT], None),
        ({"type": "file_search"}, [TEXT], "tool_choice_unmet"),
        (ALLOWED, [TEXT], "tool_choice_unmet"),
        ({**ALLOWED, "mode": "auto"}, [TEXT], None),
    ],
)
def test_a_demanded_call(choice: Any, output: list[JSON], expected: str | None) -> None:
    assert unmet_demand({"tool_choice": choice}, output) == expected


@pytest.mark.parametrize("text_format", [SCHEMA, OBJECT], ids=["schema", "object"])
@pytest.mark.parametrize(
    ("output", "is_met"),
    [
        ([JSON_TEXT], True),
        ([TEXT, SEARCH, REASONING, JSON_TEXT], True),
        ([TEXT], False),
        ([_message("```json\n{}\n```")], False),
        ([_message('{"a": 1} I hope that helps')], False),
        ([_message('{"a": ')], False),
        ([_message("")], False),
        ([], False),
        ([REASONING], False),
        ([_message("I can't.", "refusal")], True),
        ([TEXT, CALL], True),
        ([LIST, {"type": "mcp_approval_request"}], True),
        ([{"type": "mcp_call"}], False),
        ([_message("[" * 100_000)], False),
    ],
)
def test_demanded_json(text_format: JSON, output: list[JSON], is_met: bool) -> None:
    expected = None if is_met else "text_format_unmet"
    assert unmet_demand({"text": {"format": text_format}}, output) == expected
    assert unmet_demand({"text": {"format": {"type": "text"}}}, output) is None
    assert unmet_demand({"text": {"verbosity": "low"}}, output) is None
