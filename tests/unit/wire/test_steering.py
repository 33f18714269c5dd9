"""What a client may send while a response runs, and the stubs of what it has to send first."""

from typing import Any

import pytest
from openai.types.responses import ResponseSteerRequiredInput
from pydantic import TypeAdapter

from models.errors import InvalidRequest
from models.wire.item_types import CALLS
from models.wire.steering import required_input, steer_items

_STUB: TypeAdapter[Any] = TypeAdapter(ResponseSteerRequiredInput)


def _call(kind: str, call_id: str = "call_1", **more: Any) -> dict[str, Any]:
    return {"type": kind, "id": f"x_{call_id}", "call_id": call_id, "status": "completed", **more}


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_each_call_of_a_client_has_a_stub_that_the_sdk_knows(kind: str) -> None:
    [stub] = required_input([_call(kind, name="look")])
    assert stub["call_id"] == "call_1"
    if kind != "local_shell_call":  # OpenAI's models do not call it any more
        assert _STUB.validate_python(stub).to_dict() == stub


def test_only_what_is_open_has_a_stub() -> None:
    output = [
        {"type": "message", "id": "msg_1", "content": []},
        _call("function_call", "call_1", name="a"),
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "1"},
        _call("function_call", "call_2", name="b") | {"status": "incomplete"},
        _call("custom_tool_call", "call_3"),
        {"type": "mcp_call", "id": "mcp_1", "status": "completed"},
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s"},
    ]
    assert required_input(output) == [
        {"type": "custom_tool_call_output", "call_id": "call_3"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"},
    ]
    assert required_input(output[:3]) == []


def test_a_steer_is_one_or_more_messages_of_the_user() -> None:
    def new_id(prefix: str) -> str:
        return f"{prefix}_1"

    [item] = steer_items("Hello.", new_id)
    assert item["content"] == [{"type": "input_text", "text": "Hello."}]
    message = {"role": "user", "content": "Hello."}
    assert steer_items([message], new_id) == steer_items([{**message, "type": "message"}], new_id)
    for value, param in (
        (None, "input"),
        ([None], "input[0]"),
        ([{**message, "type": "reasoning"}], "input[0].type"),
        ([{**message, "role": 1}], "input[0].role"),
        ([{**message, "status": "completed"}], "input[0].status"),
        ([{**message, "content": [{"type": "input_audio"}]}], "input[0].content[0].type"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            steer_items(value, new_id)
        assert (refused.value.param, refused.value.code) == (param, "invalid_input")
