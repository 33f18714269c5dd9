"""A native upstream's events of one turn in, ours out (contract §4.3; docs/adr/0015). Pure.

The upstream speaks the Responses API itself, with ids, numbers and snapshots of its own, none of which reach our client: its items become
ours, under our ids, at our places, and only they are told; `response.created`, `.queued` and `.in_progress` say nothing new. An event finds
its item by the upstream's id, else by its `output_index`, else it is about the item of its kind that was open last: servers leave out the
one or the other, and some change an item's id from event to event.

Holes are filled: an item, or a part, whose `added` is missing begins with the first event that can only be about it; what an item's `done` or
the terminal event know beyond the deltas is said then; what was never closed closes with the turn. Words that were shown stay, also where
a later event contradicts them. Events of types that are not known here say nothing: what they tell stands in their item at its end. A
call of a function that this server runs becomes an item of ours that is open until it is answered.

The end of a turn is its terminal event. Without one, `[DONE]` will do if the upstream had closed all it had said; a stream that just stops
was cut off.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.errors import UpstreamFailed
from models.wire.events import Event
from models.wire.item_types import CALLS, OUTPUTS
from models.wire.tools import CallTarget
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.items.text_items import OpenItem
from worker.translation.responses.items import (
    CLIENT_CALLS,
    PREFIXES,
    UPSTREAM_TOOL_CALLS,
    NativeItem,
    NativeMessage,
    NativeOpaqueItem,
    NativeReasoning,
    arguments_text,
    missing_suffix,
)
from worker.translation.tool_catalog import ToolCatalog
from worker.translation.turn import ITEM_WEIGHT, Outcome, Turn
from worker.translation.upstream_events import TerminalState, UpstreamEvent

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
"""What an event is about -> the type of its item; of a `content_part` the part tells."""


@dataclass(slots=True, eq=False)
class _TrackedItem:
    """An item as the upstream tells it."""

    kind: str
    id: str = ""
    raw: dict[str, Any] = field(default_factory=dict)
    item: OpenItem | None = None
    """Ours, once enough is known to open it."""
    buffer: list[str] = field(default_factory=list)
    """Arguments that came before the function's name."""
    counted_bytes: int = 0
    """Bytes of it that were counted against the limit."""
    is_done: bool = False
    """The upstream has closed it."""


