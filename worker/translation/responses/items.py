"""The open items of a native upstream's turn: its own items under our ids, closed even where its events have holes. Pure.

Each is heard event by event (`hear`), and at its end told how the upstream has it as a whole (`settle`): what the events had left out is
said then. What has been shown stays: a whole that contradicts it changes nothing.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from models.wire.events import (
    CodeCompleted,
    CodeDelta,
    CodeDone,
    CodeInProgress,
    CodeInterpreting,
    CustomInputDelta,
    CustomInputDone,
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
from models.wire.tools import CallTarget
from worker.translation.items.text_items import (
    OpenFunctionCall,
    OpenItem,
    OpenNamedCall,
    ReasoningPart,
    RefusalPart,
    SummaryPart,
    TextPart,
    command_events,
)
from worker.translation.upstream_events import UpstreamEvent

RawObject = Mapping[str, Any]
"""An item as the upstream has it, without nulls."""


def missing_suffix(sent: str, full: Any) -> str:
    """What a whole adds to what was heard of it; nothing where it contradicts that."""
    return full[len(sent) :] if isinstance(full, str) and full.startswith(sent) else ""


def arguments_text(value: Any) -> str:
    """Arguments are a string; some servers send the object that it should spell."""
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict)
        else ""
    )


Part = TextPart | RefusalPart | ReasoningPart | SummaryPart

PART_TYPES = {
    kind: kind for kind in ("output_text", "refusal", "reasoning_text", "summary_text")
} | {"text": "output_text"}
"""type of a part, as upstreams spell it -> as we do."""


@dataclass(slots=True)
class _TrackedPart:
    """A part as the upstream tells it."""

    kind: str
    part: Part
    part_index: int | None
    """The upstream's own index of it."""
    is_open: bool = True


class NativeParts:
    """The parts of one list of an item, one after the other; only the last can be open."""

    def __init__(self, new: Callable[[str, int], Part]) -> None:
        """`new` makes a part of a type, for an index of ours."""
        self._new = new
        self._parts: list[_TrackedPart] = []

    def to_json(self) -> list[dict[str, Any]]:
        return [spoken.part.to_json() for spoken in self._parts]

    def begin(self, kind: str, part_index: int | None) -> list[Event]:
        """The upstream begins a part; one that is open is not begun twice."""
        known = self._find(kind, part_index)
        return [] if known is not None and known.is_open else self._open(kind, part_index)

    def append_delta(
        self, kind: str, part_index: int | None, delta: str, logprobs: list[dict[str, Any]]
    ) -> list[Event]:
        """A piece of a part's text, which begins the part if nothing else has. What comes for a closed part comes too late."""
        spoken = self._find(kind, part_index)
        if not delta or (spoken is not None and not spoken.is_open):
            return []
        events = self._open(kind, part_index) if spoken is None else []
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
        """A citation in the open text."""
        part = self._parts[-1].part if self._parts and self._parts[-1].is_open else None
        return [part.annotate(annotation)] if isinstance(part, TextPart) else []

    def finish(self, kind: str, part_index: int | None, raw: RawObject) -> list[Event]:
        """The part as a whole: what was not heard of it is said. It stays open."""
        spoken = self._find(kind, part_index)
        if spoken is not None and not spoken.is_open:
            return []
        events = self._open(kind, part_index) if spoken is None else []
        return [*events, *self._append_missing(self._parts[-1], raw)]

    def finish_all(self, raw_parts: Any) -> list[Event]:
        """All parts as the whole item lists them: the open one is filled up, those that were never heard of are said now."""
        found = (
            [shape for shape in raw_parts if isinstance(shape, dict)]
            if isinstance(raw_parts, list)
            else []
        )
        known = [
            (PART_TYPES[shape["type"]], shape)
            for shape in found
            if isinstance(shape.get("type"), str) and shape["type"] in PART_TYPES
        ]
        events: list[Event] = []
        for index, (kind, shape) in enumerate(known):
            if index >= len(self._parts):
                events += self._open(kind, None)
            spoken = self._parts[index]
            if spoken.is_open and spoken.kind == kind:
                events += self._append_missing(spoken, shape)
        return events

    def end(self, part_index: int | None) -> list[Event]:
        """The upstream ends a part; only the open one can be meant."""
        return (
            self.close()
            if part_index is None
            or not self._parts
            or self._parts[-1].part_index in (None, part_index)
            else []
        )

    def close(self) -> list[Event]:
        """The open part's closing events."""
        if not self._parts or not self._parts[-1].is_open:
            return []
        self._parts[-1].is_open = False
        return self._parts[-1].part.close()

    def _find(self, kind: str, part_index: int | None) -> _TrackedPart | None:
        """The part that an upstream's index means. Without one, the open part is meant; some servers give all parts the same."""
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
                spoken
                for spoken in reversed(self._parts)
                if (spoken.kind, spoken.part_index) == (kind, part_index)
            ),
            None,
        )

    def _open(self, kind: str, part_index: int | None) -> list[Event]:
        events = self.close()
        part = self._new(kind, len(self._parts))
        self._parts.append(_TrackedPart(kind, part, part_index))
        return [*events, part.added()]

    def _append_missing(self, tracked: _TrackedPart, raw: RawObject) -> list[Event]:
        """What the whole adds to the open part: text, then annotations that no event has told."""
        part = tracked.part
        rest = missing_suffix(
            part.text(), raw.get("refusal" if tracked.kind == "refusal" else "text")
        )
        events = self.append_delta(tracked.kind, tracked.part_index, rest, [])
        found = raw.get("annotations")
        if isinstance(part, TextPart) and isinstance(found, list):
            known = part.to_json()["annotations"]
            events += [
                part.annotate(told)
                for told in found[len(known) :]
                if isinstance(told, dict) and told not in known
            ]
        return events


