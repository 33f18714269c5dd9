"""What an input refers to: stored items, and files by URL."""

from typing import Any

import pytest

from models.errors import InvalidRequest
from models.wire.items import file_places, referenced_ids, substitute_references

USER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "x"}],
}
STORED: dict[str, Any] = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "c",
    "name": "f",
    "arguments": "{}",
}


def reference(item_id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


def test_a_reference_is_replaced_by_its_item() -> None:
    items = [reference("msg_9"), USER, reference("fc_1")]
    assert referenced_ids(items) == ["msg_9", "fc_1"]
    assert substitute_references(items, {"fc_1": STORED, "msg_9": USER | {"id": "msg_9"}}) == [
        USER | {"id": "msg_9"},
        USER,
        STORED,
    ]


def test_the_error_names_the_first_reference_without_an_item() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        substitute_references(
            [USER, reference("fc_1"), reference("a"), reference("b")], {"fc_1": STORED}
        )
    assert (refusal.value.param, refusal.value.code) == ("input[2]", "item_not_found")
    assert refusal.value.message.startswith("Item with id 'a' not found.")


def test_no_file_of_an_input_is_overlooked() -> None:
    file = {"type": "input_file", "file_url": "https://x/a"}
    image = {"type": "input_image", "file_id": "file-1"}
    items: list[dict[str, Any]] = [
        USER,
        USER | {"content": [{"type": "input_text", "text": "x"}, file, image]},
        STORED,
        {"type": "function_call_output", "call_id": "c", "output": "text"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [file]},
        {"type": "reasoning", "summary": []},
    ]
    names = [place.path(place.item) for place in file_places(items)]
    assert names == [
        "input[1].content[1].file_url",
        "input[1].content[2].file_id",
        "input[4].output[0].file_url",
    ]
