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

_SPOKEN = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""type of a part -> the key that its deltas add to"""

_ASKED = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
    "code_interpreter_call": "code",
}
"""type of a call -> the key that its deltas add to"""


@dataclass(slots=True)
class OpenPart:
    """A part of an item's content, or of a reasoning's summary, that was added. Its deltas are kept apart until somebody asks: adding each to the text would copy it every time."""

    index: int
    shape: Json
    heard: list[str] = field(default_factory=list)
    text_done: bool = False
    done: bool = False

    def hear(self, event: Json) -> None:
        self.heard.append(event["delta"])
        if event.get("logprobs"):
            self.shape.setdefault("logprobs", []).extend(event["logprobs"])

    def settle(self, shape: Json) -> None:
        """The part as a done event repeats it: from now on that counts, not the deltas."""
        self.shape, self.heard = shape, []

    def to_json(self) -> Json:
        """The part with what was said so far."""
        key = _SPOKEN.get(self.shape.get("type", ""))
        return (
            {**self.shape, key: self.shape.get(key, "") + "".join(self.heard)}
            if key
            else self.shape
        )


@dataclass(slots=True)
class OpenItem:
    """An item that was added and not yet done."""

    output_index: int
    shape: Item
    parts: dict[int, OpenPart] = field(default_factory=dict)
    summary: dict[int, OpenPart] = field(default_factory=dict)
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
            item[_ASKED[item["type"]]] = "".join(self.arguments)
        return item


@dataclass(slots=True)
class OpenItems:
    """What an attempt left open, in output order, and the highest output_index it used (-1 when it used none)."""

    items: list[OpenItem]
    highest_index: int


def fold(events: Iterable[Json]) -> list[Item]:
    """The items after these events of one attempt, in output order; an open one with what was said so far, `in_progress`.

    Events about items that were not added among these events close what an earlier attempt left open, and are ignored.
    """
    items = _collect(events)
    return [
        item.to_json() if isinstance(item, OpenItem) else item for _, item in sorted(items.items())
    ]


def standing(told: Iterable[tuple[int, Json]]) -> list[Item]:
    """The items after these events of several attempts, `(attempt, event)` in order: those of the last attempt that began one.

    A new attempt gives up what the one before it said when it begins an item of its own; until then that stands, closed or not, and is
    the output of a response which is cancelled meanwhile.
    """
    seen = list(told)
    speaking = max(
        (attempt for attempt, event in seen if event["type"] == "response.output_item.added"),
        default=0,
    )
    return fold(event for attempt, event in seen if attempt >= speaking)


def open_items(events: Iterable[Json]) -> OpenItems:
    """What is left to close after these events of a dead attempt (design §4.6)."""
    seen = list(events)
    items = _collect(seen)
    left = [item for _, item in sorted(items.items()) if isinstance(item, OpenItem)]
    return OpenItems(left, max((event.get("output_index", -1) for event in seen), default=-1))


def closing_events(left: OpenItems) -> list[Event]:
    """The `…done` events that close these items as `incomplete`; what is done already is not said twice."""
    events: list[Event] = []
    for item in left.items:
        for index in sorted(item.summary):
            events += _summary_closing(item, item.summary[index])
        for index in sorted(item.parts):
            events += _part_closing(item, item.parts[index])
        told = item.to_json("incomplete")
        if not item.arguments_done:
            events += _arguments_closing(item.output_index, told)
        events.append(ItemDone(item.output_index, told))
    return events


def _arguments_closing(index: int, told: Item) -> list[Event]:
    match told.get("type"):
        case "function_call":
            return [ArgumentsDone(told["id"], index, told["name"], told["arguments"])]
        case "custom_tool_call":
            return [CustomInputDone(told["id"], index, told["input"])]
        case "mcp_call":
            return [McpArgumentsDone(told["id"], index, told["arguments"])]
        case "code_interpreter_call":
            return [CodeDone(told["id"], index, told["code"])]
        case _:
            return []


def _summary_closing(item: OpenItem, part: OpenPart) -> list[Event]:
    shape, place = part.to_json(), (item.shape["id"], item.output_index, part.index)
    events: list[Event] = [] if part.text_done else [SummaryDone(*place, shape["text"])]
    return events if part.done else [*events, SummaryPartDone(*place, shape)]


def _part_closing(item: OpenItem, part: OpenPart) -> list[Event]:
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


def _collect(events: Iterable[Json]) -> dict[int, OpenItem | Item]:
    """output_index -> the item: as its `output_item.done` says it, or open."""
    items: dict[int, OpenItem | Item] = {}
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            items[event["output_index"]] = OpenItem(event["output_index"], event["item"])
        elif (rule := _RULES.get(kind)) is not None:
            item = items.get(event["output_index"])
            if isinstance(item, OpenItem):
                rule(item, event)
        elif kind == "response.output_item.done" and event["output_index"] in items:
            items[event["output_index"]] = event["item"]
    return items


def _part_added(item: OpenItem, event: Json) -> None:
    parts, index = _place(item, event)
    parts[index] = OpenPart(index, {key: _own(value) for key, value in event["part"].items()})


def _place(item: OpenItem, event: Json) -> tuple[dict[int, OpenPart], int]:
    """The parts that the event is about one of: the content's, or the summary's."""
    return (
        (item.parts, event["content_index"])
        if "content_index" in event
        else (item.summary, event["summary_index"])
    )


def _part(item: OpenItem, event: Json) -> OpenPart:
    parts, index = _place(item, event)
    return parts[index]


def _own(value: Any) -> Any:
    """Lists that grow here are copies: the events belong to the caller."""
    return list(value) if isinstance(value, list) else value


def _part_heard(item: OpenItem, event: Json) -> None:
    _part(item, event).hear(event)


def _text_done(item: OpenItem, event: Json) -> None:
    part = _part(item, event)
    part.settle(
        {
            **part.shape,
            **{key: _own(event[key]) for key in ("text", "refusal", "logprobs") if key in event},
        }
    )
    part.text_done = True


def _part_done(item: OpenItem, event: Json) -> None:
    part = _part(item, event)
    part.settle(event["part"])
    part.text_done = part.done = True


def _annotated(item: OpenItem, event: Json) -> None:
    item.parts[event["content_index"]].shape.setdefault("annotations", []).append(
        event["annotation"]
    )


def _arguments_heard(item: OpenItem, event: Json) -> None:
    item.arguments.append(event["delta"])


def _arguments_done(item: OpenItem, event: Json) -> None:
    item.arguments = [event[_ASKED[item.shape["type"]]]]
    item.arguments_done = True


_RULES: dict[str, Callable[[OpenItem, Json], None]] = {
    "response.content_part.added": _part_added,
    "response.content_part.done": _part_done,
    "response.output_text.delta": _part_heard,
    "response.output_text.done": _text_done,
    "response.output_text.annotation.added": _annotated,
    "response.refusal.delta": _part_heard,
    "response.refusal.done": _text_done,
    "response.reasoning_text.delta": _part_heard,
    "response.reasoning_text.done": _text_done,
    "response.reasoning_summary_part.added": _part_added,
    "response.reasoning_summary_part.done": _part_done,
    "response.reasoning_summary_text.delta": _part_heard,
    "response.reasoning_summary_text.done": _text_done,
    "response.function_call_arguments.delta": _arguments_heard,
    "response.function_call_arguments.done": _arguments_done,
    "response.custom_tool_call_input.delta": _arguments_heard,
    "response.custom_tool_call_input.done": _arguments_done,
    "response.mcp_call_arguments.delta": _arguments_heard,
    "response.mcp_call_arguments.done": _arguments_done,
    "response.code_interpreter_call_code.delta": _arguments_heard,
    "response.code_interpreter_call_code.done": _arguments_done,
}
"""event -> what it does to its item; events that are not here say nothing about the output"""
