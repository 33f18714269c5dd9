"""What spans show of a conversation, where an operator has asked for it."""

import json
from typing import Any

from worker.run.spans import (
    arguments_attributes,
    input_attributes,
    output_attributes,
    result_attributes,
)

CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
HISTORY: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": "Ulm?"},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "and this?"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        ],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    CALL,
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    {"type": "mcp_call", "id": "mcp_1", "name": "look", "arguments": "{}", "output": "sun"},
]


def test_a_history_becomes_messages_without_the_data_of_images() -> None:
    attributes = input_attributes({"instructions": "Be brief."}, HISTORY)
    messages = json.loads(attributes["gen_ai.input.messages"])
    assert [message["role"] for message in messages] == [
        "user",
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [part["type"] for message in messages for part in message["parts"]] == [
        "text",
        "text",
        "input_image",
        "reasoning",
        "tool_call",
        "tool_call_response",
        "tool_call",
        "tool_call_response",
    ]
    assert "AAAA" not in attributes["gen_ai.input.messages"]
    assert json.loads(attributes["gen_ai.system_instructions"]) == [
        {"type": "text", "content": "Be brief."}
    ]


def test_of_a_long_history_the_newest_messages_are_kept() -> None:
    history = [
        {"type": "message", "role": "user", "content": f"{number} {'x' * 1000}"}
        for number in range(200)
    ]
    text = input_attributes({}, history)["gen_ai.input.messages"]
    messages = json.loads(text)
    assert len(text) <= 64 * 1024
    assert 40 < len(messages) < 70
    assert messages[-1]["parts"][0]["content"].startswith("199 ")


def test_an_output_is_one_message() -> None:
    items = [{"type": "message", "role": "assistant", "content": [{"type": "x", "text": "hi"}]}]
    [message] = json.loads(output_attributes([*items, CALL], "stop")["gen_ai.output.messages"])
    assert message["finish_reason"] == "stop"
    assert [part["type"] for part in message["parts"]] == ["text", "tool_call"]


def test_a_call_of_a_tool_shows_its_arguments_and_its_result() -> None:
    assert arguments_attributes(CALL) == {"gen_ai.tool.call.arguments": "{}"}
    search = {"type": "web_search_call", "action": {"query": "Ulm"}}
    assert arguments_attributes(search) == {"gen_ai.tool.call.arguments": '{"query":"Ulm"}'}
    assert result_attributes({"output": "rain"}) == {"gen_ai.tool.call.result": '{"output":"rain"}'}
