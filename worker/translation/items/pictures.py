"""A picture that a model has made itself, as the API shows pictures."""

import re

from models.wire.events import Event, ImageCompleted, ImageGenerating, ImageInProgress, Item
from models.wire.item_types import ID_PREFIXES
from worker.translation.items.open_item import OpenItem

_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)


class OpenPicture(OpenItem):
    """`image_generation_call`. Its `result` is there at its end."""

    kind = "image_generation_call"
    prefix = ID_PREFIXES[kind]

    def __init__(self, output_index: int, item_id: str, result: str) -> None:
        """`result`: the picture in base64."""
        super().__init__(output_index, item_id)
        self._result = result

    def to_json(self) -> Item:
        item: Item = {"id": self.id, "type": self.kind, "status": self.status}
        return item if self.is_open else {**item, "result": self._result}

    def open_events(self) -> list[Event]:
        return [
            self.added(),
            ImageInProgress(self.id, self.output_index),
            ImageGenerating(self.id, self.output_index),
        ]

    def closing_events(self, status: str) -> list[Event]:
        return [ImageCompleted(self.id, self.output_index)] if status == "completed" else []


def base64_of(url: str) -> str:
    """The bytes in a data URL, in base64; empty for any other address."""
    match = _DATA_URL.match(url)
    return url[match.end() :] if match is not None else ""
