"""The events of finished items, for a precomputed response (docs/wire.md). Pure."""

from collections.abc import Callable, Iterator
from typing import Any

from models.wire.done_events import PartPlace, arguments_done, text_done
from models.wire.events import (
    AnnotationAdded,
    ArgumentsDelta,
    CommandAdded,
    CommandDelta,
    CommandDone,
    CustomInputDelta,
    Event,
    Item,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    SummaryDone,
    SummaryPartAdded,
    SummaryPartDone,
    TextDelta,
)
from models.wire.item_types import ARGUMENT_FIELDS, TEXT_FIELDS
from models.wire.items import NewId

Part = dict[str, Any]


def with_new_ids(items: list[Item], new_id: NewId) -> list[Item]:
    """The items with new ids of the same prefixes. `call_id` stays, because the model chose it."""
    return [{**item, "id": new_id(item["id"].partition("_")[0])} for item in items]


def replay(items: list[Item]) -> Iterator[Event]:
    """The events that stream these items, in order. Each text and each call's arguments are one
    delta."""
    for index, item in enumerate(items):
        yield ItemAdded(index, {**item, **_initial_fields(item), "status": "in_progress"})
        yield from _ITEM_EVENTS.get(item["type"], _no_events)(item, index)
        yield ItemDone(index, item)


def _initial_fields(item: Item) -> Item:
    """The fields that are empty when the item is added. Other items are sent whole at once."""
    match item["type"]:
        case "message":
            return {"content": []}
        case "reasoning":
            return {name: [] for name in ("summary", "content") if name in item}
        case "function_call" | "custom_tool_call":
            return {ARGUMENT_FIELDS[item["type"]]: ""}
        case "shell_call":
            return {"action": {**item["action"], "commands": []}}
        case _:
            return {}


def _no_events(_item: Item, _index: int) -> Iterator[Event]:
    return iter(())


def _content(item: Item, index: int) -> Iterator[Event]:
    for position, part in enumerate(item.get("content", ())):
        place = (item["id"], index, position)
        yield PartAdded(*place, _without_text(part))
        yield from _part_events(part, place)
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


def _without_text(part: Part) -> Part:
    """The part before its text, if its type has text that is streamed."""
    text_field = TEXT_FIELDS.get(part["type"])
    if text_field is None:
        return part
    lists: Part = {name: [] for name in ("annotations", "logprobs") if name in part}
    return {**part, text_field: "", **lists}


def _part_events(part: Part, place: PartPlace) -> Iterator[Event]:
    match part["type"]:
        case "output_text":
            if part["text"]:
                yield TextDelta(*place, part["text"], part.get("logprobs", []))
            for number, annotation in enumerate(part.get("annotations", ())):
                yield AnnotationAdded(*place, number, annotation)
        case "refusal" if part["refusal"]:
            yield RefusalDelta(*place, part["refusal"])
        case "reasoning_text" if part["text"]:
            yield ReasoningDelta(*place, part["text"])
    yield from text_done(part, place)


def _function_arguments(item: Item, index: int) -> Iterator[Event]:
    if item["arguments"]:
        yield ArgumentsDelta(item["id"], index, item["arguments"])
    yield from arguments_done(item, index)


def _custom_input(item: Item, index: int) -> Iterator[Event]:
    if item["input"]:
        yield CustomInputDelta(item["id"], index, item["input"])
    yield from arguments_done(item, index)


def _commands(item: Item, index: int) -> Iterator[Event]:
    for number, command in enumerate(item["action"]["commands"]):
        yield CommandAdded(index, number, "")
        if command:
            yield CommandDelta(index, number, command)
        yield CommandDone(index, number, command)


_ITEM_EVENTS: dict[str, Callable[[Item, int], Iterator[Event]]] = {
    "message": _content,
    "reasoning": _reasoning,
    "function_call": _function_arguments,
    "custom_tool_call": _custom_input,
    "shell_call": _commands,
}
"""type of an item -> the events between its `added` and its `done`."""
