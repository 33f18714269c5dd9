"""The content parts of a native upstream's items: its own parts under our indices, filled up where
its events have gaps; and what all its open items have in common.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from models.wire.events import Event
from worker.translation.items.open_item import OpenItem
from worker.translation.items.text_items import ReasoningPart, RefusalPart, SummaryPart, TextPart
from worker.translation.upstream_events import UpstreamEvent

RawObject = Mapping[str, Any]
"""An item or a part as the upstream sent it, without nulls."""


def missing_suffix(sent: str, full: Any) -> str:
    """The part of a full text that the deltas did not contain; empty if the full text
    contradicts them."""
    return full[len(sent) :] if isinstance(full, str) and full.startswith(sent) else ""


def text_of(item: RawObject) -> str:
    """The text of all parts of a message or reasoning, the upstream's or ours."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = [
        part
        for field in (item.get("summary"), content)
        if isinstance(field, list)
        for part in field
        if isinstance(part, dict)
    ]
    texts = (part.get("refusal", part.get("text")) for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def unknown_fields(raw: RawObject, known: Collection[str]) -> dict[str, Any]:
    """The fields of an item or a part that this server does not know: the client gets them as
    they are."""
    return {name: value for name, value in raw.items() if name not in known}


_PART_FIELDS = frozenset(("type", "text", "refusal", "annotations", "logprobs"))

Part = TextPart | RefusalPart | ReasoningPart | SummaryPart

PART_TYPES = {
    kind: kind for kind in ("output_text", "refusal", "reasoning_text", "summary_text")
} | {"text": "output_text"}
"""type of a part in the upstream's spelling -> in ours."""


@dataclass(slots=True)
class _TrackedPart:
    """A part of the upstream and ours for it."""

    kind: str
    part: Part
    part_index: int | None
    """The upstream's index."""
    is_open: bool = True


class NativeParts:
    """The parts of one list of an item. They follow each other; only the last one can be open."""

    def __init__(self, new_part: Callable[[str, int], Part]) -> None:
        """`new_part` makes a part from its type and our index."""
        self._new_part = new_part
        self._parts: list[_TrackedPart] = []

    def to_json(self) -> list[dict[str, Any]]:
        """The parts as they are in the item."""
        return [tracked.part.to_json() for tracked in self._parts]

    def received(self) -> str:
        """The text of all parts, as the upstream has sent it."""
        return "".join(tracked.part.received() for tracked in self._parts)

    def begin(self, kind: str, part_index: int | None) -> list[Event]:
        """Opens a part that the upstream begins, unless it is open already."""
        tracked = self._find(kind, part_index)
        return [] if tracked is not None and tracked.is_open else self._open(kind, part_index)

    def append_delta(
        self, kind: str, part_index: int | None, delta: str, logprobs: list[dict[str, Any]]
    ) -> list[Event]:
        """Appends text to a part; opens the part if it is new. Text for a closed part is
        dropped."""
        tracked = self._find(kind, part_index)
        if not delta or (tracked is not None and not tracked.is_open):
            return []
        events = self._open(kind, part_index) if tracked is None else []
        part = self._parts[-1].part
        return [
            *events,
            *(
                part.append_delta(delta, logprobs)
                if isinstance(part, TextPart)
                else [part.append_delta(delta)]
            ),
        ]

    def annotate(self, annotation: dict[str, Any]) -> list[Event]:
        """Adds an annotation to the open text part; drops it when no text part is open."""
        part = self._parts[-1].part if self._parts and self._parts[-1].is_open else None
        return [part.annotate(annotation)] if isinstance(part, TextPart) else []

    def finish(self, kind: str, part_index: int | None, raw: RawObject) -> list[Event]:
        """Adds the content of the whole part that its deltas left out. The part stays open."""
        tracked = self._find(kind, part_index)
        if tracked is not None and not tracked.is_open:
            return []
        events = self._open(kind, part_index) if tracked is None else []
        return [*events, *self._append_missing(self._parts[-1], raw)]

    def finish_all(self, raw_parts: Any) -> list[Event]:
        """Adds what the whole item's list of parts has beyond the events: the rest of the open
        part, and parts without any event."""
        raw_list = raw_parts if isinstance(raw_parts, list) else []
        known = [
            (PART_TYPES[raw["type"]], raw)
            for raw in raw_list
            if isinstance(raw, dict)
            and isinstance(raw.get("type"), str)
            and raw["type"] in PART_TYPES
        ]
        events: list[Event] = []
        for index, (kind, raw) in enumerate(known):
            if index >= len(self._parts):
                events += self._open(kind, None)
            tracked = self._parts[index]
            if tracked.is_open and tracked.kind == kind:
                events += self._append_missing(tracked, raw)
        return events

    def end(self, part_index: int | None) -> list[Event]:
        """Closes the part that the upstream ends; it can only be the open one."""
        return (
            self.close()
            if part_index is None
            or not self._parts
            or self._parts[-1].part_index in (None, part_index)
            else []
        )

    def close(self) -> list[Event]:
        """Closes the open part."""
        if not self._parts or not self._parts[-1].is_open:
            return []
        self._parts[-1].is_open = False
        return self._parts[-1].part.close()

    def _find(self, kind: str, part_index: int | None) -> _TrackedPart | None:
        """The part that the upstream's index means. Without an index it is the open part; some
        servers send the same index for all parts."""
        last = self._parts[-1] if self._parts else None
        if (
            last is not None
            and last.is_open
            and last.kind == kind
            and None in (part_index, last.part_index)
        ):
            last.part_index = part_index
            return last
        return next(
            (
                tracked
                for tracked in reversed(self._parts)
                if (tracked.kind, tracked.part_index) == (kind, part_index)
            ),
            None,
        )

    def _open(self, kind: str, part_index: int | None) -> list[Event]:
        events = self.close()
        part = self._new_part(kind, len(self._parts))
        self._parts.append(_TrackedPart(kind, part, part_index))
        return [*events, part.added()]

    def _append_missing(self, tracked: _TrackedPart, raw: RawObject) -> list[Event]:
        """Adds the rest of a whole part to the open part: text, then annotations that had no
        event."""
        part = tracked.part
        if extra_fields := unknown_fields(raw, _PART_FIELDS):
            part.extra_fields = {**part.extra_fields, **extra_fields}
        rest = missing_suffix(
            part.received(), raw.get("refusal" if tracked.kind == "refusal" else "text")
        )
        events = self.append_delta(tracked.kind, tracked.part_index, rest, [])
        annotations = raw.get("annotations")
        if isinstance(part, TextPart) and isinstance(annotations, list):
            sent = part.to_json()["annotations"]
            events += [
                part.annotate(annotation)
                for annotation in annotations[len(sent) :]
                if isinstance(annotation, dict) and annotation not in sent
            ]
        return events


def feed_part(parts: NativeParts, event: UpstreamEvent, raw: RawObject) -> list[Event]:
    """The events that `….added` or `….done` of a part causes."""
    kind = PART_TYPES[raw["type"]]
    if event.step == "added":
        return parts.begin(kind, event.part_index)
    return (
        [*parts.finish(kind, event.part_index, raw), *parts.end(event.part_index)]
        if event.step == "done"
        else []
    )


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
