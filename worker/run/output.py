"""The stored output of a response: finished turns, and the tool calls between them.

Pure: no I/O and no clock.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from models.db.queries.claim import CheckpointedItem
from models.ownership.steps import CallOrigins, Step
from models.ownership.takeover import Claim
from models.wire.events import Event, Item
from models.wire.json_input import json_size
from models.wire.pairing import unanswered_calls
from models.wire.replay import replay_item
from models.wire.token_counts import add_usage
from worker.translation.items.open_item import OpenItem
from worker.translation.items.server_calls import OpenServerCall, restore_call
from worker.translation.responses.upstream_tools import UPSTREAM_TOOL_CALLS

_NOT_TOOL_CALLS = frozenset(
    ("mcp_list_tools", "mcp_approval_request", "shell_call_output", "tool_search_output")
)
"""Rows of `tool_calls` that `max_tool_calls` does not count: the model did not call a tool."""


@dataclass(slots=True)
class Entry:
    """One item of the output. `turn` and `tool_output` are set for server tool calls only."""

    position: int
    item: Item
    """The stored item. If `changed`: the item that the ending stores."""
    call: OpenServerCall | None = None
    """The call while it has no result."""
    turn: int | None = None
    """Number of the turn that made the call; 0 for a call without a turn."""
    tool_output: Any = None
    """What the model gets as the call's result, where that is not in the item."""
    is_started: bool = False
    """An earlier attempt started the call. Whether the tool ran is unknown."""
    changed: bool = False
    """The item differs from the stored one."""
    output_index: int | None = None
    """The item's place in the stream; set for items that are not sent yet."""
    is_sent: bool = True
    """Whether the stream has the item. False: it is behind an open call, and is sent when that one
    has its result (docs/wire.md)."""


