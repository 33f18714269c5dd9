"""What a request wants of its moderation, who does it, and what is moderated of items and events:
their texts, and the addresses of their images."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.config.upstream import UpstreamSettings
from models.wire.events import AnnotationAdded, Event, Item, ItemAdded, ItemDone

BLOCK = "block"


@dataclass(frozen=True, slots=True)
class ModerationPolicy:
    """The request parameter `moderation`."""

    model: str
    blocks_input: bool
    """Flagged input reaches no upstream. Otherwise it only gets scores."""
    blocks_output: bool
    """Flagged output reaches no reader."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "ModerationPolicy":
        """The parameter, as models/wire/checks/parameters.py has checked it."""
        policy = value.get("policy") or {}
        modes = {side: (policy.get(side) or {}).get("mode") for side in ("input", "output")}
        return cls(value["model"], modes["input"] == BLOCK, modes["output"] == BLOCK)


def moderated_by_upstreams(upstreams: Collection[UpstreamSettings]) -> bool:
    """Whether each upstream that may run the request moderates it itself: it gets the parameter."""
    return bool(upstreams) and all(upstream.moderates for upstream in upstreams)


_NO_TEXT = frozenset(
    (
        *("id", "type", "status", "role", "call_id", "name", "namespace", "server_label", "phase"),
        *("encrypted_content", "result", "detail", "file_id", "file_data", "file_url", "filename"),
        *("image_url", "screenshot", "input_audio", "logprobs", "execution"),
    )
)
"""Fields whose strings are no words of a person or a model."""


def texts_of(value: Any) -> Iterator[str]:
    """The texts in an item or a part of one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NO_TEXT:
                yield from texts_of(each)


def images_of(value: Any) -> Iterator[str]:
    """The addresses of the images in an item: URLs, and data URLs."""
    if isinstance(value, list):
        for each in value:
            yield from images_of(each)
    elif isinstance(value, dict):
        url = value.get("image_url")
        if isinstance(url, str):
            yield url
        for each in value.values():
            yield from images_of(each)


def unread_part(items: Sequence[Item]) -> str | None:
    """The place of the first part that no moderation reads: a file, or sound."""
    for index, item in enumerate(items):
        for name in ("content", "output"):
            parts = item.get(name)
            for at, part in enumerate(parts if isinstance(parts, list) else ()):
                if isinstance(part, dict) and part.get("type") in ("input_file", "input_audio"):
                    return f"input[{index}].{name}[{at}]"
    return None


def pieces(text: str, size: int) -> list[str]:
    """The text in pieces of at most so many characters."""
    return [text[at : at + size] for at in range(0, len(text), size)]


@dataclass(slots=True)
class EventTexts:
    """The text in the events of a turn."""

    _has_deltas: set[str] = field(default_factory=set)
    """Ids of items whose text has come in pieces."""
    _last: str = ""

    def of(self, events: Iterable[Event]) -> str:
        """What these events add. A new item begins a new line."""
        return "".join(text for event in events for text in self._of_event(event))

    def _of_event(self, event: Event) -> Iterator[str]:
        if isinstance(event, ItemAdded | ItemDone):
            if isinstance(event, ItemDone) and event.item["id"] not in self._has_deltas:
                yield "\n".join(("", *texts_of(event.item)))
            return
        if isinstance(event, AnnotationAdded):
            yield "\n".join(("", *texts_of(event.annotation), ""))
        delta, item_id = getattr(event, "delta", None), getattr(event, "item_id", "")
        if isinstance(delta, str):
            if item_id != self._last:
                yield "\n"
            self._last = item_id
            self._has_deltas.add(item_id)
            yield delta
