"""The request for a native upstream: the whole history, nothing that is for this server alone."""

import copy
import re
from typing import Any

from models.wire.encrypted_content import TaggedContent
from models.wire.items import input_items
from tests.support.api import JSON
from tests.support.chat_turns import counter
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import OpenImageCall, OpenMcpCall
from worker.translation.responses.request import (
    NativeOptions,
    _private_id,
    native_request,
)
from worker.translation.tool_catalog import ToolCatalog, build_tool_catalog


def _hosted(**tools: str) -> dict[str, ServerFunction]:
    """Functions of MCP servers by the names that the model knows: name -> server_label."""
    return {
        name: ServerFunction(
            {"type": "mcp", "server_label": label, "name": name},
            name,
            lambda index, new_id: OpenMcpCall(index, new_id("mcp")),
            "about it",
        )
        for name, label in tools.items()
    }


def build_request(
    history: Any = "Hi.", *, hosted: dict[str, ServerFunction] | None = None, **parameters: Any
) -> JSON:
    """The body for an upstream named `big`."""
    options = {
        name: parameters.pop(name)
        for name in ("passthrough", "searches", "calls_left")
        if name in parameters
    }
    items = (
        input_items(history, counter())
        if isinstance(history, str) or "id" not in (history or [{"id": 0}])[0]
        else history
    )
    before = copy.deepcopy((parameters, items))
    offered: ToolCatalog = build_tool_catalog(parameters, items, hosted or {})
    body = native_request(
        model="up/m",
        parameters=parameters,
        history=items,
        tool_catalog=offered,
        options=NativeOptions("big", **options),
    )
    assert (parameters, items) == before, "what was given was changed"
    return body


def test_the_upstream_stores_nothing_and_gets_the_whole_history() -> None:
    assert build_request() == {
        "model": "up/m",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
        ],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_parameters_are_sent_unchanged_except_those_for_this_server() -> None:
    value: JSON = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.1,
        "max_output_tokens": 99,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "top_logprobs": 3,
    }
    ours: JSON = {
        "metadata": {"a": "b"},
        "truncation": "auto",
        "stream_options": {"include_obfuscation": True},
    }
    body = build_request(
        **value,
        **ours,
        include=["message.output_text.logprobs"],
        top_k=5,
        passthrough=("top_k", "metadata"),
    )
    assert {name: body[name] for name in value} == value
    assert not set(ours) & set(body)
    assert body["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert body["top_k"] == 5


MESSAGE, SEARCH = "msg_" + "0" * 32, "ws_" + "1" * 32


def test_history_is_sent_without_our_ids_but_with_call_ids() -> None:
    history = [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "1"}],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "c1",
            "name": "f",
            "arguments": "{}",
        },
        {
            "id": "fco_1",
            "type": "function_call_output",
            "status": "completed",
            "call_id": "c1",
            "output": "one",
        },
        {
            "id": "fc_2",
            "type": "function_call",
            "status": "incomplete",
            "call_id": "c2",
            "name": "f",
            "arguments": "{",
        },
        {
            "id": MESSAGE,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "2", "annotations": []}],
            "phase": "final_answer",
        },
        {
            "id": "mine",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [],
        },
        {
            "id": SEARCH,
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "q"},
        },
        {
            "id": "cl",
            "type": "computer_call",
            "status": "completed",
            "call_id": "c3",
            "action": {"type": "click"},
        },
        {
            "id": "cuo_1",
            "type": "computer_call_output",
            "status": "completed",
            "call_id": "c3",
            "output": {"type": "computer_screenshot", "image_url": "data:x"},
        },
    ]
    assert build_request(history)["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1"}]},
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "c1",
            "name": "f",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        history[4],
        {"type": "message", "role": "assistant", "content": []},
        history[6],
        {
            "type": "computer_call",
            "status": "completed",
            "call_id": "c3",
            "action": {"type": "click"},
        },
        {
            "type": "computer_call_output",
            "call_id": "c3",
            "output": {"type": "computer_screenshot", "image_url": "data:x"},
        },
    ]


def test_an_id_that_is_not_ours_names_no_object_of_the_upstreams_account() -> None:
    theirs = "ig_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b"
    image = {"id": theirs, "type": "image_generation_call", "status": "completed", "result": "aa"}
    [sent] = build_request([image])["input"]
    assert sent["id"] == _private_id(theirs) != theirs
    assert re.fullmatch(r"ig_[0-9a-f]{32}", sent["id"])
    assert build_request([image])["input"] == [sent], "prompts are cached by their bytes"


def _thought(**more: Any) -> JSON:
    return {
        "id": "rs_1",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [],
        **more,
    }


def test_reasoning_is_sent_back_to_the_upstream_that_can_read_it() -> None:
    raw = [{"type": "reasoning_text", "text": "hm"}]
    history = [
        _thought(encrypted_content=TaggedContent("big", "gAAA.b/+=", b"mark").encode()),
        _thought(encrypted_content=TaggedContent("other", "theirs").encode()),
        _thought(encrypted_content="bbs1.0123.sealed-here"),
        _thought(encrypted_content="the client had this elsewhere"),
        _thought(encrypted_content="bbu1.%%.broken"),
        _thought(content=raw),
        _thought(),
    ]
    assert build_request(history)["input"] == [
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA.b/+="},
        {"type": "reasoning", "summary": [], "encrypted_content": "the client had this elsewhere"},
        {"type": "reasoning", "summary": [], "encrypted_content": "bbu1.%%.broken"},
        {"id": _private_id("rs_1"), "type": "reasoning", "summary": [], "content": raw},
    ]


