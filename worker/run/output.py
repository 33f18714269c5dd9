"""A response's output as far as it rests in Postgres: finished turns, and the calls of tools between them (design §4.4, §4.6)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from models.db.database import Row
from models.ownership.claims import Claim, Step
from models.wire.events import Event, Item
from models.wire.pairing import unanswered_calls
from worker.translation.items.kinds import restore_call
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.items.text_items import OpenItem
from worker.translation.responses.items import UPSTREAM_TOOL_CALLS
from worker.translation.usage import add_usage

_NOT_TOOL_CALLS = frozenset(("mcp_list_tools", "mcp_approval_request"))
"""No calls in the sense of `max_tool_calls`: what we ask of our own accord, and what is only asked of the client."""


@dataclass(slots=True)
class Entry:
    """An item of the output. `turn`, `answer`: as in `tool_calls`, for calls that we run."""

    position: int
    item: Item
    """As it is stored; while `changed`, as it is to be stored."""
    call: OpenServerCall | None = None
    """While it is not finished."""
    turn: int | None = None
    tool_output: Any = None
    is_started: bool = False
    """An attempt before this one began to run the call; whether it took effect is not known."""
    changed: bool = False


class Output:
    """What is stored of a response, at its claim and after each step."""

    def __init__(self, claim: Claim, rows: list[Row]) -> None:
        """`rows` as `statements.OUTPUT` gives them."""
        self.entries = [_entry(position, row) for position, row in enumerate(rows)]
        self.next_index: int = claim.row["next_output_index"]
        self.turns: int = claim.row["turns"]
        self.usage: dict[str, Any] | None = claim.row["usage"]
        self.service_tier: str | None = None
        self.upstream: str | None = None
        """Which answered the last turn."""
        self.unstored_items: list[Item] = []
        """What an earlier attempt had said of a turn that was not stored: in the output if the response ends before it is said anew."""

    @property
    def items(self) -> list[Item]:
        """The output, in order."""
        return [entry.item for entry in self.entries]

    @property
    def as_history(self) -> list[Item]:
        """The same as history for the model: calls with what it was told and in which turn."""
        return [history_item(entry.item, entry.turn, entry.tool_output) for entry in self.entries]

    @property
    def open_calls(self) -> list[Entry]:
        """The calls that are still to be answered, in order."""
        return [entry for entry in self.entries if entry.call is not None]

    @property
    def calls_made(self) -> int:
        """As `max_tool_calls` counts them: those that this server ran, and those that a native upstream did."""
        return sum(
            entry.item["type"] not in _NOT_TOOL_CALLS
            if entry.turn is not None
            else entry.item["type"] in UPSTREAM_TOOL_CALLS
            for entry in self.entries
        )

    @property
    def waits_for_client(self) -> bool:
        """Something was asked for that only the client can answer: no turn follows."""
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
    ) -> Step:
        """What a checkpoint is to store of these items of a step; `answers`: item id -> what the model is told of a call already done."""
        first = len(self.entries)
        calls = [
            {
                "position": first + at,
                "output_index": item.output_index,
                "turn": (self.turns + 1) * turns,
                "finished": not item.is_open,
                "answer": tool_outputs.get(item.id),
            }
            for at, item in enumerate(items)
            if isinstance(item, OpenServerCall)
        ]
        return Step(
            items=[item.to_json() for item in items],
            position=first,
            calls=calls,
            turns=turns,
            usage=add_usage(self.usage, usage),
            upstream=self.upstream,
            next_output_index=max([self.next_index, *(item.output_index + 1 for item in items)]),
        )

    def add(self, step: Step, items: Sequence[OpenItem]) -> None:
        """The step is stored."""
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
        self.unstored_items = []
        self.turns += step.turns
        self.usage = step.usage
        self.next_index = step.next_output_index

    def close_incomplete(self) -> list[Event]:
        """Closes the calls that were still to be answered: the response ends."""
        events: list[Event] = []
        for entry in self.open_calls:
            if entry.call is not None:
                events += entry.call.close("incomplete")
                entry.item, entry.call, entry.changed = entry.call.to_json(), None, True
        return events

    def apply_done_events(self, events: Iterable[dict[str, Any]]) -> None:
        """Takes over what an attempt that was ending the response had shown of that, but could not store any more."""
        done = {
            event["output_index"]: event["item"]
            for event in events
            if event["type"] == "response.output_item.done"
        }
        for entry in self.open_calls:
            if entry.call is not None and entry.call.output_index in done:
                entry.item, entry.call, entry.changed = done[entry.call.output_index], None, True


def history_item(item: Item, turn: int | None, tool_output: Any) -> Item:
    """An item as worker/translation/chat/request.py takes it: for calls that we ran, with what Postgres knows of them besides."""
    if turn is None:
        return item
    return (
        {**item, "turn": turn}
        if tool_output is None
        else {**item, "turn": turn, "answer": tool_output}
    )


def _entry(position: int, row: Row) -> Entry:
    entry = Entry(
        position,
        row["payload"],
        turn=row["turn"],
        tool_output=row["answer"],
        is_started=row["started_attempt"] is not None,
    )
    if row["finished"] is False:
        entry.call = restore_call(row["output_index"], entry.item)
    return entry
