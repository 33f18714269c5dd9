"""The items of a turn, of which at most one is open in the stream at a time (docs/wire.md).

Clients know it so from OpenAI, and some of them lose or mix up calls whose events interleave. An
upstream may interleave them. Here an item that begins closes the one before, if that is complete.
Otherwise the one before is the *front*: it is streamed on, and the events of the items behind it
are held back until it is closed. A turn whose items come one after the other is never held back.
"""

from collections.abc import Callable
from weakref import WeakMethod

from models.wire.events import Event
from worker.translation.items.client_calls import OpenClientCall
from worker.translation.items.open_item import JsonEnd, OpenItem, OpenToolCall

_HELD_EVENT_WEIGHT = 256
"""Bytes of memory of a held event besides its text, approximately."""

CloseIfComplete = Callable[[OpenItem, OpenItem], list[Event]]
"""Closes the first item, behind which the second one is, if it has all its content as far as can be
known; returns the events."""


class ItemSequence:
    """The items in the order of their beginning, which is the order of the output."""

    def __init__(self, first_index: int, close_if_complete: CloseIfComplete) -> None:
        """`close_if_complete`: a method of the turn that has this sequence."""
        self.items: list[OpenItem] = []
        self.front: OpenItem | None = None
        """The open item that holds back those behind it; None: nothing is held back, and only the
        last item can be open."""
        self.held_weight = 0
        """Bytes of memory that held events take besides their text, approximately."""
        self._first_index = first_index
        # The turn refers to this object. Two that refer to each other are left to the garbage
        # collector, with all the output.
        self._close_if_complete = WeakMethod(close_if_complete)
        self._front_end: JsonEnd | None = None
        """Where the arguments of the front end, if it is a client's call."""
        self._held: dict[int, list[Event]] = {}
        """output_index -> the events that are held back."""

    @property
    def next_index(self) -> int:
        """The output_index of the next item."""
        return self._first_index + len(self.items)

    def begin(self, item: OpenItem) -> list[Event]:
        """Opens an item behind all others; closes the one before, or lets it hold this one
        back."""
        last = self.items[-1] if self.items else None
        events = []
        if last is not None and last.is_open:
            events = self._close(last, item)
            if self.front is None and last.is_open:
                self._set_front(last)
        self.items.append(item)
        return events + item.open_events()

    def push(self, call: OpenToolCall, arguments: str) -> list[Event]:
        """Appends to the arguments of a call; closes the front once they are complete. Arguments
        for a closed call are dropped."""
        if not call.is_open:
            return []
        events = call.push(arguments)
        if call is self.front and self._front_end is not None and self._front_end.feed(arguments):
            events += self._close(call, self.items[-1])
        return events

    def in_order(self, events: list[Event]) -> list[Event]:
        """Those of these and of the held events that may be sent now; holds the others back."""
        if self.front is None:
            return events
        sent: list[Event] = []
        last_sent = self.front.output_index
        for event in events:
            index: int = event.output_index  # type: ignore[attr-defined] # every event of an item has it
            if index <= last_sent:
                sent.append(event)
            else:
                self._held.setdefault(index, []).append(event)
                self.held_weight += _HELD_EVENT_WEIGHT
        while self.front is not None and not self.front.is_open:
            sent += self._release_next(self.front.output_index + 1)
        return sent

    def _release_next(self, index: int) -> list[Event]:
        """The held events of the item at this index, which is now the front, unless it is the
        last item."""
        if index == self.next_index:
            self.front = None
            return []
        position = index - self._first_index
        item, events = self.items[position], self._held.pop(index, [])
        self.held_weight -= _HELD_EVENT_WEIGHT * len(events)
        if item is self.items[-1]:
            self.front = None
        else:
            if item.is_open:
                events += self._close(item, self.items[position + 1])
            self._set_front(item)
        return events

    def _close(self, item: OpenItem, next_item: OpenItem) -> list[Event]:
        close_if_complete = self._close_if_complete()
        assert close_if_complete is not None
        return close_if_complete(item, next_item)

    def _set_front(self, item: OpenItem) -> None:
        self.front, self._front_end = item, None
        if isinstance(item, OpenClientCall) and item.is_open:
            self._front_end = JsonEnd()
            self._front_end.feed(item.arguments)
