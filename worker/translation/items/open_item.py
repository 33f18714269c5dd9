"""What all open items of a turn have in common.

An item is opened once, grows piece by piece, and is closed once. Its class is its kind; the object
holds its own place in the output. No item looks at another one. Each method returns the events it
causes, in the order in which they are sent.
"""

import io
import re
from typing import ClassVar

from models.wire.events import Event, Item, ItemAdded, ItemDone
from models.wire.replay import CONTENT_DONE

IN_PROGRESS = "in_progress"


class OpenItem:
    """An item of the turn, from its `added` to its `done` event, and afterwards as part of the
    output.
    """

    prefix: ClassVar[str]
    """The prefix of the item's id: `msg`, `rs`, `fc`, …"""

    def __init__(self, output_index: int, item_id: str) -> None:
        self.output_index = output_index
        self.id = item_id
        self.status = IN_PROGRESS

    @property
    def is_open(self) -> bool:
        """False once `output_item.done` was sent."""
        return self.status == IN_PROGRESS

    def to_json(self) -> Item:
        """The item's present JSON: a new object at every call, because events keep theirs."""
        raise NotImplementedError

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - for kinds with such events
        """The events that close what is inside the item, before its own `done`; none by default."""
        return []

    def added(self) -> Event:
        """The item's `output_item.added` event. To be called before the item has content."""
        return ItemAdded(self.output_index, self.to_json())

    def open_events(self) -> list[Event]:
        """The item's opening events: `added`, then those that its kind has besides."""
        return [self.added()]

    def close(self, status: str) -> list[Event]:
        """Closes the item with `status` (`completed` or `incomplete`); returns the events."""
        events = self.closing_events(status)
        self.status = status
        events.append(ItemDone(self.output_index, self.to_json()))
        return events

    def cut(self) -> list[Event]:
        """Closes the item as `incomplete`, because the turn was stopped in the middle of it.

        The item and its part are closed. What is inside has no `done` event, because it is not
        complete: clients parse it then (docs/wire.md).
        """
        return [event for event in self.close("incomplete") if not isinstance(event, CONTENT_DONE)]


class OpenToolCall(OpenItem):
    """A tool call whose arguments arrive in pieces."""

    kind: ClassVar[str]
    """The item's `type`."""

    def __init__(self, output_index: int, item_id: str) -> None:
        super().__init__(output_index, item_id)
        self._arguments = io.StringIO()

    @property
    def arguments(self) -> str:
        """The arguments that the upstream has sent so far, unchanged."""
        return self._arguments.getvalue()

    @property
    def known_id(self) -> str:
        """The id of the call that clients know, and that its output names."""
        return self.id

    @property
    def is_cut_off(self) -> bool:
        """Whether the arguments ended in the middle, so that the call must not be acted on."""
        return False

    def push(self, arguments: str) -> list[Event]:
        """Appends a piece of the arguments."""
        raise NotImplementedError

    def fill_empty_arguments(self) -> list[Event]:
        """Appends `{}` to the arguments of a complete call that has none.

        The piece is sent as a delta too: clients can parse the arguments, and the deltas still add
        up to them.
        """
        return [] if self.arguments.strip() else self.push("{}")


_MARKS = re.compile(r'["\\{}\[\]]')


class JsonEnd:
    """Follows the nesting of JSON that arrives in pieces, in time proportional to each piece.

    It does not check the JSON: what ends here may still be invalid.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._escaped = 0
        """Characters of the next piece that a backslash at the end of the last one escapes."""

    def feed(self, piece: str) -> bool:
        """Whether every object, array and string that was opened is closed after this piece."""
        start = self._escaped
        self._escaped = 0
        for mark in _MARKS.finditer(piece):
            at, character = mark.start(), mark[0]
            if at < start:
                continue
            if character == '"':
                self._is_in_string = not self._is_in_string
            elif self._is_in_string:
                start = at + 2 if character == "\\" else start
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
        self._escaped = max(0, start - len(piece))
        return self._depth <= 0 and not self._is_in_string


def is_cut_off(text: str) -> bool:
    """Whether the text is JSON that ended in the middle: an object, list or string is open. Text
    that is no JSON at all is not cut off, as far as can be known."""
    return text.lstrip()[:1] in ("{", "[", '"') and not JsonEnd().feed(text)