class NativeItem(OpenItem):
    """An item of the upstream's."""

    kind: ClassVar[str]

    def feed(self, event: UpstreamEvent) -> list[Event]:
        """An event from within the item."""
        raise NotImplementedError

    def finish(self, raw: RawObject) -> list[Event]:
        """The whole item: says what the events had left out. It stays open."""
        raise NotImplementedError


class NativeMessage(NativeItem):
    """The assistant's message."""

    prefix = "msg"
    kind = "message"

    def __init__(
        self, output_index: int, item_id: str, raw: RawObject, sources: Mapping[str, str]
    ) -> None:
        """`sources`: what its text may cite of what was found here (worker/translation/items/citations.py)."""
        super().__init__(output_index, item_id)
        self._phase = raw.get("phase")
        self._sources = sources
        self._parts = NativeParts(self._new_part)

    def feed(self, event: UpstreamEvent) -> list[Event]:
        match event.subject, event.step:
            case "output_text" | "refusal", "delta":
                return self._parts.append_delta(
                    event.subject, event.part_index, event.delta, event.logprobs
                )
            case "output_text" | "refusal", "done":
                return self._parts.finish(
                    event.subject,
                    event.part_index,
                    {"text": event.full_text, "refusal": event.full_text},
                )
            case "output_text.annotation", _ if event.annotation is not None:
                return self._parts.annotate(event.annotation)
            case "content_part", _ if event.part is not None and event.part.get("type") in (
                "output_text",
                "refusal",
            ):
                return _feed_part(self._parts, event, event.part)
            case _:
                return []

    def finish(self, raw: RawObject) -> list[Event]:
        self._phase = raw.get("phase", self._phase)
        content = raw.get("content")
        return self._parts.finish_all(
            [{"type": "output_text", "text": content}] if isinstance(content, str) else content
        )

    def to_json(self) -> Item:
        phase = {} if self._phase is None else {"phase": self._phase}
        told = {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": self._parts.to_json(),
        }
        return {**told, **phase}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - a part's closing is the same in both cases
        return self._parts.close()

    def _new_part(self, kind: str, index: int) -> Part:
        place = (self.id, self.output_index, index)
        return RefusalPart(*place) if kind == "refusal" else TextPart(*place, self._sources)


