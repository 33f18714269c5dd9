"""What every turn has, whichever API its upstream has: ordered items, an outcome, and calls to run.

ChatTranslator (Chat Completions) and NativeTranslator (the Responses API) read the upstream's
events; everything behind them (worker/run/tool_loop.py, worker/run/runner.py, worker/run/output.py)
sees a turn only through this class.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from models.errors import UPSTREAM_ENDED_EARLY, LimitReached, UpstreamFailed
from models.wire.events import Event, Item
from models.wire.token_counts import TokenCounts, add_usage, as_reasoning, usage_json
from worker.translation.item_sequence import ItemSequence
from worker.translation.items.client_calls import CallOutput, OpenClientCall, is_json_object
from worker.translation.items.open_item import OpenItem, OpenToolCall
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.items.text_items import OpenReasoning
from worker.translation.tool_catalog import ToolCatalog

MAX_CALL_ID = 64
"""Characters. A longer id from an upstream is replaced: clients send it back, and the API takes
no longer one."""

ITEM_WEIGHT = 1024
"""Bytes that an item counts besides its text, so that an upstream cannot fill memory with empty
items."""

SERVICE_TIERS = frozenset(("auto", "default", "flex", "priority", "fast", "scale", "ultrafast"))
"""Service tiers of the API. An upstream's other names for a tier are dropped."""

MAX_WORD = 100
"""Characters of a name or word that an error repeats."""
MAX_PLACES = 5
"""Names of unknown fields that an error repeats."""

