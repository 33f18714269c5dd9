"""Parameters and history in, one Chat Completions body out."""

import copy
import json
from typing import Any

import pytest

from models.config.upstream import UpstreamSettings
from worker.translation.chat.request import chat_request
from worker.translation.request_parameters import Dialect
from worker.translation.tool_catalog import build_tool_catalog
from worker.upstream.client import dialect_of

FUNCTION = {
    "type": "function",
    "name": "look",
    "description": "looks",
    "parameters": {"type": "object", "properties": {"at": {}}},
}
CHAT_FUNCTION = {
    "type": "function",
    "function": {name: FUNCTION[name] for name in ("name", "description", "parameters")},
}
BARE = {"type": "function", "name": "bare"}
CLOSED = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
CHAT_BARE = {
    "type": "function",
    "function": {"name": "bare", "parameters": {"type": "object", "properties": {}}},
}
CUSTOM = {"type": "custom", "name": "sh", "description": "runs"}
SEARCH = {"type": "web_search"}
ALWAYS = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
SCHEMA = {
    "type": "json_schema",
    "name": "n",
    "schema": {"type": "object"},
    "strict": True,
    "description": "d",
}


def body(
    parameters: dict[str, Any] | None = None,
    history: list[dict[str, Any]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    parameters, history = parameters or {}, history or []
    return chat_request(
        model="m",
        parameters=parameters,
        history=history,
        tool_catalog=build_tool_catalog(parameters, history),
        dialect=Dialect(**options),
    )


def user(*content: dict[str, Any] | str, role: str = "user") -> dict[str, Any]:
    parts = [
        {"type": "input_text", "text": part} if isinstance(part, str) else part for part in content
    ]
    return {"id": "msg_1", "type": "message", "status": "completed", "role": role, "content": parts}


def assistant_texts(*texts: str) -> dict[str, Any]:
    parts = [
        {"type": "output_text", "text": text, "annotations": [{"type": "url_citation"}]}
        for text in texts
    ]
    return {
        "id": "msg_2",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "phase": "commentary",
        "content": parts,
    }


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {
        "id": "fc_" + call_id,
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": "look",
        "arguments": arguments,
    }


def output(call_id: str, value: Any = "seen") -> dict[str, Any]:
    return {
        "id": "fco_" + call_id,
        "type": "function_call_output",
        "status": "completed",
        "call_id": call_id,
        "output": value,
    }


def calling(*call_ids: str, content: str | None = None) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for call_id in call_ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def tool(call_id: str, content: str = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
FILE = {"type": "input_file", "filename": "a.txt", "file_data": "data:,a"}
CHAT_FILE = {"type": "file", "file": {"filename": "a.txt", "file_data": "data:,a"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}}
HI = {"role": "user", "content": "hi"}

MESSAGES: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = [
    ("a text stays a string", [user("hi")], [HI]),
    (
        "texts alone are one string",
        [user("a", "b")],
        [{"role": "user", "content": "a\nb"}],
    ),
    ("nothing", [user()], [{"role": "user", "content": "(empty)"}]),
    (
        "text, image, file, audio",
        [user("see", IMAGE, FILE, AUDIO)],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "see"}, CHAT_IMAGE, CHAT_FILE, AUDIO],
            }
        ],
    ),
    (
        "detail, as far as chat knows it",
        [user(IMAGE | {"detail": "low"}, IMAGE | {"detail": "original"})],
        [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": IMAGE["image_url"], "detail": "low"},
                    },
                    {
                        "type": "image_url",
                        "image_url": {"url": IMAGE["image_url"], "detail": "high"},
                    },
                ],
            }
        ],
    ),
    ("system", [user("s", role="system")], [{"role": "system", "content": "s"}]),
    ("developer", [user("d", role="developer")], [{"role": "system", "content": "d"}]),
    (
        "the model's texts run together",
        [assistant_texts("a", "b")],
        [{"role": "assistant", "content": "ab"}],
    ),
    ("an empty answer is left out", [user("hi"), assistant_texts("")], [HI]),
    (
        "a refusal",
        [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
            }
        ],
        [{"role": "assistant", "content": "no"}],
    ),
    ("a call", [call("a"), output("a")], [calling("a"), tool("a")]),
    ("no arguments", [call("a", ""), output("a")], [calling("a"), tool("a")]),
    (
        "parallel calls",
        [call("a"), call("b"), output("a"), output("b")],
        [calling("a", "b"), tool("a"), tool("b")],
    ),
    (
        "outputs in another order",
        [call("a"), call("b"), output("b"), output("a")],
        [calling("a", "b"), tool("a"), tool("b")],
    ),
    (
        "text before a call",
        [assistant_texts("hm"), call("a"), output("a")],
        [calling("a", content="hm"), tool("a")],
    ),
    (
        "text between call and output",
        [call("a"), assistant_texts("hm"), output("a")],
        [calling("a", content="hm"), tool("a")],
    ),
    (
        "text around calls",
        [
            assistant_texts("one"),
            call("a"),
            assistant_texts("two"),
            call("b"),
            output("a"),
            assistant_texts("three"),
            output("b"),
        ],
        [calling("a", "b", content="one\n\ntwo\n\nthree"), tool("a"), tool("b")],
    ),
    (
        "a user between call and output",
        [call("a"), user("hi"), output("a")],
        [calling("a"), tool("a"), HI],
    ),
    (
        "a turn after a turn",
        [call("a"), output("a"), call("b"), output("b"), assistant_texts("done")],
        [
            calling("a"),
            tool("a"),
            calling("b"),
            tool("b"),
            {"role": "assistant", "content": "done"},
        ],
    ),
    (
        "the same call id in two turns",
        [call("a"), output("a", "1"), call("a"), output("a", "2")],
        [calling("a"), tool("a", "1"), calling("a"), tool("a", "2")],
    ),
    (
        "a call that broke off",
        [assistant_texts("hm"), call("a"), user("hi")],
        [{"role": "assistant", "content": "hm"}, HI],
    ),
    ("nothing but a call that broke off", [call("a"), user("hi")], [HI]),
    (
        "its id used again",
        [call("a"), user("hi"), call("a"), output("a")],
        [HI, calling("a"), tool("a")],
    ),
    (
        "an output of texts",
        [call("a"), output("a", [{"type": "input_text", "text": "x"}])],
        [calling("a"), tool("a", "x")],
    ),
    (
        "an image from a tool",
        [
            call("a"),
            call("b"),
            output("a", [{"type": "input_text", "text": "x"}, IMAGE]),
            output("b"),
            assistant_texts("nice"),
        ],
        [
            calling("a", "b"),
            tool("a", "x\n[image: see the next user message]"),
            tool("b"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "The image that tool call a returned:"},
                    CHAT_IMAGE,
                ],
            },
            {"role": "assistant", "content": "nice"},
        ],
    ),
    (
        "a file from a tool",
        [call("a"), output("a", [FILE])],
        [
            calling("a"),
            tool("a", "[file: see the next user message]"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "The file that tool call a returned:"},
                    CHAT_FILE,
                ],
            },
        ],
    ),
    (
        "a custom tool's call",
        [
            {"type": "custom_tool_call", "call_id": "a", "name": "sh", "input": 'ls "x"'},
            {"type": "custom_tool_call_output", "call_id": "a", "output": "y"},
        ],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {
                            "name": "sh",
                            "arguments": json.dumps({"input": 'ls "x"'}, separators=(",", ":")),
                        },
                    }
                ],
            },
            tool("a", "y"),
        ],
    ),
    (
        "reasoning is not resent, and splits no turn",
        [
            {"type": "reasoning", "summary": []},
            call("a"),
            {"type": "reasoning", "summary": []},
            call("b"),
            output("a"),
            output("b"),
        ],
        [calling("a", "b"), tool("a"), tool("b")],
    ),
    (
        "what hosted tools did",
        [{"type": "web_search_call", "id": "ws_1"}, assistant_texts("found")],
        [{"role": "assistant", "content": "found"}],
    ),
]


