"""What every turn has, whichever API its upstream speaks: items in order, an outcome, and what becomes of its calls. Pure.

Translator (chat completions) and NativeTranslator (the Responses API) hear the upstream in words of their own; everything behind them
(worker/run/tool_loop.py, worker/run/runner.py, worker/run/output.py) knows a turn by this face alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from models.errors import LimitReached, UpstreamFailed
from models.wire.events import Event, Item
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.items.text_items import CallOutput, OpenCall, OpenItem, is_json_object
from worker.translation.tool_catalog import ToolCatalog
from worker.translation.usage import Usage

MAX_CALL_ID = 64
"""Characters; longer ids from an upstream are replaced (contract §3)."""

ITEM_WEIGHT = 1024
"""Bytes an item costs besides its text, so that an upstream cannot fill memory with empty ones."""

SERVICE_TIERS = frozenset(("auto", "default", "flex", "priority", "fast", "scale", "ultrafast"))
"""Service tiers that the API knows (contract §2); what else an upstream calls its own is not passed on."""

_MAX_NAME_IN_ERROR = 100
"""Characters of a name that an error repeats."""

EventT = TypeVar("EventT")
"""What one event of the upstream says, after the vendors' oddities are gone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended: `completed`, `incomplete` with a reason, or `failed` with what to raise."""

    status: str
    incomplete_reason: str | None = None
    failure: UpstreamFailed | None = None


