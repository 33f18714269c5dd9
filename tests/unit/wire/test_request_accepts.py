"""What a create request is turned into (docs/wire.md)."""

import copy
import itertools
from typing import Any

import pytest

from models.config.upstream import UpstreamSettings
from models.wire.request import CreateRequest, CreateRules, parse_create

FUNCTION = {"type": "function", "name": "look"}
DATA_URL = "data:image/png;base64,AA=="


def parse(**change: Any) -> CreateRequest:
    numbers = itertools.count(1)
    return parse_create(
        {"model": "m", "input": "hi", **change},
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        rules=CreateRules(omits_web_search=True),
    )


def stored(**item: Any) -> dict[str, Any]:
    return {"status": "completed", **item}


ITEMS: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "a string",
        "hi",
        stored(
            id="msg_1", type="message", role="user", content=[{"type": "input_text", "text": "hi"}]
        ),
    ),
    (
        "an easy message",
        [{"role": "developer", "content": "be brief"}],
        stored(
            id="msg_1",
            type="message",
            role="developer",
            content=[{"type": "input_text", "text": "be brief"}],
        ),
    ),
    (
        "an easy answer",
        [{"role": "assistant", "content": "yes", "phase": "final_answer"}],
        stored(
            id="msg_1",
            type="message",
            role="assistant",
            content=[{"type": "output_text", "text": "yes", "annotations": []}],
            phase="final_answer",
        ),
    ),
    (
        "an answer of ours, sent back",
        [
            {
                "id": "msg_ab",
                "type": "message",
                "role": "assistant",
                "status": "incomplete",
                "content": [
                    {
                        "type": "output_text",
                        "text": "y",
                        "annotations": [{"type": "url_citation", "title": None}],
                        "logprobs": [],
                    },
                    {"type": "refusal", "refusal": "no"},
                ],
            }
        ],
        {
            "id": "msg_ab",
            "type": "message",
            "status": "incomplete",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "annotations": [{"type": "url_citation"}],
                    "text": "y",
                    "logprobs": [],
                },
                {"type": "refusal", "refusal": "no"},
            ],
        },
    ),
    (
        "nulls and strangers",
        [
            {
                "id": None,
                "role": "user",
                "status": None,
                "mood": 1,
                "content": [{"type": "input_text", "text": "x", "extra": None}],
            }
        ],
        stored(
            id="msg_1", type="message", role="user", content=[{"type": "input_text", "text": "x"}]
        ),
    ),
    (
        "an id that is none of ours",
        [{"id": "a b", "role": "user", "content": []}],
        stored(id="msg_1", type="message", role="user", content=[]),
    ),
    (
        "an image",
        [
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": DATA_URL, "file_id": None}],
            }
        ],
        stored(
            id="msg_1",
            type="message",
            role="user",
            content=[{"type": "input_image", "detail": "auto", "image_url": DATA_URL}],
        ),
    ),
    (
        "files by their ids",
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "file_id": "file-1", "image_url": None},
                    {"type": "input_file", "file_id": "assistant-1_a", "filename": "a.pdf"},
                ],
            }
        ],
        stored(
            id="msg_1",
            type="message",
            role="user",
            content=[
                {"type": "input_image", "detail": "auto", "file_id": "file-1"},
                {"type": "input_file", "filename": "a.pdf", "file_id": "assistant-1_a"},
            ],
        ),
    ),
    (
        "a file",
        [
            {
                "role": "user",
                "content": [{"type": "input_file", "file_data": "data:,x", "filename": "x.txt"}],
            }
        ],
        stored(
            id="msg_1",
            type="message",
            role="user",
            content=[{"type": "input_file", "filename": "x.txt", "file_data": "data:,x"}],
        ),
    ),
    (
        "a file by its address",
        [
            {
                "role": "user",
                "content": [
                    {
                        "type": "input_file",
                        "file_url": "https://x/a.pdf",
                        "file_data": None,
                        "file_id": None,
                    }
                ],
            }
        ],
        stored(
            id="msg_1",
            type="message",
            role="user",
            content=[{"type": "input_file", "file_url": "https://x/a.pdf"}],
        ),
    ),
    (
        "a call",
        [{"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}],
        stored(id="fc_1", type="function_call", call_id="c1", name="look", arguments="{}"),
    ),
    (
        "an output",
        [{"type": "function_call_output", "call_id": "c1", "output": "sunny"}],
        stored(id="fco_1", type="function_call_output", call_id="c1", output="sunny"),
    ),
    (
        "an output of parts",
        [
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "x"}],
            }
        ],
        stored(
            id="fco_1",
            type="function_call_output",
            call_id="c1",
            output=[{"type": "input_text", "text": "x"}],
        ),
    ),
    (
        "a custom call",
        [{"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"}],
        stored(id="ctc_1", type="custom_tool_call", call_id="c1", name="sh", input="ls"),
    ),
    (
        "reasoning without an id",
        [{"type": "reasoning", "summary": [], "encrypted_content": "blob", "content": None}],
        stored(id="rs_1", type="reasoning", summary=[], encrypted_content="blob"),
    ),
    (
        "a reference",
        [{"type": "item_reference", "id": "msg_9"}],
        {"type": "item_reference", "id": "msg_9"},
    ),
    (
        "a reference without a type",
        [{"id": "msg_9", "type": None}],
        {"type": "item_reference", "id": "msg_9"},
    ),
    (
        "a hosted tool's item",
        [
            {
                "id": "ws_7",
                "type": "web_search_call",
                "status": "completed",
                "action": {"type": "search", "query": None},
            }
        ],
        stored(id="ws_7", type="web_search_call", action={"type": "search"}),
    ),
]


