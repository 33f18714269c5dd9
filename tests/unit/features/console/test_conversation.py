"""Items as a conversation: what stands where, and how large a page becomes."""

import json
from typing import Any

import pytest

from features.console.conversation import Entry, EntryKind, entries_of, instructions_entry
from features.console.page_room import MAX_PART, PageRoom, PartKind, pretty_json


def _entries(*items: dict[str, Any] | None) -> list[Entry]:
    return entries_of([(f"id_{nr}", item) for nr, item in enumerate(items)], PageRoom())


def _texts(entry: Entry) -> list[tuple[str, str]]:
    return [(part.label, str(part.text)) for part in entry.parts]


def test_a_result_stands_with_its_call_and_both_are_folded() -> None:
    arguments = '{"city": "Ulm"}'
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": '{"degrees": 3}'}
    later = {"type": "function_call_output", "call_id": "elsewhere", "output": "4"}
    entry, other = _entries(call, output, later)
    assert (entry.kind, entry.title, entry.summary) == (EntryKind.CALL, "weather", arguments)
    assert _texts(entry) == [
        ("Arguments", '{\n  "city": "Ulm"\n}'),
        ("Result", '{\n  "degrees": 3\n}'),
    ]
    assert (other.kind, other.is_folded) == (EntryKind.RESULT, True)


def test_calls_of_servers_have_their_result() -> None:
    named = {"server_label": "s", "name": "n", "arguments": "{}"}
    called, searched = _entries(
        {"type": "mcp_call", **named, "output": "fine", "error": None, "status": "failed"},
        {"type": "web_search_call", "action": {"type": "search", "query": "q"}},
    )
    assert called.title == "s: n (failed)"
    assert _texts(called)[1:] == [("Result", "fine")]
    assert searched.title == "Web search"
    assert json.loads(_texts(searched)[0][1]) == {"type": "search", "query": "q"}


def test_messages_are_open_and_reasoning_is_folded() -> None:
    parts = [
        {"type": "output_text", "text": "**Yes.**", "annotations": [{"url": "https://x.example"}]},
        {"type": "refusal", "refusal": "No."},
    ]
    summary = [{"type": "summary_text", "text": "First\nthought"}]
    message, reasoning, sealed = _entries(
        {"type": "message", "role": "assistant", "content": parts},
        {"type": "reasoning", "summary": summary},
        {"type": "reasoning", "summary": [], "encrypted_content": "secret"},
    )
    assert not message.is_folded
    assert [part.kind for part in message.parts] == [
        PartKind.MARKDOWN,
        PartKind.FILE,
        PartKind.REFUSAL,
    ]
    assert (reasoning.is_folded, reasoning.summary) == (True, "First thought")
    assert (sealed.summary, sealed.parts) == ("sealed by the upstream", [])


def test_files_and_images_are_names() -> None:
    parts = [
        {"type": "input_image", "image_url": "https://x.example/cat.png?token=secret"},
        {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 8192},
        {"type": "input_file", "filename": "report.pdf", "file_data": "A" * 8192},
        {"type": "input_file", "file_id": "file_1"},
    ]
    [entry] = _entries({"role": "user", "content": parts})
    assert [part.text for part in entry.parts] == [
        "Image: https://x.example/cat.png",
        "Image: image/png, about 6 KiB",
        "File: report.pdf",
        "File: file_1",
    ]
    screenshot = parts[1] | {"type": "computer_screenshot"}
    [result] = _entries({"type": "computer_call_output", "call_id": "c", "output": screenshot})
    assert [part.text for part in result.parts] == ["Image: image/png, about 6 KiB"]


def test_long_instructions_are_folded() -> None:
    assert instructions_entry(None, PageRoom()) is None
    short, long = (instructions_entry("Be kind. " * n, PageRoom()) for n in (1, 200))
    assert short is not None
    assert long is not None
    assert (short.is_folded, long.is_folded) == (False, True)


def test_a_page_ends_however_much_there_is() -> None:
    text = "*a* " * 5_000
    message = {"role": "assistant", "content": [{"type": "output_text", "text": text * 3}] * 3}
    entries = _entries(*[message] * 100, None)
    size = sum(len(part.text) for entry in entries for part in entry.parts)
    assert size < 600_000
    assert all(entry.is_cut for entry in entries)
    assert len(entries[0].parts[0].text) >= MAX_PART


@pytest.mark.parametrize(
    "item",
    [
        {"type": ["x"], "content": 5},
        {"type": "message", "role": {"a": 1}, "content": [1, {"type": [1]}, None]},
        {"type": "reasoning", "summary": "text", "content": 7},
        {"type": "function_call", "arguments": {"a": 1}, "name": 5},
        {"type": "mcp_call", "arguments": "[" * 5_000},
        {"type": "function_call_output", "output": [1]},
        {"type": "message", "role": "user", "content": "half \ud83d of a character"},
        {"type": "unknown", "n": 2**70},
        {"type": "output_text", "annotations": 3},
        {},
    ],
)
def test_no_item_breaks_the_page(item: dict[str, Any]) -> None:
    [entry] = _entries(item)
    assert entry.title
    for part in entry.parts:
        part.text.encode()


def test_json_is_indented_unless_it_is_nested_too_deeply() -> None:
    assert pretty_json('{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert pretty_json("no JSON") == "no JSON"
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    assert pretty_json(deep) == "[" * 401 + "]" * 401
