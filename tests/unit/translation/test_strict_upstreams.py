"""Requests that strict upstreams accept: what is always sent in the most accepted form, and what
each setting changes."""

import json
from typing import Any

import pytest

from tests.unit.translation.test_chat_request import (
    BARE,
    CHAT_IMAGE,
    HI,
    IMAGE,
    assistant_texts,
    body,
    call,
    calling,
    output,
    tool,
    user,
)
from tests.unit.translation.test_server_calls import function
from worker.translation.chat.message_order import AFTER_ASSISTANT, AFTER_TOOL, BEFORE_ASSISTANT
from worker.translation.functions import function_parameters, omit_keywords
from worker.translation.history.walk import object_arguments

Json = dict[str, Any]
EMPTY = {"type": "object", "properties": {}}

SCHEMAS: list[tuple[Any, Json]] = [
    (None, EMPTY),
    ([], EMPTY),
    ({}, EMPTY),
    ({"type": "object"}, EMPTY),
    ({"type": None, "properties": None, "required": None}, EMPTY),
    ({"type": "object", "properties": []}, EMPTY),
    ({"type": ["object", "null"]}, EMPTY),
    ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
    ({"type": "object", "required": {}, "title": None, "properties": {}}, EMPTY),
    (
        {"type": "object", "properties": {"a": {"type": "object", "properties": None}}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
    ),
    (
        {"type": "object", "properties": {"a": {"type": "array"}, "b": {"default": None}}},
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {}}, "b": {"default": None}},
        },
    ),
    (
        {
            "type": "object",
            "properties": {"required": {"anyOf": [{"type": "array", "items": None}]}},
        },
        {"type": "object", "properties": {"required": {"anyOf": [{"type": "array", "items": {}}]}}},
    ),
]


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS)
def test_parameters_of_a_function_are_always_an_object_with_properties(
    schema: Any, expected: Json
) -> None:
    before = json.dumps(schema)
    assert function_parameters(schema) == expected
    assert json.dumps(schema) == before


@pytest.mark.parametrize("schema", [{"type": "object"}, {"properties": None}, {}])
def test_a_tool_of_a_server_has_properties_whatever_it_lists(schema: Json) -> None:
    assert function("it", "look", parameters=schema).to_json() == {"parameters": EMPTY}


def test_a_schema_of_any_depth_is_sent() -> None:
    schema: Json = {"type": "array"}
    for _ in range(900):
        schema = {"items": schema}
    assert function_parameters(schema)["type"] == "object"


def test_keywords_are_left_out_of_schemas_and_not_of_names() -> None:
    schema = {
        "$schema": "x",
        "type": "object",
        "additionalProperties": False,
        "properties": {"const": {"const": 1}, "b": {"items": {"additionalProperties": True}}},
    }
    assert omit_keywords(schema, ("$schema", "const", "additionalProperties")) == {
        "type": "object",
        "properties": {"const": {"enum": [1]}, "b": {"items": {}}},
    }


ARGUMENTS: list[tuple[str, str]] = [
    ('{"a": 1}', '{"a": 1}'),
    ('{"a":1} \n', '{"a":1} \n'),
    ("", "{}"),
    ("null", "{}"),
    ("  ", "{}"),
    ('{}{"a": "ü"}', '{"a": "ü"}'),
    ('null {"a": 1}', '{"a": 1}'),
    ('{}{"a": 1', '{"invalid_arguments": "{}{\\"a\\": 1"}'),
    ('"{\\"a\\": 1}"', '{"a": 1}'),
    ('{"a": "x\ny"}', '{"a": "x\\ny"}'),
    ('{"a": "hal', '{"invalid_arguments": "{\\"a\\": \\"hal"}'),
    ('{"a": NaN}', '{"invalid_arguments": "{\\"a\\": NaN}"}'),
    ("[1]", '{"invalid_arguments": "[1]"}'),
    ("7", '{"invalid_arguments": "7"}'),
    ("ls -l", '{"invalid_arguments": "ls -l"}'),
    ('"\\ud83d"', '{"invalid_arguments": "\\"\\\\ud83d\\""}'),
    ('{}{"a": "\\ud83d"}', '{"a": "\ufffd"}'),
    ('{"a": "\\ud83d"}', '{"a": "\ufffd"}'),
    ('{"a": "\\ud83d\\ude00"}', '{"a": "\\ud83d\\ude00"}'),
    ('{"a": 18446744073709552000}', '{"a": 18446744073709552000}'),
    ("[" * 100_000, json.dumps({"invalid_arguments": "[" * 100_000})),
]


