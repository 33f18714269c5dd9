"""The open items that consist of text: messages and reasoning, and their content parts."""

import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from models.wire.events import (
    AnnotationAdded,
    Event,
    Item,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    RefusalDelta,
    RefusalDone,
    SummaryDelta,
    SummaryDone,
    SummaryPartAdded,
    SummaryPartDone,
    TextDelta,
    TextDone,
)
from models.wire.item_types import ID_PREFIXES
from worker.translation.items.citations import (
    NO_SOURCES,
    CitationFinder,
    CleanText,
    MarkerFilter,
    PathFinder,
    Sources,
)
from worker.translation.items.open_item import OpenItem
from worker.translation.returned_content import Seal, reasoning_payload


class OpenPart:
    """A content part that grows.

    `StringIO` keeps a long text in one block; a list of its pieces would take ten times the memory.
    """

    added_event: ClassVar[type[Event]] = PartAdded
    part_done_event: ClassVar[type[Event]] = PartDone
    extra_fields: Mapping[str, Any] = MappingProxyType({})
    """Fields of a native upstream's part that this server does not know."""

    def __init__(self, item_id: str, output_index: int, content_index: int) -> None:
        self.item_id = item_id
        self.output_index = output_index
        self.content_index = content_index
        self._text = io.StringIO()

    def text(self) -> str:
        """The text so far."""
        return self._text.getvalue()

    def received(self) -> str:
        """The text so far, as the upstream has sent it."""
        return self.text()

    def to_json(self) -> dict[str, Any]:
        """The part's present JSON inside its item."""
        raise NotImplementedError

    def added(self) -> Event:
        """The part's opening event. To be called before the part has text."""
        return self.added_event(self.item_id, self.output_index, self.content_index, self.to_json())

    def text_done(self) -> Event:
        """The event that repeats the whole text."""
        raise NotImplementedError

    def close(self) -> list[Event]:
        """The part's two closing events."""
        place = (self.item_id, self.output_index, self.content_index)
        return [self.text_done(), self.part_done_event(*place, self.to_json())]


