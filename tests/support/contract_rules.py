"""The rules of every stream (docs/wire.md; I3 and I4 of docs/guarantees.md), checked on its events.

They hold for translated chunks and for streams read over HTTP. Events are given in stream order.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import ENDINGS

Event = dict[str, Any]

SNAPSHOTS = ENDINGS | {"response.created", "response.queued", "response.in_progress"}

PART_DELTAS = {
    "response.output_text.delta": ("response.output_text.done", "output_text", "text"),
    "response.refusal.delta": ("response.refusal.done", "refusal", "refusal"),
    "response.reasoning_text.delta": ("response.reasoning_text.done", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": (
        "response.reasoning_summary_text.done",
        "summary_text",
        "text",
    ),
}
"""Delta event -> its done event, the type of its part, the key with the complete text."""
CALL_PAYLOAD_KEYS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
    "code_interpreter_call": "code",
}
"""Type of a call -> the key with its arguments."""
SERVER_TOOL_EVENTS = {
    "mcp_list_tools": ("in_progress", "completed", "failed"),
    "mcp_call": ("in_progress", "completed", "failed"),
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "image_generation_call": ("in_progress", "generating", "partial_image", "completed"),
}
"""Type of a server tool's item -> its progress events, each at most once, in this order."""
_MADE_HERE = re.compile("[a-z]+_([0-9a-f]{32})")
_CALL_EVENT_PREFIXES = tuple(f"response.{call}_{key}." for call, key in CALL_PAYLOAD_KEYS.items())
PART_DONES = {done: (part, key) for done, part, key in PART_DELTAS.values()}


@dataclass
class _Part:
    type: str
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    annotations: list[Any] = field(default_factory=list)
    text_done: bool = False
    done: bool = False


@dataclass
class _Item:
    item: dict[str, Any]
    parts: list[_Part] = field(default_factory=list)
    summary: list[_Part] = field(default_factory=list)
    arguments: str = ""
    arguments_done: bool = False
    commands: list[str] = field(default_factory=list)
    commands_done: int = 0
    progress: list[str] = field(default_factory=list)
    done: dict[str, Any] | None = None


def assert_stream_obeys_contract(
    events: Sequence[Event], *, terminal: bool = True, first: int = 0
) -> None:
    """Fails with the rule that is broken.

    `terminal=False`: the stream may end anywhere. `first`: the number of the first event of a
    resumed stream; beyond 0 only numbers and endings are checked, because earlier items are
    unknown.
    """
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(first, first + len(events))), f"holes or repeats in {numbers}"
    endings = [position for position, event in enumerate(events) if event["type"] in ENDINGS]
    if terminal:
        assert endings == [len(events) - 1], (
            f"one terminal event, and it is last; found at {endings} of {len(events)}"
        )
    else:
        assert endings in ([], [len(events) - 1]), (
            f"something follows the terminal event at {endings}"
        )
    if first > 0:
        return
    if events:
        assert events[0]["type"] == "response.created", f"the first event is {events[0]['type']}"
    _check_snapshots(events)
    _check_ids(events)
    items = assert_items_obey_contract(
        [event for event in events if event["type"] not in SNAPSHOTS], complete=terminal
    )
    if terminal:
        _check_output(events[-1]["response"], items)


def assert_items_obey_contract(
    events: Sequence[Event], *, complete: bool = True
) -> dict[int, dict[str, Any]]:
    """Checks the events of items; returns output_index -> the done item.

    `complete`: all are closed.
    """
    items: dict[int, _Item] = {}
    first = events[0]["output_index"] if events else 0
    for event in events:
        _check_event(items, event, first)
    if complete:
        left = [index for index, item in items.items() if item.done is None]
        assert not left, f"items {left} were added and never done"
    ids = [item.item["id"] for item in items.values()]
    assert len(set(ids)) == len(ids), f"an id twice in {ids}"
    return {index: item.done for index, item in items.items() if item.done is not None}


def _check_ids(events: Sequence[Event]) -> None:
    """Ids sort by time: some clients order calls by them."""
    added = [event["item"]["id"] for event in events if event["type"].endswith("item.added")]
    made_here = [match[1] for item_id in added if (match := _MADE_HERE.fullmatch(item_id))]
    assert made_here == sorted(made_here), f"ids that do not sort by time: {added}"


def _check_snapshots(events: Sequence[Event]) -> None:
    snapshots = [event for event in events if event["type"] in SNAPSHOTS]
    kinds = [event["type"] for event in snapshots]
    assert len(set(kinds)) == len(kinds), f"a snapshot event twice in {kinds}"
    assert len({event["response"]["id"] for event in snapshots}) <= 1, "response.id changed"
    openings = [kind for kind in kinds if kind not in ENDINGS]
    order = [
        kind
        for kind in ("response.created", "response.queued", "response.in_progress")
        if kind in openings
    ]
    assert openings == order, f"opening events in the order {openings}"