@pytest.mark.parametrize(("arguments", "sent"), ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_arguments_are_always_an_object_and_no_text_is_lost(arguments: str, sent: str) -> None:
    assert object_arguments(arguments) == sent
    (sent_call,) = body(history=[call("a", arguments), output("a")])["messages"][0]["tool_calls"]
    assert sent_call["function"]["arguments"] == sent
    sent.encode()


def messages(*history: Json, parameters: Json | None = None, **options: Any) -> list[Json]:
    sent: list[Json] = body(parameters, list(history), **options)["messages"]
    return sent


ASSISTANT = {"role": "assistant", "content": "a"}
BETWEEN = {"role": "assistant", "content": AFTER_TOOL}
SYSTEM = {"role": "system", "content": "s"}

MESSAGES: list[tuple[str, Json, list[Json], list[Json]]] = [
    ("a blank text", {}, [user("  ")], [{"role": "user", "content": "(empty)"}]),
    ("blank instructions", {}, [user("", role="system"), user("hi")], [HI]),
    ("a blank output", {}, [call("a"), output("a", " ")], [calling("a"), tool("a", "(empty)")]),
    ("no parts", {}, [call("a"), output("a", [])], [calling("a"), tool("a", "(empty)")]),
    ("another word", {"empty_content": "-"}, [user("")], [{"role": "user", "content": "-"}]),
    ("as it is", {"empty_content": ""}, [user(" ")], [{"role": "user", "content": " "}]),
    (
        "a blank text beside an image",
        {},
        [user("", IMAGE)],
        [{"role": "user", "content": [CHAT_IMAGE]}],
    ),
    ("an empty answer", {}, [user("hi"), assistant_texts(" \n")], [HI]),
    (
        "a blank text before a call",
        {},
        [assistant_texts("\n\n"), call("a"), output("a")],
        [calling("a"), tool("a")],
    ),
    (
        "no null",
        {"call_content": "empty"},
        [call("a"), output("a")],
        [calling("a", content=""), tool("a")],
    ),
    (
        "no content",
        {"call_content": "omitted"},
        [call("a"), output("a")],
        [{key: value for key, value in calling("a").items() if key != "content"}, tool("a")],
    ),
    (
        "roles as they are",
        {},
        [user("hi"), user("hi"), call("a"), output("a"), user("hi")],
        [HI, HI, calling("a"), tool("a"), HI],
    ),
    (
        "roles alternate",
        {"alternate_roles": True},
        [user("hi"), user("b"), call("a"), output("a"), user("hi"), user("see", IMAGE)],
        [
            {"role": "user", "content": "hi\n\nb"},
            calling("a"),
            tool("a"),
            BETWEEN,
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "text", "text": "see"},
                    CHAT_IMAGE,
                ],
            },
        ],
    ),
    (
        "a tool's image, and what the user writes then",
        {"alternate_roles": True},
        [user("hi"), call("a"), output("a", [IMAGE]), user("b")],
        [
            HI,
            calling("a"),
            tool("a", "[image: see the next user message]"),
            BETWEEN,
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "The image that tool call a returned:"},
                    CHAT_IMAGE,
                    {"type": "text", "text": "b"},
                ],
            },
        ],
    ),
    (
        "a history that begins and ends with the model",
        {"alternate_roles": True},
        [user("s", role="system"), assistant_texts("a")],
        [
            SYSTEM,
            {"role": "user", "content": BEFORE_ASSISTANT},
            ASSISTANT,
            {"role": "user", "content": AFTER_ASSISTANT},
        ],
    ),
    (
        "several texts of the model",
        {"alternate_roles": True},
        [user("hi"), assistant_texts("a"), user(""), call("a"), output("a")],
        [HI, ASSISTANT, {"role": "user", "content": "(empty)"}, calling("a"), tool("a")],
    ),
    (
        "nothing twice",
        {"alternate_roles": True, "empty_content": ""},
        [user(""), user("")],
        [{"role": "user", "content": ""}],
    ),
    (
        "instructions alone",
        {"alternate_roles": True},
        [user("s", role="system")],
        [SYSTEM, {"role": "user", "content": AFTER_ASSISTANT}],
    ),
    (
        "parallel calls",
        {"alternate_roles": True},
        [user("hi"), call("a"), call("b"), output("b"), output("a")],
        [HI, calling("a", "b"), tool("a"), tool("b")],
    ),
]


