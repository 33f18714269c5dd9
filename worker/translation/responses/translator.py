"""A native upstream's events of one turn in, ours out (docs/adr/0015).

The upstream's API is the Responses API itself, with its own ids, numbers and snapshots. None of
them reach our client: its items become ours, with our ids and positions, and only items are shown;
`response.created`, `.queued` and `.in_progress` have no content for the output.
worker/translation/responses/tracked_items.py finds the item of each event.

At most one item is open in our stream (worker/translation/item_sequence.py). An item holds back
later ones until the upstream closes it. Because some servers close their items only at the end of
the turn, a later item closes a call of the client whose arguments are complete, and an item of
another kind closes a message or reasoning: text that comes for it after that is a new item.

Gaps are filled: an item, or a part, without an `added` event opens with the first event that can
only be about it. Content that an item's `done` or the terminal event has beyond the deltas is sent
then. What the upstream never closed is closed with the turn. Content that was sent stays, also if a
later event contradicts it. Events of unknown types are dropped: their content is in their item at
its end. A call of a function that this server runs becomes a server call, which stays open until it
has a result.

The terminal event ends the turn. Without one, `[DONE]` is enough if the upstream has closed all its
items. A stream that only stops was cut off.
"""

from collections.abc import Callable

from models.wire.events import Event
from models.wire.item_types import CALLS, OUTPUTS
from models.wire.tools import CallTarget
from worker.translation.items.client_calls import OpenClientCall, is_json_object
from worker.translation.items.open_item import OpenItem, OpenToolCall
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.responses.items import (
    CLIENT_CALLS,
    NativeMessage,
    NativeOpaqueItem,
    NativeReasoning,
    arguments_text,
    opaque_prefix,
)
from worker.translation.responses.parts import NativeItem, RawObject, missing_suffix, text_of
from worker.translation.responses.tracked_items import TrackedItem, TrackedItems
from worker.translation.responses.upstream_tools import UPSTREAM_TOOL_CALLS
from worker.translation.turn import (
    ITEM_WEIGHT,
    Turn,
    TurnOptions,
    TurnOutcome,
    ended_early,
    unnamed_call,
)
from worker.translation.upstream_events import TerminalState, UpstreamEvent

_CONTENT_TYPES = {"message": "output_text", "reasoning": "reasoning_text"}
"""Type of an item that consists of text -> the type of its content's parts."""
_STREAMED_TYPES = frozenset(("message", "reasoning", *CLIENT_CALLS, *UPSTREAM_TOOL_CALLS))
"""Types of items that are opened when they begin. Other items are held back until they are
complete."""
_MODEL_ITEMS = frozenset(("message", "reasoning", *CLIENT_CALLS))
"""Types of items that the model writes in one pass."""


