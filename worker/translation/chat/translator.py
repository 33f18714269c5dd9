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
from models.wire.tools import Target
from worker.translation.chat.calls import SpokenCall, SpokenCalls
from worker.translation.chat.chunk import CallDelta, Chunk
from worker.translation.chat.structured import Fences
from worker.translation.chat.thinking import ThinkTags
from worker.translation.items.built_in_tools import BUILT_IN, fields_of
from worker.translation.items.reasoning import Seal
from worker.translation.items.server_calls import OpenHostedCall
from worker.translation.items.text_items import (
    CALL_KINDS,
    OpenBuiltInCall,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from worker.translation.tool_catalog import Offer
from worker.translation.turn import ITEM_WEIGHT, TIERS, Outcome, SpokenTurn

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""finish_reason -> `incomplete_details.reason`; everything else but `error` completes the turn."""


class Translator(SpokenTurn[Chunk]):
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
        offer: Offer = Offer(),  # noqa: B008 - it is frozen
        calls_allowed: int = 128,
        output_limit: int = 64 << 20,
        think_tags: bool = False,
        fenced: bool = False,
        seal: Seal | None = None,
    ) -> None:
        super().__init__(
            new_id,
            first_index=first_index,
            offer=offer,
            calls_allowed=calls_allowed,
            output_limit=output_limit,
        )
        self._want_logprobs = want_logprobs
        self._tags = ThinkTags() if think_tags else None
        self._fences = Fences() if fenced else None
        self._seal = seal
        self._is_plain = self._tags is None and self._fences is None
        self._unshown: list[dict[str, Any]] = []
        """Details of thoughts that came in the middle of a message."""
        self._talk: OpenMessage | OpenReasoning | None = None
        self._calls = SpokenCalls(offer.functions)
        self._unopened: list[SpokenCall] = []
        """Calls of built-in tools whose arguments may not be whole yet."""
        self._naming: SpokenCall | None = None
        self._logprobs: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    def feed(self, chunk: Chunk) -> list[Event]:
        """What this chunk makes happen. Its words come before its finish_reason: vendors send both in one chunk.

        Raises LimitReached or UpstreamFailed with nothing of the chunk taken.
        """
        if self._violation is not None:
            raise self._violation
        self._spend(chunk.weight())
        events: list[Event] = []
        if chunk.logprobs and self._want_logprobs:
            self._logprobs.extend(chunk.logprobs)
        if chunk.details:
            events += self._think_in_detail(chunk)
        elif chunk.reasoning:
            events += self._think(chunk.reasoning)
        if chunk.content:
            events += (
                self._say(chunk.content) if self._is_plain else self._take_apart(chunk.content)
            )
        if chunk.refusal:
            events += self._refuse(chunk.refusal)
        if chunk.calls and self._unshown:
            events += self._open_reasoning()[0]
        for delta in chunk.calls:
            events += self._call(delta)
        for annotation in chunk.annotations:
            events += self._annotate(annotation)
        self._note(chunk)
        return events

    def finish(self, *, done_seen: bool) -> list[Event]:
        """The upstream's stream has ended without an error; sets `outcome`. `done_seen`: the stream said `[DONE]`.

        The model's finish_reason is the end of the turn, with or without `[DONE]`. Without a finish_reason, `[DONE]` is enough if
        anything was said (many local servers send no reason); a stream that just stops was cut off (contract §7.2).
        """
        events = [] if self._is_plain else self._take_apart_the_rest()
        events += [*self._announce_named(), *self._open_built_in(at_the_end=True)]
        return [*events, *self._concluded(self._judge(done_seen=done_seen))]

    def cut(self) -> list[Event]:
        """As ever; calls of built-in tools that were not told yet are told first."""
        return [*self._open_built_in(at_the_end=True), *super().cut()]

    def _note(self, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self._finish_reason = chunk.finish_reason
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.model is not None:
            self.model = chunk.model
        if chunk.service_tier in TIERS:
            self.service_tier = chunk.service_tier

    def _think(self, thought: str) -> list[Event]:
        talk = self._talk
        if type(talk) is OpenReasoning:
            return talk.think(thought)
        events, reasoning = self._open_reasoning()
        return events + reasoning.think(thought)

    def _think_in_detail(self, chunk: Chunk) -> list[Event]:
        """As `_think`, with summaries, and with what cannot be shown but sealed. That alone interrupts no message: it waits for a call."""
        talk, events = self._talk, list[Event]()
        if not (chunk.reasoning or chunk.summary) and (
            self._seal is None or type(talk) is OpenMessage
        ):
            self._unshown += chunk.details if self._seal is not None else ()
            return events
        if type(talk) is not OpenReasoning:
            events, talk = self._open_reasoning()
        talk.keep(chunk.details)
        for number, piece in chunk.summary:
            events += talk.summarise(number, piece)
        return events + talk.think(chunk.reasoning) if chunk.reasoning else events

    def _open_reasoning(self) -> tuple[list[Event], OpenReasoning]:
        events = [*self._announce_named(), *self._open_built_in()]
        reasoning = OpenReasoning(
            self._next_index(), self._new_id(OpenReasoning.prefix), self._seal
        )
        events += self._open(reasoning)
        reasoning.keep(self._unshown)
        self._unshown = []
        self._talk = reasoning
        return events, reasoning

    def _say(self, text: str) -> list[Event]:
        talk = self._talk
        if type(talk) is OpenMessage:
            return talk.say(text, self._take_logprobs())
        events = self._announce_named()
        if self._items and isinstance(self._items[-1], OpenCall | OpenHostedCall):
            text = text.lstrip()
        logprobs = self._take_logprobs()
        if not text:
            return events
        message = self._open_message(events)
        return events + message.say(text, logprobs)

    def _refuse(self, refusal: str) -> list[Event]:
        talk = self._talk
        if type(talk) is OpenMessage:
            return talk.refuse(refusal)
        events = self._announce_named()
        message = self._open_message(events)
        return events + message.refuse(refusal)

    def _take_apart(self, content: str) -> list[Event]:
        """What is thought in the content, and what is said in it without its fence."""
        thought, text = self._tags.split(content) if self._tags is not None else ("", content)
        return self._tell_apart(
            thought, self._fences.strip(text) if self._fences is not None else text
        )

    def _take_apart_the_rest(self) -> list[Event]:
        thought, text = self._tags.rest() if self._tags is not None else ("", "")
        return self._tell_apart(
            thought,
            self._fences.strip(text) + self._fences.rest() if self._fences is not None else text,
        )

    def _tell_apart(self, thought: str, text: str) -> list[Event]:
        events = self._think(thought) if thought else []
        if text:
            return events + self._say(text)
        self._logprobs.clear()  # they belong to tags and thoughts, which carry none
        return events

    def _annotate(self, annotation: dict[str, Any]) -> list[Event]:
        return self._talk.annotate(annotation) if type(self._talk) is OpenMessage else []

    def _call(self, delta: CallDelta) -> list[Event]:
        call = self._calls.belongs_to(delta)
        if call is None:
            call = self._calls.start(delta)
            self._room -= ITEM_WEIGHT
        events = self._announce_named() if self._naming is not call else []
        self._calls.learn(call, delta)
        if call.item is not None:
            return events + call.item.push(delta.arguments) if delta.arguments else events
        call.hold(delta.arguments)
        if call.name and not call.is_named:
            self._naming = call
            if call.has_arguments:
                events += self._announce_named()
        return events

    def _announce_named(self) -> list[Event]:
        """Opens the item of the call whose name was still being said: arguments have begun, something else has, or the turn ends."""
        call, self._naming = self._naming, None
        if call is None or not self._may_call(call.name):
            return []
        call.is_named = True
        if (function := self._offer.hosted.get(call.name)) is not None:
            events = self._open_built_in()
            return events + self._opened(call, function.opens(self._next_index(), self._new_id))
        target = self._offer.targets.get(call.name)
        if target is not None and target.item in BUILT_IN:
            self._unopened.append(call)
            return self._end_talk()
        events = [
            *self._open_built_in(),
            *self._open_call(call, target or Target("function_call", call.name)),
        ]
        if target is None and isinstance(call.item, OpenCall):
            self._strangers.append(call.item)
        return events

    def _open_built_in(self, *, at_the_end: bool = False) -> list[Event]:
        """Opens the calls of built-in tools that are whole, in order up to the first that is not; at the end of the turn all of them."""
        events: list[Event] = []
        while self._unopened:
            call = self._unopened[0]
            target = self._offer.targets[call.name]
            if fields_of(target.item, call.arguments) is None:
                if not at_the_end:
                    break
                target = Target("function_call", BUILT_IN[target.item].name)
            del self._unopened[0]
            events += self._open_call(call, target)
        return events

    def _open_call(self, call: SpokenCall, target: Target) -> list[Event]:
        kind = CALL_KINDS[target.item]
        return self._opened(
            call,
            kind(self._next_index(), self._new_id(kind.prefix), self._call_id(call.id), target),
        )

    def _opened(self, call: SpokenCall, item: OpenCall | OpenHostedCall) -> list[Event]:
        """Opens the item of a call and tells what was held back for it."""
        held, call.item = call.arguments, item
        if isinstance(item, OpenBuiltInCall):  # what it has to say it says at once
            item.push(held)
            return self._open(item)
        events = self._open(item)
        return events + item.push(held) if held else events

    def _open_message(self, events: list[Event]) -> OpenMessage:
        events += self._open_built_in()
        message = OpenMessage(
            self._next_index(), self._new_id(OpenMessage.prefix), self._offer.sources
        )
        events += self._open(message)
        self._talk = message
        return message

    def _open(self, item: OpenItem) -> list[Event]:
        events = self._end_talk()
        self._items.append(item)
        self._room -= ITEM_WEIGHT
        return events + item.opened()

    def _end_talk(self) -> list[Event]:
        talk, self._talk = self._talk, None
        return talk.closed("completed") if talk is not None else []

    def _take_logprobs(self) -> list[dict[str, Any]]:
        """The log probabilities of what is said now, with those of earlier tokens that made no whole character."""
        if not self._logprobs:
            return []
        taken, self._logprobs = self._logprobs, []
        return taken

    def _judge(self, *, done_seen: bool) -> Outcome:
        reason = self._finish_reason
        if self._violation is not None:
            return Outcome("failed", failure=self._violation)
        if reason == "error":
            return _failed(
                "The upstream reported an error while it was generating.", "upstream_error"
            )
        if reason is None and not (done_seen and self._items):
            return _failed(
                "The upstream ended its stream before the model had finished.",
                "upstream_ended_early",
            )
        if reason in _INCOMPLETE:
            return Outcome("incomplete", incomplete_reason=_INCOMPLETE[reason])
        if self._calls.any_unnamed:
            return _failed("The upstream sent a function call without a name.", "upstream_garbage")
        return Outcome("completed")


def _failed(message: str, reason: str) -> Outcome:
    return Outcome("failed", failure=UpstreamFailed(message, reason=reason))
