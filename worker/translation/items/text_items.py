"""The open items of a turn: one small object per item and per content part (contract §4.3).

An item is opened once, heard piece by piece, and closed once. The class is the kind, the object holds its own place in the
output; nothing here looks at another item. Each method returns the events it causes, in the order they go out.
"""

import io
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from models.wire.events import (
    AnnotationAdded,
    ArgumentsDelta,
    ArgumentsDone,
    CommandAdded,
    CommandDelta,
    CommandDone,
    CustomInputDelta,
    CustomInputDone,
    Event,
    Item,
    ItemAdded,
    ItemDone,
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
from models.wire.tools import CallTarget
from worker.translation.items.built_in_tools import parse_arguments
from worker.translation.items.citations import CitationFinder
from worker.translation.items.custom_tools import InputUnwrapper
from worker.translation.items.reasoning import Seal, reasoning_payload

IN_PROGRESS = "in_progress"


class OpenPart:
    """A content part while it is being said. `StringIO` keeps a long text in one block: a list of tokens takes ten times the room."""

    def __init__(self, item_id: str, output_index: int, content_index: int) -> None:
        self.item_id = item_id
        self.output_index = output_index
        self.content_index = content_index
        self._text = io.StringIO()

    def text(self) -> str:
        """What was said so far."""
        return self._text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """The part as it stands in its item."""
        raise NotImplementedError

    def added(self) -> Event:
        """The part's opening event; called before anything was said."""
        return PartAdded(self.item_id, self.output_index, self.content_index, self.to_json())

    def text_done(self) -> Event:
        """The event that repeats the whole text."""
        raise NotImplementedError

    def close(self) -> list[Event]:
        """The part's two closing events."""
        return [
            self.text_done(),
            PartDone(self.item_id, self.output_index, self.content_index, self.to_json()),
        ]


class TextPart(OpenPart):
    """`output_text`, with its log probabilities and annotations."""

    def __init__(
        self, item_id: str, output_index: int, content_index: int, sources: Mapping[str, str]
    ) -> None:
        super().__init__(item_id, output_index, content_index)
        self._logprobs: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._citations = CitationFinder(sources) if sources else None

    def append_delta(self, delta: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        """`logprobs` belong to exactly this delta; empty unless the client asked. A citation is told when it has been said in full."""
        self._text.write(delta)
        if logprobs:
            self._logprobs.extend(logprobs)
        said: Event = TextDelta(
            self.item_id, self.output_index, self.content_index, delta, logprobs
        )
        if self._citations is None:
            return [said]
        return [said, *(self.annotate(citation) for citation in self._citations.find(delta))]

    def annotate(self, annotation: dict[str, Any]) -> Event:
        """A citation, already flat."""
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
        }

    def text_done(self) -> Event:
        return TextDone(
            self.item_id, self.output_index, self.content_index, self.text(), list(self._logprobs)
        )


class RefusalPart(OpenPart):
    """`refusal`: another part of the same message (contract §4.3)."""

    def append_delta(self, delta: str) -> Event:
        self._text.write(delta)
        return RefusalDelta(self.item_id, self.output_index, self.content_index, delta)

    def to_json(self) -> dict[str, Any]:
        return {"type": "refusal", "refusal": self.text()}

    def text_done(self) -> Event:
        return RefusalDone(self.item_id, self.output_index, self.content_index, self.text())


class ReasoningPart(OpenPart):
    """`reasoning_text`, the one part of a reasoning item."""

    def append_delta(self, delta: str) -> Event:
        self._text.write(delta)
        return ReasoningDelta(self.item_id, self.output_index, self.content_index, delta)

    def to_json(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text()}

    def text_done(self) -> Event:
        return ReasoningDone(self.item_id, self.output_index, self.content_index, self.text())


class SummaryPart(OpenPart):
    """`summary_text`, one summary of a reasoning item: its parts are numbered apart from those of the content."""

    def append_delta(self, delta: str) -> Event:
        self._text.write(delta)
        return SummaryDelta(self.item_id, self.output_index, self.content_index, delta)

    def to_json(self) -> dict[str, Any]:
        return {"type": "summary_text", "text": self.text()}

    def added(self) -> Event:
        return SummaryPartAdded(self.item_id, self.output_index, self.content_index, self.to_json())

    def text_done(self) -> Event:
        return SummaryDone(self.item_id, self.output_index, self.content_index, self.text())

    def close(self) -> list[Event]:
        return [
            self.text_done(),
            SummaryPartDone(self.item_id, self.output_index, self.content_index, self.to_json()),
        ]


class OpenItem:
    """An item of the turn, from its `added` to its `done`, and afterwards as it stands in the output."""

    prefix: ClassVar[str]
    """Of the item's id: `msg`, `rs`, `fc`, …"""

    def __init__(self, output_index: int, item_id: str) -> None:
        self.output_index = output_index
        self.id = item_id
        self.status = IN_PROGRESS

    @property
    def is_open(self) -> bool:
        """False once `output_item.done` is out."""
        return self.status == IN_PROGRESS

    def to_json(self) -> Item:
        """The item as it stands; a fresh object at every call, because events keep theirs."""
        raise NotImplementedError

    def closing_events(self, status: str) -> list[Event]:
        """The closing events of what is inside the item."""
        raise NotImplementedError

    def added(self) -> Event:
        """The item's opening event; called before anything was said."""
        return ItemAdded(self.output_index, self.to_json())

    def open_events(self) -> list[Event]:
        """The item's opening events: `added`, and what its kind says besides."""
        return [self.added()]

    def close(self, status: str) -> list[Event]:
        """The item's closing events; `status` is `completed` or `incomplete`."""
        events = self.closing_events(status)
        self.status = status
        events.append(ItemDone(self.output_index, self.to_json()))
        return events


class OpenMessage(OpenItem):
    """The assistant's message: parts one after the other, the last one open."""

    prefix = "msg"

    def __init__(
        self, output_index: int, item_id: str, sources: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`sources`: what its text may cite (worker/translation/items/citations.py)."""
        super().__init__(output_index, item_id)
        self._sources = sources
        self._parts: list[OpenPart] = []

    def append_delta(self, delta: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        """Text; opens a text part when the last part is none."""
        part = self._parts[-1] if self._parts else None
        if type(part) is TextPart:
            return part.append_delta(delta, logprobs)
        fresh = TextPart(self.id, self.output_index, len(self._parts), self._sources)
        return [*self._start_part(fresh), *fresh.append_delta(delta, logprobs)]

    def append_refusal(self, delta: str) -> list[Event]:
        """A refusal; opens a refusal part when the last part is none."""
        part = self._parts[-1] if self._parts else None
        if type(part) is RefusalPart:
            return [part.append_delta(delta)]
        fresh = RefusalPart(self.id, self.output_index, len(self._parts))
        return [*self._start_part(fresh), fresh.append_delta(delta)]

    def annotate(self, annotation: dict[str, Any]) -> list[Event]:
        """A citation of the open text; one without a text to point into says nothing."""
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

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - a part's closing is the same in both cases
        return self._parts[-1].close() if self._parts else []


class OpenReasoning(OpenItem):
    """What the model thought before it spoke: one part of raw text, summaries where the upstream makes them, and what it wants back of both."""

    prefix = "rs"

    def __init__(self, output_index: int, item_id: str, seal: Seal | None = None) -> None:
        """`seal`: makes `encrypted_content`; None: there is to be none."""
        super().__init__(output_index, item_id)
        self._part: ReasoningPart | None = None
        self._summaries: list[SummaryPart] = []
        self._summary_number = 0
        """The upstream's own number of the last: another one begins another part."""
        self._details: list[dict[str, Any]] = []
        self._seal = seal
        self._encrypted_content: str | None = None

    def append_delta(self, delta: str) -> list[Event]:
        if self._part is not None:
            return [self._part.append_delta(delta)]
        self._part = ReasoningPart(self.id, self.output_index, 0)
        return [self._part.added(), self._part.append_delta(delta)]

    def append_summary_delta(self, number: int, delta: str) -> list[Event]:
        """A piece of the upstream's summary of this number."""
        last = self._summaries[-1] if self._summaries else None
        if last is not None and self._summary_number == number:
            return [last.append_delta(delta)]
        fresh = SummaryPart(self.id, self.output_index, len(self._summaries))
        self._summaries.append(fresh)
        self._summary_number = number
        return [
            *(last.close() if last is not None else ()),
            fresh.added(),
            fresh.append_delta(delta),
        ]

    def add_details(self, details: list[dict[str, Any]]) -> None:
        """What the upstream wants back as it was."""
        if self._seal is not None:
            self._details.extend(details)

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
        """The closing of its parts. Only a thought that was thought to its end is sealed: nobody can go on from another."""
        if self._seal is not None and status == "completed":
            text = self._part.text() if self._part is not None else ""
            self._encrypted_content = self._seal(reasoning_payload(text, self._details))
        events = self._summaries[-1].close() if self._summaries else []
        return events + (self._part.close() if self._part is not None else [])


class OpenCall(OpenItem):
    """A call; made when its name is known, so `added` carries name and call_id complete (contract §4.3, §7.2)."""

    kind: ClassVar[str]

    def __init__(self, output_index: int, item_id: str, call_id: str, target: CallTarget) -> None:
        super().__init__(output_index, item_id)
        self.call_id = call_id
        self.target = target
        self._arguments = io.StringIO()

    @property
    def arguments(self) -> str:
        """What the upstream sent for arguments so far, as it sent it."""
        return self._arguments.getvalue()

    def push(self, arguments: str) -> list[Event]:
        """A piece of the arguments."""
        raise NotImplementedError

    def to_json(self) -> Item:
        return {"id": self.id, "type": self.kind, "status": self.status, "call_id": self.call_id}


class OpenNamedCall(OpenCall):
    """A call of one of the client's own tools, which has a name and perhaps a namespace."""

    def to_json(self) -> Item:
        named = {"name": self.target.name}
        if self.target.namespace is not None:
            named["namespace"] = self.target.namespace
        return {**super().to_json(), **named}


class OpenFunctionCall(OpenNamedCall):
    """A call of a function: its arguments are the client's to parse."""

    prefix = "fc"
    kind = "function_call"

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return [ArgumentsDelta(self.id, self.output_index, arguments)]

    def to_json(self) -> Item:
        return {**super().to_json(), "arguments": self.arguments}

    def closing_events(self, status: str) -> list[Event]:
        """A call said in full without arguments gets `{}`, as a delta too, so that clients can parse it and the sum still holds."""
        events: list[Event] = (
            self.push("{}") if status == "completed" and not self.arguments.strip() else []
        )
        return [
            *events,
            ArgumentsDone(self.id, self.output_index, self.target.name, self.arguments),
        ]


class OpenCustomCall(OpenNamedCall):
    """A call of a custom tool: upstream a function with one string argument, for the client that string itself (contract §7.1)."""

    prefix = "ctc"
    kind = "custom_tool_call"

    def __init__(self, output_index: int, item_id: str, call_id: str, target: CallTarget) -> None:
        super().__init__(output_index, item_id, call_id, target)
        self._unwrapper = InputUnwrapper()
        self._input = io.StringIO()

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return self._append_input(self._unwrapper.unwrap(arguments))

    def to_json(self) -> Item:
        return {**super().to_json(), "input": self._input.getvalue()}

    def closing_events(self, status: str) -> list[Event]:
        """Arguments of another shape than asked for are only understood whole; of a call that broke off they say nothing."""
        events = (
            self._append_input(self._unwrapper.flush(self.arguments))
            if status == "completed"
            else []
        )
        return [*events, CustomInputDone(self.id, self.output_index, self._input.getvalue())]

    def _append_input(self, text: str) -> list[Event]:
        self._input.write(text)
        return [CustomInputDelta(self.id, self.output_index, text)] if text else []


class OpenBuiltInCall(OpenCall):
    """A call of a tool whose arguments are no text for the client but fields of the item (worker/translation/items/built_in_tools.py).

    It is opened when its arguments are whole and fit: an item that tells half a command would be no item of its type.
    """

    @property
    def fields(self) -> dict[str, Any]:
        """What the arguments say."""
        return parse_arguments(self.kind, self.arguments) or {}

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return []

    def to_json(self) -> Item:
        return {**super().to_json(), **(self.initial_fields() if self.is_open else self.fields)}

    def initial_fields(self) -> dict[str, Any]:
        """The fields while the item is open: without what its own events are still going to tell."""
        return self.fields

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - what was said was said in full
        return []


def command_events(output_index: int, command_index: int, command: str) -> list[Event]:
    """One command of a shell call, from its beginning to its end."""
    said: list[Event] = [CommandDelta(output_index, command_index, command)] if command else []
    return [
        CommandAdded(output_index, command_index, ""),
        *said,
        CommandDone(output_index, command_index, command),
    ]


class OpenShellCall(OpenBuiltInCall):
    """`shell_call`: each of its commands has events of its own (contract §4.4)."""

    prefix = "sh"
    kind = "shell_call"

    def initial_fields(self) -> dict[str, Any]:
        return {"action": {**self.fields["action"], "commands": []}}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - what was said was said in full
        events: list[Event] = []
        for index, command in enumerate(self.fields["action"]["commands"]):
            events += command_events(self.output_index, index, command)
        return events


class OpenLocalShellCall(OpenBuiltInCall):
    """`local_shell_call`, the older one: one program, its arguments apart."""

    prefix = "lsh"
    kind = "local_shell_call"


class OpenPatchCall(OpenBuiltInCall):
    """`apply_patch_call`: what is to become of one file."""

    prefix = "apc"
    kind = "apply_patch_call"


class OpenToolSearchCall(OpenBuiltInCall):
    """`tool_search_call`: the client is to look for tools and send what it found as `tool_search_output`."""

    prefix = "tsc"
    kind = "tool_search_call"


CALL_KINDS: dict[str, type[OpenCall]] = {
    kind.kind: kind
    for kind in (
        OpenFunctionCall,
        OpenCustomCall,
        OpenShellCall,
        OpenLocalShellCall,
        OpenPatchCall,
        OpenToolSearchCall,
    )
}
"""type of a call's item -> its class."""


class CallOutput(OpenItem):
    """Our answer to a call that nobody can carry out: it is said in one go."""

    prefix = "fco"

    def __init__(self, output_index: int, item_id: str, call_id: str, output: str) -> None:
        super().__init__(output_index, item_id)
        self._call_id = call_id
        self._output = output

    def to_json(self) -> Item:
        return {
            "id": self.id,
            "type": "function_call_output",
            "status": self.status,
            "call_id": self._call_id,
            "output": self._output,
        }

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - nothing is inside
        return []


def is_json_object(arguments: str) -> bool:
    """Whether the arguments are a complete JSON object; truncated ones are not (contract §7.2)."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
