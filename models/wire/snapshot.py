"""The fold: what a response's output is after these events (I7), and what a recovery must close.

Pure, over decoded events (`decode_frame`). Both sides use it: a running response is shown by it, and whoever takes over from a
dead attempt closes by it what that attempt left open.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from models.wire.events import (
    ArgumentsDone,
    CodeDone,
    CustomInputDone,
    Event,
    Item,
    ItemDone,
    McpArgumentsDone,
    PartDone,
    ReasoningDone,
    RefusalDone,
    SummaryDone,
    SummaryPartDone,
    TextDone,
)

Json = dict[str, Any]

_TEXT_KEYS = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""type of a part -> the key that its deltas add to"""

_ARGUMENT_KEYS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
    "code_interpreter_call": "code",
}
"""type of a call -> the key that its deltas add to"""


@dataclass(slots=True)
class UnfinishedPart:
    """A part of an item's content, or of a reasoning's summary, that was added. Its deltas are kept apart until somebody asks: adding each to the text would copy it every time."""

    index: int
    shape: Json
    deltas: list[str] = field(default_factory=list)
    text_done: bool = False
    done: bool = False

    def append_delta(self, event: Json) -> None:
        self.deltas.append(event["delta"])
        if event.get("logprobs"):
            self.shape.setdefault("logprobs", []).extend(event["logprobs"])

    def set_final(self, shape: Json) -> None:
        """The part as a done event repeats it: from now on that counts, not the deltas."""
        self.shape, self.deltas = shape, []

    def to_json(self) -> Json:
        """The part with what was said so far."""
        key = _TEXT_KEYS.get(self.shape.get("type", ""))
        return (
            {**self.shape, key: self.shape.get(key, "") + "".join(self.deltas)}
            if key
            else self.shape
        )


@dataclass(slots=True)
class UnfinishedItem:
    """An item that was added and not yet done."""

    output_index: int
    shape: Item
    parts: dict[int, UnfinishedPart] = field(default_factory=dict)
    summary: dict[int, UnfinishedPart] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    arguments_done: bool = False

    def to_json(self, status: str = "in_progress") -> Item:
        """The item with what was said so far."""
        item = {**self.shape, "status": status}
        if self.parts:
            item["content"] = [self.parts[index].to_json() for index in sorted(self.parts)]
        if self.summary:
            item["summary"] = [self.summary[index].to_json() for index in sorted(self.summary)]
        if self.arguments:
            item[_ARGUMENT_KEYS[item["type"]]] = "".join(self.arguments)
        return item


@dataclass(slots=True)
class UnfinishedOutput:
    """What an attempt left open, in output order, and the highest output_index it used (-1 when it used none)."""

    items: list[UnfinishedItem]
    highest_index: int


def fold(events: Iterable[Json]) -> list[Item]:
    """The items after these events of one attempt, in output order; an open one with what was said so far, `in_progress`.

    Events about items that were not added among these events close what an earlier attempt left open, and are ignored.
    """
    items = _collect(events)
    return [
        item.to_json() if isinstance(item, UnfinishedItem) else item
        for _, item in sorted(items.items())
    ]


def fold_latest_attempt(events: Iterable[tuple[int, Json]]) -> list[Item]:
    """The items after these events of several attempts, `(attempt, event)` in order: those of the last attempt that began one.

    A new attempt gives up what the one before it said when it begins an item of its own; until then that stands, closed or not, and is
    the output of a response which is cancelled meanwhile.
    """
    seen = list(events)
    latest = max(
        (attempt for attempt, event in seen if event["type"] == "response.output_item.added"),
        default=0,
    )
    return fold(event for attempt, event in seen if attempt >= latest)


def find_unfinished(events: Iterable[Json]) -> UnfinishedOutput:
    """What is left to close after these events of a dead attempt (design §4.6)."""
    seen = list(events)
    items = _collect(seen)
    unfinished = [item for _, item in sorted(items.items()) if isinstance(item, UnfinishedItem)]
    return UnfinishedOutput(
        unfinished, max((event.get("output_index", -1) for event in seen), default=-1)
    )


def closing_events(unfinished: UnfinishedOutput) -> list[Event]:
    """The `…done` events that close these items as `incomplete`; what is done already is not said twice."""
    events: list[Event] = []
    for item in unfinished.items:
        for index in sorted(item.summary):
            events += _summary_closing(item, item.summary[index])
        for index in sorted(item.parts):
            events += _part_closing(item, item.parts[index])
        closed = item.to_json("incomplete")
        if not item.arguments_done:
            events += _arguments_closing(item.output_index, closed)
        events.append(ItemDone(item.output_index, closed))
    return events


def _arguments_closing(index: int, item: Item) -> list[Event]:
    match item.get("type"):
        case "function_call":
            return [ArgumentsDone(item["id"], index, item["name"], item["arguments"])]
        case "custom_tool_call":
            return [CustomInputDone(item["id"], index, item["input"])]
        case "mcp_call":
            return [McpArgumentsDone(item["id"], index, item["arguments"])]
        case "code_interpreter_call":
            return [CodeDone(item["id"], index, item["code"])]
        case _:
            return []