@pytest.mark.parametrize(
    ("given", "expected"), [row[1:] for row in ITEMS], ids=[row[0] for row in ITEMS]
)
def test_an_input_item_is_stored_in_its_normal_form(given: Any, expected: dict[str, Any]) -> None:
    assert parse(input=given).input == [expected]


PARAMETERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("nothing", {}, {}),
    (
        "nulls",
        {"temperature": None, "tools": None, "text": None, "metadata": None, "user": None},
        {},
    ),
    (
        "zeros",
        {"temperature": 0, "top_p": 0.0, "top_logprobs": 0},
        {"temperature": 0, "top_p": 0.0, "top_logprobs": 0},
    ),
    ("text of nothing", {"text": {}}, {"text": {}}),
    ("null format", {"text": {"format": None, "verbosity": "low"}}, {"text": {"verbosity": "low"}}),
    (
        "a schema, nulls in it kept",
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "n",
                    "schema": {"enum": [None], "default": None},
                    "strict": None,
                }
            }
        },
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "n",
                    "schema": {"enum": [None], "default": None},
                }
            }
        },
    ),
    (
        "the old name of summary",
        {"reasoning": {"generate_summary": "auto"}},
        {"reasoning": {"summary": "auto"}},
    ),
    (
        "both names of summary",
        {"reasoning": {"generate_summary": "auto", "summary": "concise"}},
        {"reasoning": {"summary": "concise"}},
    ),
    ("metadata", {"metadata": {"a": "b", "c": None}}, {"metadata": {"a": "b"}}),
    (
        "a bare function",
        {"tools": [FUNCTION | {"parameters": None, "strict": None}]},
        {"tools": [FUNCTION]},
    ),
    (
        "a whole function",
        {
            "tools": [
                FUNCTION
                | {
                    "strict": False,
                    "description": "d",
                    "parameters": {"type": "object"},
                    "defer_loading": True,
                    "async": True,
                }
            ]
        },
        {
            "tools": [
                FUNCTION
                | {
                    "description": "d",
                    "parameters": {"type": "object"},
                    "strict": False,
                    "defer_loading": True,
                }
            ]
        },
    ),
    (
        "web search, unless demanded",
        {"tools": [{"type": "web_search", "external_web_access": False}], "tool_choice": "auto"},
        {"tools": [{"type": "web_search", "external_web_access": False}], "tool_choice": "auto"},
    ),
    (
        "a chosen function",
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "look"}},
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "look"}},
    ),
    ("no tools and auto", {"tool_choice": "auto"}, {"tool_choice": "auto"}),
    (
        "stream options",
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"stream_options": {"include_obfuscation": False}},
    ),
    (
        "codex",
        {"include": ["reasoning.encrypted_content"], "client_metadata": {"x": 1}},
        {"include": ["reasoning.encrypted_content"]},
    ),
    (
        "documented, not acted on",
        {"prompt_cache_retention": "24h", "image": {"context_compression": "auto"}},
        {"image": {"context_compression": "auto"}},
    ),
    (
        "penalties",
        {"presence_penalty": -2, "frequency_penalty": 0.5},
        {"presence_penalty": -2, "frequency_penalty": 0.5},
    ),
]