class TextPart(OpenPart):
    """`output_text`, with its log probabilities and annotations."""

    def __init__(
        self, item_id: str, output_index: int, content_index: int, sources: Sources
    ) -> None:
        """`sources`: what the text may cite."""
        super().__init__(item_id, output_index, content_index)
        self._logprobs: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._citations = CitationFinder(sources.pages) if sources.pages else None
        self._markers = MarkerFilter(sources.files) if sources.files else None
        self._paths = PathFinder(sources.made, sources.unmentioned) if sources.made else None
        self._received = self._text if self._markers is None else io.StringIO()
        """The text with the markers that are taken out of it."""
        self._pending_logprobs: list[dict[str, Any]] = []
        """Of text that is held back, and of markers."""

    def received(self) -> str:
        return self._received.getvalue()

    def append_delta(self, delta: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        """Appends text; returns its delta and an event for each citation that it completes. Text
        that may be the beginning of a marker is held back, so there may be no delta.

        `logprobs` belong to exactly this delta. The list is empty unless the client wants them.
        """
        if self._markers is None:
            return self._append_text(delta, logprobs)
        self._received.write(delta)
        self._pending_logprobs += logprobs
        return self._append_clean(self._markers.feed(delta))

    def close(self) -> list[Event]:
        held = [] if self._markers is None else self._append_clean(self._markers.flush())
        if self._paths is not None:
            held += map(self.annotate, self._paths.flush())
        return [*held, *super().close()]

    def _append_clean(self, clean: CleanText) -> list[Event]:
        logprobs: list[dict[str, Any]] = []
        if clean.text:
            logprobs, self._pending_logprobs = self._pending_logprobs, []
        return self._append_text(clean.text, logprobs, clean.annotations)

    def _append_text(
        self,
        text: str,
        logprobs: list[dict[str, Any]],
        annotations: Sequence[dict[str, Any]] = (),
    ) -> list[Event]:
        """Appends text, which may be empty, and annotations of it, in the order of their ends."""
        events: list[Event] = []
        if text:
            self._text.write(text)
            if logprobs:
                self._logprobs.extend(logprobs)
            events.append(
                TextDelta(self.item_id, self.output_index, self.content_index, text, logprobs)
            )
        if self._citations is not None:
            annotations = sorted([*annotations, *self._citations.find(text)], key=_end_of)
        if self._paths is not None:
            annotations = [*annotations, *self._paths.find(text)]
        if annotations:
            events += map(self.annotate, annotations)
        return events

    def annotate(self, annotation: dict[str, Any]) -> Event:
        """Adds an annotation in the Responses shape (flat)."""
        self._annotations.append(annotation)
        position = len(self._annotations) - 1
        return AnnotationAdded(
            self.item_id, self.output_index, self.content_index, position, annotation
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self.text(),
            "annotations": list(self._annotations),
            "logprobs": list(self._logprobs),
            **self.extra_fields,
        }

    def text_done(self) -> Event:
        return TextDone(
            self.item_id, self.output_index, self.content_index, self.text(), list(self._logprobs)
        )


def _end_of(annotation: dict[str, Any]) -> int:
    """Where a citation ends in the text, in characters."""
    end: int = annotation["index" if annotation["type"] == "file_citation" else "end_index"]
    return end


class PlainPart(OpenPart):
    """A part that has nothing but its text. Subclasses name its type and its events."""

    kind: ClassVar[str]
    text_field: ClassVar[str] = "text"
    delta_event: ClassVar[type[Event]]
    done_event: ClassVar[type[Event]]

    def append_delta(self, delta: str) -> Event:
        """Appends text."""
        self._text.write(delta)
        return self.delta_event(self.item_id, self.output_index, self.content_index, delta)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind, self.text_field: self.text(), **self.extra_fields}

    def text_done(self) -> Event:
        return self.done_event(self.item_id, self.output_index, self.content_index, self.text())


class RefusalPart(PlainPart):
    """`refusal`: a part of the same message, beside its text."""

    kind = text_field = "refusal"
    delta_event, done_event = RefusalDelta, RefusalDone


class ReasoningPart(PlainPart):
    """`reasoning_text`: the raw reasoning of a reasoning item."""

    kind = "reasoning_text"
    delta_event, done_event = ReasoningDelta, ReasoningDone


class SummaryPart(PlainPart):
    """`summary_text`: one summary of a reasoning item.

    Summaries have their own numbering, apart from the content's.
    """

    kind = "summary_text"
    delta_event, done_event = SummaryDelta, SummaryDone
    added_event, part_done_event = SummaryPartAdded, SummaryPartDone


class OpenMessage(OpenItem):
    """The assistant's message: its parts follow each other, only the last one is open."""

    prefix = ID_PREFIXES["message"]

    def __init__(self, output_index: int, item_id: str, sources: Sources = NO_SOURCES) -> None:
        """`sources`: what its text may cite."""
        super().__init__(output_index, item_id)
        self._sources = sources
        self._parts: list[OpenPart] = []

    def append_delta(self, delta: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        """Appends text to the open text part, or to a new one."""
        part = self._parts[-1] if self._parts else None
        if type(part) is TextPart:
            return part.append_delta(delta, logprobs)
        new_part = TextPart(self.id, self.output_index, len(self._parts), self._sources)
        return [*self._start_part(new_part), *new_part.append_delta(delta, logprobs)]

    def append_refusal(self, delta: str) -> list[Event]:
        """Appends text to the open refusal part, or to a new one."""
        part = self._parts[-1] if self._parts else None
        if type(part) is RefusalPart:
            return [part.append_delta(delta)]
        new_part = RefusalPart(self.id, self.output_index, len(self._parts))
        return [*self._start_part(new_part), new_part.append_delta(delta)]

    def annotate(self, annotation: dict[str, Any]) -> list[Event]:
        """Adds an annotation to the open text part; drops it when no text part is open."""
        part = self._parts[-1] if self._parts else None
        return [part.annotate(annotation)] if type(part) is TextPart else []

    def _start_part(self, part: OpenPart) -> list[Event]:
        events = self._parts[-1].close() if self._parts else []
        self._parts.append(part)
        return [*events, part.added()]

    def to_json(self) -> Item:
        content = [part.to_json() for part in self._parts]
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": content,
        }

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - both cases close a part alike
        return self._parts[-1].close() if self._parts else []