class NativeReasoning(NativeItem):
    """What the model thought: a summary, the raw text, or both; and perhaps the whole of it, readable by the upstream alone."""

    prefix = "rs"
    kind = "reasoning"

    def __init__(
        self, output_index: int, item_id: str, tag_encrypted: Callable[[str], str]
    ) -> None:
        """`keep`: what of the upstream's `encrypted_content` is stored (worker/translation/responses/request.py reads it back)."""
        super().__init__(output_index, item_id)
        self._tag_encrypted = tag_encrypted
        self._encrypted = ""
        self._summary = NativeParts(lambda _, index: SummaryPart(self.id, self.output_index, index))
        self._content = NativeParts(
            lambda _, index: ReasoningPart(self.id, self.output_index, index)
        )

    def feed(self, event: UpstreamEvent) -> list[Event]:
        match event.subject, event.step:
            case "reasoning_text", "delta":
                return [
                    *self._summary.close(),
                    *self._content.append_delta(
                        "reasoning_text", event.part_index, event.delta, []
                    ),
                ]
            case "reasoning_text", "done":
                return self._content.finish(
                    "reasoning_text", event.part_index, {"text": event.full_text}
                )
            case "reasoning_summary_text", "delta":
                return self._summary.append_delta("summary_text", event.part_index, event.delta, [])
            case "reasoning_summary_text", "done":
                return self._summary.finish(
                    "summary_text", event.part_index, {"text": event.full_text}
                )
            case "reasoning_summary_part", _:
                return _feed_part(
                    self._summary, event, {**(event.part or {}), "type": "summary_text"}
                )
            case "content_part", _:
                return _feed_part(
                    self._content, event, {**(event.part or {}), "type": "reasoning_text"}
                )
            case _:
                return []

    def finish(self, raw: RawObject) -> list[Event]:
        if isinstance(raw.get("encrypted_content"), str):
            self._encrypted = raw["encrypted_content"]
        return [
            *self._summary.finish_all(raw.get("summary")),
            *self._content.finish_all(raw.get("content")),
        ]

    def to_json(self) -> Item:
        kept = (
            {"encrypted_content": self._tag_encrypted(self._encrypted)} if self._encrypted else {}
        )
        parts = {"summary": self._summary.to_json(), "content": self._content.to_json()}
        return {"id": self.id, "type": "reasoning", "status": self.status, **parts, **kept}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - a part's closing is the same in both cases
        return [*self._summary.close(), *self._content.close()]


def _feed_part(parts: NativeParts, event: UpstreamEvent, raw: RawObject) -> list[Event]:
    """`….added` or `….done` of a part."""
    kind = PART_TYPES[raw["type"]]
    if event.step == "added":
        return parts.begin(kind, event.part_index)
    return (
        [*parts.finish(kind, event.part_index, raw), *parts.end(event.part_index)]
        if event.step == "done"
        else []
    )


class NativeFunctionCall(OpenFunctionCall, NativeItem):
    """A call of one of the client's functions. What else the upstream says of it (who called: `caller`) is kept."""

    def __init__(
        self, output_index: int, item_id: str, call_id: str, target: CallTarget, raw: RawObject
    ) -> None:
        super().__init__(output_index, item_id, call_id, target)
        self._extra_fields = _select_extra_fields(raw)

    def feed(self, event: UpstreamEvent) -> list[Event]:
        return _feed_arguments(self, event)

    def finish(self, raw: RawObject) -> list[Event]:
        rest = missing_suffix(self.arguments, arguments_text(raw.get("arguments")))
        return self.push(rest) if rest else []

    def to_json(self) -> Item:
        return {**super().to_json(), **self._extra_fields}


class NativeCustomCall(OpenNamedCall, NativeItem):
    """A call of one of the client's custom tools: its input is free text, upstream as here."""

    prefix = "ctc"
    kind = "custom_tool_call"

    def __init__(
        self, output_index: int, item_id: str, call_id: str, target: CallTarget, raw: RawObject
    ) -> None:
        super().__init__(output_index, item_id, call_id, target)
        self._extra_fields = _select_extra_fields(raw)

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return [CustomInputDelta(self.id, self.output_index, arguments)]

    def feed(self, event: UpstreamEvent) -> list[Event]:
        return _feed_arguments(self, event)

    def finish(self, raw: RawObject) -> list[Event]:
        rest = missing_suffix(self.arguments, raw.get("input"))
        return self.push(rest) if rest else []

    def to_json(self) -> Item:
        return {**super().to_json(), "input": self.arguments, **self._extra_fields}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - what was said is said, however the call ends
        return [CustomInputDone(self.id, self.output_index, self.arguments)]


CLIENT_CALLS: dict[str, type[NativeFunctionCall | NativeCustomCall]] = {
    kind.kind: kind for kind in (NativeFunctionCall, NativeCustomCall)
}


def _select_extra_fields(raw: RawObject) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in _KNOWN_FIELDS}


_KNOWN_FIELDS = frozenset(
    ("id", "type", "status", "call_id", "name", "namespace", "arguments", "input")
)


def _feed_arguments(
    call: NativeFunctionCall | NativeCustomCall, event: UpstreamEvent
) -> list[Event]:
    said = event.delta if event.step == "delta" else missing_suffix(call.arguments, event.full_text)
    return call.push(said) if said else []