def _check_event(items: dict[int, _Item], event: Event, first: int) -> None:
    kind, index = event["type"], event["output_index"]
    if kind == "response.output_item.added":
        # openai-node appends an item that is added, and finds it again by this index.
        assert index == first + len(items), f"output_index {index} after {list(items)}"
        still_open = [earlier for earlier, item in items.items() if item.done is None]
        assert not still_open, f"item {index} was added while {still_open} was open"
        _check_added(event["item"])
        items[index] = _Item(event["item"])
        return
    assert index in items, f"{kind} for output_index {index}, which was never added"
    item = items[index]
    assert item.done is None, f"{kind} for output_index {index}, which is done"
    if kind == "response.output_item.done":
        _check_done(item, event["item"])
        item.done = event["item"]
        return
    if kind.startswith("response.shell_call_command."):
        _check_command(item, event)
        return
    assert event["item_id"] == item.item["id"], (
        f"{kind} with item_id {event['item_id']} for item {item.item['id']}"
    )
    if kind.startswith("response.shell_call_output_content."):
        _check_printed(item, event)
    elif kind.startswith(_CALL_EVENT_PREFIXES):
        _check_arguments(item, event)
    elif item.item["type"] in SERVER_TOOL_EVENTS:
        _check_progress(item, kind)
    elif item.item["type"] == "compaction":
        assert (kind, item.progress) == ("response.compaction.compacting", []), (
            f"{kind} for a compaction after {item.progress}"
        )
        item.progress.append("compacting")
    else:
        _check_part(item, event)


def _check_added(item: dict[str, Any]) -> None:
    assert item["status"] == "in_progress", f"added with status {item['status']}"
    if item["type"] in ("message", "reasoning"):
        assert item["content"] == [], "added with content"
        assert item.get("summary", []) == [], "added with a summary"
    if item["type"] in CALL_PAYLOAD_KEYS:
        assert item[CALL_PAYLOAD_KEYS[item["type"]]] == "", "added with arguments"
        assert item["type"] == "code_interpreter_call" or item["name"], (
            "added before its name was known"
        )
    if item["type"] == "compaction":
        assert item["encrypted_content"] == "", "added with content"
    if "call_id" in item:
        assert 0 < len(item["call_id"]) <= 64, f"call_id {item['call_id']!r}"
        assert item["call_id"] != item["id"], "item id and call_id are the same"


def _check_arguments(item: _Item, event: Event) -> None:
    key = event["type"].removeprefix("response.").partition(".")[0].rpartition("_")[2]
    assert CALL_PAYLOAD_KEYS.get(item.item["type"]) == key, (
        f"{event['type']} for a {item.item['type']}"
    )
    assert not item.arguments_done, f"{event['type']} after arguments.done"
    if event["type"].endswith(".delta"):
        assert event["delta"], "an empty delta"
        item.arguments += event["delta"]
        return
    assert event[key] == item.arguments, f"done says {event[key]!r}, the deltas {item.arguments!r}"
    assert event.get("name", item.item.get("name")) == item.item.get("name")
    item.arguments_done = True


def _check_progress(item: _Item, kind: str) -> None:
    kinds = SERVER_TOOL_EVENTS[item.item["type"]]
    prefix, _, step = kind.rpartition(".")
    assert prefix == f"response.{item.item['type']}", f"{kind} for a {item.item['type']}"
    assert step in kinds, f"unknown event {kind}"
    assert step == kinds[0] or item.progress, f"{kind} before {kinds[0]}"
    if step != "partial_image":  # of which there may be several
        assert all(kinds.index(step) > kinds.index(earlier) for earlier in item.progress), (
            f"{kind} after {item.progress}"
        )
    assert not {"completed", "failed"} & set(item.progress), f"{kind} after {item.progress}"
    item.progress.append(step)


def _check_command(item: _Item, event: Event) -> None:
    assert item.item["type"] == "shell_call", f"{event['type']} for a {item.item['type']}"
    if event["type"].endswith(".added"):
        assert (event["command_index"], event["command"]) == (len(item.commands), "")
        item.commands.append("")
        return
    assert event["command_index"] == len(item.commands) - 1 == item.commands_done, (
        f"{event['type']} out of order"
    )
    if event["type"].endswith(".delta"):
        assert event["delta"], "an empty delta"
        item.commands[-1] += event["delta"]
        return
    assert event["command"] == item.commands[-1], (
        f"done says {event['command']!r}, the deltas {item.commands[-1]!r}"
    )
    item.commands_done += 1


def _check_printed(item: _Item, event: Event) -> None:
    """Each command of a shell's output has one delta, if it printed anything, and `done`."""
    assert item.item["type"] == "shell_call_output", f"{event['type']} for a {item.item['type']}"
    assert event["command_index"] == item.commands_done, f"{event['type']} out of order"
    if event["type"].endswith(".delta"):
        assert all(event["delta"].values()), "an empty delta"
        item.commands.append(event["delta"].get("stdout", "") + event["delta"].get("stderr", ""))
        return
    [output] = event["output"]
    deltas = "".join(item.commands)
    assert deltas.endswith(output["stdout"] + output["stderr"])
    item.commands_done += 1


