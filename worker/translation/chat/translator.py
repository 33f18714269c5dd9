"""Chunks of one turn in, events out (contract §4.3, §7.2).

The turn is an ordered list of items, and an item's place in that list is its place in the output. Talk (reasoning or a message) is
one item at a time: it closes when the next item begins, whatever that is, so the ordinary turn comes out as OpenAI sends it. Calls
stay open side by side until the turn ends, because their arguments may interleave. Calls of built-in tools are told when their arguments
are whole, at the latest before the next item or at the turn's end; those that fit no such item become calls of a plain function. So:

- reasoning closes when text or a call begins, and reasoning that comes later is a new item;
- text after a call is a new message, since the earlier one was closed; white space alone opens none, many models end with it;
- a refusal is one more part of the open message, or the first of a new one.

A call that `tool_choice` rules out becomes no item: the turn fails with it, at the next chunk or at its end (docs/adr/0006).

After `finish` or `cut` nothing may be fed any more.
"""

from collections.abc import Callable
from typing import Any

from models.errors import UpstreamFailed
from models.wire.events import Event
from models.wire.tools import CallTarget
from worker.translation.chat.calls import StreamedCall, StreamedCalls
from worker.translation.chat.chunk import CallDelta, Chunk
from worker.translation.chat.structured import FenceStripper
from worker.translation.chat.thinking import ThinkTagSplitter
from worker.translation.items.built_in_tools import BUILT_IN_TOOLS, parse_arguments
from worker.translation.items.reasoning import Seal
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.items.text_items import (
    CALL_KINDS,
    OpenBuiltInCall,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from worker.translation.tool_catalog import ToolCatalog
from worker.translation.turn import ITEM_WEIGHT, SERVICE_TIERS, Outcome, Turn

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""finish_reason -> `incomplete_details.reason`; everything else but `error` completes the turn."""


class ChatTranslator(Turn[Chunk]):
    """One turn of a chat upstream. `offer`: the names settle whether a second name is a new call or the rest of a name, and what they
    stand for is what a call becomes. `fenced`: the text is JSON that may come in a code fence, which is taken off. `seal` makes the
    `encrypted_content` of reasoning items; None: they get none.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        *,
        first_index: int = 0,
        want_logprobs: bool = False,
        tool_catalog: ToolCatalog = ToolCatalog(),  # noqa: B008 - it is frozen
        calls_allowed: int = 128,
        output_limit: int = 64 << 20,
        think_tags: bool = False,
        fenced: bool = False,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(
            new_id,
            first_index=first_index,
            tool_catalog=tool_catalog,
            calls_allowed=calls_allowed,
            output_limit=output_limit,
        )
        self._want_logprobs = want_logprobs
        self._think_tags = ThinkTagSplitter() if think_tags else None
        self._fence_stripper = FenceStripper() if fenced else None
        self._seal = seal
        self._is_plain = self._think_tags is None and self._fence_stripper is None
        self._pending_details: list[dict[str, Any]] = []
        """Details of thoughts that came in the middle of a message."""
        self._current_item: OpenMessage | OpenReasoning | None = None
        self._calls = StreamedCalls(tool_catalog.functions)
        self._pending_built_in_calls: list[StreamedCall] = []
        """Calls of built-in tools whose arguments may not be whole yet."""
        self._call_being_named: StreamedCall | None = None
        self._logprobs: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    def feed(self, chunk: Chunk) -> list[Event]:
        """What this chunk makes happen. Its words come before its finish_reason: vendors send both in one chunk.

        Raises LimitReached or UpstreamFailed with nothing of the chunk taken.
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
                else self._split_content(chunk.content)
            )
        if chunk.refusal:
            events += self._append_refusal(chunk.refusal)
        if chunk.calls and self._pending_details:
            events += self._open_reasoning()[0]
        for delta in chunk.calls:
            events += self._feed_call(delta)
        for annotation in chunk.annotations:
            events += self._annotate(annotation)
        self._record_metadata(chunk)
        return events

    def finish(self, *, done_seen: bool) -> list[Event]:
        """The upstream's stream has ended without an error; sets `outcome`. `done_seen`: the stream said `[DONE]`.

        The model's finish_reason is the end of the turn, with or without `[DONE]`. Without a finish_reason, `[DONE]` is enough if
        anything was said (many local servers send no reason); a stream that just stops was cut off (contract §7.2).
        """
        events = [] if self._is_plain else self._flush_content()
        events += [*self._open_named_call(), *self._open_built_in_calls(at_the_end=True)]
        return [*events, *self._end_turn(self._decide_outcome(done_seen=done_seen))]

    def close_incomplete(self) -> list[Event]:
        """As ever; calls of built-in tools that were not told yet are told first."""
        return [*self._open_built_in_calls(at_the_end=True), *super().close_incomplete()]

    def _record_metadata(self, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self._finish_reason = chunk.finish_reason
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.model is not None:
            self.model = chunk.model
        if chunk.service_tier in SERVICE_TIERS:
            self.service_tier = chunk.service_tier

    def _append_reasoning(self, delta: str) -> list[Event]:
        talk = self._current_item
        if type(talk) is OpenReasoning:
            return talk.append_delta(delta)
        events, reasoning = self._open_reasoning()
        return events + reasoning.append_delta(delta)

    def _append_reasoning_details(self, chunk: Chunk) -> list[Event]:
        """As `_think`, with summaries, and with what cannot be shown but sealed. That alone interrupts no message: it waits for a call."""
        talk, events = self._current_item, list[Event]()
        if not (chunk.reasoning or chunk.summary) and (
            self._seal is None or type(talk) is OpenMessage
        ):
            self._pending_details += chunk.details if self._seal is not None else ()
            return events
        if type(talk) is not OpenReasoning:
            events, talk = self._open_reasoning()
        talk.add_details(chunk.details)
        for number, piece in chunk.summary:
            events += talk.append_summary_delta(number, piece)
        return events + talk.append_delta(chunk.reasoning) if chunk.reasoning else events

    def _open_reasoning(self) -> tuple[list[Event], OpenReasoning]:
        events = [*self._open_named_call(), *self._open_built_in_calls()]
        reasoning = OpenReasoning(
            self._next_index(), self._new_id(OpenReasoning.prefix), self._seal
        )
        events += self._open(reasoning)
        reasoning.add_details(self._pending_details)
        self._pending_details = []
        self._current_item = reasoning
        return events, reasoning

    def _append_text(self, text: str) -> list[Event]:
        talk = self._current_item
        if type(talk) is OpenMessage:
            return talk.append_delta(text, self._take_logprobs())
        events = self._open_named_call()
        if self._items and isinstance(self._items[-1], OpenCall | OpenServerCall):
            text = text.lstrip()
        logprobs = self._take_logprobs()
        if not text:
            return events
        message = self._open_message(events)
        return events + message.append_delta(text, logprobs)

    def _append_refusal(self, refusal: str) -> list[Event]:
        talk = self._current_item
        if type(talk) is OpenMessage:
            return talk.append_refusal(refusal)
        events = self._open_named_call()
        message = self._open_message(events)
        return events + message.append_refusal(refusal)

    def _split_content(self, content: str) -> list[Event]:
        """What is thought in the content, and what is said in it without its fence."""
        thought, text = (
            self._think_tags.split(content) if self._think_tags is not None else ("", content)
        )
        return self._append_reasoning_and_text(
            thought, self._fence_stripper.strip(text) if self._fence_stripper is not None else text
        )

    def _flush_content(self) -> list[Event]:
        thought, text = self._think_tags.flush() if self._think_tags is not None else ("", "")
        return self._append_reasoning_and_text(
            thought,
            self._fence_stripper.strip(text) + self._fence_stripper.flush()
            if self._fence_stripper is not None
            else text,
        )

    def _append_reasoning_and_text(self, reasoning: str, text: str) -> list[Event]:
        events = self._append_reasoning(reasoning) if reasoning else []
        if text:
            return events + self._append_text(text)
        self._logprobs.clear()  # they belong to tags and thoughts, which carry none
        return events

    def _annotate(self, annotation: dict[str, Any]) -> list[Event]:
        return (
            self._current_item.annotate(annotation)
            if type(self._current_item) is OpenMessage
            else []
        )

    def _feed_call(self, delta: CallDelta) -> list[Event]:
        call = self._calls.find_call(delta)
        if call is None:
            call = self._calls.start(delta)
            self._bytes_left -= ITEM_WEIGHT
        events = self._open_named_call() if self._call_being_named is not call else []
        self._calls.add_id_and_name(call, delta)
        if call.item is not None:
            return events + call.item.push(delta.arguments) if delta.arguments else events
        call.buffer_arguments(delta.arguments)
        if call.name and not call.is_name_final:
            self._call_being_named = call
            if call.has_arguments:
                events += self._open_named_call()
        return events

    def _open_named_call(self) -> list[Event]:
        """Opens the item of the call whose name was still being said: arguments have begun, something else has, or the turn ends."""
        call, self._call_being_named = self._call_being_named, None
        if call is None or not self._may_call(call.name):
            return []
        call.is_name_final = True
        if (function := self._tool_catalog.server_functions.get(call.name)) is not None:
            events = self._open_built_in_calls()
            return events + self._open_call_item(
                call, function.open_call(self._next_index(), self._new_id)
            )
        target = self._tool_catalog.targets.get(call.name)
        if target is not None and target.item in BUILT_IN_TOOLS:
            self._pending_built_in_calls.append(call)
            return self._close_current_item()
        events = [
            *self._open_built_in_calls(),
            *self._open_call(call, target or CallTarget("function_call", call.name)),
        ]
        if target is None and isinstance(call.item, OpenCall):
            self._unknown_calls.append(call.item)
        return events

    def _open_built_in_calls(self, *, at_the_end: bool = False) -> list[Event]:
        """Opens the calls of built-in tools that are whole, in order up to the first that is not; at the end of the turn all of them."""
        events: list[Event] = []
        while self._pending_built_in_calls:
            call = self._pending_built_in_calls[0]
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
        return self._open_call_item(
            call,
            kind(self._next_index(), self._new_id(kind.prefix), self._call_id(call.id), target),
        )

    def _open_call_item(self, call: StreamedCall, item: OpenCall | OpenServerCall) -> list[Event]:
        """Opens the item of a call and tells what was held back for it."""
        held, call.item = call.arguments, item
        if isinstance(item, OpenBuiltInCall):  # what it has to say it says at once
            item.push(held)
            return self._open(item)
        events = self._open(item)
        return events + item.push(held) if held else events

    def _open_message(self, events: list[Event]) -> OpenMessage:
        events += self._open_built_in_calls()
        message = OpenMessage(
            self._next_index(), self._new_id(OpenMessage.prefix), self._tool_catalog.sources
        )
        events += self._open(message)
        self._current_item = message
        return message

    def _open(self, item: OpenItem) -> list[Event]:
        events = self._close_current_item()
        self._items.append(item)
        self._bytes_left -= ITEM_WEIGHT
        return events + item.open_events()

    def _close_current_item(self) -> list[Event]:
        talk, self._current_item = self._current_item, None
        return talk.close("completed") if talk is not None else []

    def _take_logprobs(self) -> list[dict[str, Any]]:
        """The log probabilities of what is said now, with those of earlier tokens that made no whole character."""
        if not self._logprobs:
            return []
        taken, self._logprobs = self._logprobs, []
        return taken

    def _decide_outcome(self, *, done_seen: bool) -> Outcome:
        reason = self._finish_reason
        if self._violation is not None:
            return Outcome("failed", failure=self._violation)
        if reason == "error":
            return _failed_outcome(
                "The upstream reported an error while it was generating.", "upstream_error"
            )
        if reason is None and not (done_seen and self._items):
            return _failed_outcome(
                "The upstream ended its stream before the model had finished.",
                "upstream_ended_early",
            )
        if reason in _INCOMPLETE_REASONS:
            return Outcome("incomplete", incomplete_reason=_INCOMPLETE_REASONS[reason])
        if self._calls.any_unnamed:
            return _failed_outcome(
                "The upstream sent a function call without a name.", "upstream_garbage"
            )
        return Outcome("completed")


def _failed_outcome(message: str, reason: str) -> Outcome:
    return Outcome("failed", failure=UpstreamFailed(message, reason=reason))
