"""Any JSON is accepted as a request or refused: no other exception, and an accepted request can be
used."""

import copy
import itertools
import random
from collections.abc import Iterator
from time import process_time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidRequest
from models.wire.pairing import require_outputs
from models.wire.request import CreateRequest, CreateRules, parse_create
from models.wire.response import ResponseFacts, response_object
from tests.support.properties import examples
from worker.translation.chat.request import chat_request
from worker.translation.request_parameters import Dialect
from worker.translation.tool_catalog import build_tool_catalog

CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
FULL: dict[str, Any] = {
    "model": "m",
    "instructions": "be brief",
    "background": True,
    "background_options": {"completion_window": "soonest", "continuation_id": "c"},
    "store": True,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "previous_response_id": "resp_1",
    "include": ["message.output_text.logprobs"],
    "temperature": 1,
    "top_p": 0.5,
    "top_logprobs": 2,
    "max_output_tokens": 100,
    "max_tool_calls": 2,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "parallel_tool_calls": True,
    "truncation": "auto",
    "service_tier": "auto",
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "metadata": {"a": "b"},
    "reasoning": {"effort": "low", "summary": "auto", "generate_summary": "auto"},
    "text": {
        "format": {
            "type": "json_schema",
            "name": "n",
            "schema": CLOSED,
            "strict": True,
            "description": "d",
        },
        "verbosity": "low",
    },
    "tools": [
        {"type": "function", "name": "f", "parameters": CLOSED, "strict": True, "description": "d"},
        {
            "type": "custom",
            "name": "c",
            "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
        },
        {
            "type": "web_search",
            "external_web_access": True,
            "filters": {"allowed_domains": ["x"]},
        },
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{"type": "function", "name": "f", "defer_loading": True}],
        },
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": {}},
        {
            "type": "shell",
            "environment": {
                "type": "local",
                "skills": [{"name": "x", "description": "x", "path": "x"}],
            },
        },
        {"type": "local_shell"},
        {"type": "apply_patch"},
        {"type": "computer", "display_width": 1, "display_height": 1, "environment": "linux"},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}],
    },
    "input": [
        {"role": "user", "content": "x"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": "data:,", "detail": "low"},
                {"type": "input_file", "file_data": "data:,", "filename": "f"},
                {"type": "input_audio", "input_audio": {"data": "x", "format": "mp3"}},
            ],
        },
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
        {
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {
                    "type": "output_text",
                    "text": "x",
                    "annotations": [{"type": "url_citation"}],
                    "logprobs": [{"token": "x"}],
                },
                {"type": "refusal", "refusal": "x"},
            ],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "a",
            "name": "f",
            "arguments": "{}",
            "namespace": "n",
        },
        {"type": "custom_tool_call", "call_id": "b", "name": "c", "input": "x"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_image", "image_url": "data:,"}],
        },
        {"type": "custom_tool_call_output", "call_id": "b", "output": "x"},
        {
            "type": "shell_call",
            "call_id": "d",
            "action": {"commands": ["ls"], "timeout_ms": 1, "max_output_length": 1},
        },
        {
            "type": "shell_call_output",
            "call_id": "d",
            "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        {
            "type": "local_shell_call",
            "call_id": "e",
            "action": {"type": "exec", "command": ["ls"], "env": {"a": "b"}},
        },
        {"type": "local_shell_call_output", "id": "e", "output": "x"},
        {
            "type": "apply_patch_call",
            "call_id": "g",
            "operation": {"type": "update_file", "path": "x", "diff": "x"},
        },
        {"type": "apply_patch_call_output", "call_id": "g", "status": "failed", "output": "x"},
        {
            "type": "tool_search_call",
            "call_id": "h",
            "execution": "client",
            "arguments": {"query": "x"},
        },
        {
            "type": "tool_search_output",
            "call_id": "h",
            "tools": [{"type": "function", "name": "g"}],
        },
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "custom", "name": "k"}],
        },
        {"type": "computer_call", "call_id": "i", "action": {"type": "click", "x": 1, "y": 1}},
        {
            "type": "computer_call_output",
            "call_id": "i",
            "output": {"type": "computer_screenshot", "image_url": "data:,"},
        },
        {"type": "web_search_call", "action": {"type": "search"}},
        {"type": "mcp_approval_response", "approval_request_id": "x", "approve": True},
        {"type": "item_reference", "id": "msg_2"},
    ],
}

WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    17,
    2**64 - 1,
    1.5,
    float("nan"),
    "",
    "x",
    "auto",
    [],
    {},
    [None],
    [[]],
    {"type": None},
]
WRONG += [
    {"type": []},
    {"type": "function"},
    {"type": "message", "role": {}},
    ["x", 1],
    {"": {}},
    {"role": "user", "content": [{}]},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, the whole included."""
    yield path
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in inside:
        yield from places(inner, (*path, key))


PLACES = list(places(FULL))


def replaced(path: tuple[Any, ...], value: Any) -> Any:
    """FULL with another value in one place."""
    if not path:
        return value
    body = copy.deepcopy(FULL)
    place: Any = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return body


def parse(body: Any) -> CreateRequest | None:
    """The request, or None if it was refused. An accepted one must be translated and shown."""
    numbers = itertools.count()
    try:
        request = parse_create(
            body,
            new_id=lambda prefix: f"{prefix}_new{next(numbers)}",
            rules=CreateRules(omits_web_search=True),
        )
        require_outputs(request.input)
    except InvalidRequest as refusal:
        orjson.dumps(refusal.body())
        return None
    orjson.dumps(request.input)
    tool_catalog = build_tool_catalog(request.parameters, request.input)
    upstream_body = chat_request(
        model=request.model,
        parameters=request.parameters,
        history=request.input,
        tool_catalog=tool_catalog,
        dialect=Dialect(passthrough=("user",)),
    )
    orjson.dumps(upstream_body)
    facts = ResponseFacts(
        id="resp_1",
        created_at=0,
        status="queued",
        model=request.model,
        parameters=request.parameters,
    )
    orjson.dumps(response_object(facts, []))
    return request


def test_the_full_request_is_accepted() -> None:
    assert parse(FULL) is not None


@pytest.mark.parametrize("name", ["", *FULL])
def test_a_wrong_value_anywhere_is_accepted_or_refused(name: str) -> None:
    for path in places(FULL):
        if (str(path[0]) if path else "") == name:
            for value in WRONG:
                parse(replaced(path, value))


def _damaged(chance: random.Random, depth: int) -> Any:
    """A value of FULL, with other values of FULL or wrong ones in many places."""
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(WRONG)
    value: Any = FULL
    for key in chance.choice(PLACES):
        value = value[key]
    if isinstance(value, dict):
        return {
            key: _damaged(chance, depth - 1) if chance.random() < 0.4 else inner
            for key, inner in value.items()
        }
    return (
        [_damaged(chance, depth - 1) for _ in range(chance.randrange(4))]
        if isinstance(value, list)
        else value
    )


def test_random_json_is_accepted_or_refused() -> None:
    accepted = 0

    @examples(200)
    @given(chance=st.randoms(use_true_random=False))
    def check(chance: random.Random) -> None:
        nonlocal accepted
        body = replaced(chance.choice(PLACES), _damaged(chance, 3))
        if isinstance(body, dict) and chance.random() < 0.5:
            body["input"] = _damaged(chance, 4)
        accepted += parse(body) is not None

    check()
    assert accepted > 10  # otherwise this only tests refusals


def test_many_items_are_checked_in_linear_time() -> None:
    def seconds(count: int) -> float:
        items = [
            {"role": "user", "content": "x"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": ""},
        ] * (count // 3)
        items += [{"type": "function_call_output", "call_id": "a", "output": "x"}] * (count // 3)
        start = process_time()
        numbers = itertools.count()
        request = parse_create(
            {"model": "m", "input": items}, new_id=lambda prefix: f"{prefix}_{next(numbers)}"
        )
        require_outputs(request.input)
        chat_request(
            model="m",
            parameters={},
            history=request.input,
            tool_catalog=build_tool_catalog({}, request.input),
        )
        return process_time() - start

    small = min(seconds(3_000) for _ in range(3))
    # 30 times the items: linear is 30 times slower, quadratic 900 times
    assert seconds(90_000) < 180 * small
