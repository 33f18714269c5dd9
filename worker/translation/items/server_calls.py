"""The open items of calls that this server carries out itself.

The model makes such a call like any other, but the item stays open after the model's turn:
`arguments_done` when the turn has ended and the arguments are complete, then the tool runs
(worker/tools), then `result` closes the item. In between it is stored in Postgres, so another
attempt on another worker can restore it with `from_item`: an item's JSON and its output_index are
its whole state.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from models.wire.events import Event, Item, ItemDone
from worker.translation.items.open_item import OpenToolCall


class OpenServerCall(OpenToolCall):
    """A call that this server answers. Subclasses name its kind and add the events of that kind.

    `fields` are the item's fields besides `id`, `type` and `status`.
    """

    completed_event: ClassVar[type[Event] | None] = None
    """The kind's event `response.….completed`, where it has one."""
    failed_event: ClassVar[type[Event] | None] = None
    """The kind's event `response.….failed`, where it has one."""

    def __init__(self, output_index: int, item_id: str, **fields: Any) -> None:
        super().__init__(output_index, item_id)
        self.fields = fields

    @classmethod
    def from_item(cls, output_index: int, item: Item) -> Self:
        """The open call that was stored as this item; its arguments are complete."""
        return cls(
            output_index,
            item["id"],
            **{name: value for name, value in item.items() if name not in ("id", "type", "status")},
        )

    def to_json(self) -> Item:
        return {"id": self.id, "type": self.kind, "status": self.status, **self.fields}

    def push(self, arguments: str) -> list[Event]:
        """Appends a piece of the arguments. A kind whose arguments have events returns them."""
        self._arguments.write(arguments)
        return []

    def arguments_done(self) -> list[Event]:
        """The turn has ended and the arguments are complete.

        `fields` now holds all that running the call needs; the item stays open.
        """
        return []

    def result(self, fields: Mapping[str, Any], *, failed: bool) -> list[Event]:
        """Adds the tool's result to the item and closes it."""
        self.fields = {**self.fields, **fields}
        self.status = "failed" if failed else "completed"
        return [*self.status_events(), ItemDone(self.output_index, self.to_json())]

    def status_events(self) -> list[Event]:
        """The kind's own event about the outcome, by `status`."""
        kind = self.completed_event if self.status == "completed" else self.failed_event
        return [] if kind is None else [kind(self.id, self.output_index)]

    def failure_fields(self, message: str) -> dict[str, Any]:  # noqa: ARG002 - for kinds with such a field
        """The fields of a failure that the tool itself did not report: refused, out of time,
        outcome unknown.
        """
        return {}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - for kinds with such events
        """The events that close the arguments of a call that ends incomplete."""
        return []


OpenCallFactory = Callable[[int, Callable[[str], str]], OpenServerCall]
"""Makes an open call from its output_index and a function that makes an id from a prefix."""