@pytest.mark.parametrize(
    ("options", "history", "expected"),
    [row[1:] for row in MESSAGES],
    ids=[row[0] for row in MESSAGES],
)
def test_messages_have_the_form_that_the_upstream_accepts(
    options: Json, history: list[Json], expected: list[Json]
) -> None:
    assert messages(*history, **options) == expected


def reasoning(text: str) -> Json:
    return {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


EARLIER = [
    *(user("hi"), reasoning("r1"), call("a"), output("a")),
    *(reasoning("r2"), assistant_texts("a"), user("hi"), call("b"), output("b")),
]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [("last", [None, None, None]), ("calls", ["r1", None, " "]), ("all", ["r1", "r2", " "])],
)
def test_reasoning_of_earlier_turns_goes_back_where_it_is_wanted(
    turns: str, expected: list[str | None]
) -> None:
    sent = messages(*EARLIER, reasoning_back="reasoning_content", reasoning_turns=turns)
    assert [
        message.get("reasoning_content") for message in sent if message["role"] == "assistant"
    ] == expected


STRICT = {**BARE, "name": "strict", "strict": True, "description": "x" * 30}
LOOSE = {**BARE, "name": "loose", "description": " "}
NAMED = {"type": "function", "name": "loose"}


def functions(parameters: Json | None = None, **options: Any) -> list[Json]:
    sent = body({"tools": [STRICT, LOOSE], **(parameters or {})}, **options)
    return [offered["function"] for offered in sent.get("tools", ())]


def test_functions_have_the_form_that_the_upstream_accepts() -> None:
    as_sent = functions()
    assert [function.get("strict") for function in as_sent] == [True, None]
    assert "description" not in as_sent[1]
    assert {function.get("strict") for function in functions(strict_tools="none")} == {None}
    assert {function.get("strict") for function in functions(strict_tools="all")} == {True}
    assert functions(description_limit=16)[0]["description"] == "x" * 15 + "…"
    schema = functions(omit_from_schemas=("additionalProperties",))[0]["parameters"]
    assert schema == {**EMPTY, "required": []}


@pytest.mark.parametrize(
    ("form", "choice", "sent", "offered"),
    [
        ("named", NAMED, {"type": "function", "function": {"name": "loose"}}, 2),
        ("required", NAMED, "required", 1),
        ("required", "required", "required", 2),
        ("required", "none", "none", 2),
        ("auto", NAMED, None, 1),
        ("auto", "required", None, 2),
        ("auto", "auto", "auto", 2),
        ("auto", "none", None, 0),
    ],
)
def test_a_tool_choice_that_the_upstream_does_not_accept_limits_the_tools(
    form: str, choice: Any, sent: Any, offered: int
) -> None:
    parameters = {"tools": [STRICT, LOOSE], "tool_choice": choice}
    request = body(parameters, tool_choice=form)
    assert (request.get("tool_choice"), len(request.get("tools", ()))) == (sent, offered)


def test_functions_of_earlier_calls_are_offered_where_that_is_needed() -> None:
    history = [call("a"), output("a"), call("b"), output("b"), user("hi")]
    assert "tools" not in body({}, history)
    sent = body({}, history, tools_for_calls=True)
    assert sent["tools"] == [
        {"type": "function", "function": {"name": "look", "parameters": EMPTY}}
    ]
    assert sent["tool_choice"] == "none"
    assert "tools" not in body({}, [user("hi")], tools_for_calls=True)


def test_omitted_fields_are_nowhere_in_the_request() -> None:
    parameters = {
        "tools": [STRICT],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "temperature": 0,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}},
    }
    names = ("stream_options", "parallel_tool_calls", "temperature", "strict", "name", "content")
    sent = body(parameters, [user("hi")], omit=names)
    assert sent == {
        "model": "m",
        "messages": [HI],
        "stream": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "strict",
                    "description": "x" * 30,
                    "parameters": {**EMPTY, "required": [], "additionalProperties": False},
                },
            }
        ],
        "tool_choice": "auto",
    }


@pytest.mark.parametrize("name", ["", "2fa", "-x", "ü", "a.b", "x" * 80])
def test_a_function_has_a_name_that_every_upstream_takes(name: str) -> None:
    history = [{**call("a"), "name": name}, output("a")]
    (sent,) = messages(*history)[0]["tool_calls"]
    usable = sent["function"]["name"]
    assert 0 < len(usable) <= 64
    assert usable.isascii()
    assert usable[0].isalpha() or usable[0] == "_"