@pytest.mark.parametrize(
    ("given", "expected"), [row[1:] for row in PARAMETERS], ids=[row[0] for row in PARAMETERS]
)
def test_parameters_have_what_the_client_set_and_no_null(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert parse(**given).parameters == expected


def test_the_flags_have_the_defaults_of_openai() -> None:
    request = parse()
    assert (request.background, request.store, request.stream, request.previous_response_id) == (
        False,
        True,
        False,
        None,
    )


def test_the_flags_are_taken_out_of_the_parameters() -> None:
    request = parse(background=True, stream=True, store=True, previous_response_id="resp_1")
    assert (request.background, request.store, request.stream, request.previous_response_id) == (
        True,
        True,
        True,
        "resp_1",
    )
    assert request.parameters == {}


def test_passthrough_parameters_stay_unchanged() -> None:
    body = {"model": "m", "input": "hi", "top_k": 3, "chat_template_kwargs": {"x": None}}
    request = parse_create(body, new_id=str, rules=CreateRules(("top_k", "chat_template_kwargs")))
    assert request.parameters == {"top_k": 3, "chat_template_kwargs": {"x": None}}


def test_a_chat_upstream_gets_what_its_passthrough_lists_and_the_rest_is_named() -> None:
    given = {
        "moderation": {"model": "m", "policy": {"input": {"mode": "block"}}},
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_key": "k",
    }
    body = {"model": "m", "input": "hi", **given, "user": "u", "prompt_cache_retention": "24h"}
    request = parse_create(body, new_id=str, rules=CreateRules(tuple(given)))
    assert request.parameters == {**given, "user": "u"}
    assert request.ignored == ("prompt_cache_retention", "user")
    effort = {"model": "m", "input": "hi", "reasoning": {"effort": "low"}}
    assert parse_create(
        effort, new_id=str, rules=CreateRules(unsent=["reasoning.effort"])
    ).ignored == ("reasoning.effort",)
    assert parse_create(effort, new_id=str).ignored == ()


def test_what_an_upstream_is_never_sent_is_named() -> None:
    given = {"temperature": 1, "max_output_tokens": 99, "top_p": 1, "stream": True}
    body = {"model": "m", "input": "hi", **given, "stream_options": {"include_obfuscation": False}}
    unsent = UpstreamSettings(omit=("temperature", "max_tokens", "stream_options")).unsent
    request = parse_create(body, new_id=str, rules=CreateRules(unsent=unsent))
    assert request.ignored == ("max_output_tokens", "temperature")


def test_secrets_of_hosted_tools_are_not_kept_for_a_native_upstream() -> None:
    tool = {"type": "function", "name": "f", "domain_secrets": ["s"], "next_year": 1}
    request = parse_create(
        {"model": "m", "input": "hi", "tools": [tool]}, new_id=str, rules=CreateRules(native=True)
    )
    assert request.parameters["tools"] == [{"type": "function", "name": "f", "next_year": 1}]
    assert request.ignored == ("tools[0].domain_secrets",)


def test_ephemeral_background_is_a_setting() -> None:
    body = {"model": "m", "input": "hi", "background": True, "store": False}
    assert not parse_create(body, new_id=str, rules=CreateRules(ephemeral_background=True)).store


def test_an_empty_input_continues_a_response() -> None:
    assert parse(input=[], previous_response_id="resp_1").input == []


def test_the_body_is_not_changed() -> None:
    body = {
        "model": "m",
        "input": [row for _, given, _ in ITEMS if isinstance(given, list) for row in given][:3],
        "reasoning": {},
    }
    before = copy.deepcopy(body)
    parse(**body)
    assert body == before
