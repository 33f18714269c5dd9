"""Chunks of one turn in, events out.

The turn is an ordered list of items; an item's position in that list is its position in the output.
Each item closes when the next one begins, of whatever kind, so an ordinary turn has the same events
as OpenAI's. The exception is a call whose arguments are not complete yet, because an upstream may
interleave the arguments of several calls: the events of later items are held back until they are,
at the latest until the turn ends (worker/translation/item_sequence.py). Calls of built-in tools are
opened when their arguments are complete, at the latest before the next item or at the turn's end;
calls whose arguments are not valid become calls of a plain function. So:

- reasoning closes when text or a call begins, and later reasoning is a new item;
- text after a call is a new message, since the earlier one was closed; white space alone opens
  none, because many models end with it;
- a refusal is one more part of the open message, or the first part of a new one.

A call that `tool_choice` does not allow becomes no item: the turn fails at the next chunk or at its
end (docs/tools.md).

After `finish` or `close_incomplete` nothing may be fed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.wire.events import Event
from models.wire.tools import CallTarget
from worker.translation.chat.calls import (
    StreamedCall,
    StreamedCalls,
    needs_origin,
    origin_of,
    origins_of,
)
from worker.translation.chat.content_filter import ContentFilter
from worker.translation.items.client_calls import CALL_KINDS, OpenBuiltInCall, OpenClientCall
from worker.translation.items.client_tools import BUILT_IN_TOOLS, parse_arguments
from worker.translation.items.open_item import OpenItem, OpenToolCall
from worker.translation.items.server_calls import OpenPicture, base64_of
from worker.translation.items.text_items import OpenMessage, OpenReasoning
from worker.translation.returned_content import CallOrigin, Seal, SealOrigin
from worker.translation.turn import (
    ITEM_WEIGHT,
    MAX_WORD,
    Turn,
    TurnOptions,
    TurnOutcome,
    ended_early,
    failed_outcome,
    unnamed_call,
)
from worker.translation.upstream_events import CallDelta, ChatChunk

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""finish_reason -> `incomplete_details.reason`."""


@dataclass(frozen=True, slots=True)
class ChatOptions(TurnOptions):
    """The options of a chat upstream's turn."""

    want_logprobs: bool = False
    """The client wants log probabilities."""
    think_tags: bool = False
    """The upstream leaves reasoning in the text, between tags."""
    think_opened: bool = False
    """The same, but its template has written the first opening tag, which the text lacks."""
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    """Words of the upstream that nobody else knows -> `stop`, `length`, `content_filter` or
    `error`."""
    fenced: bool = False
    """The text is JSON that may come in a code fence, which is removed."""
    seal: Seal | None = None
    """Makes the `encrypted_content` of reasoning items; None: they get none."""
    upstream: str = ""
    """The upstream's name, for the origins of its calls."""
    seal_origin: SealOrigin | None = None
    """Seals the origin of a call; None: none is kept."""
    carries_origins: bool = False
    """The client keeps the history itself, with sealed reasoning: a call of its tools whose
    upstream wants more back than the items show has a reasoning item before it, which carries the
    origin."""
    reasoning_in_order: bool = False
    """The place of reasoning among texts counts, also if it has no text itself."""
    reasoning_is_summary: bool = False
    """The upstream's reasoning is a summary of what the model has thought."""
    summarised: bool = False
    """Complete reasoning of which the upstream sends only raw text waits for a summary
    (`take_unsummarised`)."""


