"""A native upstream's events of one turn in, ours out (contract §4.3; docs/adr/0015). Pure.

The upstream speaks the Responses API itself, with ids, numbers and snapshots of its own, none of which reach our client: its items become
ours, under our ids, at our places, and only they are told; `response.created`, `.queued` and `.in_progress` say nothing new. An event finds
its item by the upstream's id, else by its `output_index`, else it is about the item of its kind that was open last: servers leave out the
one or the other, and some change an item's id from event to event.

Holes are filled: an item, or a part, whose `added` is missing begins with the first event that can only be about it; what an item's `done` or
the terminal event know beyond the deltas is said then; what was never closed closes with the turn. Words that were shown stay, also where
a later event contradicts them. Events of types that are not known here say nothing: what they tell stands in their item at its end. A
call of a function that this server runs becomes an item of ours that is open until it is answered.

The end of a turn is its terminal event. Without one, `[DONE]` will do if the upstream had closed all it had said; a stream that just stops
was cut off.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.errors import UpstreamFailed
from models.wire.events import Event
from models.wire.pairing import CALLS, OUTPUTS
from models.wire.tools import Target
from worker.translation.items.server_calls import OpenHostedCall
from worker.translation.items.text_items import OpenItem
from worker.translation.responses.items import (
    HOSTED_CALLS,
    NATIVE_CALLS,
    PREFIXES,
    NativeItem,
    NativeMessage,
    NativeReasoning,
    NativeWhole,
    as_arguments,
    rest_of,
)
from worker.translation.tool_catalog import Offer
from worker.translation.turn import ITEM_WEIGHT, Outcome, SpokenTurn
from worker.translation.upstream_events import Ended, Told

_ABOUT = {
    "output_text": "message",
    "output_text.annotation": "message",
    "refusal": "message",
    "reasoning_text": "reasoning",
    "reasoning_summary_text": "reasoning",
    "reasoning_summary_part": "reasoning",
    "function_call_arguments": "function_call",
    "custom_tool_call_input": "custom_tool_call",
    "code_interpreter_call_code": "code_interpreter_call",
    **{kind: kind for kind in HOSTED_CALLS},
}
"""What an event is about -> the type of its item; of a `content_part` the part tells."""


@dataclass(slots=True, eq=False)
class _Spoken:
    """An item as the upstream tells it."""

    kind: str
    id: str = ""
    shape: dict[str, Any] = field(default_factory=dict)
    item: OpenItem | None = None
    """Ours, once enough is known to open it."""
    held: list[str] = field(default_factory=list)
    """Arguments that came before the function's name."""
    heard: int = 0
    """Bytes of it that were counted against the limit."""
    is_done: bool = False
    """The upstream has closed it."""


