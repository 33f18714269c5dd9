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
from models.wire.tools import Target
from worker.translation.items.text_items import (
    OpenFunctionCall,
    OpenItem,
    OpenNamedCall,
    ReasoningPart,
    RefusalPart,
    SummaryPart,
    TextPart,
    command_told,
)
from worker.translation.upstream_events import Told

Shape = Mapping[str, Any]
"""An item as the upstream has it, without nulls."""


def rest_of(heard: str, whole: Any) -> str:
    """What a whole adds to what was heard of it; nothing where it contradicts that."""
    return whole[len(heard) :] if isinstance(whole, str) and whole.startswith(heard) else ""


def as_arguments(found: Any) -> str:
    """Arguments are a string; some servers send the object that it should spell."""
    return (
        found
        if isinstance(found, str)
        else json.dumps(found, ensure_ascii=False)
        if isinstance(found, dict)
        else ""
    )


Part = TextPart | RefusalPart | ReasoningPart | SummaryPart

PART_OF = {kind: kind for kind in ("output_text", "refusal", "reasoning_text", "summary_text")} | {
    "text": "output_text"
}
"""type of a part, as upstreams spell it -> as we do."""


@dataclass(slots=True)
class _Spoken:
    """A part as the upstream tells it."""

    kind: str
    part: Part
    place: int | None
    """The upstream's own index of it."""
    is_open: bool = True


class NativeParts:
    """The parts of one list of an item, one after the other; only the last can be open."""

    def __init__(self, new: Callable[[str, int], Part]) -> None:
        """`new` makes a part of a type, for an index of ours."""
        self._new = new
        self._parts: list[_Spoken] = []

    def to_json(self) -> list[dict[str, Any]]:
        return [spoken.part.to_json() for spoken in self._parts]

    def begin(self, kind: str, place: int | None) -> list[Event]:
        """The upstream begins a part; one that is open is not begun twice."""
        known = self._find(kind, place)
        return [] if known is not None and known.is_open else self._open(kind, place)

    def say(
        self, kind: str, place: int | None, delta: str, logprobs: list[dict[str, Any]]
    ) -> list[Event]:
        """A piece of a part's text, which begins the part if nothing else has. What comes for a closed part comes too late."""
        spoken = self._find(kind, place)
        if not delta or (spoken is not None and not spoken.is_open):
            return []
        events = self._open(kind, place) if spoken is None else []
        part = self._parts[-1].part
        return [
            *events,
            *(part.say(delta, logprobs) if isinstance(part, TextPart) else [part.say(delta)]),
        ]

    def annotate(self, annotation: dict[str, Any]) -> list[Event]:
        """A citation in the open text."""
        part = self._parts[-1].part if self._parts and self._parts[-1].is_open else None
        return [part.annotate(annotation)] if isinstance(part, TextPart) else []

    def settle(self, kind: str, place: int | None, shape: Shape) -> list[Event]:
        """The part as a whole: what was not heard of it is said. It stays open."""
        spoken = self._find(kind, place)
        if spoken is not None and not spoken.is_open:
            return []
        events = self._open(kind, place) if spoken is None else []
        return [*events, *self._fill(self._parts[-1], shape)]

    def settle_all(self, shapes: Any) -> list[Event]:
        """All parts as the whole item lists them: the open one is filled up, those that were never heard of are said now."""
        found = (
            [shape for shape in shapes if isinstance(shape, dict)]
            if isinstance(shapes, list)
            else []
        )
        known = [
            (PART_OF[shape["type"]], shape)
            for shape in found
            if isinstance(shape.get("type"), str) and shape["type"] in PART_OF
        ]
        events: list[Event] = []
        for index, (kind, shape) in enumerate(known):
            if index >= len(self._parts):
                events += self._open(kind, None)
            spoken = self._parts[index]
            if spoken.is_open and spoken.kind == kind:
                events += self._fill(spoken, shape)
        return events

    def end(self, place: int | None) -> list[Event]:
        """The upstream ends a part; only the open one can be meant."""
        return (
            self.close()
            if place is None or not self._parts or self._parts[-1].place in (None, place)
            else []
        )

    def close(self) -> list[Event]:
        """The open part's closing events."""
        if not self._parts or not self._parts[-1].is_open:
            return []
        self._parts[-1].is_open = False
        return self._parts[-1].part.closed()

    def _find(self, kind: str, place: int | None) -> _Spoken | None:
        """The part that an upstream's index means. Without one, the open part is meant; some servers give all parts the same."""
        last = self._parts[-1] if self._parts else None
        if last is not None and last.is_open and last.kind == kind and None in (place, last.place):
            last.place = place
            return last
        return next(
            (
                spoken
                for spoken in reversed(self._parts)
                if (spoken.kind, spoken.place) == (kind, place)
            ),
            None,
        )

    def _open(self, kind: str, place: int | None) -> list[Event]:
        events = self.close()
        part = self._new(kind, len(self._parts))
        self._parts.append(_Spoken(kind, part, place))
        return [*events, part.added()]

    def _fill(self, spoken: _Spoken, shape: Shape) -> list[Event]:
        """What the whole adds to the open part: text, then annotations that no event has told."""
        part = spoken.part
        rest = rest_of(part.text(), shape.get("refusal" if spoken.kind == "refusal" else "text"))
        events = self.say(spoken.kind, spoken.place, rest, [])
        found = shape.get("annotations")
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

    def hear(self, told: Told) -> list[Event]:
        """An event from within the item."""
        raise NotImplementedError

    def settle(self, shape: Shape) -> list[Event]:
        """The whole item: says what the events had left out. It stays open."""
        raise NotImplementedError