class ChatTranslator(Turn[ChatChunk]):
    """One turn of a chat upstream.

    The names in the tool catalog decide whether a second name is a new call or the rest of a name,
    and which item a call becomes.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        options: ChatOptions = ChatOptions(),
    ) -> None:
        super().__init__(new_id, options)
        self._want_logprobs = options.want_logprobs
        self._seal = options.seal
        self._upstream = options.upstream
        self._seal_origin = options.seal_origin
        self._carries_origins = options.carries_origins and options.seal is not None
        self._summarised = options.summarised
        self._reasoning_in_order = options.reasoning_in_order
        self._reasoning_is_summary = options.reasoning_is_summary
        self._finish_reasons = options.finish_reasons
        self._content = ContentFilter(
            think_tags=options.think_tags,
            think_opened=options.think_opened,
            fenced=options.fenced,
        )
        self._is_plain = self._content.is_transparent
        self._pending_details: list[dict[str, Any]] = []
        """Details of reasoning that came in the middle of a message."""
        self._current_item: OpenMessage | OpenReasoning | None = None
        self._calls = StreamedCalls(options.tool_catalog.functions)
        self._message_fields: dict[str, Any] = {}
        """Fields of the message with the calls that are not known."""
        self._pending_built_in_calls: list[StreamedCall] = []
        """Calls of built-in tools whose arguments may be incomplete."""
        self._call_being_named: StreamedCall | None = None
        self._logprobs: list[dict[str, Any]] = []
        """Of tokens whose text has not arrived yet."""
        self._finish_reason: str | None = None
        self._finish_word = ""
        """The upstream's own word for it."""
        self._has_audio = False

    @property
    def call_origins(self) -> dict[str, dict[str, str]]:
        if self._seal_origin is None or not self._items:
            return {}
        found = origins_of(self._calls, self._new_origin(), self._message_fields)
        return {item_id: self._seal_origin(known_id, origin) for item_id, known_id, origin in found}

    def _new_origin(self) -> CallOrigin:
        """What the origins of all calls of the turn have."""
        return CallOrigin(self._upstream, self._items[0].id if self._items else "")

    def feed(self, chunk: ChatChunk) -> list[Event]:
        """The events that this chunk causes. Its content comes before its finish_reason: vendors
        send both in one chunk.

        Raises LimitReached or UpstreamFailed before it uses any of the chunk.
        """
        if self._violation is not None:
            raise self._violation
        self._count_bytes(chunk.weight())
        events: list[Event] = []
        if chunk.logprobs and self._want_logprobs:
            self._logprobs.extend(chunk.logprobs)
        if chunk.details:
            events += self._append_reasoning_details(chunk)
        elif chunk.reasoning:
            events += self._append_reasoning(chunk.reasoning)
        if chunk.content:
            events += (
                self._append_text(chunk.content)
                if self._is_plain
                else self._append_reasoning_and_text(*self._content.split(chunk.content))
            )
        if chunk.refusal:
            events += self._append_refusal(chunk.refusal)
        if chunk.unread:  # also before its calls, or behind them
            self._message_fields.update(chunk.unread)
        if chunk.calls:
            events += self._feed_calls(chunk)
        if chunk.images or chunk.has_audio or chunk.unknown:
            events += self._append_extras(chunk)
        if type(self._current_item) is OpenMessage:
            for annotation in chunk.annotations:
                events += self._current_item.annotate(annotation)
        if chunk.finish_reason is not None:
            self._note_end(chunk.finish_reason, chunk.finish_word)
        self._record_metadata(chunk)
        return events if self._sequence.front is None else self._sequence.in_order(events)

    def finish(self, *, done_seen: bool) -> list[Event]:
        """Ends the turn after the upstream's stream has ended without an error; sets `outcome`.

        A finish_reason ends the turn, with or without `[DONE]`. Without a finish_reason, `[DONE]`
        is enough if there is any output (many local servers send no finish_reason). A stream that
        only stops was cut off.
        """
        events = self._end_content()
        events += self._end_turn(self._outcome(done_seen=done_seen))
        return self._sequence.in_order(events)

    def end_reasoning(self, *, done_seen: bool) -> list[Event]:
        if not self._summarised:
            return []
        events = self._end_content()
        is_complete = self._outcome(done_seen=done_seen).status == "completed"
        if is_complete and type(self._current_item) is OpenReasoning:
            events += self._close_current_item()
        return self._sequence.in_order(events)

    def _end_content(self) -> list[Event]:
        """Uses what is held back of the upstream's text and calls. A second call does nothing."""
        events: list[Event] = []
        if not self._is_plain:
            is_cut_off = self._finish_reason not in (None, "stop")
            events += self._append_reasoning_and_text(*self._content.flush(is_cut_off=is_cut_off))
        return [*events, *self._open_named_call(), *self._end_calls()]

    def _end_calls(self) -> list[Event]:
        """Uses what is held back of the arguments of calls."""
        events: list[Event] = []
        for call in self._calls.waiting:
            events += self._append_arguments(call, call.end())
        return events + self._open_built_in_calls(at_the_end=True)

    def _close_all_incomplete(self) -> list[Event]:
        """Opens the calls of built-in tools that are not open yet, and closes all open items."""
        return [*self._end_calls(), *super()._close_all_incomplete()]

    def _note_end(self, reason: str, word: str) -> None:
        """Keeps why the turn ended. A `stop` in a later chunk takes no other reason back."""
        if reason == "unknown":
            reason = self._finish_reasons.get(word, reason)
        if self._finish_reason in (None, "stop"):
            self._finish_reason, self._finish_word = reason, word

    def _append_reasoning(self, delta: str) -> list[Event]:
        events, current = list[Event](), self._current_item
        if type(current) is not OpenReasoning:
            events, current = self._open_reasoning()
        if self._reasoning_is_summary:
            return events + current.append_summary_delta(0, delta)
        return events + current.append_delta(delta)

    def _append_reasoning_details(self, chunk: ChatChunk) -> list[Event]:
        """Appends reasoning with summaries and details.

        Details without text are not shown, only sealed. They do not interrupt a message: they wait
        for a call.
        """
        current, events = self._current_item, list[Event]()
        if not (chunk.reasoning or chunk.summary) and (
            self._seal is None or (type(current) is OpenMessage and not self._reasoning_in_order)
        ):
            self._pending_details += chunk.details if self._seal is not None else ()
            return events
        if type(current) is not OpenReasoning:
            events, current = self._open_reasoning()
        current.add_details(chunk.details)
        for number, piece in chunk.summary:
            events += current.append_summary_delta(number, piece)
        return events + current.append_delta(chunk.reasoning) if chunk.reasoning else events

    def _open_reasoning(self) -> tuple[list[Event], OpenReasoning]:
        events = [*self._open_named_call(), *self._open_built_in_calls()]
        reasoning = self._begin_reasoning(events)
        reasoning.add_details(self._pending_details)
        self._pending_details = []
        return events, reasoning

    def _begin_reasoning(self, events: list[Event]) -> OpenReasoning:
        reasoning = OpenReasoning(
            self._sequence.next_index, self._new_id(OpenReasoning.prefix), self._seal
        )
        events += self._open(reasoning)
        self._current_item = reasoning
        return reasoning

    def _append_text(self, text: str) -> list[Event]:
        # Log probabilities of earlier tokens that made no whole character come with this text.
        logprobs, self._logprobs = self._logprobs, []
        current = self._current_item
        if type(current) is OpenMessage:
            return current.append_delta(text, logprobs)
        events = self._open_named_call()
        if self._items and isinstance(self._items[-1], OpenToolCall):
            text = text.lstrip()
        if not text:
            return events
        message = self._open_message(events)
        return events + message.append_delta(text, logprobs)

    def _append_refusal(self, refusal: str) -> list[Event]:
        current = self._current_item
        if type(current) is OpenMessage:
            return current.append_refusal(refusal)
        events = self._open_named_call()
        message = self._open_message(events)
        return events + message.append_refusal(refusal)

    def _append_reasoning_and_text(self, reasoning: str, text: str) -> list[Event]:
        events = self._append_reasoning(reasoning) if reasoning else []
        if text:
            return events + self._append_text(text)
        self._logprobs.clear()  # they belong to tags and reasoning, which have none in the output
        return events

    def _append_extras(self, chunk: ChatChunk) -> list[Event]:
        """Pictures become items, or links in the text. What has no place is noted."""
        self._has_audio = self._has_audio or chunk.has_audio
        self.unknown_content.update(chunk.unknown)
        events: list[Event] = []
        for url in chunk.images:
            events += self._open_named_call()
            if not (result := base64_of(url)):
                events += self._append_text(f"![image]({url})")
                continue
            events += self._open_built_in_calls()
            picture = OpenPicture(
                self._sequence.next_index, self._new_id(OpenPicture.prefix), result
            )
            events += [*self._open(picture), *picture.close("completed")]
        return events

    def _feed_calls(self, chunk: ChatChunk) -> list[Event]:
        events: list[Event] = []
        if not self._is_plain and (text := self._content.decide()):
            events += self._append_text(text)
        if self._pending_details:
            events += self._open_reasoning()[0]
        for delta in chunk.calls:
            events += self._feed_call(delta)
        return events

    def _feed_call(self, delta: CallDelta) -> list[Event]:
        call = self._calls.find_call(delta)
        if call is None:
            call = self._calls.start(delta)
            self._bytes_left -= ITEM_WEIGHT
        events = self._open_named_call() if self._call_being_named is not call else []
        self._calls.add_id_and_name(call, delta)
        events += self._append_arguments(call, call.take(delta.arguments))
        if call.item is not None:
            return events
        if call.name and not call.is_name_final:
            self._call_being_named = call
            if call.has_arguments:
                events += self._open_named_call()
        return events

    def _append_arguments(self, call: StreamedCall, arguments: str) -> list[Event]:
        if call.item is None:
            call.buffer_arguments(arguments)
            return []
        return self._sequence.push(call.item, arguments) if arguments else []

    def _open_named_call(self) -> list[Event]:
        """Opens the item of the call whose name may have been incomplete: arguments or another
        item have begun, or the turn ends."""
        call, self._call_being_named = self._call_being_named, None
        if call is None or not self._may_call(call.name):
            return []
        call.is_name_final = True
        if (function := self._tool_catalog.server_functions.get(call.name)) is not None:
            if self._ignores_call():
                return []
            events = self._open_built_in_calls()
            return events + self._open_call_item(
                call, function.open_call(self._sequence.next_index, self._new_id)
            )
        target = self._tool_catalog.targets.get(call.name)
        if target is not None and target.item in BUILT_IN_TOOLS:
            self._pending_built_in_calls.append(call)
            return self._close_current_item()
        events = [
            *self._open_built_in_calls(),
            *self._open_call(call, target or CallTarget("function_call", call.name)),
        ]
        if target is None and isinstance(call.item, OpenClientCall):
            self._unknown_calls.append(call.item)
        return events

    def _open_built_in_calls(self, *, at_the_end: bool = False) -> list[Event]:
        """Opens the complete calls of built-in tools, in order up to the first incomplete one;
        at the end of the turn all of them."""
        events: list[Event] = []
        while self._pending_built_in_calls:
            call = self._pending_built_in_calls[0]
            if call.waits and not at_the_end:
                break
            target = self._tool_catalog.targets[call.name]
            if parse_arguments(target.item, call.arguments) is None:
                if not at_the_end:
                    break
                target = CallTarget("function_call", BUILT_IN_TOOLS[target.item].name)
            del self._pending_built_in_calls[0]
            events += self._open_call(call, target)
        return events

    def _open_call(self, call: StreamedCall, target: CallTarget) -> list[Event]:
        kind = CALL_KINDS[target.item]
        events, call_id = list[Event](), None
        if self._carries_origins:
            call_id = self._call_id(call.id)
            events = self._carry_origin(call, call_id)
        item_id = self._new_id(kind.prefix)
        if call_id is None:
            call_id = self._call_id(call.id)
        item = kind(self._sequence.next_index, item_id, call_id, target)
        return events + self._open_call_item(call, item)

    def _carry_origin(self, call: StreamedCall, call_id: str) -> list[Event]:
        """Adds the origin of a call to the reasoning before it; opens an item if there is none."""
        position = sum(other.item is not None for other in self._calls)
        fields = {} if position else self._message_fields
        if not needs_origin(call_id, origin_of(call, call_id, self._new_origin(), fields)):
            return []
        events, current = list[Event](), self._current_item
        if type(current) is not OpenReasoning:
            current = self._begin_reasoning(events)
        of_turn = replace(self._new_origin(), position=position)
        origin = origin_of(call, call_id, of_turn, fields)
        current.add_call(call_id, origin.to_json())
        return events

    def _open_call_item(self, call: StreamedCall, item: OpenToolCall) -> list[Event]:
        """Opens the item of a call and adds the arguments that have arrived."""
        arguments, call.item = call.taken_arguments, item
        if isinstance(item, OpenBuiltInCall):  # its `added` needs the arguments
            item.push(arguments)
            return self._open(item)
        events = self._open(item)
        return events + item.push(arguments) if arguments else events

    def _open_message(self, events: list[Event]) -> OpenMessage:
        events += self._open_built_in_calls()
        message = OpenMessage(
            self._sequence.next_index, self._new_id(OpenMessage.prefix), self._tool_catalog.sources
        )
        events += self._open(message)
        self._current_item = message
        return message

    def _open(self, item: OpenItem) -> list[Event]:
        events = self._close_current_item()
        self._bytes_left -= ITEM_WEIGHT
        return events + self._sequence.begin(item)

    def _close_current_item(self) -> list[Event]:
        current, self._current_item = self._current_item, None
        if current is None:
            return []
        if self._summarised and type(current) is OpenReasoning and current.lacks_summary:
            self._unsummarised.append(current)
            return current.end_text()
        return current.close("completed")

    def _decide_outcome(self, *, done_seen: bool) -> TurnOutcome:
        reason = self._finish_reason
        if reason in ("error", "unknown"):
            return self._reported_outcome()
        if reason is None and not (done_seen and (self._items or self.unknown_content)):
            return ended_early()
        if reason in _INCOMPLETE_REASONS:
            return TurnOutcome("incomplete", incomplete_reason=_INCOMPLETE_REASONS[reason])
        if self._calls.any_unnamed:
            return unnamed_call()
        if self._has_audio and not any(isinstance(item, OpenMessage) for item in self._items):
            return failed_outcome(
                "The upstream answered with sound, for which the Responses API has no item.",
                "upstream_garbage",
            )
        may_be_cut = self._cut_off_call() is not None or self._ends_with_empty_call()
        if may_be_cut and self._used_all_tokens():
            # Some servers report `tool_calls` also where the limit ended the arguments, or the
            # call before them.
            return TurnOutcome("incomplete", incomplete_reason="max_output_tokens")
        return self._flaw(self._finish_word) or TurnOutcome("completed")

    def _ends_with_empty_call(self) -> bool:
        last = self._items[-1] if self._items else None
        return isinstance(last, OpenClientCall) and last.arguments.strip() in ("", "{}")

    def _reported_outcome(self) -> TurnOutcome:
        """The outcome for an end that is an error, or may be one."""
        word = self._finish_word[:MAX_WORD]
        if self._finish_reason == "error":
            return failed_outcome(
                f"The upstream reported an error while it was generating (finish_reason '{word}').",
                "upstream_error",
                is_interruption=True,
            )
        return failed_outcome(
            f"The upstream ended its answer with a finish_reason that is not known: '{word}'. "
            "What it means can be set in 'finish_reasons' of the upstream.",
            "upstream_finish_reason",
        )