class NativeTranslator(SpokenTurn[Told]):
    """One turn of a native upstream. `keep`: what of its `encrypted_content` is stored."""

    def __init__(
        self,
        new_id: Callable[[str], str],
        *,
        first_index: int = 0,
        offer: Offer = Offer(),  # noqa: B008 - it is frozen
        calls_allowed: int = 128,
        output_limit: int = 64 << 20,
        keep: Callable[[str], str] = str,
    ) -> None:
        super().__init__(
            new_id,
            first_index=first_index,
            offer=offer,
            calls_allowed=calls_allowed,
            output_limit=output_limit,
        )
        self._keep = keep
        self._spoken: list[_Spoken] = []
        self._by_id: dict[str, _Spoken] = {}
        self._by_index: dict[int, _Spoken] = {}
        self._latest: dict[str, _Spoken] = {}
        """Of each kind."""
        self._our_call_ids: dict[str, str] = {}
        self._ended: Ended | None = None
        self._is_free = not offer.callable_names and offer.choice != "none"
        """`tool_choice` demands a tool of the upstream's own: whether anything else may be called is the upstream's to say."""

    def feed(self, told: Told) -> list[Event]:
        """What this event makes happen. After the terminal event nothing counts any more."""
        if self._violation is not None:
            raise self._violation
        if self._ended is not None:
            return []
        self._note(told)
        if told.ended is not None:
            self._spend(max(0, told.size - sum(spoken.heard for spoken in self._spoken)))
            self._ended = told.ended
            return []
        spoken = self._meant(told)
        if spoken is None:
            return []
        self._count(spoken, told)
        if told.subject == "output_item":
            return (
                self._added(spoken, told)
                if told.step == "added"
                else self._done(spoken, told.item or {})
            )
        return self._heard(spoken, told)

    def finish(self, *, done_seen: bool) -> list[Event]:
        """As every turn's."""
        events = self._settled(self._ended) if self._ended is not None else []
        return [*events, *self._concluded(self._judge(done_seen=done_seen))]

    # --- which item ---

    def _meant(self, told: Told) -> _Spoken | None:
        """The item that an event is about, made if there is none yet; None when it says nothing we could show."""
        kind = self._kind(told)
        if kind is None:
            return None
        found = self._find(kind, told)
        if found is not None:
            return None if found.is_done and told.subject != "output_item" else found
        spoken = self._latest[kind] = _Spoken(kind, told.item_id)
        self._spoken.append(spoken)
        if told.item_id:
            self._by_id[told.item_id] = spoken
        if told.output_index is not None:
            self._by_index[told.output_index] = spoken
        return spoken

    def _kind(self, told: Told) -> str | None:
        if told.subject == "output_item":
            kind = told.item.get("type") if told.item is not None else self._kind_at(told)
            return kind if isinstance(kind, str) else None
        if told.subject == "content_part":
            return "reasoning" if (told.part or {}).get("type") == "reasoning_text" else "message"
        return _ABOUT.get(told.subject)

    def _kind_at(self, told: Told) -> str | None:
        """Of a `done` that forgot its item."""
        spoken = self._by_id.get(told.item_id) or (
            self._by_index.get(told.output_index) if told.output_index is not None else None
        )
        return spoken.kind if spoken is not None and told.step == "done" else None

    def _find(self, kind: str, told: Told) -> _Spoken | None:
        by_id = self._by_id.get(told.item_id) if told.item_id else None
        if by_id is not None and by_id.kind == kind:
            return by_id
        if told.output_index is not None:
            by_index = self._by_index.get(told.output_index)
            fits = by_index is not None and by_index.kind == kind
            # A second item may be told at the same index: some servers count none.
            return (
                by_index
                if fits and by_index is not None and not self._is_another(by_index, told)
                else None
            )
        if told.subject == "output_item" and told.step == "added":
            return None
        latest = self._latest.get(kind)
        return None if latest is None or latest.is_done else latest

    def _is_another(self, spoken: _Spoken, told: Told) -> bool:
        """Whether an item with another id at an index that is taken is another item: its `added`, or its `done` after one."""
        if told.subject != "output_item" or not told.item_id or told.item_id == spoken.id:
            return False
        return spoken.is_done or (told.step == "added" and bool(spoken.shape))

    # --- what is said ---

    def _note(self, told: Told) -> None:
        if told.usage is not None:
            self._usage = told.usage
        if told.model is not None:
            self.model = told.model
        if told.service_tier is not None:
            self.service_tier = told.service_tier

    def _count(self, spoken: _Spoken, told: Told) -> None:
        """Counts what is new: whatever repeats the deltas is as long as they were."""
        is_new = not spoken.heard
        weight = len(told.delta.encode()) if told.delta else max(0, told.size - spoken.heard)
        self._spend(weight + ITEM_WEIGHT * is_new)
        spoken.heard += weight + is_new

    def _added(self, spoken: _Spoken, told: Told) -> list[Event]:
        """A second `added` of an item is passed over, unless the first events about it came before the first."""
        spoken.shape = spoken.shape or dict(told.item or {})
        if spoken.item is not None or spoken.kind not in _TOLD_AT_ONCE:
            return []
        return self._open(spoken)

    def _done(
        self, spoken: _Spoken, shape: Mapping[str, Any], *, unsaid: str = "completed"
    ) -> list[Event]:
        """The item is whole: what was not heard of it is said, and it closes. A call that this server runs stays open. `unsaid`: its status
        where the upstream tells none that is final."""
        if spoken.is_done:
            return []
        spoken.is_done = True
        events = []
        if spoken.item is None:
            spoken.shape = {**spoken.shape, **shape}
            events = self._open(spoken)
        item = spoken.item
        if isinstance(item, OpenHostedCall):
            rest = rest_of(item.arguments, as_arguments(shape.get("arguments")))
            return [*events, *item.push(rest)] if rest else events
        if not isinstance(item, NativeItem):
            spoken.is_done = False  # a call that still lacks its name
            return events
        return [*events, *item.settle(shape), *item.closed(_status(item, shape, unsaid))]

    def _heard(self, spoken: _Spoken, told: Told) -> list[Event]:
        if spoken.item is None and spoken.kind in NATIVE_CALLS:
            return self._held_back(spoken, told)
        if spoken.item is None and spoken.kind not in _TOLD_AT_ONCE:
            return []
        events = self._open(spoken) if spoken.item is None else []
        item = spoken.item
        if isinstance(item, OpenHostedCall):
            said = told.delta if told.step == "delta" else rest_of(item.arguments, told.whole)
            return [*events, *item.push(said)] if said else events
        return [*events, *item.hear(told)] if isinstance(item, NativeItem) else events

    def _held_back(self, spoken: _Spoken, told: Told) -> list[Event]:
        """Arguments of a call of which name or `call_id` are not known yet: its `added` is missing, its end will tell."""
        if told.name:
            spoken.shape.setdefault("name", told.name)
        if told.whole is not None:
            spoken.held = [told.whole]
        elif told.delta:
            spoken.held.append(told.delta)
        return []

    # --- items of ours ---

    def _open(self, spoken: _Spoken) -> list[Event]:
        """Opens our item for the upstream's, and says what was held back for it; nothing while a call lacks its name."""
        if spoken.kind in NATIVE_CALLS:
            return self._open_call(spoken) if spoken.shape.get("name") else []
        return self._opened(spoken, self._new_item(spoken))

    def _new_item(self, spoken: _Spoken) -> NativeItem:
        index, shape = self._next_index(), spoken.shape
        if spoken.kind == "message":
            return NativeMessage(index, self._new_id("msg"), shape, self._offer.sources)
        if spoken.kind == "reasoning":
            return NativeReasoning(index, self._new_id("rs"), self._keep)
        if spoken.kind in HOSTED_CALLS:
            hosted = HOSTED_CALLS[spoken.kind]
            return hosted(index, self._new_id(hosted.prefix), shape)
        shape = {**shape, "type": spoken.kind, **self._with_our_call_id(spoken)}
        return NativeWhole(index, self._new_id(PREFIXES.get(spoken.kind, "item")), shape)

    def _open_call(self, spoken: _Spoken) -> list[Event]:
        """A call of a function or custom tool: one of the client's, or one that this server runs."""
        shape, held = spoken.shape, "".join(spoken.held)
        name, namespace = str(shape["name"]), shape.get("namespace")
        function = (
            self._offer.hosted.get(name)
            if spoken.kind == "function_call" and namespace is None
            else None
        )
        target = Target(spoken.kind, name, namespace)
        if not self._is_free and not self._may_call(
            name if function is not None else self._offer.name_of(target)
        ):
            return []
        if function is not None:
            call = function.opens(self._next_index(), self._new_id)
            return [*self._opened(spoken, call), *(call.push(held) if held else ())]
        kind = NATIVE_CALLS[spoken.kind]
        own = kind(
            self._next_index(),
            self._new_id(kind.prefix),
            self._with_our_call_id(spoken)["call_id"],
            target,
            shape,
        )
        if spoken.kind == "function_call" and target not in self._offer.names:
            self._strangers.append(own)
        return [*self._opened(spoken, own), *(own.push(held) if held else ())]

    def _with_our_call_id(self, spoken: _Spoken) -> dict[str, str]:
        """The call's id: the upstream's own where it can serve. An output names its call by the same."""
        given = spoken.shape.get("call_id")
        named = given if isinstance(given, str) else ""
        if spoken.kind in OUTPUTS:
            return {"call_id": self._our_call_ids.get(named, named)} if named else {}
        if spoken.kind not in CALLS or (
            not named and spoken.kind == "tool_search_call"
        ):  # the upstream ran the search itself
            return {}
        ours = self._call_id(named)
        self._our_call_ids[named] = ours
        return {"call_id": ours}

    def _opened(self, spoken: _Spoken, item: OpenItem) -> list[Event]:
        spoken.item = item
        self._items.append(item)
        return item.opened()

    # --- the end ---

    def _settled(self, ended: Ended) -> list[Event]:
        """What the terminal event's own list of items adds to what was said: items by their ids, else in order by their kinds."""
        named = {
            shape["id"]: self._by_id[shape["id"]]
            for shape in ended.output
            if shape.get("id") in self._by_id
        }
        taken = set(named.values())
        unnamed: dict[str, deque[_Spoken]] = {}
        for spoken in self._spoken:
            if spoken not in taken:
                unnamed.setdefault(spoken.kind, deque()).append(spoken)
        events: list[Event] = []
        for shape in ended.output:
            waiting = unnamed.get(shape.get("type", ""))
            found = named.get(shape.get("id", "")) or (
                waiting.popleft() if waiting else self._unheard_of(shape)
            )
            if found is not None and (ended.status != "failed" or found.item is not None):
                events += self._done(
                    found,
                    shape,
                    unsaid="completed" if ended.status == "completed" else "incomplete",
                )
        if ended.status == "completed":  # whole as far as we can know, though nobody closed them
            for spoken in self._spoken:
                events += self._done(spoken, {}) if spoken.item is None and spoken.shape else []
        return events

    def _unheard_of(self, shape: Mapping[str, Any]) -> _Spoken | None:
        """An item that only the terminal event tells of."""
        if "type" not in shape:
            return None
        spoken = _Spoken(shape["type"], shape=dict(shape))
        self._spoken.append(spoken)
        return spoken

    def _judge(self, *, done_seen: bool) -> Outcome:
        if self._violation is not None:
            return Outcome("failed", failure=self._violation)
        ended = self._ended
        if ended is None:
            if not (done_seen and self._spoken and all(spoken.is_done for spoken in self._spoken)):
                return _failed(
                    "The upstream ended its stream before the model had finished.",
                    "upstream_ended_early",
                )
            ended = Ended("completed")
        if ended.status == "failed":
            return Outcome("failed", failure=ended.failure)
        if ended.status == "incomplete":
            return Outcome("incomplete", incomplete_reason=ended.incomplete_reason)
        if any(spoken.item is None and spoken.kind in NATIVE_CALLS for spoken in self._spoken):
            return _failed("The upstream sent a function call without a name.", "upstream_garbage")
        if any(item.status == "incomplete" for item in self._items):
            return Outcome("incomplete", incomplete_reason=ended.incomplete_reason)
        return Outcome("completed")


_TOLD_AT_ONCE = frozenset(("message", "reasoning", *NATIVE_CALLS, *HOSTED_CALLS))
"""Types of items that are opened when they begin; all others are held back until they are whole."""


def _status(item: OpenItem, shape: Mapping[str, Any], unsaid: str) -> str:
    """The status with which an item closes. Only calls of tools that the upstream runs can fail."""
    given = shape.get("status")
    if given in ("completed", "incomplete"):
        return str(given)
    can_fail = (
        not isinstance(item, NativeMessage | NativeReasoning) and shape.get("type") not in CALLS
    )
    return "failed" if given == "failed" and can_fail else unsaid


def _failed(message: str, reason: str) -> Outcome:
    return Outcome("failed", failure=UpstreamFailed(message, reason=reason))