@pytest.mark.parametrize(
    ("history", "expected"), [row[1:] for row in MESSAGES], ids=[row[0] for row in MESSAGES]
)
def test_history_becomes_messages(
    history: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert body(history=history)["messages"] == expected


PARAMETERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("nothing set, nothing sent", {}, {}),
    (
        "sampling, as set",
        {"temperature": 0, "top_p": 1, "presence_penalty": 0.5, "frequency_penalty": -1},
        {"temperature": 0, "top_p": 1, "presence_penalty": 0.5, "frequency_penalty": -1},
    ),
    ("tokens", {"max_output_tokens": 100}, {"max_completion_tokens": 100}),
    (
        "effort, and no summary",
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"reasoning_effort": "low"},
    ),
    ("no effort", {"reasoning": {"summary": "auto"}}, {}),
    ("plain text", {"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
    (
        "any object",
        {"text": {"format": {"type": "json_object"}}},
        {"response_format": {"type": "json_object"}},
    ),
    (
        "a schema",
        {"text": {"format": SCHEMA}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n",
                    "schema": {"type": "object"},
                    "strict": True,
                    "description": "d",
                },
            }
        },
    ),
    ("logprobs by include", {"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
    (
        "logprobs, and how many",
        {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 3},
    ),
    ("how many of logprobs that nobody wants", {"top_logprobs": 3}, {}),
    ("no logprobs", {"top_logprobs": 0, "include": ["reasoning.encrypted_content"]}, {}),
    (
        "what is ours alone",
        {
            "metadata": {"a": "b"},
            "truncation": "auto",
            "max_tool_calls": 3,
            "stream_options": {"include_obfuscation": False},
            "service_tier": "flex",
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
        },
        {},
    ),
    ("a function", {"tools": [FUNCTION]}, {"tools": [CHAT_FUNCTION]}),
    ("a function without parameters", {"tools": [BARE]}, {"tools": [CHAT_BARE]}),
    (
        "strict, where it was said",
        {"tools": [BARE | {"strict": True}]},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "bare", "strict": True, "parameters": CLOSED},
                }
            ]
        },
    ),
    ("web search is left out", {"tools": [SEARCH, BARE]}, {"tools": [CHAT_BARE]}),
    (
        "nothing but web search",
        {"tools": [SEARCH], "tool_choice": "auto", "parallel_tool_calls": True},
        {},
    ),
    ("choice without tools", {"tool_choice": "none", "parallel_tool_calls": False}, {}),
    (
        "choice by word",
        {"tools": [BARE], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [CHAT_BARE], "tool_choice": "required", "parallel_tool_calls": False},
    ),
    (
        "choice of a function",
        {"tools": [BARE], "tool_choice": {"type": "function", "name": "bare"}},
        {"tools": [CHAT_BARE], "tool_choice": {"type": "function", "function": {"name": "bare"}}},
    ),
    (
        "allowed tools",
        {
            "tools": [FUNCTION, BARE],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "bare"}],
            },
        },
        {"tools": [CHAT_BARE], "tool_choice": "required"},
    ),
    (
        "no tool allowed",
        {"tools": [BARE], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        {},
    ),
]