class OpenReasoning(OpenItem):
    """The model's reasoning: one part of raw text, summaries if the upstream sends them, and the
    details that it wants back.
    """

    prefix = ID_PREFIXES["reasoning"]

    def __init__(self, output_index: int, item_id: str, seal: Seal | None = None) -> None:
        """`seal`: makes `encrypted_content`. None: the item gets none."""
        super().__init__(output_index, item_id)
        self._part: ReasoningPart | None = None
        self._summaries: list[SummaryPart] = []
        self._is_text_done = False
        """The raw text is closed. The item may be open, for a summary."""
        self._summary_number = 0
        """The upstream's number of the last summary: another number begins another part."""
        self._details: list[dict[str, Any]] = []
        self._calls: dict[str, dict[str, Any]] = {}
        self._seal = seal
        self._encrypted_content: str | None = None

    def append_delta(self, delta: str) -> list[Event]:
        """Appends raw text."""
        if self._part is not None:
            return [self._part.append_delta(delta)]
        self._part = ReasoningPart(self.id, self.output_index, 0)
        return [self._part.added(), self._part.append_delta(delta)]

    def append_summary_delta(self, number: int, delta: str) -> list[Event]:
        """Appends text to the upstream's summary of this number."""
        last = self._summaries[-1] if self._summaries else None
        if last is not None and self._summary_number == number:
            return [last.append_delta(delta)]
        summary = SummaryPart(self.id, self.output_index, len(self._summaries))
        self._summaries.append(summary)
        self._summary_number = number
        return [
            *(last.close() if last is not None else ()),
            summary.added(),
            summary.append_delta(delta),
        ]

    @property
    def lacks_summary(self) -> bool:
        """Whether it has raw text and no summary."""
        return not self._summaries and bool(self.text.strip())

    @property
    def text(self) -> str:
        """The raw text so far."""
        return self._part.text() if self._part is not None else ""

    def end_text(self) -> list[Event]:
        """Closes the raw text. The item stays open, for a summary."""
        events = self._close_text()
        self._is_text_done = True
        return events

    def _close_text(self) -> list[Event]:
        return [] if self._part is None or self._is_text_done else self._part.close()

    def add_details(self, details: list[dict[str, Any]]) -> None:
        """Keeps details that the upstream wants back unchanged."""
        if self._seal is not None:
            self._details.extend(details)

    def add_call(self, call_id: str, origin: dict[str, Any]) -> None:
        """Keeps the origin of the call with this id (worker/translation/returned_content.py)."""
        self._calls[call_id] = origin

    def to_json(self) -> Item:
        content = [self._part.to_json()] if self._part is not None else []
        summary = [part.to_json() for part in self._summaries]
        item = {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": summary,
            "content": content,
        }
        return (
            item
            if self._encrypted_content is None
            else {**item, "encrypted_content": self._encrypted_content}
        )

    def closing_events(self, status: str) -> list[Event]:
        """Closes the parts.

        Only completed reasoning is sealed: a model cannot continue from a part of it.
        """
        if self._seal is not None and status == "completed":
            payload = reasoning_payload(self.text, self._details)
            self._encrypted_content = self._seal(
                {**payload, "calls": self._calls} if self._calls else payload
            )
        events = self._summaries[-1].close() if self._summaries else []
        return events + self._close_text()

    def cut(self) -> list[Event]:
        """As OpenItem. Reasoning that only waits for its summary is complete without one."""
        return self.close("completed") if self._is_text_done else super().cut()