def test_tools_are_sent_unchanged_and_server_tools_as_functions() -> None:
    value = [
        {"type": "function", "name": "f", "parameters": {}},
        {
            "type": "custom",
            "name": "c",
            "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
        },
        {"type": "mcp", "server_label": "s", "server_url": "https://x"},
        {"type": "web_search", "search_context_size": "low"},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
    ]
    function = {
        "type": "function",
        "name": "look",
        "description": "about it",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    body = build_request(
        tools=value, hosted=_hosted(look="s"), parallel_tool_calls=False, tool_choice="auto"
    )
    assert body["tools"] == [value[0], value[1], value[3], value[4], function]
    assert (body["parallel_tool_calls"], body["tool_choice"]) == (False, "auto")
    assert build_request(tools=value, searches=True)["tools"] == [value[0], value[1], value[4]]


OWN_SEARCH = {"type": "file_search", "vector_store_ids": ["vs_" + "0" * 12 + "70008" + "0" * 15]}


def test_a_search_in_stores_of_this_server_is_shown_as_a_function_and_its_calls_too() -> None:
    results = [{"file_id": "file-1", "filename": "a.md", "score": 0.5, "text": "Alpha."}]
    search = {"id": "fs_1", "type": "file_search_call", "queries": ["a"], "results": results}
    body = build_request([search], tools=[OWN_SEARCH])
    assert "tools" not in body
    call, output = body["input"]
    assert (call["type"], call["name"], call["arguments"]) == (
        "function_call",
        "file_search",
        '{"queries": ["a"]}',
    )
    assert "Alpha." in output["output"]
    # A search that the upstream may have made, and one that this server has made.
    [item] = build_request([search])["input"]
    assert (item["type"], item["results"]) == ("file_search_call", results)
    types = [item["type"] for item in build_request([{**search, "turn": 1}])["input"]]
    assert types == ["function_call", "function_call_output"]


def test_the_upstreams_own_tools_share_the_limit_of_calls() -> None:
    value = [
        {"type": "function", "name": "f"},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
    ]
    assert build_request(tools=value, calls_left=3)["max_tool_calls"] == 3
    assert build_request(tools=value, calls_left=0)["tools"] == value[:1]
    assert "max_tool_calls" not in build_request(tools=value[:1], calls_left=3)
    assert "max_tool_calls" not in build_request(tools=value)
    computer = [{"type": "computer", "of_the_future": True}]
    assert build_request(tools=computer, calls_left=0)["tools"] == computer, "the client runs it"
    assert "tool_choice" not in build_request(tools=value[1:], calls_left=0, tool_choice="auto"), (
        "no choice without tools"
    )


def test_a_tool_choice_names_the_functions_that_the_upstream_knows() -> None:
    value = [
        {"type": "function", "name": "f"},
        {"type": "mcp", "server_label": "s", "server_url": "https://x"},
    ]
    hosted = _hosted(look="s", hear="s")

    def chosen(choice: Any) -> Any:
        return build_request(tools=value, hosted=hosted, tool_choice=choice)["tool_choice"]

    look, hear = ({"type": "function", "name": name} for name in ("look", "hear"))
    assert chosen("required") == "required"
    assert chosen({"type": "function", "name": "f"}) == {"type": "function", "name": "f"}
    assert chosen({"type": "mcp", "server_label": "s", "name": "hear"}) == hear
    assert chosen({"type": "mcp", "server_label": "s"}) == {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [look, hear],
    }
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "s"}],
    }
    assert chosen(allowed) == {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}, look, hear],
    }


def test_server_calls_in_the_history_are_function_calls() -> None:
    history = [
        {
            "id": "mcpl_1",
            "type": "mcp_list_tools",
            "status": "completed",
            "server_label": "s",
            "tools": [],
        },
        {
            "id": "mcp_1",
            "type": "mcp_call",
            "status": "completed",
            "server_label": "s",
            "name": "look",
            "arguments": "{}",
            "output": "seen",
            "turn": 1,
        },
        {
            "id": "ws_1",
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "q"},
            "turn": 2,
            "answer": "found",
        },
        {
            "id": "ws_2",
            "type": "web_search_call",
            "status": "incomplete",
            "action": {"type": "search"},
            "turn": 2,
        },
        {
            "id": "mcpr_1",
            "type": "mcp_approval_request",
            "status": "completed",
            "server_label": "s",
            "name": "look",
            "arguments": "{}",
            "turn": 3,
        },
        {
            "id": "mcpa_1",
            "type": "mcp_approval_response",
            "status": "completed",
            "approval_request_id": "mcpr_1",
            "approve": False,
        },
    ]
    published = build_request(history, hosted=_hosted(look="s"))["input"]
    assert [item["type"] for item in published] == ["function_call", "function_call_output"] * 3
    assert [(item["name"], item["call_id"]) for item in published[::2]] == [
        ("look", "mcp_1"),
        ("web_search", "ws_1"),
        ("look", "mcpr_1"),
    ]
    assert [item["output"] for item in published[1::2]] == [
        "seen",
        "found",
        "The user refused this call.",
    ]


def test_a_native_upstream_makes_images_itself_and_gets_no_function_for_it() -> None:
    tool = {"type": "image_generation", "size": "1024x1024", "model": "gpt-image-2"}
    function = ServerFunction(
        {"type": "image_generation"},
        "image_generation",
        lambda index, new_id: OpenImageCall(index, new_id("ig")),
    )
    choice = {"type": "image_generation"}
    hosted = {"image_generation": function, **_hosted(find="it")}
    body = build_request(hosted=hosted, tools=[tool], tool_choice=choice)
    assert body["tools"][0] == tool
    assert [each["name"] for each in body["tools"][1:]] == ["find"]
    assert body["tool_choice"] == choice