@pytest.mark.parametrize(
    ("parameters", "sent"), [row[1:] for row in PARAMETERS], ids=[row[0] for row in PARAMETERS]
)
def test_parameters_become_chat_parameters(
    parameters: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert body(parameters) == ALWAYS | sent


def test_instructions_come_first() -> None:
    messages = body({"instructions": "be brief"}, [user("x", role="system"), user("hi")])[
        "messages"
    ]
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "system", "content": "x"},
        HI,
    ]


def test_the_developer_role_is_spelled_as_the_upstream_wants_it() -> None:
    history = [user("d", role="developer"), user("s", role="system")]
    roles = [
        message["role"]
        for message in body({"instructions": "i"}, history, developer_role="developer")["messages"]
    ]
    assert roles == ["developer", "developer", "system"]


SYSTEMS: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = [
    ("none", [user("hi")], [HI]),
    ("one", [user("s", role="system"), user("hi")], [{"role": "system", "content": "s"}, HI]),
    (
        "several, one of them late",
        [
            user("s", role="system"),
            user("d", role="developer"),
            user("hi"),
            user("late", role="developer"),
            assistant_texts("a"),
        ],
        [
            {"role": "system", "content": "s\n\nd\n\nlate"},
            HI,
            {"role": "assistant", "content": "a"},
        ],
    ),
    (
        "one of parts",
        [user("s", role="system"), user("a", "b", role="developer"), user("hi")],
        [{"role": "system", "content": "s\n\na\nb"}, HI],
    ),
]


@pytest.mark.parametrize(
    ("history", "expected"), [row[1:] for row in SYSTEMS], ids=[row[0] for row in SYSTEMS]
)
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_template_that_knows_one_system_message_gets_one(
    history: list[Any], expected: list[Any], role: str
) -> None:
    assert (
        body(history=history, developer_role=role, single_system_message=True)["messages"]
        == expected
    )


