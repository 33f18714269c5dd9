"""What all open items of a native upstream's turn have in common.

Each item gets the upstream's events about it (`feed`), and at its end the whole item as the
upstream lists it (`finish`): content that the events left out is sent then. Content that was sent
stays: a whole item that contradicts it changes nothing.
"""

from typing import ClassVar

from models.wire.events import Event
from worker.translation.items.open_item import OpenItem
from worker.translation.responses.parts import RawObject, text_of
from worker.translation.upstream_events import UpstreamEvent


class NativeItem(OpenItem):
    """An item of the upstream."""

    kind: ClassVar[str]
    """The item's `type`."""

    def feed(self, event: UpstreamEvent) -> list[Event]:
        """The events that an upstream's event about the inside of the item causes."""
        raise NotImplementedError

    def received_text(self) -> str:
        """The text of its parts, as the upstream has sent it."""
        return text_of(self.to_json())

    def finish(self, raw: RawObject) -> list[Event]:
        """Adds the content of the whole item that the events left out. The item stays open."""
        raise NotImplementedError