class NativeMessage(NativeItem):
    """The assistant's message."""

    prefix = "msg"
    kind = "message"

    def __init__(
        self, output_index: int, item_id: str, shape: Shape, sources: Mapping[str, str]
    ) -> None:
        """`sources`: what its text may cite of what was found here (worker/translation/items/citations.py)."""
        super().__init__(output_index, item_id)
        self._phase = shape.get("phase")
        self._sources = sources
        self._parts = NativeParts(self._part)

    def hear(self, told: Told) -> list[Event]:
        match told.subject, told.step:
            case "output_text" | "refusal", "delta":
                return self._parts.say(told.subject, told.place, told.delta, told.logprobs)
            case "output_text" | "refusal", "done":
                return self._parts.settle(
                    told.subject, told.place, {"text": told.whole, "refusal": told.whole}
                )
            case "output_text.annotation", _ if told.annotation is not None:
                return self._parts.annotate(told.annotation)
            case "content_part", _ if told.part is not None and told.part.get("type") in (
                "output_text",
                "refusal",
            ):
                return _heard_part(self._parts, told, told.part)
            case _:
                return []

    def settle(self, shape: Shape) -> list[Event]:
        self._phase = shape.get("phase", self._phase)
        content = shape.get("content")
        return self._parts.settle_all(
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

    def last_words(self, status: str) -> list[Event]:  # noqa: ARG002 - a part's closing is the same in both cases
        return self._parts.close()

    def _part(self, kind: str, index: int) -> Part:
        place = (self.id, self.output_index, index)
        return RefusalPart(*place) if kind == "refusal" else TextPart(*place, self._sources)


class NativeReasoning(NativeItem):
    """What the model thought: a summary, the raw text, or both; and perhaps the whole of it, readable by the upstream alone."""

    prefix = "rs"
    kind = "reasoning"

    def __init__(self, output_index: int, item_id: str, keep: Callable[[str], str]) -> None:
        """`keep`: what of the upstream's `encrypted_content` is stored (worker/translation/responses/request.py reads it back)."""
        super().__init__(output_index, item_id)
        self._keep = keep
        self._encrypted = ""
        self._summary = NativeParts(lambda _, index: SummaryPart(self.id, self.output_index, index))
        self._content = NativeParts(
            lambda _, index: ReasoningPart(self.id, self.output_index, index)
        )

    def hear(self, told: Told) -> list[Event]:
        match told.subject, told.step:
            case "reasoning_text", "delta":
                return [
                    *self._summary.close(),
                    *self._content.say("reasoning_text", told.place, told.delta, []),
                ]
            case "reasoning_text", "done":
                return self._content.settle("reasoning_text", told.place, {"text": told.whole})
            case "reasoning_summary_text", "delta":
                return self._summary.say("summary_text", told.place, told.delta, [])
            case "reasoning_summary_text", "done":
                return self._summary.settle("summary_text", told.place, {"text": told.whole})
            case "reasoning_summary_part", _:
                return _heard_part(
                    self._summary, told, {**(told.part or {}), "type": "summary_text"}
                )
            case "content_part", _:
                return _heard_part(
                    self._content, told, {**(told.part or {}), "type": "reasoning_text"}
                )
            case _:
                return []

    def settle(self, shape: Shape) -> list[Event]:
        if isinstance(shape.get("encrypted_content"), str):
            self._encrypted = shape["encrypted_content"]
        return [
            *self._summary.settle_all(shape.get("summary")),
            *self._content.settle_all(shape.get("content")),
        ]

    def to_json(self) -> Item:
        kept = {"encrypted_content": self._keep(self._encrypted)} if self._encrypted else {}
        parts = {"summary": self._summary.to_json(), "content": self._content.to_json()}
        return {"id": self.id, "type": "reasoning", "status": self.status, **parts, **kept}

    def last_words(self, status: str) -> list[Event]:  # noqa: ARG002 - a part's closing is the same in both cases
        return [*self._summary.close(), *self._content.close()]


def _heard_part(parts: NativeParts, told: Told, shape: Shape) -> list[Event]:
    """`….added` or `….done` of a part."""
    kind = PART_OF[shape["type"]]
    if told.step == "added":
        return parts.begin(kind, told.place)
    return (
        [*parts.settle(kind, told.place, shape), *parts.end(told.place)]
        if told.step == "done"
        else []
    )


class NativeFunctionCall(OpenFunctionCall, NativeItem):
    """A call of one of the client's functions. What else the upstream says of it (who called: `caller`) is kept."""

    def __init__(
        self, output_index: int, item_id: str, call_id: str, target: Target, shape: Shape
    ) -> None:
        super().__init__(output_index, item_id, call_id, target)
        self._more = _more(shape)

    def hear(self, told: Told) -> list[Event]:
        return _heard_arguments(self, told)

    def settle(self, shape: Shape) -> list[Event]:
        rest = rest_of(self.arguments, as_arguments(shape.get("arguments")))
        return self.push(rest) if rest else []

    def to_json(self) -> Item:
        return {**super().to_json(), **self._more}


class NativeCustomCall(OpenNamedCall, NativeItem):
    """A call of one of the client's custom tools: its input is free text, upstream as here."""

    prefix = "ctc"
    kind = "custom_tool_call"

    def __init__(
        self, output_index: int, item_id: str, call_id: str, target: Target, shape: Shape
    ) -> None:
        super().__init__(output_index, item_id, call_id, target)
        self._more = _more(shape)

    def push(self, arguments: str) -> list[Event]:
        self._heard.write(arguments)
        return [CustomInputDelta(self.id, self.output_index, arguments)]

    def hear(self, told: Told) -> list[Event]:
        return _heard_arguments(self, told)

    def settle(self, shape: Shape) -> list[Event]:
        rest = rest_of(self.arguments, shape.get("input"))
        return self.push(rest) if rest else []

    def to_json(self) -> Item:
        return {**super().to_json(), "input": self.arguments, **self._more}

    def last_words(self, status: str) -> list[Event]:  # noqa: ARG002 - what was said is said, however the call ends
        return [CustomInputDone(self.id, self.output_index, self.arguments)]


NATIVE_CALLS: dict[str, type[NativeFunctionCall | NativeCustomCall]] = {
    kind.kind: kind for kind in (NativeFunctionCall, NativeCustomCall)
}


def _more(shape: Shape) -> dict[str, Any]:
    return {name: value for name, value in shape.items() if name not in _OURS}


_OURS = frozenset(("id", "type", "status", "call_id", "name", "namespace", "arguments", "input"))


def _heard_arguments(call: NativeFunctionCall | NativeCustomCall, told: Told) -> list[Event]:
    said = told.delta if told.step == "delta" else rest_of(call.arguments, told.whole)
    return call.push(said) if said else []


class NativeHostedCall(NativeItem):
    """A call of a tool that the upstream runs itself, with events about its progress."""

    steps: ClassVar[dict[str, type[Event]]]
    """Step -> its event, in order; `in_progress` and `completed` are told even where the upstream does not."""
    begun: ClassVar[dict[str, Any]] = {}
    """What the item holds from its beginning on, whatever the upstream says of it then."""

    def __init__(self, output_index: int, item_id: str, shape: Shape) -> None:
        super().__init__(output_index, item_id)
        self._fields = {
            **self.begun,
            **{
                name: shape[name]
                for name in shape
                if name not in ("id", "type", "status", *self._told_later)
            },
        }
        self._reached = 0
        """How many of the steps have been told or passed by."""

    _told_later: ClassVar[tuple[str, ...]] = ()
    """Fields that come by events of their own, or at the end."""

    def opened(self) -> list[Event]:
        return [self.added(), *self._step("in_progress")]

    def hear(self, told: Told) -> list[Event]:
        return (
            self._step(told.step) if told.step != "completed" and told.subject == self.kind else []
        )

    def settle(self, shape: Shape) -> list[Event]:
        self._fields |= {
            name: value for name, value in shape.items() if name not in ("id", "type", "status")
        }
        return []

    def to_json(self) -> Item:
        return {"id": self.id, "type": self.kind, "status": self.status, **self._fields}

    def last_words(self, status: str) -> list[Event]:
        return self._step("completed") if status == "completed" else []

    def _step(self, name: str) -> list[Event]:
        """The event of a step, once, and never after a later one."""
        order = list(self.steps)
        if name not in self.steps or order.index(name) < self._reached:
            return []
        self._reached = order.index(name) + 1
        return [self.steps[name](self.id, self.output_index)]


class NativeWebSearch(NativeHostedCall):
    """`web_search_call`: what was searched for."""

    prefix = "ws"
    kind = "web_search_call"
    steps = {"in_progress": SearchInProgress, "searching": Searching, "completed": SearchCompleted}
    begun = {"action": {"type": "search"}}


class NativeFileSearch(NativeHostedCall):
    """`file_search_call`: what was looked for in the upstream's own stores."""

    prefix = "fs"
    kind = "file_search_call"
    steps = {
        "in_progress": FileSearchInProgress,
        "searching": FileSearching,
        "completed": FileSearchCompleted,
    }
    begun = {"queries": []}


class NativeCodeCall(NativeHostedCall):
    """`code_interpreter_call`: the code comes piece by piece."""

    prefix = "ci"
    kind = "code_interpreter_call"
    steps = {
        "in_progress": CodeInProgress,
        "interpreting": CodeInterpreting,
        "completed": CodeCompleted,
    }
    begun = {"container_id": ""}
    _told_later = ("code", "outputs")

    def __init__(self, output_index: int, item_id: str, shape: Shape) -> None:
        super().__init__(output_index, item_id, shape)
        self._code = io.StringIO()
        self._is_said = False

    def hear(self, told: Told) -> list[Event]:
        if told.subject != "code_interpreter_call_code":
            return super().hear(told)
        if told.step == "delta":
            return self._say(told.delta)
        return [*self._say(rest_of(self._code.getvalue(), told.whole)), *self._all_said()]

    def settle(self, shape: Shape) -> list[Event]:
        events = self._say(rest_of(self._code.getvalue(), shape.get("code")))
        super().settle({name: value for name, value in shape.items() if name != "code"})
        return events

    def to_json(self) -> Item:
        return {**super().to_json(), "code": self._code.getvalue()}

    def last_words(self, status: str) -> list[Event]:
        return [*self._all_said(), *super().last_words(status)]

    def _say(self, code: str) -> list[Event]:
        if not code or self._is_said:
            return []
        self._code.write(code)
        return [CodeDelta(self.id, self.output_index, code)]

    def _all_said(self) -> list[Event]:
        if self._is_said:
            return []
        self._is_said = True
        return [CodeDone(self.id, self.output_index, self._code.getvalue())]


class NativeImage(NativeHostedCall):
    """`image_generation_call`: previews come before the image."""

    prefix = "ig"
    kind = "image_generation_call"
    steps = {
        "in_progress": ImageInProgress,
        "generating": ImageGenerating,
        "completed": ImageCompleted,
    }
    _told_later = ("result",)

    def __init__(self, output_index: int, item_id: str, shape: Shape) -> None:
        super().__init__(output_index, item_id, shape)
        self._previews = 0

    def hear(self, told: Told) -> list[Event]:
        if told.step != "partial_image":
            return super().hear(told)
        if not told.image:
            return []
        self._previews += 1
        return [
            *self._step("generating"),
            PartialImage(self.id, self.output_index, self._previews - 1, told.image),
        ]


HOSTED_CALLS: dict[str, type[NativeHostedCall]] = {
    kind.kind: kind for kind in (NativeWebSearch, NativeFileSearch, NativeCodeCall, NativeImage)
}
"""Types of calls that the upstream runs and tells of step by step."""


class NativeWhole(NativeItem):
    """Any other item, told when it is whole: half a patch is none, and what is inside an item of a new type nobody here knows."""

    kind = "item"

    def __init__(self, output_index: int, item_id: str, shape: Shape) -> None:
        super().__init__(output_index, item_id)
        self._shape = (
            {**shape, "action": _action(shape)} if shape["type"] == "shell_call" else dict(shape)
        )

    def hear(self, told: Told) -> list[Event]:  # noqa: ARG002 - it was whole when it was opened
        return []

    def settle(self, shape: Shape) -> list[Event]:  # noqa: ARG002 - as above
        return []

    def to_json(self) -> Item:
        shape = self._shape
        if self._shape["type"] == "shell_call" and self.is_open:
            shape = {**shape, "action": {**shape["action"], "commands": []}}
        return {**shape, "id": self.id, "status": self.status}

    def last_words(self, status: str) -> list[Event]:  # noqa: ARG002 - what was said was said in full
        if self._shape["type"] != "shell_call":
            return []
        events: list[Event] = []
        for index, command in enumerate(self._shape["action"]["commands"]):
            events += command_told(self.output_index, index, command)
        return events


def _action(shape: Shape) -> dict[str, Any]:
    """A shell call's action; commands that are no text are none."""
    found = shape.get("action")
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
