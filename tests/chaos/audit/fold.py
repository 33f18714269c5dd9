"""The output of a response after some of its events (I7): the auditor's own fold.

It is written independently of the product's fold.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from tests.chaos.audit.record import JSON

_PART_TEXT = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "text",
    "response.reasoning_summary_text.delta": "text",
}
_ITEM_TEXT = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}


class Fold:
    """The items after the events that were fed so far."""

    def __init__(self, events: Iterable[JSON] = ()) -> None:
        self.items: dict[str, JSON] = {}
        """Id -> the item now, in the order in which they were added."""
        self.from_deltas: dict[str, JSON] = {}
        """Id -> the item built from its deltas only."""
        for event in events:
            self.feed(event)

    def feed(self, event: JSON) -> None:
        """Applies one more event."""
        kind = event["type"]
        if kind == "response.output_item.added":
            self.items[event["item"]["id"]] = deepcopy(event["item"])
            self.from_deltas[event["item"]["id"]] = deepcopy(event["item"])
        elif kind == "response.output_item.done":
            self.items[event["item"]["id"]] = deepcopy(event["item"])
        else:
            self._apply(event)

    def _apply(self, event: JSON) -> None:
        for item in (
            self.items.get(event.get("item_id", "")),
            self.from_deltas.get(event.get("item_id", "")),
        ):
            if item is None:
                continue
            if event["type"] == "response.content_part.added":
                item.setdefault("content", []).append(deepcopy(event["part"]))
            elif (key := _PART_TEXT.get(event["type"])) is not None:
                part = _part(item, event)
                part[key] = part.get(key, "") + event["delta"]
            elif (key := _ITEM_TEXT.get(event["type"])) is not None:
                item[key] = item.get(key, "") + event["delta"]


def _part(item: JSON, event: JSON) -> JSON:
    parts: list[JSON] = item.setdefault("summary" if "summary_index" in event else "content", [])
    index: int = event["summary_index"] if "summary_index" in event else event["content_index"]
    while len(parts) <= index:
        parts.append({})
    return parts[index]


def texts_of(item: JSON) -> dict[str, Any]:
    """All texts of an item that deltas can extend, by their place in it."""
    texts: dict[str, Any] = {
        key: item[key] for key in ("arguments", "input", "code") if isinstance(item.get(key), str)
    }
    for place in ("content", "summary"):
        for index, part in enumerate(item.get(place) or []):
            texts[f"{place}[{index}]"] = part.get("text", part.get("refusal", ""))
    return texts