def test_instructions_join_the_one_system_message() -> None:
    messages = body(
        {"instructions": "i"}, [user("hi"), user("s", role="system")], single_system_message=True
    )["messages"]
    assert messages == [{"role": "system", "content": "i\n\ns"}, HI]


CHOICES: list[tuple[str, Any, set[str] | None]] = [
    ("absent", None, None),
    ("auto", "auto", None),
    ("required", "required", None),
    ("none", "none", set()),
    ("a function", {"type": "function", "name": "bare"}, {"bare"}),
    ("a custom tool", {"type": "custom", "name": "sh"}, {"sh"}),
    (
        "allowed tools",
        {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [
                {"type": "function", "name": "bare"},
                {"type": "custom", "name": "sh"},
                {"type": "web_search"},
            ],
        },
        {"bare", "sh"},
    ),
    ("no tool allowed", {"type": "allowed_tools", "mode": "auto", "tools": []}, set()),
]


@pytest.mark.parametrize(
    ("choice", "names"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES]
)
def test_a_tool_choice_limits_the_callable_names(choice: Any, names: set[str] | None) -> None:
    chosen = {} if choice is None else {"tool_choice": choice}
    assert build_tool_catalog({"tools": [BARE, CUSTOM, SEARCH], **chosen}).callable_names == names


def test_the_token_limit_is_spelled_as_the_upstream_wants_it() -> None:
    assert body({"max_output_tokens": 16}, max_tokens_field="max_tokens") == ALWAYS | {
        "max_tokens": 16
    }


def test_passthrough_parameters_are_sent_unchanged() -> None:
    parameters = {"top_k": 3, "user": "u", "service_tier": "flex", "text": {"verbosity": "low"}}
    sent = body(parameters, passthrough=("top_k", "user", "verbosity", "min_p"))
    assert sent == ALWAYS | {"top_k": 3, "user": "u", "verbosity": "low"}


@pytest.mark.parametrize(
    ("base_url", "is_sent"),
    [
        ("https://api.openai.com/v1", True),
        ("https://openrouter.ai/api/v1", True),
        ("https://api.mistral.ai/v1", False),
        ("http://127.0.0.1:8001/v1", False),
        ("https://api.openai.com.example/v1", False),
    ],
)
def test_the_service_tier_is_sent_to_upstreams_that_are_known_to_have_it(
    base_url: str, is_sent: bool
) -> None:
    dialect = dialect_of(UpstreamSettings(base_url=base_url))
    tier = {"service_tier": "flex"}
    assert body(tier, has_service_tier=dialect.has_service_tier) == (
        ALWAYS | tier if is_sent else ALWAYS
    )
    assert body(tier, passthrough=("service_tier",)) == ALWAYS | tier


def test_passthrough_overrides_nothing_and_sends_no_parameter_of_this_server() -> None:
    parameters = {
        "stream": False,
        "messages": [],
        "model": "other",
        "metadata": {"a": "b"},
        "temperature": 1,
    }
    assert body(parameters, passthrough=tuple(parameters)) == ALWAYS | {"temperature": 1}


def test_a_custom_tool_is_a_function_with_one_string() -> None:
    grammar = CUSTOM | {
        "name": "calc",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: NUMBER"},
    }
    parameters = {"tools": [CUSTOM, grammar, BARE], "tool_choice": {"type": "custom", "name": "sh"}}
    sent = body(parameters)
    assert [result["function"]["name"] for result in sent["tools"]] == ["sh", "calc", "bare"]
    assert sent["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    assert (
        "start: NUMBER"
        in sent["tools"][1]["function"]["parameters"]["properties"]["input"]["description"]
    )
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "sh"}}
    assert [target.item for target in build_tool_catalog(parameters).targets.values()] == [
        "custom_tool_call",
        "custom_tool_call",
        "function_call",
    ]


def test_the_arguments_are_not_changed() -> None:
    parameters = {"tools": [BARE, CUSTOM], "text": {"format": SCHEMA}}
    history = [user("hi", IMAGE), call("a", ""), output("a", [IMAGE])]
    before = copy.deepcopy((parameters, history))
    body(parameters, history)
    assert (parameters, history) == before
