"""The state of one attempt: what is stored of the response, and the turn that is not stored yet.

Pure: no I/O and no clock. It decides what a resumed attempt writes first, what a checkpoint stores
and what an ending stores. The writes themselves are in worker/run/attempt_writer.py.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.db.queries.claim import CheckpointedItem
from models.errors import FailedCall
from models.ids import conversation_id, response_id
from models.lifecycle import Status
from models.ownership.steps import CallOrigins, Ending, Step, Tail
from models.ownership.takeover import Claim
from models.wire.compaction import newest_compaction
from models.wire.events import (
    TERMINAL_EVENTS,
    Event,
    Item,
    ResponseInProgress,
    decode_frame,
    split_frames,
)
from models.wire.json_input import json_size
from models.wire.pairing import unanswered_calls
from models.wire.purpose import Purpose, split_stored_parameters
from models.wire.response import ResponseFacts, filter_items, response_object
from models.wire.snapshot import (
    closing_events,
    find_unfinished,
    fold_latest_attempt,
)
from models.wire.token_counts import add_usage
from worker.run.end_state import EndState
from worker.run.output import Output
from worker.translation.items.open_item import OpenItem
from worker.translation.turn import Turn

_NON_MODEL_ITEMS = frozenset(("mcp_list_tools", "compaction"))
"""Types of items that the model did not write."""


_MAX_FAILED_CALLS = 16
"""Of an attempt; the last ones count."""


@dataclass(frozen=True, slots=True)
class FinalOutput:
    """The output of a response that ends now."""

    items: list[Item]
    unstored_items: list[Item]
    """The last of `items`: those that no checkpoint has stored."""
    usage: dict[str, Any] | None
    service_tier: str | None


class Attempt:
    """One attempt: the claim, the facts of the response, and its output so far."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.stored = split_stored_parameters(claim.row.parameters)
        self.facts = _facts(claim, self.stored.parameters)
        self.output = Output(claim, [])
        self.current_turn: Turn[Any] | None = None
        """The turn that is not stored yet; None between turns."""
        self.failed_calls: deque[FailedCall] = deque(maxlen=_MAX_FAILED_CALLS)
        """Calls of upstreams that failed, for operators."""
        self.history_size: int | None = None
        """The size of items before the output (models/wire/json_input.py); None: unknown."""
        self.unrepeatable_calls = 0
        """How many tool calls run now that must not run twice."""
        self.steers = 0
        """How many inputs have arrived while it runs, as of the last write that showed it."""

    @property
    def include(self) -> Sequence[str]:
        """The request parameter `include`."""
        value: Sequence[str] = self.facts.parameters.get("include", ())
        return value

    @property
    def continuation_parameter(self) -> str:
        """The request parameter that names what this response continues."""
        return "previous_response_id" if self.facts.conversation_id is None else "conversation"

    @property
    def is_continuation(self) -> bool:
        """Whether something comes before the response's own input."""
        row = self.claim.row
        return row.previous_response_id is not None or row.conversation_id is not None

    @property
    def is_first(self) -> bool:
        """Whether no attempt has written an event: the log holds only those of the create."""
        return self.claim.log_end <= (1 if self.facts.background else 0)

    @property
    def has_finished_turn(self) -> bool:
        """Whether a checkpoint of this attempt has stored a turn."""
        return self.output.turns > self.claim.row.turns

    @property
    def turn_repeats(self) -> int:
        """How often the present turn was repeated because an upstream broke it off."""
        return 0 if self.has_finished_turn else self.claim.row.turn_repeats

    @property
    def size(self) -> int:
        """Bytes of the output so far, about."""
        turn = self.current_turn
        return self.output.size + (0 if turn is None else turn.weight)

    def start(self) -> list[Event]:
        """The first event of the first attempt."""
        return [ResponseInProgress(response_object(self.facts, []))]

    def resume(self, rows: list[CheckpointedItem]) -> list[Event]:
        """Restores the state that earlier attempts stored; returns the first events of this one.

        `rows`: the output up to the last checkpoint. The events close the items that the last
        attempt left open, as `incomplete`.
        """
        self.output = output = Output(self.claim, rows)
        seen = [
            (block.attempt, decode_frame(frame))
            for block in self.claim.blocks
            for frame in split_frames(block.frames)
        ]
        events = [event for _, event in seen]
        unfinished = find_unfinished(events)
        output.next_index = max(output.next_index, unfinished.highest_index + 1)
        items = (_interrupted(item) for item in fold_latest_attempt(seen))
        stored_ids = {item["id"] for item in output.items}
        new_items = [item for item in unfinished.items if item.shape["id"] not in stored_ids]
        # An unfinished compaction has no content.
        output.unstored_items = [
            item
            for item in items
            if item["id"] not in stored_ids
            and (item["type"], item.get("status")) != ("compaction", "incomplete")
        ]
        closing = closing_events(replace(unfinished, items=new_items))
        return [*closing, *output.continue_sent(events), *output.send_held()]

    def step(self, items: Sequence[OpenItem], turn: Turn[Any] | None) -> Step:
        """What a checkpoint stores: a turn of the model, or calls without a turn (`turn` None)."""
        if turn is None:
            return self.output.step(items, {}, None, turns=0, origins={})
        return self.output.step(
            items, turn.rejected_calls, turn.usage, turns=1, origins=turn.call_origins
        )

    def apply_step(self, step: Step, items: Sequence[OpenItem]) -> None:
        """Notes that the step is stored."""
        self.output.add(step, items)
        self.current_turn = None

    def close_open_items(self) -> list[Event]:
        """Closes the items of the current turn and the open calls as `incomplete`."""
        turn_events = self.current_turn.close_incomplete() if self.current_turn is not None else []
        return [*turn_events, *self.output.close_incomplete()]

    def drop_unstored(self) -> None:
        """Drops all items that no checkpoint has stored."""
        self.current_turn, self.output.unstored_items = None, []

    def final_output(self) -> FinalOutput:
        """The output if the response ends now.

        As long as the current turn has produced nothing, the unstored items of the attempt before
        this one are part of it: clients have seen them.
        """
        output, turn = self.output, self.current_turn
        if turn is None:
            unstored, usage, tier = output.unstored_items, output.usage, output.service_tier
        else:
            has_result = bool(turn.output) or turn.outcome is not None
            unstored = turn.output if has_result else output.unstored_items
            usage = add_usage(output.usage, turn.usage)
            tier = turn.service_tier or output.service_tier
        return FinalOutput([*output.items, *unstored], unstored, usage, tier)

    @property
    def unstored_origins(self) -> CallOrigins:
        """The origins of calls of the turn that is not stored yet."""
        return {} if self.current_turn is None else self.current_turn.call_origins

    def ending(
        self, end_state: EndState, *, completed_at: int, tail_with: Callable[[Event], Tail]
    ) -> Ending:
        """What the ending stores.

        `completed_at`: seconds since the epoch. `tail_with` returns the unflushed tail of the log
        with the terminal event at its end.
        """
        final = self.final_output()
        facts = self.facts.evolve(
            status=end_state.status.value,
            error=end_state.error,
            incomplete_reason=end_state.reason,
            usage=final.usage,
            completed_at=completed_at,
            service_tier=final.service_tier,
            upstream_fields=self.output.more_fields,
        )
        # Nobody follows a forwarded request: its answer is stored once, as an item.
        is_forwarded = self.stored.purpose is Purpose.FORWARD
        visible = [] if is_forwarded else filter_items(final.items, self.include)
        terminal_event = TERMINAL_EVENTS[end_state.status](response_object(facts, visible))
        has_model_items = any(item["type"] not in _NON_MODEL_ITEMS for item in final.items)
        return Ending(
            status=end_state.status,
            tail=tail_with(terminal_event),
            items=final.unstored_items,
            position=len(self.output.entries),
            changed=self.output.changed_items,
            origins=self.unstored_origins,
            usage=final.usage,
            completed_at=completed_at,
            turns=0 if self.current_turn is None else 1,
            error=end_state.error,
            reason=end_state.reason,
            failure=None if has_model_items else end_state.failure,
            unanswered_calls=unanswered_calls(final.items),
            service_tier=final.service_tier,
            upstream_fields=self.output.more_fields,
            upstream=self.output.upstream,
            failed_upstream=self._failed_upstream(end_state),
            history_size=self._history_size_of(final),
        )

    def _failed_upstream(self, end_state: EndState) -> str | None:
        """The upstream that operators see of a response that has failed."""
        if end_state.status is not Status.FAILED:
            return None
        return end_state.upstream or self.output.upstream

    def _history_size_of(self, final: FinalOutput) -> int | None:
        """The size of what a continuation begins with; None if it is not known."""
        compacted_at = newest_compaction(final.items)
        if compacted_at >= 0:
            return json_size(final.items[compacted_at:])
        if self.history_size is None:
            return None
        return self.history_size + self.output.size + json_size(final.unstored_items)

    def ending_without_items(
        self, end_state: EndState, *, completed_at: int, tail_with: Callable[[Event], Tail]
    ) -> Ending:
        """What the ending stores if `ending` cannot be stored: no output, whatever its size."""
        facts = self.facts.evolve(
            status=end_state.status.value,
            error=end_state.error,
            incomplete_reason=end_state.reason,
            completed_at=completed_at,
        )
        terminal_event = TERMINAL_EVENTS[end_state.status](response_object(facts, []))
        return Ending(
            status=end_state.status,
            tail=tail_with(terminal_event),
            items=[],
            position=len(self.output.entries),
            usage=None,
            completed_at=completed_at,
            error=end_state.error,
            reason=end_state.reason,
            failure=end_state.failure,
            failed_upstream=self._failed_upstream(end_state),
            history_size=self.history_size,
        )


def _facts(claim: Claim, parameters: dict[str, Any]) -> ResponseFacts:
    row = claim.row
    previous, conversation = row.previous_response_id, row.conversation_id
    return ResponseFacts(
        id=response_id(row.id),
        created_at=row.created_at,
        status=Status.IN_PROGRESS.value,
        model=row.model,
        parameters=parameters,
        background=row.background,
        store=row.store,
        previous_response_id=response_id(previous) if previous is not None else None,
        conversation_id=conversation_id(conversation) if conversation is not None else None,
    )


def _interrupted(item: Item) -> Item:
    return {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