class NativeTranslator(Turn[UpstreamEvent]):
    """One turn of a native upstream. `keep`: what of its `encrypted_content` is stored."""

    def __init__(
        self,
        new_id: Callable[[str], str],
        *,
        first_index: int = 0,
        tool_catalog: ToolCatalog = ToolCatalog(),  # noqa: B008 - it is frozen
        calls_allowed: int = 128,
        output_limit: int = 64 << 20,
        tag_encrypted: Callable[[str], str] = str,
    ) -> None:
        super().__init__(
            new_id,
            first_index=first_index,
            tool_catalog=tool_catalog,
            calls_allowed=calls_allowed,
            output_limit=output_limit,
        )
        self._tag_encrypted = tag_encrypted
        self._tracked: list[_TrackedItem] = []
        self._by_id: dict[str, _TrackedItem] = {}
        self._by_index: dict[int, _TrackedItem] = {}
        self._latest: dict[str, _TrackedItem] = {}
        """Of each kind."""
        self._our_call_ids: dict[str, str] = {}
        self._terminal: TerminalState | None = None
        self._skips_choice_check = not tool_catalog.callable_names and tool_catalog.choice != "none"
        """`tool_choice` demands a tool of the upstream's own: whether anything else may be called is the upstream's to say."""

    def feed(self, event: UpstreamEvent) -> list[Event]:
        """What this event makes happen. After the terminal event nothing counts any more."""
        if self._violation is not None:
            raise self._violation
        if self._terminal is not None:
            return []
        self._record_metadata(event)
        if event.terminal is not None:
            self._count_bytes(
                max(0, event.size - sum(spoken.counted_bytes for spoken in self._tracked))
            )
            self._terminal = event.terminal
            return []
        spoken = self._resolve_item(event)
        if spoken is None:
            return []
        self._count_event(spoken, event)
        if event.subject == "output_item":
            return (
                self._start_item(spoken, event)
                if event.step == "added"
                else self._finish_item(spoken, event.item or {})
            )
        return self._feed_item(spoken, event)

    def finish(self, *, done_seen: bool) -> list[Event]:
        """As every turn's."""
        events = self._merge_terminal_output(self._terminal) if self._terminal is not None else []
        return [*events, *self._end_turn(self._decide_outcome(done_seen=done_seen))]

    # --- which item ---

    def _resolve_item(self, event: UpstreamEvent) -> _TrackedItem | None:
        """The item that an event is about, made if there is none yet; None when it says nothing we could show."""
        kind = self._item_type(event)
        if kind is None:
            return None
        found = self._find_item(kind, event)
        if found is not None:
            return None if found.is_done and event.subject != "output_item" else found
        spoken = self._latest[kind] = _TrackedItem(kind, event.item_id)
        self._tracked.append(spoken)
        if event.item_id:
            self._by_id[event.item_id] = spoken
        if event.output_index is not None:
            self._by_index[event.output_index] = spoken
        return spoken

    def _item_type(self, event: UpstreamEvent) -> str | None:
        if event.subject == "output_item":
            kind = (
                event.item.get("type") if event.item is not None else self._tracked_item_type(event)
            )
            return kind if isinstance(kind, str) else None
        if event.subject == "content_part":
            return "reasoning" if (event.part or {}).get("type") == "reasoning_text" else "message"
        return _ITEM_TYPES.get(event.subject)

    def _tracked_item_type(self, event: UpstreamEvent) -> str | None:
        """Of a `done` that forgot its item."""
        spoken = self._by_id.get(event.item_id) or (
            self._by_index.get(event.output_index) if event.output_index is not None else None
        )
        return spoken.kind if spoken is not None and event.step == "done" else None

    def _find_item(self, kind: str, event: UpstreamEvent) -> _TrackedItem | None:
        by_id = self._by_id.get(event.item_id) if event.item_id else None
        if by_id is not None and by_id.kind == kind:
            return by_id
        if event.output_index is not None:
            by_index = self._by_index.get(event.output_index)
            fits = by_index is not None and by_index.kind == kind
            # A second item may be told at the same index: some servers count none.
            return (
                by_index
                if fits and by_index is not None and not self._is_new_item(by_index, event)
                else None
            )
        if event.subject == "output_item" and event.step == "added":
            return None
        latest = self._latest.get(kind)
        return None if latest is None or latest.is_done else latest

    def _is_new_item(self, tracked: _TrackedItem, event: UpstreamEvent) -> bool:
        """Whether an item with another id at an index that is taken is another item: its `added`, or its `done` after one."""
        if event.subject != "output_item" or not event.item_id or event.item_id == tracked.id:
            return False
        return tracked.is_done or (event.step == "added" and bool(tracked.raw))

    # --- what is said ---

    def _record_metadata(self, event: UpstreamEvent) -> None:
        if event.usage is not None:
            self._usage = event.usage
        if event.model is not None:
            self.model = event.model
        if event.service_tier is not None:
            self.service_tier = event.service_tier

    def _count_event(self, tracked: _TrackedItem, event: UpstreamEvent) -> None:
        """Counts what is new: whatever repeats the deltas is as long as they were."""
        is_new = not tracked.counted_bytes
        weight = (
            len(event.delta.encode()) if event.delta else max(0, event.size - tracked.counted_bytes)
        )
        self._count_bytes(weight + ITEM_WEIGHT * is_new)
        tracked.counted_bytes += weight + is_new

    def _start_item(self, tracked: _TrackedItem, event: UpstreamEvent) -> list[Event]:
        """A second `added` of an item is passed over, unless the first events about it came before the first."""
        tracked.raw = tracked.raw or dict(event.item or {})
        if tracked.item is not None or tracked.kind not in _STREAMED_TYPES:
            return []
        return self._open(tracked)

    def _finish_item(
        self, tracked: _TrackedItem, raw: Mapping[str, Any], *, default_status: str = "completed"
    ) -> list[Event]:
        """The item is whole: what was not heard of it is said, and it closes. A call that this server runs stays open. `unsaid`: its status
        where the upstream tells none that is final."""
        if tracked.is_done:
            return []
        tracked.is_done = True
        events = []
        if tracked.item is None:
            tracked.raw = {**tracked.raw, **raw}
            events = self._open(tracked)
        item = tracked.item
        if isinstance(item, OpenServerCall):
            rest = missing_suffix(item.arguments, arguments_text(raw.get("arguments")))
            return [*events, *item.push(rest)] if rest else events
        if not isinstance(item, NativeItem):
            tracked.is_done = False  # a call that still lacks its name
            return events
        return [*events, *item.finish(raw), *item.close(_final_status(item, raw, default_status))]

    def _feed_item(self, tracked: _TrackedItem, event: UpstreamEvent) -> list[Event]:
        if tracked.item is None and tracked.kind in CLIENT_CALLS:
            return self._buffer_arguments(tracked, event)
        if tracked.item is None and tracked.kind not in _STREAMED_TYPES:
            return []
        events = self._open(tracked) if tracked.item is None else []
        item = tracked.item
        if isinstance(item, OpenServerCall):
            said = (
                event.delta
                if event.step == "delta"
                else missing_suffix(item.arguments, event.full_text)
            )
            return [*events, *item.push(said)] if said else events
        return [*events, *item.feed(event)] if isinstance(item, NativeItem) else events

    def _buffer_arguments(self, tracked: _TrackedItem, event: UpstreamEvent) -> list[Event]:
        """Arguments of a call of which name or `call_id` are not known yet: its `added` is missing, its end will tell."""
        if event.name:
            tracked.raw.setdefault("name", event.name)
        if event.full_text is not None:
            tracked.buffer = [event.full_text]
        elif event.delta:
            tracked.buffer.append(event.delta)
        return []

    # --- items of ours ---

    def _open(self, tracked: _TrackedItem) -> list[Event]:
        """Opens our item for the upstream's, and says what was held back for it; nothing while a call lacks its name."""
        if tracked.kind in CLIENT_CALLS:
            return self._open_call(tracked) if tracked.raw.get("name") else []
        return self._add_item(tracked, self._new_item(tracked))

    def _new_item(self, tracked: _TrackedItem) -> NativeItem:
        index, shape = self._next_index(), tracked.raw
        if tracked.kind == "message":
            return NativeMessage(index, self._new_id("msg"), shape, self._tool_catalog.sources)
        if tracked.kind == "reasoning":
            return NativeReasoning(index, self._new_id("rs"), self._tag_encrypted)
        if tracked.kind in UPSTREAM_TOOL_CALLS:
            hosted = UPSTREAM_TOOL_CALLS[tracked.kind]
            return hosted(index, self._new_id(hosted.prefix), shape)
        shape = {**shape, "type": tracked.kind, **self._call_id_field(tracked)}
        return NativeOpaqueItem(index, self._new_id(PREFIXES.get(tracked.kind, "item")), shape)

    def _open_call(self, tracked: _TrackedItem) -> list[Event]:
        """A call of a function or custom tool: one of the client's, or one that this server runs."""
        shape, held = tracked.raw, "".join(tracked.buffer)
        name, namespace = str(shape["name"]), shape.get("namespace")
        function = (
            self._tool_catalog.server_functions.get(name)
            if tracked.kind == "function_call" and namespace is None
            else None
        )
        target = CallTarget(tracked.kind, name, namespace)
        if not self._skips_choice_check and not self._may_call(
            name if function is not None else self._tool_catalog.name_of(target)
        ):
            return []
        if function is not None:
            call = function.open_call(self._next_index(), self._new_id)
            return [*self._add_item(tracked, call), *(call.push(held) if held else ())]
        kind = CLIENT_CALLS[tracked.kind]
        own = kind(
            self._next_index(),
            self._new_id(kind.prefix),
            self._call_id_field(tracked)["call_id"],
            target,
            shape,
        )
        if tracked.kind == "function_call" and target not in self._tool_catalog.names:
            self._unknown_calls.append(own)
        return [*self._add_item(tracked, own), *(own.push(held) if held else ())]

    def _call_id_field(self, tracked: _TrackedItem) -> dict[str, str]:
        """The call's id: the upstream's own where it can serve. An output names its call by the same."""
        given = tracked.raw.get("call_id")
        named = given if isinstance(given, str) else ""
        if tracked.kind in OUTPUTS:
            return {"call_id": self._our_call_ids.get(named, named)} if named else {}
        if tracked.kind not in CALLS or (
            not named and tracked.kind == "tool_search_call"
        ):  # the upstream ran the search itself
            return {}
        ours = self._call_id(named)
        self._our_call_ids[named] = ours
        return {"call_id": ours}

    def _add_item(self, tracked: _TrackedItem, item: OpenItem) -> list[Event]:
        tracked.item = item
        self._items.append(item)
        return item.open_events()

    # --- the end ---

    def _merge_terminal_output(self, terminal: TerminalState) -> list[Event]:
        """What the terminal event's own list of items adds to what was said: items by their ids, else in order by their kinds."""
        named = {
            shape["id"]: self._by_id[shape["id"]]
            for shape in terminal.output
            if shape.get("id") in self._by_id
        }
        taken = set(named.values())
        unnamed: dict[str, deque[_TrackedItem]] = {}
        for spoken in self._tracked:
            if spoken not in taken:
                unnamed.setdefault(spoken.kind, deque()).append(spoken)
        events: list[Event] = []
        for shape in terminal.output:
            waiting = unnamed.get(shape.get("type", ""))
            found = named.get(shape.get("id", "")) or (
                waiting.popleft() if waiting else self._track_unseen(shape)
            )
            if found is not None and (terminal.status != "failed" or found.item is not None):
                events += self._finish_item(
                    found,
                    shape,
                    default_status="completed" if terminal.status == "completed" else "incomplete",
                )
        if terminal.status == "completed":  # whole as far as we can know, though nobody closed them
            for spoken in self._tracked:
                events += (
                    self._finish_item(spoken, {}) if spoken.item is None and spoken.raw else []
                )
        return events

    def _track_unseen(self, raw: Mapping[str, Any]) -> _TrackedItem | None:
        """An item that only the terminal event tells of."""
        if "type" not in raw:
            return None
        spoken = _TrackedItem(raw["type"], raw=dict(raw))
        self._tracked.append(spoken)
        return spoken

    def _decide_outcome(self, *, done_seen: bool) -> Outcome:
        if self._violation is not None:
            return Outcome("failed", failure=self._violation)
        ended = self._terminal
        if ended is None:
            if not (
                done_seen and self._tracked and all(spoken.is_done for spoken in self._tracked)
            ):
                return _failed_outcome(
                    "The upstream ended its stream before the model had finished.",
                    "upstream_ended_early",
                )
            ended = TerminalState("completed")
        if ended.status == "failed":
            return Outcome("failed", failure=ended.failure)
        if ended.status == "incomplete":
            return Outcome("incomplete", incomplete_reason=ended.incomplete_reason)
        if any(spoken.item is None and spoken.kind in CLIENT_CALLS for spoken in self._tracked):
            return _failed_outcome(
                "The upstream sent a function call without a name.", "upstream_garbage"
            )
        if any(item.status == "incomplete" for item in self._items):
            return Outcome("incomplete", incomplete_reason=ended.incomplete_reason)
        return Outcome("completed")


_STREAMED_TYPES = frozenset(("message", "reasoning", *CLIENT_CALLS, *UPSTREAM_TOOL_CALLS))
"""Types of items that are opened when they begin; all others are held back until they are whole."""


def _final_status(item: OpenItem, raw: Mapping[str, Any], default_status: str) -> str:
    """The status with which an item closes. Only calls of tools that the upstream runs can fail."""
    given = raw.get("status")
    if given in ("completed", "incomplete"):
        return str(given)
    can_fail = (
        not isinstance(item, NativeMessage | NativeReasoning) and raw.get("type") not in CALLS
    )
    return "failed" if given == "failed" and can_fail else default_status


def _failed_outcome(message: str, reason: str) -> Outcome:
    return Outcome("failed", failure=UpstreamFailed(message, reason=reason))
