"""The output of a response after a list of events (I7), and what a recovery must close.

Pure, over decoded events (`decode_frame`). The web process uses it to show a running response; a
worker uses it to close what a dead attempt left unfinished.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from models.wire.events import Event, Item, ItemDone, PartDone, SummaryPartDone
from models.wire.item_types import ARGUMENT_FIELDS, TEXT_FIELDS
from models.wire.progress import text_size

Json = dict[str, Any]


@dataclass(slots=True)
class UnfinishedPart:
    """A part of an item's content, or of a reasoning summary, that was added.

    Its deltas are joined only in `to_json`: adding each to the text would copy the text each time.
    """

    index: int
    shape: Json
    deltas: list[str] = field(default_factory=list)
    done: bool = False

    def append_delta(self, event: Json) -> None:
        self.deltas.append(event["delta"])
        if event.get("logprobs"):
            self.shape.setdefault("logprobs", []).extend(event["logprobs"])

    def set_final(self, shape: Json) -> None:
        """The part as a done event repeats it. It replaces the deltas."""
        self.shape, self.deltas = shape, []

    def to_json(self) -> Json:
        """The part with its text so far."""
        text_field = TEXT_FIELDS.get(self.shape.get("type", ""))
        if text_field is None:
            return self.shape
        self.deltas = ["".join(self.deltas)]
        return {**self.shape, text_field: self.shape.get(text_field, "") + self.deltas[0]}


@dataclass(slots=True)
class UnfinishedItem:
    """An item that was added and is not done."""

    output_index: int
    shape: Item
    parts: dict[int, UnfinishedPart] = field(default_factory=dict)
    summary: dict[int, UnfinishedPart] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def to_json(self, status: str = "in_progress") -> Item:
        """The item with its text and arguments so far."""
        item = {**self.shape, "status": status}
        if self.parts:
            item["content"] = [self.parts[index].to_json() for index in sorted(self.parts)]
        if self.summary:
            item["summary"] = [self.summary[index].to_json() for index in sorted(self.summary)]
        if self.arguments:
            self.arguments = ["".join(self.arguments)]
            item[ARGUMENT_FIELDS[item["type"]]] = self.arguments[0]
        return item


@dataclass(slots=True)
class UnfinishedOutput:
    """What an attempt did not finish, in output order, and the highest output_index it used (-1 if
    it used none)."""

    items: list[UnfinishedItem]
    highest_index: int


def fold(events: Iterable[Json]) -> list[Item]:
    """The items after these events of one attempt, in output order.

    An unfinished item has the text so far, and the status `in_progress`. Events about items that
    were not added among these events close items of an earlier attempt, and are ignored.
    """
    return _to_json(_collect(events))


class AttemptsFold:
    """The items after the events of several attempts, one event after the other: those of the last
    attempt that added an item.

    The output of an attempt is valid until a later attempt adds its first item. Until then it is
    the output of a response that is cancelled, whether its items are done or not.
    """

    def __init__(self) -> None:
        self._items: _Items = {}
        self._attempt = 0
        """The last attempt that added an item."""
        self.text_size = 0
        """Bytes of UTF-8 of all deltas."""

    def add(self, attempt: int, event: Json) -> None:
        """Adds the next event, which belongs to the attempt of the last one or to a later one."""
        if attempt > self._attempt and event["type"] == "response.output_item.added":
            self._items.clear()
            self._attempt = attempt
            self.text_size = 0
        if type(delta := event.get("delta")) is str:
            self.text_size += text_size(delta)
        _apply_event(self._items, event)

    def items(self) -> list[Item]:
        """The items in output order. The caller must not change them: the next call may return the
        same objects."""
        return _to_json(self._items)


def fold_latest_attempt(events: Iterable[tuple[int, Json]]) -> list[Item]:
    """The items after these `(attempt, event)`, in the order of the attempts (AttemptsFold)."""
    attempts = AttemptsFold()
    for attempt, event in events:
        attempts.add(attempt, event)
    return attempts.items()


def find_unfinished(events: Iterable[Json]) -> UnfinishedOutput:
    """What a recovery must close after these events of a dead attempt."""
    all_events = list(events)
    items = _collect(all_events)
    unfinished = [item for _, item in sorted(items.items()) if isinstance(item, UnfinishedItem)]
    highest = max((event.get("output_index", -1) for event in all_events), default=-1)
    return UnfinishedOutput(unfinished, highest)


def closing_events(unfinished: UnfinishedOutput) -> list[Event]:
    """The done events that close these items as `incomplete`, and their parts.

    No done event is sent twice. A text or arguments that were cut have none: clients parse what is
    done (docs/wire.md).
    """
    events: list[Event] = []
    for item in unfinished.items:
        events += [
            SummaryPartDone(item.shape["id"], item.output_index, part.index, part.to_json())
            for _, part in sorted(item.summary.items())
            if not part.done
        ]
        events += [
            PartDone(item.shape["id"], item.output_index, part.index, part.to_json())
            for _, part in sorted(item.parts.items())
            if not part.done
        ]
        events.append(ItemDone(item.output_index, item.to_json("incomplete")))
    return events


_Items = dict[int, UnfinishedItem | Item]
"""output_index -> the item: as its `output_item.done` has it, or unfinished"""


def _collect(events: Iterable[Json]) -> _Items:
    items: _Items = {}
    for event in events:
        _apply_event(items, event)
    return items


def _apply_event(items: _Items, event: Json) -> None:
    kind = event["type"]
    if kind == "response.output_item.added":
        items[event["output_index"]] = UnfinishedItem(event["output_index"], event["item"])
    elif kind == "response.output_item.done" and event["output_index"] in items:
        items[event["output_index"]] = event["item"]
    elif (rule := _RULES.get(kind)) is not None:
        _apply(rule, items.get(event["output_index"]), event)


def _to_json(items: _Items) -> list[Item]:
    """The items in output order."""
    return [
        item.to_json() if isinstance(item, UnfinishedItem) else item
        for _, item in sorted(items.items())
    ]


Rule = Callable[[UnfinishedItem, Json], None]


def _apply(rule: Rule, item: UnfinishedItem | Item | None, event: Json) -> None:
    """Changes the item, if it was added and is not done."""
    if isinstance(item, UnfinishedItem):
        rule(item, event)


def _part_added(item: UnfinishedItem, event: Json) -> None:
    parts, index = _place(item, event)
    parts[index] = UnfinishedPart(
        index, {key: _copy_list(value) for key, value in event["part"].items()}
    )


def _place(item: UnfinishedItem, event: Json) -> tuple[dict[int, UnfinishedPart], int]:
    """The parts that the event belongs to (content or summary), and the index in them."""
    if "content_index" in event:
        return item.parts, event["content_index"]
    return item.summary, event["summary_index"]


def _part(item: UnfinishedItem, event: Json) -> UnfinishedPart:
    parts, index = _place(item, event)
    return parts[index]


def _copy_list(value: Any) -> Any:
    """A copy of a list that grows here, because the events belong to the caller."""
    return list(value) if isinstance(value, list) else value


def _part_delta(item: UnfinishedItem, event: Json) -> None:
    _part(item, event).append_delta(event)


def _text_done(item: UnfinishedItem, event: Json) -> None:
    part = _part(item, event)
    final: Json = {
        key: _copy_list(event[key]) for key in ("text", "refusal", "logprobs") if key in event
    }
    part.set_final({**part.shape, **final})


def _part_done(item: UnfinishedItem, event: Json) -> None:
    part = _part(item, event)
    part.set_final(event["part"])
    part.done = True


def _annotation_added(item: UnfinishedItem, event: Json) -> None:
    annotations = item.parts[event["content_index"]].shape.setdefault("annotations", [])
    annotations.append(event["annotation"])


def _arguments_delta(item: UnfinishedItem, event: Json) -> None:
    item.arguments.append(event["delta"])


def _arguments_done(item: UnfinishedItem, event: Json) -> None:
    item.arguments = [event[ARGUMENT_FIELDS[item.shape["type"]]]]


_RULES: dict[str, Rule] = {
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
"""event -> its effect on the item. Events that are not here do not change the output."""
