"""A compaction while it is made: its item, and the turn of the model that it takes (contract §4.4, §6.1). Pure."""

from collections.abc import Callable
from typing import Any

from models.wire.events import Compacting, Event, Item
from worker.translation.items.text_items import OpenItem
from worker.translation.turn import Outcome, Turn
from worker.translation.usage import add_usage


class OpenCompaction(OpenItem):
    """`compaction`: nothing of it can be told before it is whole."""

    prefix = "cmp"

    def __init__(self, output_index: int, item_id: str) -> None:
        super().__init__(output_index, item_id)
        self._encrypted_content = ""

    def open_events(self) -> list[Event]:
        return [self.added(), Compacting(self.id, self.output_index)]

    def complete(self, content: str) -> list[Event]:
        """The closing event: `content` is all there is."""
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
    """What stands for the model's turn while it sums up: one item, and the usage of however many calls that takes."""

    def __init__(self, new_id: Callable[[str], str], *, first_index: int) -> None:
        super().__init__(new_id, first_index=first_index)
        self._item = OpenCompaction(first_index, new_id(OpenCompaction.prefix))
        self._items = [self._item]
        self._total_usage: dict[str, Any] | None = None

    @property
    def item_id(self) -> str:
        """The compaction's."""
        return self._item.id

    @property
    def usage(self) -> dict[str, Any] | None:
        return self._total_usage

    @property
    def output(self) -> list[Item]:
        """A compaction that broke off holds nothing, and would be refused if it came back: it is no output."""
        return [] if self._item.status != "completed" else super().output

    def open_events(self) -> list[Event]:
        """The item's opening events."""
        return self._item.open_events()

    def add_call_usage(self, usage: dict[str, Any] | None) -> None:
        """What one call has cost."""
        self._total_usage = add_usage(self._total_usage, usage)

    def complete(self, content: str) -> list[Event]:
        """It is done."""
        self.outcome = Outcome("completed")
        return self._item.complete(content)
