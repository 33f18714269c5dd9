"""A compaction in progress: its item, and the turn of the model that writes the summary."""

from collections.abc import Callable
from typing import Any

from models.wire.events import Compacting, Event, Item
from models.wire.item_types import ID_PREFIXES
from worker.translation.items.open_item import OpenItem
from worker.translation.token_usage import add_usage
from worker.translation.turn import Turn, TurnOptions, TurnOutcome


class OpenCompaction(OpenItem):
    """`compaction`: its content is sent when it is complete."""

    prefix = ID_PREFIXES["compaction"]

    def __init__(self, output_index: int, item_id: str) -> None:
        super().__init__(output_index, item_id)
        self._encrypted_content = ""

    def open_events(self) -> list[Event]:
        return [self.added(), Compacting(self.id, self.output_index)]

    def complete(self, content: str) -> list[Event]:
        """Sets the content and closes the item."""
        self._encrypted_content = content
        return self.close("completed")

    def to_json(self) -> Item:
        return {
            "id": self.id,
            "type": "compaction",
            "status": self.status,
            "encrypted_content": self._encrypted_content,
        }

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - nothing is inside
        return []


class CompactionTurn(Turn[None]):
    """The turn of a compaction: one item, and the usage of all calls of the model for it."""

    def __init__(self, new_id: Callable[[str], str], *, first_index: int) -> None:
        super().__init__(new_id, TurnOptions(first_index=first_index))
        self._item = OpenCompaction(first_index, new_id(OpenCompaction.prefix))
        self._items = [self._item]
        self._total_usage: dict[str, Any] | None = None

    @property
    def item_id(self) -> str:
        """Id of the compaction."""
        return self._item.id

    @property
    def usage(self) -> dict[str, Any] | None:
        return self._total_usage

    @property
    def output(self) -> list[Item]:
        """The compaction, if it is complete. An incomplete one is empty, and would be refused as
        input of a later request."""
        return [] if self._item.status != "completed" else super().output

    def open_events(self) -> list[Event]:
        """The item's opening events."""
        return self._item.open_events()

    def add_call_usage(self, usage: dict[str, Any] | None) -> None:
        """Adds the usage of one call."""
        self._total_usage = add_usage(self._total_usage, usage)

    def complete(self, content: str) -> list[Event]:
        """Completes the turn with the compaction's content."""
        self.outcome = TurnOutcome("completed")
        return self._item.complete(content)
