"""The open items of a native upstream's turn: its items under our ids, closed even where its
events have gaps."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from models.wire.events import CustomInputDelta, CustomInputDone, Event, Item
from models.wire.item_types import ID_PREFIXES
from models.wire.replay import command_events
from models.wire.tools import CallTarget
from worker.translation.items.citations import Sources
from worker.translation.items.client_calls import (
    OpenFunctionCall,
    OpenNamedCall,
    without_commands,
)
from worker.translation.items.text_items import ReasoningPart, RefusalPart, SummaryPart, TextPart
from worker.translation.responses.parts import (
    NativeItem,
    NativeParts,
    Part,
    RawObject,
    feed_part,
    missing_suffix,
    unknown_fields,
)
from worker.translation.upstream_events import UpstreamEvent


def arguments_text(value: Any) -> str:
    """Arguments as a string. Some servers send the object that the string should contain."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else ""


class NativeMessage(NativeItem):
    """The assistant's message."""

    kind = "message"
    prefix = ID_PREFIXES[kind]

    def __init__(self, output_index: int, item_id: str, raw: RawObject, sources: Sources) -> None:
        """`sources`: results of searches of this server that its text may cite."""
        super().__init__(output_index, item_id)
        self._extra_fields = unknown_fields(raw, _MESSAGE_FIELDS)
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
                return feed_part(self._parts, event, event.part)
            case _:
                return []

    def finish(self, raw: RawObject) -> list[Event]:
        self._extra_fields |= unknown_fields(raw, _MESSAGE_FIELDS)
        content = raw.get("content")
        return self._parts.finish_all(
            [{"type": "output_text", "text": content}] if isinstance(content, str) else content
        )

    def received_text(self) -> str:
        return self._parts.received()

    def to_json(self) -> Item:
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": self._parts.to_json(),
            **self._extra_fields,
        }

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - the same for every status
        return self._parts.close()

    def _new_part(self, kind: str, index: int) -> Part:
        place = (self.id, self.output_index, index)
        return RefusalPart(*place) if kind == "refusal" else TextPart(*place, self._sources)


class NativeReasoning(NativeItem):
    """The model's reasoning: a summary, the raw text, or both; and often an encrypted form that
    only the upstream can read."""

    kind = "reasoning"
    prefix = ID_PREFIXES[kind]

    def __init__(
        self, output_index: int, item_id: str, tag_encrypted: Callable[[str], str]
    ) -> None:
        """`tag_encrypted` makes the stored form of the upstream's `encrypted_content`
        (worker/translation/responses/request.py reads it)."""
        super().__init__(output_index, item_id)
        self._tag_encrypted = tag_encrypted
        self._encrypted = ""
        self._extra_fields: dict[str, Any] = {}
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
                return feed_part(
                    self._summary, event, {**(event.part or {}), "type": "summary_text"}
                )
            case "content_part", _:
                return feed_part(
                    self._content, event, {**(event.part or {}), "type": "reasoning_text"}
                )
            case _:
                return []

    def finish(self, raw: RawObject) -> list[Event]:
        if isinstance(raw.get("encrypted_content"), str):
            self._encrypted = raw["encrypted_content"]
        self._extra_fields = unknown_fields(raw, _REASONING_FIELDS)
        return [
            *self._summary.finish_all(raw.get("summary")),
            *self._content.finish_all(raw.get("content")),
        ]

    def to_json(self) -> Item:
        encrypted = (
            {"encrypted_content": self._tag_encrypted(self._encrypted)} if self._encrypted else {}
        )
        parts = {"summary": self._summary.to_json(), "content": self._content.to_json()}
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            **parts,
            **encrypted,
            **self._extra_fields,
        }

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - the same for every status
        return [*self._summary.close(), *self._content.close()]


