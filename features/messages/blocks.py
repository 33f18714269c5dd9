"""The content blocks of a stream of Anthropic's API, as events. Pure."""

from collections.abc import Sequence
from typing import Any

import orjson

Json = dict[str, Any]


class Blocks:
    """Numbers the blocks of one message from 0, and closes each before the next begins."""

    def __init__(self) -> None:
        self.open: str | None = None
        """The type of the block that is open."""
        self.shown: set[str] = set()
        """The ids of the items that the client has seen something of."""
        self.has_deltas = False
        """The present item has sent content in deltas."""
        self._item = ""
        self._index = -1
        """of the last block"""
        self._events: list[bytes] = []

    def next_item(self, item: str) -> None:
        """The blocks that follow belong to the item with this id."""
        self._item = item
        self.has_deltas = False

    def ensure(self, empty: Json) -> None:
        """Begins the block, unless one of its type is open."""
        if self.open != empty["type"]:
            self.begin(empty)

    def begin(self, empty: Json) -> None:
        """Closes the block that is open, and opens this one."""
        self.close()
        self._index += 1
        self.open = empty["type"]
        self.shown.add(self._item)
        self.emit("content_block_start", index=self._index, content_block=empty)

    def delta(self, **delta: Any) -> None:
        """A part of the open block."""
        self.has_deltas = self.has_deltas or delta.get("partial_json") != ""
        self.emit("content_block_delta", index=self._index, delta=delta)

    def close(self) -> None:
        """Closes the block that is open, if one is."""
        if self.open is not None:
            self.open = None
            self.emit("content_block_stop", index=self._index)

    def whole(self, block: Json) -> None:
        """A block that came without deltas."""
        empty, deltas = _taken_apart(block)
        self.begin(empty)
        for delta in deltas:
            self.delta(**delta)
        self.close()

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Adds an event."""
        data = orjson.dumps({"type": kind, **fields})
        self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))

    def take(self) -> bytes:
        """The events since the last call."""
        events, self._events = self._events, []
        return b"".join(events)


def _taken_apart(block: Json) -> tuple[Json, Sequence[Json]]:
    """How a whole block begins, and the deltas that complete it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            deltas = [
                {"type": f"{name}_delta", name: block[name]}
                for name in ("thinking", "signature")
                if block[name]
            ]
            return {**block, "thinking": "", "signature": ""}, deltas
        case "server_tool_use":
            query = orjson.dumps(block["input"]).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": query}]
        case _:
            return block, []