def _check_part(item: _Item, event: Event) -> None:
    """Checks a part's event: `content_part.…` and `reasoning_summary_part.…` have equal rules."""
    kind, in_summary = event["type"], "summary_index" in event
    assert in_summary == kind.startswith("response.reasoning_summary_"), kind
    parts, position = (
        (item.summary, event["summary_index"])
        if in_summary
        else (item.parts, event["content_index"])
    )
    if kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
        assert position == len(parts), f"part {position} after {len(parts)} parts"
        assert all(part.done for part in parts), "a part was added while another was open"
        assert (event["part"]["type"] == "summary_text") == in_summary, event
        parts.append(_Part(event["part"]["type"]))
        _check_empty(event["part"])
        return
    assert position < len(parts), f"{kind} for part {position}, which was never added"
    part = parts[position]
    assert not part.done, f"{kind} for part {position}, which is done"
    if kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
        _check_whole(part, event["part"])
        part.done = True
    elif kind in PART_DELTAS:
        _check_delta(part, event)
    elif kind in PART_DONES:
        assert (part.type, part.text_done) == (PART_DONES[kind][0], False)
        assert event[PART_DONES[kind][1]] == part.text, (
            f"done says {event[PART_DONES[kind][1]]!r}, the deltas {part.text!r}"
        )
        assert event.get("logprobs", []) == part.logprobs
        part.text_done = True
    else:
        assert kind == "response.output_text.annotation.added", f"unknown event {kind}"
        assert event["annotation_index"] == len(part.annotations)
        part.annotations.append(event["annotation"])


def _check_empty(part: dict[str, Any]) -> None:
    assert part["refusal" if part["type"] == "refusal" else "text"] == "", (
        "a part was added with text"
    )
    if part["type"] == "output_text":
        assert (part["annotations"], part["logprobs"]) == ([], [])


def _check_delta(part: _Part, event: Event) -> None:
    assert part.type == PART_DELTAS[event["type"]][1], (
        f"{event['type']} for a part of type {part.type}"
    )
    assert not part.text_done, f"{event['type']} after the text was done"
    assert event["delta"], "an empty delta"
    part.text += event["delta"]
    part.logprobs += event.get("logprobs", [])


def _check_whole(part: _Part, shown: dict[str, Any]) -> None:
    assert shown["type"] == part.type
    assert shown["refusal" if part.type == "refusal" else "text"] == part.text
    if part.type == "output_text":
        assert shown["annotations"] == part.annotations
        assert shown["logprobs"] == part.logprobs


def _check_done(item: _Item, shown: dict[str, Any]) -> None:
    assert shown["status"] in ("completed", "incomplete", "failed"), (
        f"done with status {shown['status']}"
    )
    for key in ("id", "type", "call_id", "name", "namespace", "role", "server_label"):
        assert shown.get(key) == item.item.get(key), (
            f"{key} changed from {item.item.get(key)!r} to {shown.get(key)!r}"
        )
    if shown["type"] in CALL_PAYLOAD_KEYS:
        assert item.arguments_done or shown["status"] == "incomplete", (
            "output_item.done before arguments.done"
        )
        assert shown[CALL_PAYLOAD_KEYS[shown["type"]]] == item.arguments
    if shown["type"] in SERVER_TOOL_EVENTS:
        ended = [step for step in item.progress if step in ("completed", "failed")]
        expected = shown["status"] if shown["status"] in SERVER_TOOL_EVENTS[shown["type"]] else None
        assert ended == ([] if expected is None else [expected]), (
            f"{item.progress} for an item that is {shown['status']}"
        )
    if shown["type"] == "shell_call" and shown["status"] == "completed":
        assert shown["action"]["commands"] == item.commands, (
            "the commands are not those of the events"
        )
    if shown["type"] == "compaction" and shown["status"] == "completed":
        assert item.progress, "a compaction without response.compaction.compacting"
        assert shown["encrypted_content"], "a compaction that holds nothing"
    if shown["type"] in ("message", "reasoning"):
        cut = [part for part in (*item.parts, *item.summary) if not part.text_done]
        assert not cut or shown["status"] == "incomplete", "a part was done before its text"
        assert all(part.done for part in item.parts), "output_item.done before its parts were done"
        assert len(shown["content"]) == len(item.parts)
        for part, content in zip(item.parts, shown["content"], strict=True):
            _check_whole(part, content)
        assert all(part.done for part in item.summary), (
            "output_item.done before its summary was done"
        )
        for part, content in zip(item.summary, shown.get("summary", []), strict=True):
            _check_whole(part, content)


def _check_output(response: dict[str, Any], items: dict[int, dict[str, Any]]) -> None:
    """The final output is the done items in order.

    After a recovery it may omit items, never change one.
    """
    done = [item for _, item in sorted(items.items())]
    final_items = response["output"]
    positions = [
        next((at for at, item in enumerate(done) if item == one), None) for one in final_items
    ]
    assert None not in positions, f"the output holds what the stream never had: {final_items}"
    assert positions == sorted(positions, key=lambda at: at or 0), (
        "the output is in another order than the stream"
    )
    incomplete = [at for at, item in enumerate(final_items) if item.get("status") == "incomplete"]
    if incomplete and response["status"] == "completed":
        raise AssertionError("a completed response holds an incomplete item")