class NativeTranslator(Turn[UpstreamEvent]):
    """One turn of a native upstream."""

    def __init__(
        self,
        new_id: Callable[[str], str],
        options: TurnOptions = TurnOptions(),  # noqa: B008 - it is frozen
        *,
        tag_encrypted: Callable[[str], str] = str,
    ) -> None:
        """`tag_encrypted` makes the stored form of the upstream's `encrypted_content`."""
        super().__init__(new_id, options)
        self._tag_encrypted = tag_encrypted
        self._tracked = TrackedItems()
        self._our_call_ids: dict[str, str] = {}
        """The upstream's id of a call -> ours."""
        self._terminal: TerminalState | None = None
        catalog = options.tool_catalog
        self._skips_choice_check = not catalog.callable_names and catalog.choice != "none"
        """`tool_choice` requires a tool of the upstream's own. The upstream decides what else
        may be called."""

    def feed(self, event: UpstreamEvent) -> list[Event]:
        """The events that this event causes. After the terminal event further events are
        ignored."""
        if self._violation is not None:
            raise self._violation
        if self._terminal is not None:
            return []
        self._record_metadata(event)
        if event.terminal is not None:
            counted = sum(tracked.counted_bytes for tracked in self._tracked)
            self._count_bytes(max(0, event.size - counted))
            self._terminal = event.terminal
            self.upstream_fields = event.terminal.extra_fields or None
            return []
        tracked = self._tracked.resolve(event)
        if tracked is None:
            return []
        self._count_event(tracked, event)
        if event.subject != "output_item":
            events = self._feed_item(tracked, event)
        elif event.step == "added":
            events = self._start_item(tracked, event)
        else:
            events = self._finish_item(tracked, event.item or {})
        return events if self._sequence.front is None else self._sequence.in_order(events)

    def finish(self, *, done_seen: bool) -> list[Event]:
        events = self._merge_terminal_output(self._terminal) if self._terminal is not None else []
        events += self._end_turn(self._outcome(done_seen=done_seen))
        return self._sequence.in_order(events)

    # --- the upstream's items ---

    def _count_event(self, tracked: TrackedItem, event: UpstreamEvent) -> None:
        """Counts the new bytes of an event. Texts that repeat the deltas are as long as these
        were and do not count again."""
        is_new = not tracked.counted_bytes
        weight = (
            len(event.delta.encode()) if event.delta else max(0, event.size - tracked.counted_bytes)
        )
        self._count_bytes(weight + ITEM_WEIGHT * is_new)
        tracked.counted_bytes += weight + is_new

    def _start_item(self, tracked: TrackedItem, event: UpstreamEvent) -> list[Event]:
        """Handles `added`. A second one for the same item is ignored, unless other events came
        before the first one."""
        tracked.raw = tracked.raw or dict(event.item or {})
        if tracked.item is not None or tracked.kind not in _STREAMED_TYPES:
            return []
        return self._open(tracked)

    def _finish_item(
        self, tracked: TrackedItem, raw: RawObject, *, default_status: str = "completed"
    ) -> list[Event]:
        """Adds what the whole item has beyond the events, and closes it. A server call stays open.

        `default_status`: its status if the upstream sends none that is final.
        """
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
            # Otherwise it is a call that still lacks its name.
            tracked.is_done = tracked.is_ignored
            return events
        if not item.is_open:
            return self._add_rest(tracked, raw)
        return [*events, *item.finish(raw), *item.close(_final_status(item, raw, default_status))]

    def _add_rest(self, tracked: TrackedItem, raw: RawObject) -> list[Event]:
        """Adds an item with the text that a whole message or reasoning has beyond its events, if
        a later item has closed it before."""
        rest = missing_suffix(tracked.text, text_of(raw))
        if not rest or tracked.kind not in _CONTENT_TYPES:
            return []
        part = {"type": _CONTENT_TYPES[tracked.kind], "text": rest}
        item = self._new_item(tracked)
        return [
            *self._add_item(tracked, item),
            *item.finish({"content": [part]}),
            *item.close("completed"),
        ]

    def _feed_item(self, tracked: TrackedItem, event: UpstreamEvent) -> list[Event]:
        if tracked.item is None and tracked.kind in CLIENT_CALLS:
            return self._buffer_arguments(tracked, event)
        if tracked.item is None and tracked.kind not in _STREAMED_TYPES:
            return []
        item = tracked.item
        if item is not None and not item.is_open and not self._continues(tracked, event):
            return []
        events = self._open(tracked) if tracked.item is None else []
        item = tracked.item
        if isinstance(item, OpenServerCall):
            piece = (
                event.delta
                if event.step == "delta"
                else missing_suffix(item.arguments, event.full_text)
            )
            return [*events, *item.push(piece)] if piece else events
        return [*events, *item.feed(event)] if isinstance(item, NativeItem) else events

    def _continues(self, tracked: TrackedItem, event: UpstreamEvent) -> bool:
        """Whether the event has more text for a message or reasoning that a later item has
        closed: it becomes the text of a new item."""
        if not event.delta or tracked.kind not in _CONTENT_TYPES or tracked.item is None:
            return False
        tracked.earlier_text, tracked.item = tracked.text, None
        return True

    def _buffer_arguments(self, tracked: TrackedItem, event: UpstreamEvent) -> list[Event]:
        """Stores arguments of a call whose name is not known yet: its `added` is missing, its
        `done` will have the name."""
        if event.name:
            tracked.raw.setdefault("name", event.name)
        if event.full_text is not None:
            tracked.buffer = [event.full_text]
        elif event.delta:
            tracked.buffer.append(event.delta)
        return []

    # --- our items ---

    def _open(self, tracked: TrackedItem) -> list[Event]:
        """Opens our item for the upstream's and adds what was held back for it; does nothing
        while a call has no name."""
        if tracked.is_ignored:
            return []
        if tracked.kind in CLIENT_CALLS:
            return self._open_call(tracked) if tracked.raw.get("name") else []
        return self._add_item(tracked, self._new_item(tracked))

    def _new_item(self, tracked: TrackedItem) -> NativeItem:
        index, raw = self._sequence.next_index, tracked.raw
        if tracked.kind == "message":
            return NativeMessage(
                index, self._new_id(NativeMessage.prefix), raw, self._tool_catalog.sources
            )
        if tracked.kind == "reasoning":
            return NativeReasoning(index, self._new_id(NativeReasoning.prefix), self._tag_encrypted)
        if tracked.kind in UPSTREAM_TOOL_CALLS:
            tool_call = UPSTREAM_TOOL_CALLS[tracked.kind]
            return tool_call(index, self._new_id(tool_call.prefix), raw)
        raw = {**raw, "type": tracked.kind, **self._call_id_field(tracked)}
        return NativeOpaqueItem(index, self._new_id(opaque_prefix(tracked.kind)), raw)

    def _open_call(self, tracked: TrackedItem) -> list[Event]:
        """Opens a call of a function or custom tool of the client, or of a function that this
        server runs."""
        raw, arguments = tracked.raw, "".join(tracked.buffer)
        name, namespace = str(raw["name"]), raw.get("namespace")
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
        if function is not None and self._ignores_call():
            tracked.is_ignored = True
            return []
        if function is not None:
            server_call = function.open_call(self._sequence.next_index, self._new_id)
            events = self._add_item(tracked, server_call)
            return [*events, *server_call.push(arguments)] if arguments else events
        kind = CLIENT_CALLS[tracked.kind]
        client_call = kind(
            self._sequence.next_index,
            self._new_id(kind.prefix),
            self._call_id_field(tracked)["call_id"],
            target,
            raw,
        )
        if tracked.kind == "function_call" and target not in self._tool_catalog.names:
            self._unknown_calls.append(client_call)
        events = self._add_item(tracked, client_call)
        return [*events, *client_call.push(arguments)] if arguments else events

    def _call_id_field(self, tracked: TrackedItem) -> dict[str, str]:
        """The field `call_id` of a call, the upstream's id if it is valid; and of an output, the
        same as its call's."""
        call_id = tracked.raw.get("call_id")
        upstream_id = call_id if isinstance(call_id, str) else ""
        if tracked.kind in OUTPUTS:
            if not upstream_id:
                return {}
            return {"call_id": self._our_call_ids.get(upstream_id, upstream_id)}
        ran_upstream = tracked.kind == "tool_search_call" and not upstream_id
        if tracked.kind not in CALLS or ran_upstream:
            return {}
        ours = self._call_id(upstream_id)
        self._our_call_ids[upstream_id] = ours
        return {"call_id": ours}

    def _add_item(self, tracked: TrackedItem, item: OpenItem) -> list[Event]:
        tracked.item = item
        return self._sequence.begin(item)

    def _close_if_complete(self, item: OpenItem, next_item: OpenItem) -> list[Event]:
        """Closes also a message and reasoning that have text, if the next item is of another
        kind: some servers send their `done` events only at the end of the turn."""
        if (
            isinstance(item, NativeMessage | NativeReasoning)
            and type(item) is not type(next_item)
            and text_of(item.to_json())
        ):
            return item.close("completed")
        return super()._close_if_complete(item, next_item)

    # --- the end ---

    def _merge_terminal_output(self, terminal: TerminalState) -> list[Event]:
        """Adds what the terminal event's list of items has beyond the events."""
        is_complete = terminal.status == "completed"
        default_status = "completed" if is_complete else "incomplete"
        events: list[Event] = []
        for tracked, raw in self._tracked.match(terminal.output):
            if terminal.status != "failed" or tracked.item is not None:
                events += self._finish_item(tracked, raw, default_status=default_status)
        if is_complete:
            # Items without a `done` event are complete as far as we can know.
            for tracked in self._tracked:
                if tracked.item is None and tracked.raw:
                    events += self._finish_item(tracked, {})
        return events

    def _decide_outcome(self, *, done_seen: bool) -> TurnOutcome:
        terminal = self._terminal
        if terminal is None:
            if not (done_seen and self._tracked.are_done):
                return ended_early()
            terminal = TerminalState("completed")
        if terminal.status == "failed":
            return TurnOutcome("failed", failure=terminal.failure)
        if terminal.status == "incomplete":
            return TurnOutcome("incomplete", incomplete_reason=terminal.incomplete_reason)
        if any(
            tracked.item is None and tracked.kind in CLIENT_CALLS and not tracked.is_ignored
            for tracked in self._tracked
        ):
            return unnamed_call()
        if any(item.status == "incomplete" for item in self._items) or self._is_cut_off():
            return TurnOutcome("incomplete", incomplete_reason=terminal.incomplete_reason)
        return self._flaw() or TurnOutcome("completed")

    def _is_cut_off(self) -> bool:
        """Whether the limit of tokens has ended the turn although the upstream reports `completed`:
        some servers know no other status (docs/upstreams.md).

        A call whose arguments are whole has ended by itself. Where the upstream ran tools, it has
        called its model more than once, and the usage is the sum.
        """
        if not self._used_all_tokens():
            return False
        if any(tracked.kind not in _MODEL_ITEMS for tracked in self._tracked):
            return False
        last = self._items[-1] if self._items else None
        return not (
            isinstance(last, OpenClientCall | OpenServerCall) and is_json_object(last.arguments)
        )


def _final_status(item: OpenItem, raw: RawObject, default_status: str) -> str:
    """The status with which an item closes. Only calls of tools that the upstream runs can fail."""
    status = raw.get("status")
    if isinstance(item, OpenToolCall) and item.is_cut_off:
        return "incomplete"
    if status in ("completed", "incomplete"):
        return str(status)
    can_fail = (
        not isinstance(item, NativeMessage | NativeReasoning) and raw.get("type") not in CALLS
    )
    return "failed" if status == "failed" and can_fail else default_status