class NativeCall(OpenNamedCall, NativeItem):
    """A call of one of the client's own tools. The upstream's other fields of it, such as
    `caller`, stay in the item."""

    content_field: ClassVar[str]
    """The item's field with what the model writes."""

    def __init__(
        self, output_index: int, item_id: str, call_id: str, target: CallTarget, raw: RawObject
    ) -> None:
        super().__init__(output_index, item_id, call_id, target)
        self._extra_fields = unknown_fields(raw, _CALL_FIELDS)

    def feed(self, event: UpstreamEvent) -> list[Event]:
        if event.step == "delta":
            return self.push(event.delta) if event.delta else []
        return self._push_rest(event.full_text)

    def finish(self, raw: RawObject) -> list[Event]:
        self._extra_fields |= unknown_fields(raw, _CALL_FIELDS)
        return self._push_rest(raw.get(self.content_field))

    def to_json(self) -> Item:
        return {**super().to_json(), self.content_field: self.arguments, **self._extra_fields}

    def _push_rest(self, full: Any) -> list[Event]:
        rest = missing_suffix(self.arguments, full)
        return self.push(rest) if rest else []


class NativeFunctionCall(NativeCall, OpenFunctionCall):
    """A call of one of the client's functions."""

    content_field = "arguments"

    def finish(self, raw: RawObject) -> list[Event]:
        return super().finish({**raw, "arguments": arguments_text(raw.get("arguments"))})


class NativeCustomCall(NativeCall):
    """A call of one of the client's custom tools. Its input is free text, for the upstream as
    for us."""

    kind = "custom_tool_call"
    prefix = ID_PREFIXES[kind]
    content_field = "input"

    def push(self, arguments: str) -> list[Event]:
        self._arguments.write(arguments)
        return [CustomInputDelta(self.id, self.output_index, arguments)]

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - the same for every status
        return [CustomInputDone(self.id, self.output_index, self.arguments)]


CLIENT_CALLS: dict[str, type[NativeCall]] = {
    kind.kind: kind for kind in (NativeFunctionCall, NativeCustomCall)
}
"""type of a client call that streams -> its class."""


_MESSAGE_FIELDS = frozenset(("id", "type", "status", "role", "content"))
_REASONING_FIELDS = frozenset(("id", "type", "status", "summary", "content", "encrypted_content"))
_CALL_FIELDS = frozenset(
    ("id", "type", "status", "call_id", "name", "namespace", "arguments", "input")
)


class NativeOpaqueItem(NativeItem):
    """Any other item, opened when it is complete: half a patch is no valid item, and the inside
    of a new type of item is unknown here."""

    kind = "item"

    def __init__(self, output_index: int, item_id: str, raw: RawObject) -> None:
        super().__init__(output_index, item_id)
        self._raw = (
            {**raw, "action": _shell_action(raw)} if raw["type"] == "shell_call" else dict(raw)
        )

    def feed(self, event: UpstreamEvent) -> list[Event]:  # noqa: ARG002 - it is complete when it is opened
        return []

    def finish(self, raw: RawObject) -> list[Event]:  # noqa: ARG002 - it is complete when it is opened
        return []

    def to_json(self) -> Item:
        fields = self._raw
        if self._raw["type"] == "shell_call" and self.is_open:
            fields = {**fields, "action": without_commands(fields["action"])}
        return {**fields, "id": self.id, "status": self.status}

    def closing_events(self, status: str) -> list[Event]:  # noqa: ARG002 - it is complete when it is opened
        if self._raw["type"] != "shell_call":
            return []
        return list(command_events(self.output_index, self._raw["action"]["commands"]))


def _shell_action(raw: RawObject) -> dict[str, Any]:
    """A shell call's action; commands that are no strings are left out."""
    action = raw.get("action")
    fields: dict[str, Any] = action if isinstance(action, dict) else {}
    commands = fields.get("commands")
    return {
        **fields,
        "commands": [command for command in commands if isinstance(command, str)]
        if isinstance(commands, list)
        else [],
    }


_COMPLETE_TYPES = (
    "computer_call",
    "shell_call",
    "shell_call_output",
    "local_shell_call",
    "apply_patch_call",
    "tool_search_call",
    "tool_search_output",
    "compaction",
    "program",
    "program_output",
)


def opaque_prefix(kind: str) -> str:
    """The id prefix of an item that is opened when it is complete; `item` for other types."""
    return ID_PREFIXES[kind] if kind in _COMPLETE_TYPES else "item"
