"""Which item of a native upstream is an event about?

Each event finds its item by the upstream's id, else by its `output_index`, else it is about the
latest open item of its type: some servers leave out the id or the index, and some change an item's
id from event to event.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.wire.events import Item
from worker.translation.items.open_item import OpenItem
from worker.translation.responses.parts import NativeItem, RawObject
from worker.translation.responses.upstream_tools import UPSTREAM_TOOL_CALLS
from worker.translation.upstream_events import UpstreamEvent

_ITEM_TYPES = {
    "output_text": "message",
    "output_text.annotation": "message",
    "refusal": "message",
    "reasoning_text": "reasoning",
    "reasoning_summary_text": "reasoning",
    "reasoning_summary_part": "reasoning",
    "function_call_arguments": "function_call",
    "custom_tool_call_input": "custom_tool_call",
    "code_interpreter_call_code": "code_interpreter_call",
    **{kind: kind for kind in UPSTREAM_TOOL_CALLS},
}
"""An event's subject -> the type of its item. For `content_part` the part decides."""


@dataclass(slots=True, eq=False)
class TrackedItem:
    """An item of the upstream, and ours for it."""

    kind: str
    """Its type."""
    id: str = ""
    """The upstream's id."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The item as the upstream sent it so far."""
    item: OpenItem | None = None
    """Ours, once enough is known to open it."""
    buffer: list[str] = field(default_factory=list)
    """Arguments that came before the function's name."""
    counted_bytes: int = 0
    """Bytes of it that count against the turn's limit."""
    is_done: bool = False
    """The upstream has closed it."""
    is_ignored: bool = False
    """It is a call beyond `max_tool_calls`, and becomes no item of ours."""
    earlier_text: str = ""
    """Its text in earlier items of ours, which later items have closed before the upstream did."""

    @property
    def text(self) -> str:
        """Its text in all our items for it, as the upstream has sent it."""
        if not isinstance(self.item, NativeItem):
            return self.earlier_text
        return self.earlier_text + self.item.received_text()


class TrackedItems:
    """The upstream's items of one turn, in the order of their first events."""

    def __init__(self) -> None:
        self._all: list[TrackedItem] = []
        self._by_id: dict[str, TrackedItem] = {}
        self._by_index: dict[int, TrackedItem] = {}
        self._latest: dict[str, TrackedItem] = {}
        """By type."""

    def __iter__(self) -> Iterator[TrackedItem]:
        return iter(self._all)

    @property
    def are_done(self) -> bool:
        """Whether there are items and the upstream has closed all of them."""
        return bool(self._all) and all(tracked.is_done for tracked in self._all)

    def resolve(self, event: UpstreamEvent) -> TrackedItem | None:
        """The item that an event is about, added if it is new; None if the event has nothing for
        the output."""
        kind = self._item_type(event)
        if kind is None:
            return None
        tracked = self._find(kind, event)
        if tracked is not None:
            return None if tracked.is_done and event.subject != "output_item" else tracked
        tracked = self._latest[kind] = TrackedItem(kind, event.item_id)
        self._all.append(tracked)
        if event.item_id:
            self._by_id[event.item_id] = tracked
        if event.output_index is not None:
            self._by_index[event.output_index] = tracked
        return tracked

    def match(self, output: Sequence[Item]) -> Iterator[tuple[TrackedItem, RawObject]]:
        """The items of the terminal event's list, each with its tracked item: matched by id, else
        in order by type.

        Items that had no events are added. Items without a type are left out.
        """
        by_id = {
            raw["id"]: self._by_id[raw["id"]] for raw in output if raw.get("id") in self._by_id
        }
        matched = set(by_id.values())
        waiting: dict[str, deque[TrackedItem]] = {}
        for tracked in self._all:
            if tracked not in matched:
                waiting.setdefault(tracked.kind, deque()).append(tracked)
        for raw in output:
            same_type = waiting.get(raw.get("type", ""))
            if (by_own_id := by_id.get(raw.get("id", ""))) is not None:
                yield by_own_id, raw
            elif same_type:
                yield same_type.popleft(), raw
            elif "type" in raw:
                unseen = TrackedItem(raw["type"], raw=dict(raw))
                self._all.append(unseen)
                yield unseen, raw

    def _item_type(self, event: UpstreamEvent) -> str | None:
        if event.subject == "output_item":
            kind = event.item.get("type") if event.item is not None else self._tracked_type(event)
            return kind if isinstance(kind, str) else None
        if event.subject == "content_part":
            return "reasoning" if (event.part or {}).get("type") == "reasoning_text" else "message"
        return _ITEM_TYPES.get(event.subject)

    def _tracked_type(self, event: UpstreamEvent) -> str | None:
        """The type of the item of a `done` event that has no item."""
        tracked = self._by_id.get(event.item_id) or (
            self._by_index.get(event.output_index) if event.output_index is not None else None
        )
        return tracked.kind if tracked is not None and event.step == "done" else None

    def _find(self, kind: str, event: UpstreamEvent) -> TrackedItem | None:
        by_id = self._by_id.get(event.item_id) if event.item_id else None
        if by_id is not None and by_id.kind == kind:
            return by_id
        if event.output_index is not None:
            by_index = self._by_index.get(event.output_index)
            fits = by_index is not None and by_index.kind == kind
            # A second item may come at the same index: some servers send the same one for all
            # items.
            return (
                by_index
                if fits and by_index is not None and not _is_new_item(by_index, event)
                else None
            )
        if event.subject == "output_item" and event.step == "added":
            return None
        latest = self._latest.get(kind)
        return None if latest is None or latest.is_done else latest


def _is_new_item(tracked: TrackedItem, event: UpstreamEvent) -> bool:
    """Whether an event with another id at an index in use is about another item: its `added`, or
    its `done` after one."""
    if event.subject != "output_item" or not event.item_id or event.item_id == tracked.id:
        return False
    return tracked.is_done or (event.step == "added" and bool(tracked.raw))
