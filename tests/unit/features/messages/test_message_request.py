"""A request of Anthropic's API as the body of a create."""

from typing import Any, get_type_hints

import anthropic
import pytest

from features.messages.request import (
    OPTIONAL,
    REFUSED,
    REQUIRED,
    WITHOUT_EFFECT,
    Thinking,
    count_request,
    message_request,
)
from models.errors import InvalidRequest
from models.ids import new_item_id
from models.wire.request import parse_create

Json = dict[str, Any]


def _create(**changes: Any) -> Json:
    body = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    return message_request(body | changes, ()).body


def _items(*messages: tuple[str, Any]) -> list[Json]:
    """The items of messages, which a create accepts."""
    body = _create(messages=[{"role": role, "content": content} for role, content in messages])
    request = parse_create(body, new_id=new_item_id)
    assert len(request.input) == len(body["input"])
    items: list[Json] = body["input"]
    return items


def _use(name: str, **given: Any) -> Json:
    return {"type": "tool_use", "id": name, "name": "f", "input": given}


def _result(name: str, content: Any = "ok", **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **fields}


def test_results_come_before_the_text_that_is_sent_with_them() -> None:
    text = {"type": "text", "text": "Go on."}
    called = ("assistant", [{"type": "text", "text": "Yes."}, _use("a", x=1), _use("b")])
    items = _items(("user", "Hi"), called, ("user", [text, _result("a"), _result("b")]))
    assert [item["type"] for item in items[1:]] == [
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert (items[2]["arguments"], items[3]["arguments"]) == ('{"x":1}', "{}")


def test_a_result_may_have_pictures_or_nothing() -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}}
    text = {"type": "text", "text": "Look."}
    results = [_result("a", [text, picture], is_error=True), _result("b", [text, text])]
    called = ("assistant", [_use("a"), _use("b"), _use("c")])
    bare = {"type": "tool_result", "tool_use_id": "c"}
    *_, pictured, texts, nothing = _items(("user", "Hi"), called, ("user", [*results, bare]))
    assert [part["type"] for part in pictured["output"]] == [
        "input_text",
        "input_text",
        "input_image",
    ]
    assert (texts["output"], nothing["output"]) == ("Look.\nLook.", "")


def test_an_id_that_is_too_long_stays_the_same_in_call_and_result() -> None:
    items = _items(
        ("user", "Hi"), ("assistant", [_use("toolu_" * 20)]), ("user", [_result("toolu_" * 20)])
    )
    assert items[1]["call_id"] == items[2]["call_id"]
    assert len(items[1]["call_id"]) <= 64


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            {"type": "thinking", "thinking": "hm", "signature": "bbs1.x"},
            {"content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "bbs1.x"},
        ),
        (
            {"type": "thinking", "thinking": "hm", "signature": "EqQBCgIYAhIM"},
            {"content": [{"type": "reasoning_text", "text": "hm"}]},
        ),
        (
            {"type": "thinking", "thinking": "hm", "signature": "bbu1.YQ.sealed"},
            {
                "encrypted_content": "bbu1.YQ.sealed",
                "summary": [{"type": "summary_text", "text": "hm"}],
            },
        ),
        ({"type": "redacted_thinking", "data": "bbs1.y"}, {"encrypted_content": "bbs1.y"}),
        ({"type": "redacted_thinking", "data": "EqQBCgIYAhIM"}, None),
        ({"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"}, None),
        ({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, None),
        ({"type": "text", "text": ""}, None),
    ],
)
def test_reasoning_comes_back_if_it_was_made_here(block: Json, expected: Json | None) -> None:
    items = _items(("user", "Hi"), ("assistant", [block]), ("user", "Well?"))
    assert items[1:-1] == (
        [] if expected is None else [{"type": "reasoning", "summary": [], **expected}]
    )