class UpstreamToolCall(NativeItem):
    """A call of a tool that the upstream runs itself, with events about its progress."""

    steps: ClassVar[dict[str, type[Event]]]
    """Step -> its event, in order; `in_progress` and `completed` are told even where the upstream does not."""
    initial_fields: ClassVar[dict[str, Any]] = {}
    """What the item holds from its beginning on, whatever the upstream says of it then."""

    def __init__(self, output_index: int, item_id: str, raw: RawObject) -> None:
        super().__init__(output_index, item_id)
        self._fields = {
            **self.initial_fields,
            **{
                name: raw[name]
                for name in raw
                if name not in ("id", "type", "status", *self._late_fields)
            },
        }
        self._next_step = 0
        """How many of the steps have been told or passed by."""

    _late_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that come by events of their own, or at the end."""

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
        """The event of a step, once, and never after a later one."""
        order = list(self.steps)
        if name not in self.steps or order.index(name) < self._next_step:
            return []
        self._next_step = order.index(name) + 1
        return [self.steps[name](self.id, self.output_index)]


class NativeWebSearch(UpstreamToolCall):
    """`web_search_call`: what was searched for."""

    prefix = "ws"
    kind = "web_search_call"
    steps = {"in_progress": SearchInProgress, "searching": Searching, "completed": SearchCompleted}
    initial_fields = {"action": {"type": "search"}}


class NativeFileSearch(UpstreamToolCall):
    """`file_search_call`: what was looked for in the upstream's own stores."""

    prefix = "fs"
    kind = "file_search_call"
    steps = {
        "in_progress": FileSearchInProgress,
        "searching": FileSearching,
        "completed": FileSearchCompleted,
    }
    initial_fields = {"queries": []}


class NativeCodeCall(UpstreamToolCall):
    """`code_interpreter_call`: the code comes piece by piece."""

    prefix = "ci"
    kind = "code_interpreter_call"
    steps = {
        "in_progress": CodeInProgress,
        "interpreting": CodeInterpreting,
        "completed": CodeCompleted,
    }
    initial_fields = {"container_id": ""}
    _late_fields = ("code", "outputs")

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

    prefix = "ig"
    kind = "image_generation_call"
    steps = {
        "in_progress": ImageInProgress,
        "generating": ImageGenerating,
        "completed": ImageCompleted,
    }
    _late_fields = ("result",)

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


UPSTREAM_TOOL_CALLS: dict[str, type[UpstreamToolCall]] = {
    kind.kind: kind for kind in (NativeWebSearch, NativeFileSearch, NativeCodeCall, NativeImage)
}
"""Types of calls that the upstream runs and tells of step by step."""


class NativeOpaqueItem(NativeItem):
    """Any other item, told when it is whole: half a patch is none, and what is inside an item of a new type nobody here knows."""

    kind = "item"

    def __init__(self, output_index: int, item_id: str, raw: RawObject) -> None:
        super().__init__(output_index, item_id)
        self._raw = (
            {**raw, "action": _shell_action(raw)} if raw["type"] == "shell_call" else dict(raw)
        )

    def feed(self, event: UpstreamEvent) -> list[Event]:  # noqa: ARG002 - it was whole when it was opened
        return []

    def finish(self, raw: RawObject) -> list[Event]:  # noqa: ARG002 - as above
        return []

    def to_json(self) -> Item:
        shape = self._raw
        if self._raw["type"] == "shell_call" and self.is_open:
            shape = {**shape, "action": {**shape["action"], "commands": []}}
        return {**shape, "id": self.id, "status": self.status}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - what was said was said in full
        if self._raw["type"] != "shell_call":
            return []
        events: list[Event] = []
        for index, command in enumerate(self._raw["action"]["commands"]):
            events += command_events(self.output_index, index, command)
        return events


def _shell_action(raw: RawObject) -> dict[str, Any]:
    """A shell call's action; commands that are no text are none."""
    found = raw.get("action")
    action: dict[str, Any] = found if isinstance(found, dict) else {}
    commands = action.get("commands")
    return {
        **action,
        "commands": [one for one in commands if isinstance(one, str)]
        if isinstance(commands, list)
        else [],
    }


PREFIXES = {
    "computer_call": "cu",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "local_shell_call": "lsh",
    "apply_patch_call": "apc",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "compaction": "cmp",
    "program": "prog",
    "program_output": "progo",
}
"""type of an item that is told whole -> prefix of its id; any other's is `item`."""
