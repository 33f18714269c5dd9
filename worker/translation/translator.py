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
from dataclasses import dataclass
from typing import Any

from models.errors import LimitReached, UpstreamFailed
from models.wire.events import Event, Item
from models.wire.tools import Target
from worker.translation.built_in import BUILT_IN, fields_of
from worker.translation.calls import SpokenCall, SpokenCalls
from worker.translation.chunk import CallDelta, Chunk
from worker.translation.hosted import OpenHostedCall
from worker.translation.items import CALL_KINDS, CallOutput, OpenBuiltInCall, OpenCall, OpenItem, OpenMessage, OpenReasoning, is_whole
from worker.translation.offer import Offer
from worker.translation.thinking import ThinkTags
from worker.translation.usage import Usage

MAX_CALL_ID = 64
"""Characters; longer ids from an upstream are replaced (contract §3)."""

_SHOWN = 100
"""Characters of a name that an error repeats."""

ITEM_WEIGHT = 1024
"""Bytes an item costs besides its text, so that an upstream cannot fill memory with empty ones."""

TIERS = frozenset(("auto", "default", "flex", "priority", "fast", "scale", "ultrafast"))
"""Service tiers that the API knows (contract §2); what else an upstream calls its own is not passed on."""

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""finish_reason -> `incomplete_details.reason`; everything else but `error` completes the turn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended: `completed`, `incomplete` with a reason, or `failed` with what to raise."""

    status: str
    incomplete_reason: str | None = None
    failure: UpstreamFailed | None = None


class Translator:
    """One turn. `new_id` makes an id from its prefix (`msg`, `rs`, `fc`, `call`); `first_index` is the turn's first output_index.

    `offer` is what the model was offered: the names settle whether a second name is a new call or the rest of a name, and what they
    stand for is what a call becomes. Of the calls that this server runs, the first `calls_allowed` are to be run. `output_limit` is the most a turn may say, in bytes; what goes past it raises LimitReached before
    anything of the chunk is taken.
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
    ) -> None:
        self._new_id = new_id
        self._first_index = first_index
        self._want_logprobs = want_logprobs
        self._room = output_limit
        self._limit = output_limit
        self._tags = ThinkTags() if think_tags else None
        self._items: list[OpenItem] = []
        self._talk: OpenMessage | OpenReasoning | None = None
        self._calls = SpokenCalls(offer.functions)
        self._offer = offer
        self._calls_allowed = calls_allowed
        self._strangers: list[OpenCall] = []
        """Calls of functions that were never offered."""
        self._unopened: list[SpokenCall] = []
        """Calls of built-in tools whose arguments may not be whole yet."""
        self._violation: UpstreamFailed | None = None
        self._naming: SpokenCall | None = None
        self._call_ids: set[str] = set()
        self._logprobs: list[dict[str, Any]] = []
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self.model: str | None = None
        """The model the upstream says it used."""
        self.service_tier: str | None = None
        """The tier the upstream says it used."""
        self.outcome: Outcome | None = None
        """Set by `finish`; None while the turn goes on and after a `cut`."""
        self.refusals: dict[str, str] = {}
        """Set by `finish`: id of a hosted call that is not to be run -> what the model is told."""

    @property
    def output(self) -> list[Item]:
        """All items of the turn in order, as they stand now; after an ending, as they stand in the final output."""
        return [item.to_json() for item in self._items]

    @property
    def calls(self) -> list[Item]:
        """The calls that were said in full: only these may be acted on."""
        return [item.to_json() for item in self._items if isinstance(item, OpenCall) and item.status == "completed"]

    @property
    def items(self) -> list[OpenItem]:
        """The items themselves; a hosted call that is to be run is open still after `finish`."""
        return list(self._items)

    @property
    def hosted_calls(self) -> list[OpenHostedCall]:
        """The calls that this server is to run: said in full, once the turn has ended."""
        return [item for item in self._items if isinstance(item, OpenHostedCall) and item.is_open]

    @property
    def goes_on(self) -> bool:
        """Whether the model called what is answered here, so that it speaks again; else the turn was the last."""
        completed = self.outcome is not None and self.outcome.status == "completed"
        return completed and any(isinstance(item, OpenHostedCall | CallOutput) for item in self._items)

    @property
    def usage(self) -> dict[str, Any] | None:
        """The last count the upstream sent, in the Responses shape; None when it sent none."""
        return self._usage.to_json() if self._usage is not None else None

    def feed(self, chunk: Chunk) -> list[Event]:
        """What this chunk makes happen. Its words come before its finish_reason: vendors send both in one chunk.

        Raises LimitReached or UpstreamFailed with nothing of the chunk taken.
        """
        if self._violation is not None:
            raise self._violation
        self._room -= chunk.weight()
        if self._room < 0:
            raise LimitReached(f"The model said more than the limit of {self._limit} bytes in one turn.", reason="output_limit", status=502)
        events: list[Event] = []
        if chunk.logprobs and self._want_logprobs:
            self._logprobs.extend(chunk.logprobs)
        if chunk.reasoning:
            events += self._think(chunk.reasoning)
        if chunk.content:
            events += self._say(chunk.content) if self._tags is None else self._tell_apart(*self._tags.split(chunk.content))
        if chunk.refusal:
            events += self._refuse(chunk.refusal)
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
        events = self._tell_apart(*self._tags.rest()) if self._tags is not None else []
        events += [*self._announce_named(), *self._open_built_in(at_the_end=True)]
        self.outcome = outcome = self._judge(done_seen=done_seen)
        if outcome.status == "failed":
            return events + self.cut()
        for item in self._items:
            if isinstance(item, OpenHostedCall) and outcome.status == "completed":
                events += self._asked(item)
            elif item.is_open:
                events += item.closed(self._last_status(item, outcome))
        return events + self._answer_unknown() if outcome.status == "completed" else events

    def cut(self) -> list[Event]:
        """Closes every open item as `incomplete`: a cancel, a failure, a limit, a hand-over. A second time it closes nothing."""
        events = self._open_built_in(at_the_end=True)
        for item in self._items:
            if item.is_open:
                events += item.closed("incomplete")
        return events

    def _asked(self, call: OpenHostedCall) -> list[Event]:
        """A call of ours was said in full: it waits to be run, or is one too many."""
        self._calls_allowed -= 1
        if self._calls_allowed >= 0:
            return call.asked()
        message = "The limit of tool calls has been reached: this call was not made. Answer with what you have."
        self.refusals[call.id] = f"Error: {message}"
        return [*call.asked(), *call.answered(call.failure(message), failed=True)]

    def _answer_unknown(self) -> list[Event]:
        """Answers calls of functions that were never offered, where this server answers calls at all (docs/adr/0008)."""
        events: list[Event] = []
        if not self._offer.hosted:
            return events
        for call in self._strangers:
            text = f"Error: There is no tool named '{call.target.name[:_SHOWN]}'."
            answer = CallOutput(self._next_index(), self._new_id(CallOutput.prefix), call.call_id, text)
            self._items.append(answer)
            events += [*answer.opened(), *answer.closed("completed")]
        return events

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
        events = [*self._announce_named(), *self._open_built_in()]
        reasoning = OpenReasoning(self._next_index(), self._new_id(OpenReasoning.prefix))
        events += self._open(reasoning)
        self._talk = reasoning
        return events + reasoning.think(thought)

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
        events = [*self._open_built_in(), *self._open_call(call, target or Target("function_call", call.name))]
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
        return self._opened(call, kind(self._next_index(), self._new_id(kind.prefix), self._call_id(call.id), target))

    def _opened(self, call: SpokenCall, item: OpenCall | OpenHostedCall) -> list[Event]:
        """Opens the item of a call and tells what was held back for it."""
        held, call.item = call.arguments, item
        if isinstance(item, OpenBuiltInCall):  # what it has to say it says at once
            item.push(held)
            return self._open(item)
        events = self._open(item)
        return events + item.push(held) if held else events

    def _may_call(self, name: str) -> bool:
        """Whether `tool_choice` lets the model call this; if not, the turn has failed."""
        if self._offer.callable_names is None or name in self._offer.callable_names:
            return True
        if self._violation is None:
            message = f"The model called the tool '{name[:_SHOWN]}', which 'tool_choice' does not allow."
            self._violation = UpstreamFailed(message, reason="tool_choice_violated")
        return False

    def _call_id(self, upstream_id: str) -> str:
        """The upstream's id where it can serve: present, short enough, and not another call's of this turn."""
        fits = upstream_id and len(upstream_id) <= MAX_CALL_ID and upstream_id not in self._call_ids
        call_id = upstream_id if fits else self._new_id("call")
        self._call_ids.add(call_id)
        return call_id

    def _open_message(self, events: list[Event]) -> OpenMessage:
        events += self._open_built_in()
        message = OpenMessage(self._next_index(), self._new_id(OpenMessage.prefix), self._offer.sources)
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

    def _next_index(self) -> int:
        return self._first_index + len(self._items)

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
            return _failed("The upstream reported an error while it was generating.", "upstream_error")
        if reason is None and not (done_seen and self._items):
            return _failed("The upstream ended its stream before the model had finished.", "upstream_ended_early")
        if reason in _INCOMPLETE:
            return Outcome("incomplete", incomplete_reason=_INCOMPLETE[reason])
        if self._calls.any_unnamed:
            return _failed("The upstream sent a function call without a name.", "upstream_garbage")
        return Outcome("completed")

    def _last_status(self, item: OpenItem, outcome: Outcome) -> str:
        """In a truncated turn the last item is incomplete; before it stand only calls, complete when their arguments are whole."""
        if outcome.status == "completed":
            return "completed"
        if item is not self._items[-1] and isinstance(item, OpenCall) and is_whole(item.arguments):
            return "completed"
        return "incomplete"


def _failed(message: str, reason: str) -> Outcome:
    return Outcome("failed", failure=UpstreamFailed(message, reason=reason))