class Output:
    """The output that is stored: at the claim, and after each step."""

    def __init__(self, claim: Claim, rows: list[CheckpointedItem]) -> None:
        self.entries = [_entry(position, row) for position, row in enumerate(rows)]
        if any(row.finished is False for row in rows):
            self._hold_back()
        self.origins: dict[str, str] = {
            row.payload["id"]: row.origin for row in rows if row.origin is not None
        }
        """id of a call's item -> its sealed origin."""
        self.next_index: int = claim.row.next_output_index
        self.size = sum(json_size([row.payload, row.result]) for row in rows)
        """Of all items and what the model got for calls (models/wire/json_input.py)."""
        self.turns: int = claim.row.turns
        self.usage: dict[str, Any] | None = claim.row.usage
        self.service_tier: str | None = None
        self.upstream_fields: dict[str, Any] | None = None
        """Of the last turn (worker/translation/turn.py)."""
        self.moderation: dict[str, Any] | None = None
        """The field of the response, as it would be if it ended now (worker/run/moderation.py)."""
        self.upstream: str | None = None
        """Name of the upstream of the last turn."""
        self.unstored_items: list[Item] = []
        """Items of the unfinished turn of an earlier attempt.

        They are part of the output if the response ends before this attempt produces any.
        """

    @property
    def more_fields(self) -> dict[str, Any] | None:
        """The fields of the response that are not in every one."""
        if self.moderation is None:
            return self.upstream_fields
        return {**(self.upstream_fields or {}), "moderation": self.moderation}

    @property
    def items(self) -> list[Item]:
        """The items in order."""
        return [entry.item for entry in self.entries]

    @property
    def as_history(self) -> list[Item]:
        """The items as history for the model: calls with their results and turns."""
        return [history_item(entry.item, entry.turn, entry.tool_output) for entry in self.entries]

    @property
    def open_calls(self) -> list[Entry]:
        """The server tool calls without a result, in order."""
        return [entry for entry in self.entries if entry.call is not None]

    @property
    def closed_calls(self) -> list[Entry]:
        """The server tool calls that are closed in the log, but not in their rows."""
        return [entry for entry in self.entries if entry.changed]

    @property
    def changed_items(self) -> list[tuple[int, Item]]:
        """Position and item of each entry that differs from what is stored."""
        return [(entry.position, entry.item) for entry in self.closed_calls]

    @property
    def calls_made(self) -> int:
        """Tool calls that this server or a native upstream has run."""
        return sum(
            entry.item["type"] not in _NOT_TOOL_CALLS
            if entry.turn is not None
            else entry.item["type"] in UPSTREAM_TOOL_CALLS
            for entry in self.entries
        )

    def calls_left(self, parameters: dict[str, Any]) -> int | None:
        """Tool calls that `max_tool_calls` still allows; None if the request sets no limit."""
        if "max_tool_calls" not in parameters:
            return None
        limit: int = parameters["max_tool_calls"]
        return max(0, limit - self.calls_made)

    @property
    def waits_for_client(self) -> bool:
        """Whether only the client can answer an item, so that no turn follows."""
        return bool(unanswered_calls(self.items)) or any(
            item["type"] == "mcp_approval_request" for item in self.items
        )

    def step(
        self,
        items: Sequence[OpenItem],
        tool_outputs: dict[str, Any],
        usage: dict[str, Any] | None,
        *,
        turns: int,
        origins: CallOrigins,
    ) -> Step:
        """What a checkpoint stores for these items.

        `tool_outputs`: item id -> what the model gets, for calls that are finished without being
        run. `usage`: of the step alone. `turns`: 1 for a turn of the model, else 0. `origins`: of
        its calls.
        """
        first = len(self.entries)
        calls = [
            {
                "position": position,
                "output_index": item.output_index,
                "turn": (self.turns + 1) * turns,
                "finished": not item.is_open,
                "answer": tool_outputs.get(item.id),
            }
            for position, item in enumerate(items, start=first)
            if isinstance(item, OpenServerCall)
        ]
        return Step(
            items=[item.to_json() for item in items],
            position=first,
            calls=calls,
            origins=origins,
            turns=turns,
            usage=add_usage(self.usage, usage),
            upstream=self.upstream,
            next_output_index=max([self.next_index, *(item.output_index + 1 for item in items)]),
        )

    def add(self, step: Step, items: Sequence[OpenItem]) -> None:
        """Adds a step that is stored; `items` are those it was made from."""
        calls = {call["position"]: call for call in step.calls}
        for position, (item, open_item) in enumerate(
            zip(step.items, items, strict=True), start=step.position
        ):
            call = calls.get(position)
            entry = Entry(position, item)
            if call is not None and isinstance(open_item, OpenServerCall):
                entry.turn, entry.tool_output = call["turn"], call["answer"]
                entry.call = None if call["finished"] else open_item
            self.entries.append(entry)
        self.origins.update((key, stored["origin"]) for key, stored in step.origins.items())
        self._hold_back()
        self.size += json_size(step.items)
        self.unstored_items = []
        self.turns += step.turns
        self.usage = step.usage
        self.next_index = step.next_output_index

    def _hold_back(self) -> None:
        """Marks the items behind the first open call as not sent."""
        first = next(iter(self.open_calls), None)
        if first is None or first.call is None:
            return
        for entry in self.entries[first.position + 1 :]:
            entry.is_sent = False
            entry.output_index = first.call.output_index + entry.position - first.position

    def finish_call(
        self, entry: Entry, events: Iterable[Event], item: Item, tool_output: Any
    ) -> list[Event]:
        """Notes the result of a call. Returns the events that may be sent now: none for a call that
        is not sent yet; otherwise its own `events`, and those of the items behind it up to the next
        open call."""
        entry.item, entry.tool_output, entry.call = item, tool_output, None
        self.size += json_size([item, tool_output])
        return [*events, *self.send_held()] if entry.is_sent else []

    def send_held(self) -> list[Event]:
        """The events of the items that are not sent yet, up to the first open call."""
        events: list[Event] = []
        for entry in self.entries:
            events += _send(entry)
            if entry.call is not None:
                break
        return events

    def close_incomplete(self) -> list[Event]:
        """Closes the open calls as `incomplete`, because the response ends."""
        events: list[Event] = []
        for entry in self.entries:
            if entry.call is not None:
                closing = entry.call.cut()
                events += closing if entry.is_sent else ()
                entry.item, entry.call, entry.changed = entry.call.to_json(), None, True
            events += _send(entry)
        return events

    def continue_sent(self, events: Sequence[dict[str, Any]]) -> list[Event]:
        """Notes which stored items an earlier attempt has closed or sent in the log, but not in
        Postgres: that attempt was ending the response when its process stopped.

        Returns the rest of an item of which the log has only the first events.
        """
        done = {
            event["item"]["id"]: event["item"]
            for event in events
            if event["type"] == "response.output_item.done"
        }
        written = Counter(event.get("output_index") for event in events)
        rest: list[Event] = []
        for entry in self.entries:
            closed = done.get(entry.item["id"])
            if entry.call is not None and closed is not None:
                entry.item, entry.call, entry.changed = closed, None, True
            if not entry.is_sent and written[entry.output_index]:
                rest += _send(entry)[written[entry.output_index] :] if closed is None else ()
                entry.is_sent = True
        return rest


def history_item(item: Item, turn: int | None, tool_output: Any) -> Item:
    """The item as the translation of a history takes it (worker/translation/chat/request.py).

    A server tool call has `turn` and, where stored, `answer` besides.
    """
    if turn is None:
        return item
    if tool_output is None:
        return {**item, "turn": turn}
    return {**item, "turn": turn, "answer": tool_output}


def _send(entry: Entry) -> list[Event]:
    """The events of an item that is not sent yet; of an open call, those up to its result."""
    if entry.is_sent or entry.output_index is None:
        return []
    entry.is_sent = True
    return list(replay_item(entry.item, entry.output_index))


def _entry(position: int, row: CheckpointedItem) -> Entry:
    entry = Entry(
        position,
        row.payload,
        turn=row.turn,
        tool_output=row.result,
        is_started=row.started_attempt is not None,
    )
    if row.finished is False and row.output_index is not None:
        entry.call = restore_call(row.output_index, entry.item)
    return entry