class Turn(Generic[EventT]):
    """One turn. `new_id` makes an id from its prefix (`msg`, `rs`, `fc`, `call`); `first_index` is the turn's first output_index.

    `offer` is what the model was offered. Of the calls that this server runs, the first `calls_allowed` are to be run. `output_limit` is
    the most a turn may say, in bytes; what goes past it raises LimitReached before anything of the event is taken.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        *,
        first_index: int = 0,
        tool_catalog: ToolCatalog = ToolCatalog(),  # noqa: B008 - it is frozen
        calls_allowed: int = 128,
        output_limit: int = 64 << 20,
    ) -> None:
        self._new_id = new_id
        self._first_index = first_index
        self._tool_catalog = tool_catalog
        self._calls_allowed = calls_allowed
        self._bytes_left = output_limit
        self._output_limit = output_limit
        self._items: list[OpenItem] = []
        self._unknown_calls: list[OpenCall] = []
        """Calls of functions that were never offered."""
        self._violation: UpstreamFailed | None = None
        self._call_ids: set[str] = set()
        self._usage: Usage | None = None
        self.model: str | None = None
        """The model the upstream says it used."""
        self.service_tier: str | None = None
        """The tier the upstream says it used."""
        self.outcome: Outcome | None = None
        """Set by `finish`; None while the turn goes on and after a `cut`."""
        self.rejected_calls: dict[str, str] = {}
        """Set by `finish`: id of a hosted call that is not to be run -> what the model is told."""

    @property
    def output(self) -> list[Item]:
        """All items of the turn in order, as they stand now; after an ending, as they stand in the final output."""
        return [item.to_json() for item in self._items]

    @property
    def calls(self) -> list[Item]:
        """The calls that were said in full: only these may be acted on."""
        return [
            item.to_json()
            for item in self._items
            if isinstance(item, OpenCall) and item.status == "completed"
        ]

    @property
    def items(self) -> list[OpenItem]:
        """The items themselves; a hosted call that is to be run is open still after `finish`."""
        return list(self._items)

    @property
    def server_calls(self) -> list[OpenServerCall]:
        """The calls that this server is to run: said in full, once the turn has ended."""
        return [item for item in self._items if isinstance(item, OpenServerCall) and item.is_open]

    @property
    def needs_another_turn(self) -> bool:
        """Whether the model called what is answered here, so that it speaks again; else the turn was the last."""
        completed = self.outcome is not None and self.outcome.status == "completed"
        return completed and any(
            isinstance(item, OpenServerCall | CallOutput) for item in self._items
        )

    @property
    def usage(self) -> dict[str, Any] | None:
        """The last count the upstream sent, in the Responses shape; None when it sent none."""
        return self._usage.to_json() if self._usage is not None else None

    def feed(self, event: EventT) -> list[Event]:
        """What this makes happen. Raises LimitReached or UpstreamFailed with nothing of it taken."""
        raise NotImplementedError

    def finish(self, *, done_seen: bool) -> list[Event]:
        """The upstream's stream has ended without an error; sets `outcome`. `done_seen`: the stream said `[DONE]`."""
        raise NotImplementedError

    def close_incomplete(self) -> list[Event]:
        """Closes every open item as `incomplete`: a cancel, a failure, a limit, a hand-over. A second time it closes nothing."""
        return [event for item in self._items if item.is_open for event in item.close("incomplete")]

    def _end_turn(self, outcome: Outcome) -> list[Event]:
        """Ends the turn so: closes what is open, but for calls that are to be run here."""
        self.outcome = outcome
        if outcome.status == "failed":
            return self.close_incomplete()
        events: list[Event] = []
        for item in self._items:
            if isinstance(item, OpenServerCall) and outcome.status == "completed":
                events += self._end_server_call(item)
            elif item.is_open:
                events += item.close(self._closing_status(item, outcome))
        return events + self._fail_unknown_calls() if outcome.status == "completed" else events

    def _closing_status(self, item: OpenItem, outcome: Outcome) -> str:
        """In a truncated turn the last item is incomplete; before it stand only calls, complete when their arguments are whole."""
        if outcome.status == "completed":
            return "completed"
        if (
            item is not self._items[-1]
            and isinstance(item, OpenCall)
            and is_json_object(item.arguments)
        ):
            return "completed"
        return "incomplete"

    def _count_bytes(self, weight: int) -> None:
        """Takes that many bytes of what the turn may say."""
        self._bytes_left -= weight
        if self._bytes_left < 0:
            raise LimitReached(
                f"The model said more than the limit of {self._output_limit} bytes in one turn.",
                reason="output_limit",
                status=502,
            )

    def _next_index(self) -> int:
        return self._first_index + len(self._items)

    def _call_id(self, upstream_id: str) -> str:
        """The upstream's id where it can serve: present, short enough, and not another call's of this turn."""
        fits = upstream_id and len(upstream_id) <= MAX_CALL_ID and upstream_id not in self._call_ids
        call_id = upstream_id if fits else self._new_id("call")
        self._call_ids.add(call_id)
        return call_id

    def _may_call(self, name: str) -> bool:
        """Whether `tool_choice` lets the model call this; if not, the turn has failed."""
        if self._tool_catalog.callable_names is None or name in self._tool_catalog.callable_names:
            return True
        if self._violation is None:
            message = f"The model called the tool '{name[:_MAX_NAME_IN_ERROR]}', which 'tool_choice' does not allow."
            self._violation = UpstreamFailed(message, reason="tool_choice_violated")
        return False

    def _end_server_call(self, call: OpenServerCall) -> list[Event]:
        """A call of ours was said in full: it waits to be run, or is one too many."""
        self._calls_allowed -= 1
        if self._calls_allowed >= 0:
            return call.arguments_done()
        message = "The limit of tool calls has been reached: this call was not made. Answer with what you have."
        self.rejected_calls[call.id] = f"Error: {message}"
        return [*call.arguments_done(), *call.result(call.failure_fields(message), failed=True)]

    def _fail_unknown_calls(self) -> list[Event]:
        """Answers calls of functions that were never offered, where this server answers calls at all (docs/adr/0008)."""
        events: list[Event] = []
        if not self._tool_catalog.server_functions:
            return events
        for call in self._unknown_calls:
            text = f"Error: There is no tool named '{call.target.name[:_MAX_NAME_IN_ERROR]}'."
            answer = CallOutput(
                self._next_index(), self._new_id(CallOutput.prefix), call.call_id, text
            )
            self._items.append(answer)
            events += [*answer.open_events(), *answer.close("completed")]
        return events