EventT = TypeVar("EventT")
"""One event of the upstream in the form that worker/upstream makes of it."""


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How a turn ended: `completed`, `incomplete` with a reason, or `failed` with the error to
    raise."""

    status: str
    incomplete_reason: str | None = None
    failure: UpstreamFailed | None = None
    unmet: str | None = None
    """Of a completed response: the demand that its output does not meet (demands.py)."""


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """Where a turn begins and what it may contain."""

    first_index: int = 0
    """The output_index of its first item."""
    tool_catalog: ToolCatalog = field(default_factory=ToolCatalog)
    """What the model may call."""
    calls_allowed: int = 128
    """Server calls that may be run; further ones fail at once."""
    calls_left: int | None = None
    """Server calls that `max_tool_calls` still allows; further ones are ignored and become no item.
    None: no limit."""
    needs_output: bool = False
    """A turn without any item has failed: the response would have no output."""
    token_limit: int | None = None
    """The most output tokens that the request allows."""
    output_limit: int = 16 << 20
    """Bytes that the turn may contain. LimitReached is raised before anything of the event
    beyond it is used."""


class TurnMetadata(Protocol):
    """The fields of an upstream's event that are about the whole turn; None where it has no such
    field."""

    @property
    def usage(self) -> TokenCounts | None: ...

    @property
    def model(self) -> str | None: ...

    @property
    def service_tier(self) -> str | None: ...


class Turn(Generic[EventT]):
    """One turn of the model. `new_id` makes an id from its prefix (`msg`, `rs`, `fc`, `call`).

    At most one item is open in the stream (worker/translation/item_sequence.py). Events that are
    held back for that count against `output_limit`.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        options: TurnOptions = TurnOptions(),
    ) -> None:
        self._new_id = new_id
        self._tool_catalog = options.tool_catalog
        self._calls_allowed = options.calls_allowed
        self._calls_left = options.calls_left
        self._has_ignored_calls = False
        self._needs_output = options.needs_output
        self._bytes_left = options.output_limit
        self._output_limit = options.output_limit
        self._token_limit = options.token_limit
        self._sequence = ItemSequence(options.first_index, self._close_if_complete)
        self._items = self._sequence.items
        self._unknown_calls: list[OpenClientCall] = []
        """Calls of functions that the model was not offered."""
        self._violation: UpstreamFailed | None = None
        self._call_ids: set[str] = set()
        self._usage: TokenCounts | None = None
        self._summary_usage: dict[str, Any] | None = None
        """Of the calls that made summaries of its reasoning."""
        self._unsummarised: list[OpenReasoning] = []
        """Reasoning that waits for its summary."""
        self.model: str | None = None
        """The model that the upstream reports."""
        self.service_tier: str | None = None
        """The service tier that the upstream reports."""
        self.upstream_fields: dict[str, Any] | None = None
        """Fields of a native upstream's Response object that this server does not make itself."""
        self.outcome: TurnOutcome | None = None
        """Set by `finish`; None while the turn runs and after `close_incomplete`."""
        self.unknown_content: set[str] = set()
        """Where the upstream has sent content that is not understood: `delta.NAME`."""
        self.rejected_calls: dict[str, str] = {}
        """Set by `finish`: id of a server call that must not be run -> its output for the model."""

    @property
    def output(self) -> list[Item]:
        """All items of the turn in order, with their present content; after the end, their final
        content."""
        return [item.to_json() for item in self._items]

    @property
    def calls(self) -> list[Item]:
        """The completed client calls. Only these may be acted on."""
        return [
            item.to_json()
            for item in self._items
            if isinstance(item, OpenClientCall) and item.status == "completed"
        ]

    @property
    def items(self) -> list[OpenItem]:
        """The items as objects. A server call that is to be run is still open after `finish`."""
        return list(self._items)

    @property
    def call_origins(self) -> dict[str, dict[str, str]]:
        """id of a call's item -> what is stored of its origin, where there is something to keep
        (worker/translation/returned_content.py)."""
        return {}

    @property
    def server_calls(self) -> list[OpenServerCall]:
        """The calls that this server is to run; complete once the turn has ended."""
        return [item for item in self._items if isinstance(item, OpenServerCall) and item.is_open]

    @property
    def needs_another_turn(self) -> bool:
        """Whether the model must be called again, with the results of calls that are answered
        here."""
        completed = self.outcome is not None and self.outcome.status == "completed"
        return completed and any(
            isinstance(item, OpenServerCall | CallOutput) for item in self._items
        )

    @property
    def usage(self) -> dict[str, Any] | None:
        """All usage of the turn, in the Responses shape; None if the upstream sent none."""
        return add_usage(self.upstream_usage, self._summary_usage)

    @property
    def upstream_usage(self) -> dict[str, Any] | None:
        """The usage that the upstream sent for the turn itself, in the Responses shape; None if it
        sent none."""
        return usage_json(self._usage)

    @property
    def weight(self) -> int:
        """Bytes that the turn contains so far, as its limit counts them."""
        return self._output_limit - self._bytes_left

    def feed(self, event: EventT) -> list[Event]:
        """The events that an event of the upstream causes. Raises LimitReached or UpstreamFailed
        before it uses any of it."""
        raise NotImplementedError

    def end_reasoning(self, *, done_seen: bool) -> list[Event]:  # noqa: ARG002 - for chat upstreams
        """Ends the text of reasoning that is the turn's last item and gets a summary. To be called
        before `finish`, when the upstream's stream has ended."""
        return []

    def take_unsummarised(self) -> list[OpenReasoning]:
        """The reasoning items that have begun to wait for a summary since the last call. Each must
        be given to `end_summary`; the items behind it are held back until then."""
        if not (items := self._unsummarised):
            return items
        self._unsummarised = []
        return items

    def end_summary(
        self, item: OpenReasoning, summary: str, usage: dict[str, Any] | None
    ) -> list[Event]:
        """Closes a reasoning item that waits for its summary, and counts the `usage` of the call
        that made it as reasoning. `summary`: empty if none was made."""
        if usage is not None:
            self._summary_usage = add_usage(self._summary_usage, as_reasoning(usage))
        if not item.is_open:
            return []
        self._bytes_left -= len(summary)
        events = item.append_summary_delta(0, summary) if summary else []
        return self._sequence.in_order([*events, *item.close("completed")])

    def finish(self, *, done_seen: bool) -> list[Event]:
        """Ends the turn after the upstream's stream has ended without an error; sets `outcome`.

        `done_seen`: the stream contained `[DONE]`.
        """
        raise NotImplementedError

    def close_incomplete(self) -> list[Event]:
        """Closes every open item as `incomplete`: after a cancel, a failure, a limit, or before
        a hand-over. A second call does nothing."""
        return self._sequence.in_order(self._close_all_incomplete())

    def _close_all_incomplete(self) -> list[Event]:
        return [event for item in self._items if item.is_open for event in item.cut()]

    def _close_if_complete(self, item: OpenItem, next_item: OpenItem) -> list[Event]:  # noqa: ARG002 - for native upstreams
        """As CloseIfComplete (worker/translation/item_sequence.py): a call of the client is
        complete when its arguments are a JSON object."""
        if isinstance(item, OpenClientCall) and is_json_object(item.arguments):
            return item.close("completed")
        return []

    def _record_metadata(self, event: TurnMetadata) -> None:
        """Keeps the newest usage, model and service tier."""
        if event.usage is not None:
            self._usage = event.usage if self._usage is None else self._usage.updated(event.usage)
        if event.model is not None:
            self.model = event.model
        if event.service_tier in SERVICE_TIERS:
            self.service_tier = event.service_tier

    def _end_turn(self, outcome: TurnOutcome) -> list[Event]:
        """Sets the outcome and closes what is open, except the calls that are to be run here."""
        self.outcome = outcome
        if outcome.status == "failed":
            return self._close_all_incomplete()
        events: list[Event] = []
        for item in self._items:
            if isinstance(item, OpenServerCall) and outcome.status == "completed":
                events += self._end_server_call(item)
            elif item.is_open:
                events += item.close(self._closing_status(item, outcome))
        return events + self._fail_unknown_calls() if outcome.status == "completed" else events

    def _closing_status(self, item: OpenItem, outcome: TurnOutcome) -> str:
        """The status of an open item at the turn's end.

        In a truncated turn the last item is incomplete. The open items before it are calls; they
        are complete when their arguments are.
        """
        if outcome.status == "completed":
            return "completed"
        if (
            item is not self._items[-1]
            and isinstance(item, OpenClientCall)
            and is_json_object(item.arguments)
        ):
            return "completed"
        return "incomplete"

    def _count_bytes(self, weight: int) -> None:
        """Subtracts from the bytes that the turn may still contain. Raises LimitReached below
        zero."""
        self._bytes_left -= weight
        if self._bytes_left < self._sequence.held_weight:
            raise LimitReached(
                f"The model's output exceeded the limit of {self._output_limit} bytes in one turn.",
                reason="output_limit",
                status=502,
            )

    def _call_id(self, upstream_id: str) -> str:
        """The upstream's call id, or a new one if it is empty, too long, or used by another call
        of this turn."""
        fits = upstream_id and len(upstream_id) <= MAX_CALL_ID and upstream_id not in self._call_ids
        call_id = upstream_id if fits else self._new_id("call")
        self._call_ids.add(call_id)
        return call_id

    def _may_call(self, name: str) -> bool:
        """Whether `tool_choice` allows this call. If not, the turn fails (docs/tools.md)."""
        if self._tool_catalog.callable_names is None or name in self._tool_catalog.callable_names:
            return True
        if self._violation is None:
            self._violation = UpstreamFailed(
                f"The model called the tool '{name[:MAX_WORD]}', "
                "which 'tool_choice' does not allow.",
                reason="tool_choice_violated",
            )
        return False

    def _ignores_call(self) -> bool:
        """Whether the server call that begins is one more than `max_tool_calls` allows
        (docs/tools.md)."""
        if self._calls_left is None:
            return False
        self._calls_left -= 1
        self._has_ignored_calls = self._calls_left < 0
        return self._has_ignored_calls

    def _end_server_call(self, call: OpenServerCall) -> list[Event]:
        """A server call is complete: leaves it open to be run, or fails it if the limit of calls
        is reached."""
        self._calls_allowed -= 1
        if self._calls_allowed >= 0:
            return call.arguments_done()
        message = (
            "The limit of tool calls has been reached: this call was not made. "
            "Answer with what you have."
        )
        self.rejected_calls[call.id] = f"Error: {message}"
        return [*call.arguments_done(), *call.result(call.failure_fields(message), failed=True)]

    def _cut_off_call(self) -> OpenToolCall | None:
        """The first call for the client whose arguments ended in the middle. One of a server tool
        is answered with an error, and the model goes on."""
        return next(
            (item for item in self._items if isinstance(item, OpenToolCall) and item.is_cut_off),
            None,
        )

    def _outcome(self, *, done_seen: bool) -> TurnOutcome:
        """How the turn ends now. A call that `tool_choice` does not allow fails it in any case."""
        if self._violation is not None:
            return TurnOutcome("failed", failure=self._violation)
        return self._decide_outcome(done_seen=done_seen)

    def _decide_outcome(self, *, done_seen: bool) -> TurnOutcome:
        """How a turn without such a call ends."""
        raise NotImplementedError

    def _used_all_tokens(self) -> bool:
        """Whether the upstream counts as many output tokens as the request allows."""
        usage, limit = self.upstream_usage, self._token_limit
        return usage is not None and limit is not None and usage["output_tokens"] >= limit

    def _flaw(self, finish_word: str = "") -> TurnOutcome | None:
        """The outcome of a turn that ended in order, but without its whole answer; None for any
        other turn. `finish_word`: the upstream's own for the end."""
        ending = f" (finish_reason '{finish_word[:MAX_WORD]}')" if finish_word else ""
        if (call := self._cut_off_call()) is not None:
            name = call.to_json().get("name", call.kind)[:MAX_WORD]
            return failed_outcome(
                f"The upstream ended its answer in the middle of the arguments of a call of "
                f"'{name}'{ending}.",
                "upstream_ended_early",
            )
        if self._items or self._has_ignored_calls:
            return None
        if self.unknown_content:
            places = ", ".join(sorted(self.unknown_content)[:MAX_PLACES])[: 2 * MAX_WORD]
            return failed_outcome(
                f"The upstream's answer is in fields that are not known: {places}.",
                "upstream_empty",
            )
        if not self._needs_output:
            return None
        usage = self.upstream_usage
        cost = f", although it counted {usage['output_tokens']} output tokens" if usage else ""
        return failed_outcome(
            f"The upstream ended its answer without any output{ending}{cost}.", "upstream_empty"
        )

    def _fail_unknown_calls(self) -> list[Event]:
        """Adds an output to each call of an unknown function, if this server answers calls in
        this turn at all (docs/tools.md)."""
        events: list[Event] = []
        if not self._tool_catalog.server_functions:
            return events
        for call in self._unknown_calls:
            text = f"Error: There is no tool named '{call.target.name[:MAX_WORD]}'."
            output = CallOutput(
                self._sequence.next_index, self._new_id(CallOutput.prefix), call.call_id, text
            )
            events += [*self._sequence.begin(output), *output.close("completed")]
        return events


def failed_outcome(message: str, reason: str, *, is_interruption: bool = False) -> TurnOutcome:
    """The outcome of a turn that failed through the upstream's fault."""
    failure = UpstreamFailed(message, reason=reason, is_interruption=is_interruption)
    return TurnOutcome("failed", failure=failure)


def ended_early() -> TurnOutcome:
    """The outcome of a stream that stopped in the middle."""
    return failed_outcome(UPSTREAM_ENDED_EARLY, "upstream_ended_early", is_interruption=True)


def unnamed_call() -> TurnOutcome:
    """The outcome of a turn with a call whose name never arrived."""
    return failed_outcome("The upstream sent a function call without a name.", "upstream_garbage")