def _summary_closing(item: UnfinishedItem, part: UnfinishedPart) -> list[Event]:
    shape, place = part.to_json(), (item.shape["id"], item.output_index, part.index)
    events: list[Event] = [] if part.text_done else [SummaryDone(*place, shape["text"])]
    return events if part.done else [*events, SummaryPartDone(*place, shape)]


def _part_closing(item: UnfinishedItem, part: UnfinishedPart) -> list[Event]:
    events: list[Event] = []
    shape, place = part.to_json(), (item.shape["id"], item.output_index, part.index)
    if not part.text_done and shape["type"] == "output_text":
        events.append(TextDone(*place, shape["text"], shape.get("logprobs", [])))
    elif not part.text_done and shape["type"] == "refusal":
        events.append(RefusalDone(*place, shape["refusal"]))
    elif not part.text_done and shape["type"] == "reasoning_text":
        events.append(ReasoningDone(*place, shape["text"]))
    if not part.done:
        events.append(PartDone(*place, shape))
    return events


def _collect(events: Iterable[Json]) -> dict[int, UnfinishedItem | Item]:
    """output_index -> the item: as its `output_item.done` says it, or open."""
    items: dict[int, UnfinishedItem | Item] = {}
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            items[event["output_index"]] = UnfinishedItem(event["output_index"], event["item"])
        elif (rule := _RULES.get(kind)) is not None:
            item = items.get(event["output_index"])
            if isinstance(item, UnfinishedItem):
                rule(item, event)
        elif kind == "response.output_item.done" and event["output_index"] in items:
            items[event["output_index"]] = event["item"]
    return items


def _part_added(item: UnfinishedItem, event: Json) -> None:
    parts, index = _place(item, event)
    parts[index] = UnfinishedPart(
        index, {key: _copy_list(value) for key, value in event["part"].items()}
    )


def _place(item: UnfinishedItem, event: Json) -> tuple[dict[int, UnfinishedPart], int]:
    """The parts that the event is about one of: the content's, or the summary's."""
    return (
        (item.parts, event["content_index"])
        if "content_index" in event
        else (item.summary, event["summary_index"])
    )


def _part(item: UnfinishedItem, event: Json) -> UnfinishedPart:
    parts, index = _place(item, event)
    return parts[index]


def _copy_list(value: Any) -> Any:
    """Lists that grow here are copies: the events belong to the caller."""
    return list(value) if isinstance(value, list) else value


def _part_delta(item: UnfinishedItem, event: Json) -> None:
    _part(item, event).append_delta(event)


def _text_done(item: UnfinishedItem, event: Json) -> None:
    part = _part(item, event)
    part.set_final(
        {
            **part.shape,
            **{
                key: _copy_list(event[key])
                for key in ("text", "refusal", "logprobs")
                if key in event
            },
        }
    )
    part.text_done = True


def _part_done(item: UnfinishedItem, event: Json) -> None:
    part = _part(item, event)
    part.set_final(event["part"])
    part.text_done = part.done = True


def _annotation_added(item: UnfinishedItem, event: Json) -> None:
    item.parts[event["content_index"]].shape.setdefault("annotations", []).append(
        event["annotation"]
    )


def _arguments_delta(item: UnfinishedItem, event: Json) -> None:
    item.arguments.append(event["delta"])


def _arguments_done(item: UnfinishedItem, event: Json) -> None:
    item.arguments = [event[_ARGUMENT_KEYS[item.shape["type"]]]]
    item.arguments_done = True


_RULES: dict[str, Callable[[UnfinishedItem, Json], None]] = {
    "response.content_part.added": _part_added,
    "response.content_part.done": _part_done,
    "response.output_text.delta": _part_delta,
    "response.output_text.done": _text_done,
    "response.output_text.annotation.added": _annotation_added,
    "response.refusal.delta": _part_delta,
    "response.refusal.done": _text_done,
    "response.reasoning_text.delta": _part_delta,
    "response.reasoning_text.done": _text_done,
    "response.reasoning_summary_part.added": _part_added,
    "response.reasoning_summary_part.done": _part_done,
    "response.reasoning_summary_text.delta": _part_delta,
    "response.reasoning_summary_text.done": _text_done,
    "response.function_call_arguments.delta": _arguments_delta,
    "response.function_call_arguments.done": _arguments_done,
    "response.custom_tool_call_input.delta": _arguments_delta,
    "response.custom_tool_call_input.done": _arguments_done,
    "response.mcp_call_arguments.delta": _arguments_delta,
    "response.mcp_call_arguments.done": _arguments_done,
    "response.code_interpreter_call_code.delta": _arguments_delta,
    "response.code_interpreter_call_code.done": _arguments_done,
}
"""event -> what it does to its item; events that are not here say nothing about the output"""