def test_the_line_that_differs_in_each_request_is_left_out_of_the_instructions() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1; cch=1a2b;"
    texts = [line, "You are."]
    blocks = [{"type": "text", "text": text} for text in texts]
    assert _create(system=blocks)["instructions"] == "You are."
    assert _create(system="\n".join(texts))["instructions"] == "You are."
    assert "instructions" not in _create(system=line)


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "bash"),
        ({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}, None),
        ({"type": "computer_20251124", "name": "computer", "display_width_px": 9}, "computer"),
        ({"type": "custom", "name": "f", "input_schema": {"type": "object"}}, "f"),
        ({"name": "f", "input_schema": {"type": "object"}, "strict": True}, "f"),
    ],
)
def test_tools_of_the_client_become_functions(tool: Json, name: str | None) -> None:
    [made] = _create(tools=[tool])["tools"]
    assert (made["type"], made["name"]) == ("function", name or tool["name"])
    assert made["parameters"]["type"] == "object"
    assert made["strict"] is tool.get("strict", False)
    parse_create(_create(tools=[tool]), new_id=new_item_id)


def test_a_web_search_is_run_here() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    create = _create(
        tools=[{**search, "allowed_domains": ["a.example"]}],
        tool_choice={"type": "tool", "name": "web_search"},
    )
    assert create["tools"] == [
        {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}
    ]
    assert (create["max_tool_calls"], create["tool_choice"]) == (3, {"type": "web_search"})


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "name": "f"}),
    ],
)
def test_a_choice_of_tools_is_expressed(choice: Json, expected: Any) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    assert _create(tools=tools, tool_choice=choice)["tool_choice"] == expected
    assert "tool_choice" not in _create(tool_choice=choice)


@pytest.mark.parametrize(
    ("given", "effort", "shown"),
    [
        ({}, None, Thinking.HIDDEN),
        ({"thinking": {"type": "disabled"}}, None, Thinking.HIDDEN),
        ({"thinking": {"type": "adaptive"}}, None, Thinking.SHOWN),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None, Thinking.SIGNED),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low", Thinking.SHOWN),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, "medium", Thinking.SHOWN),
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, "high", Thinking.SHOWN),
        ({"output_config": {"effort": "max"}}, "max", Thinking.HIDDEN),
    ],
)
def test_thinking_becomes_an_effort(given: Json, effort: str | None, shown: Thinking) -> None:
    body = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    made = message_request(body | given, ())
    assert made.body.get("reasoning", {}).get("effort") == effort
    assert made.thinking is shown
    assert ("include" in made.body) is (shown is not Thinking.HIDDEN)


def test_what_the_upstream_takes_is_sent_and_the_rest_is_named() -> None:
    body = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    more = {"top_k": 5, "speed": "fast", "cache_control": {"type": "ephemeral"}}
    assert message_request(body | more, ("top_k",)).body["top_k"] == 5
    assert message_request(body | more, ()).ignored == ["speed", "top_k"]
    assert message_request(body | {"stop_sequences": ["a"]}, ()).stop == ["a"]


def test_every_parameter_of_the_sdk_has_a_decision() -> None:
    """What is not here is new: give it a meaning, refuse it, or name it as without effect."""
    named_without_effect = {
        *("billing_policy", "compaction", "fallback_credit_token", "fallbacks", "inference_geo"),
        *("speed", "user_profile_id", "workspace_id"),
    }
    known = named_without_effect | {"thread", *REQUIRED, *OPTIONAL, *REFUSED, *WITHOUT_EFFECT}
    for parameters in (
        anthropic.types.message_create_params.MessageCreateParamsBase,
        anthropic.types.beta.message_create_params.MessageCreateParamsBase,
        anthropic.types.MessageCountTokensParams,
        anthropic.types.beta.MessageCountTokensParams,
    ):
        assert set(get_type_hints(parameters)) - known - {"stream"} == set()


def test_a_count_needs_no_limit_and_is_not_stored() -> None:
    counted = count_request({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    assert counted["store"] is False
    assert "max_output_tokens" not in counted


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "tool", "content": ""}]},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": 3}]},
        {"model": 3, "messages": [{"role": "user", "content": "x"}]},
    ],
)
def test_a_wrong_request_is_refused(body: Any) -> None:
    with pytest.raises(InvalidRequest):
        count_request(body)
