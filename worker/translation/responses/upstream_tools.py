"""Calls of tools that the upstream runs itself and reports step by step: web search, file
search, code, images."""

import io
from typing import Any, ClassVar

from models.wire.events import (
    CodeCompleted,
    CodeDelta,
    CodeDone,
    CodeInProgress,
    CodeInterpreting,
    Event,
    FileSearchCompleted,
    FileSearching,
    FileSearchInProgress,
    ImageCompleted,
    ImageGenerating,
    ImageInProgress,
    Item,
    PartialImage,
    SearchCompleted,
    Searching,
    SearchInProgress,
)
from models.wire.item_types import ID_PREFIXES
from worker.translation.responses.parts import NativeItem, RawObject, missing_suffix
from worker.translation.upstream_events import UpstreamEvent


class UpstreamToolCall(NativeItem):
    """A call of a tool that the upstream runs itself, with events about its progress."""

    steps: ClassVar[dict[str, type[Event]]]
    """Step -> its event, in order. `in_progress` and `completed` are sent even if the upstream
    leaves them out."""
    initial_fields: ClassVar[dict[str, Any]] = {}
    """Fields that the item always has from its beginning on."""
    late_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that come by their own events, or at the end."""

    def __init__(self, output_index: int, item_id: str, raw: RawObject) -> None:
        super().__init__(output_index, item_id)
        self._fields = {
            **self.initial_fields,
            **{
                name: raw[name]
                for name in raw
                if name not in ("id", "type", "status", *self.late_fields)
            },
        }
        self._next_step = 0
        """Number of steps that were sent or skipped."""

    def open_events(self) -> list[Event]:
        return [self.added(), *self._step_events("in_progress")]

    def feed(self, event: UpstreamEvent) -> list[Event]:
        return (
            self._step_events(event.step)
            if event.step != "completed" and event.subject == self.kind
            else []
        )

    def finish(self, raw: RawObject) -> list[Event]:
        self._fields |= {
            name: value for name, value in raw.items() if name not in ("id", "type", "status")
        }
        return []

    def to_json(self) -> Item:
        return {"id": self.id, "type": self.kind, "status": self.status, **self._fields}

    def closing_events(self, status: str) -> list[Event]:
        return self._step_events("completed") if status == "completed" else []

    def _step_events(self, name: str) -> list[Event]:
        """The event of a step, unless it or a later one was sent before."""
        order = list(self.steps)
        if name not in self.steps or order.index(name) < self._next_step:
            return []
        self._next_step = order.index(name) + 1
        return [self.steps[name](self.id, self.output_index)]


class NativeWebSearch(UpstreamToolCall):
    """`web_search_call`, with the query."""

    kind = "web_search_call"
    prefix = ID_PREFIXES[kind]
    steps = {"in_progress": SearchInProgress, "searching": Searching, "completed": SearchCompleted}
    initial_fields = {"action": {"type": "search"}}


class NativeFileSearch(UpstreamToolCall):
    """`file_search_call`: a search in the upstream's own stores."""

    kind = "file_search_call"
    prefix = ID_PREFIXES[kind]
    steps = {
        "in_progress": FileSearchInProgress,
        "searching": FileSearching,
        "completed": FileSearchCompleted,
    }
    initial_fields = {"queries": []}


class NativeCodeCall(UpstreamToolCall):
    """`code_interpreter_call`: the code comes in deltas."""

    kind = "code_interpreter_call"
    prefix = ID_PREFIXES[kind]
    steps = {
        "in_progress": CodeInProgress,
        "interpreting": CodeInterpreting,
        "completed": CodeCompleted,
    }
    initial_fields = {"container_id": ""}
    late_fields = ("code", "outputs")

    def __init__(self, output_index: int, item_id: str, raw: RawObject) -> None:
        super().__init__(output_index, item_id, raw)
        self._code = io.StringIO()
        self._is_code_done = False

    def feed(self, event: UpstreamEvent) -> list[Event]:
        if event.subject != "code_interpreter_call_code":
            return super().feed(event)
        if event.step == "delta":
            return self._append_code(event.delta)
        return [
            *self._append_code(missing_suffix(self._code.getvalue(), event.full_text)),
            *self._finish_code(),
        ]

    def finish(self, raw: RawObject) -> list[Event]:
        events = self._append_code(missing_suffix(self._code.getvalue(), raw.get("code")))
        super().finish({name: value for name, value in raw.items() if name != "code"})
        return events

    def to_json(self) -> Item:
        return {**super().to_json(), "code": self._code.getvalue()}

    def closing_events(self, status: str) -> list[Event]:
        return [*self._finish_code(), *super().closing_events(status)]

    def _append_code(self, code: str) -> list[Event]:
        if not code or self._is_code_done:
            return []
        self._code.write(code)
        return [CodeDelta(self.id, self.output_index, code)]

    def _finish_code(self) -> list[Event]:
        if self._is_code_done:
            return []
        self._is_code_done = True
        return [CodeDone(self.id, self.output_index, self._code.getvalue())]


class NativeImage(UpstreamToolCall):
    """`image_generation_call`: previews come before the image."""

    kind = "image_generation_call"
    prefix = ID_PREFIXES[kind]
    steps = {
        "in_progress": ImageInProgress,
        "generating": ImageGenerating,
        "completed": ImageCompleted,
    }
    late_fields = ("result",)

    def __init__(self, output_index: int, item_id: str, raw: RawObject) -> None:
        super().__init__(output_index, item_id, raw)
        self._previews = 0

    def feed(self, event: UpstreamEvent) -> list[Event]:
        if event.step != "partial_image":
            return super().feed(event)
        if not event.image:
            return []
        self._previews += 1
        return [
            *self._step_events("generating"),
            PartialImage(self.id, self.output_index, self._previews - 1, event.image),
        ]

    def finish(self, raw: RawObject) -> list[Event]:
        """A `result` that is no text is none: only this server's own have another form
        (models/wire/image_marks.py)."""
        if type(raw.get("result")) is not str:
            raw = {name: value for name, value in raw.items() if name != "result"}
        return super().finish(raw)


UPSTREAM_TOOL_CALLS: dict[str, type[UpstreamToolCall]] = {
    kind.kind: kind for kind in (NativeWebSearch, NativeFileSearch, NativeCodeCall, NativeImage)
}
"""type of a call that the upstream runs and reports step by step -> its class."""
