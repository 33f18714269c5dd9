"""Finished items told again as events (contract §4.3): for an answer that comes from memory, whole. Pure."""

from collections.abc import Callable, Iterator
from typing import Any

from models.wire.events import (
    AnnotationAdded,
    ArgumentsDelta,
    ArgumentsDone,
    CommandAdded,
    CommandDelta,
    CommandDone,
    CustomInputDelta,
    CustomInputDone,
    Event,
    Item,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    RefusalDelta,
    RefusalDone,
    SummaryDelta,
    SummaryDone,
    SummaryPartAdded,
    SummaryPartDone,
    TextDelta,
    TextDone,
)
from models.wire.items import NewId

Part = dict[str, Any]


def with_new_ids(items: list[Item], new_id: NewId) -> list[Item]:
    """The items under ids of their own, of the same kinds. `call_id` stays: it is the model's word."""
    return [{**item, "id": new_id(item["id"].partition("_")[0])} for item in items]


def replay(items: list[Item]) -> Iterator[Event]:
    """What a stream says of these items, in order: each added, its text or arguments in one delta, and done."""
    for index, item in enumerate(items):
        yield ItemAdded(
            index,
            {
                **item,
                **_INITIAL_FIELDS.get(item["type"], _no_initial_fields)(item),
                "status": "in_progress",
            },
        )
        yield from _ITEM_EVENTS.get(item["type"], _no_item_events)(item, index)
        yield ItemDone(index, item)


def _no_item_events(_item: Item, _index: int) -> Iterator[Event]:
    return iter(())


def _no_initial_fields(_item: Item) -> Item:
    return {}


def _content(item: Item, index: int) -> Iterator[Event]:
    for position, part in enumerate(item.get("content", ())):
        place = (item["id"], index, position)
        yield PartAdded(*place, _without_text(part))
        yield from _PART_EVENTS.get(part["type"], _no_part_events)(part, place)
        yield PartDone(*place, part)


def _reasoning(item: Item, index: int) -> Iterator[Event]:
    for position, part in enumerate(item.get("summary", ())):
        place = (item["id"], index, position)
        yield SummaryPartAdded(*place, _without_text(part))
        if part["text"]:
            yield SummaryDelta(*place, part["text"])
        yield SummaryDone(*place, part["text"])
        yield SummaryPartDone(*place, part)
    yield from _content(item, index)


def _no_part_events(_part: Part, _place: tuple[str, int, int]) -> Iterator[Event]:
    return iter(())


def _without_text(part: Part) -> Part:
    """The part before its text; one that has none is told in one go."""
    if part["type"] == "refusal":
        return {**part, "refusal": ""}
    if part["type"] not in ("output_text", "reasoning_text", "summary_text"):
        return part
    lists: Part = {name: [] for name in ("annotations", "logprobs") if name in part}
    return {**part, "text": "", **lists}


def _text(part: Part, place: tuple[str, int, int]) -> Iterator[Event]:
    logprobs = part.get("logprobs", [])
    if part["text"]:
        yield TextDelta(*place, part["text"], logprobs)
    for number, annotation in enumerate(part.get("annotations", ())):
        yield AnnotationAdded(*place, number, annotation)
    yield TextDone(*place, part["text"], logprobs)


def _refusal(part: Part, place: tuple[str, int, int]) -> Iterator[Event]:
    if part["refusal"]:
        yield RefusalDelta(*place, part["refusal"])
    yield RefusalDone(*place, part["refusal"])


def _reasoning_text(part: Part, place: tuple[str, int, int]) -> Iterator[Event]:
    if part["text"]:
        yield ReasoningDelta(*place, part["text"])
    yield ReasoningDone(*place, part["text"])


def _arguments(item: Item, index: int) -> Iterator[Event]:
    if item["arguments"]:
        yield ArgumentsDelta(item["id"], index, item["arguments"])
    yield ArgumentsDone(item["id"], index, item["name"], item["arguments"])


def _custom_input(item: Item, index: int) -> Iterator[Event]:
    if item["input"]:
        yield CustomInputDelta(item["id"], index, item["input"])
    yield CustomInputDone(item["id"], index, item["input"])


def _commands(item: Item, index: int) -> Iterator[Event]:
    for number, command in enumerate(item["action"]["commands"]):
        yield CommandAdded(index, number, "")
        if command:
            yield CommandDelta(index, number, command)
        yield CommandDone(index, number, command)


_PART_EVENTS: dict[str, Callable[[Part, tuple[str, int, int]], Iterator[Event]]] = {
    "output_text": _text,
    "refusal": _refusal,
    "reasoning_text": _reasoning_text,
}
_ITEM_EVENTS: dict[str, Callable[[Item, int], Iterator[Event]]] = {
    "message": _content,
    "reasoning": _reasoning,
    "function_call": _arguments,
    "custom_tool_call": _custom_input,
    "shell_call": _commands,
}
"""type of an item -> the events between `added` and `done`"""
_INITIAL_FIELDS: dict[str, Callable[[Item], Item]] = {
    "message": lambda _: {"content": []},
    "reasoning": lambda item: {name: [] for name in ("summary", "content") if name in item},
    "function_call": lambda _: {"arguments": ""},
    "custom_tool_call": lambda _: {"input": ""},
    "shell_call": lambda item: {"action": {**item["action"], "commands": []}},
}
"""type of an item -> its fields as they are before those events; one that is not here is told in one go"""
