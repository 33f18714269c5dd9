"""A history becomes the messages of a Chat Completions request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from models.errors import UpstreamFailed
from models.wire.events import Item
from models.wire.pairing import is_output
from models.wire.tools import CallTarget, callable_tools
from worker.translation.chat.message_order import alternate_roles, join_contents
from worker.translation.history.walk import (
    AnsweredServerCall,
    ClientCall,
    object_arguments,
    walk_history,
)
from worker.translation.items.client_tools import BUILT_IN_TOOLS, CUSTOM_TOOL_ARGUMENT
from worker.translation.request_parameters import Dialect
from worker.translation.returned_content import CallOrigin, ReturnedCalls, TurnReasoning, origin_key
from worker.translation.tool_catalog import ToolCatalog

Message = dict[str, Any]
Part = dict[str, Any]

_SYSTEM_ROLES = frozenset(("system", "developer"))
_TEXT_TYPES = frozenset(("input_text", "output_text", "text"))


def chat_messages(
    instructions: str | None,
    history: Sequence[Item],
    dialect: Dialect,
    tool_catalog: ToolCatalog,
    reasoning_start: int,
    returned_calls: ReturnedCalls,
) -> list[Message]:
    """The conversation as messages. `instructions` are those of this request alone and come first.

    Reasoning before position `reasoning_start` is left out, unless `reasoning_turns` of the dialect
    includes it. So are added tools, which the catalog
    contains, and calls of server tools whose result is not known: the answer after them contains
    it.
    """
    builder = _MessageBuilder(tool_catalog, dialect, returned_calls)
    developer_role = dialect.developer_role
    if instructions is not None and instructions.strip():
        builder.messages.append({"role": developer_role, "content": instructions})
    for entry in walk_history(history, tool_catalog.server_functions):
        if isinstance(entry, ClientCall):
            builder.add_call(entry)
            continue
        if isinstance(entry, AnsweredServerCall):
            builder.add_server_call(entry)
            continue
        item = entry.item
        if is_output(item):
            builder.mark_output_seen(item["call_id"])
        elif item["type"] == "message" and item["role"] == "assistant":
            builder.add_assistant_message(item["content"])
        elif item["type"] == "reasoning" and (
            entry.position >= reasoning_start or dialect.reasoning_turns != "last"
        ):
            builder.add_reasoning(item, is_earlier=entry.position < reasoning_start)
        elif item["type"] == "message":
            role = developer_role if item["role"] == "developer" else item["role"]
            builder.add_message(role, item["content"])
    builder.end_turn()
    messages = builder.messages
    if dialect.single_system_message:
        messages = _with_one_system_message(messages)
    return alternate_roles(messages) if dialect.alternate_roles else messages


def _with_one_system_message(messages: list[Message]) -> list[Message]:
    """Joins all system and developer messages into one at the start: some templates refuse a
    second one."""
    contents = [message["content"] for message in messages if message["role"] in _SYSTEM_ROLES]
    if not contents:
        return messages
    return [
        {"role": "system", "content": join_contents(contents)},
        *(message for message in messages if message["role"] not in _SYSTEM_ROLES),
    ]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call with its output. `id`: the id to send."""

    id: str
    name: str
    arguments: str
    output: Item
    origin: CallOrigin | None

    def to_json(self) -> dict[str, Any]:
        """The call in the model's message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class _AssistantTurn:
    """One turn of the model: text, a refusal, calls, and which of the calls have no output yet."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[_Call] = []
        self.pending_calls: set[str] = set()
        """Ids of the calls whose output comes later in the history."""
        self.number: int | None = None
        """Number of the turn in its tool loop, where it is known."""
        self.step: str | None = None
        """The step in the origins of its calls, where it is known."""
        self.blocks: list[Part] = []
        """Texts, details of reasoning and calls (empty) in the order in which they came: the
        Messages API wants it kept."""
        self.reasoning: TurnReasoning | None = None
        self.has_earlier_reasoning = False
        """Whether its reasoning goes back only if the dialect wants that of earlier turns."""

    @property
    def is_over(self) -> bool:
        """Whether all its calls have outputs. What the model writes next belongs to a new turn."""
        return bool(self.calls) and not self.pending_calls


class _MessageBuilder:
    """Items in, chat messages out.

    Chat needs all calls of a turn, and the text around them, in one assistant message, and the
    outputs right after it. So a turn stays open until its calls have outputs or another role
    speaks, and its messages are written at its end.
    """

    def __init__(
        self, tool_catalog: ToolCatalog, dialect: Dialect, returned_calls: ReturnedCalls
    ) -> None:
        self.messages: list[Message] = []
        self._returned_calls = returned_calls
        self._call_count = 0
        self._tool_catalog = tool_catalog
        self._dialect = dialect
        self._turn = _AssistantTurn()
        self._pending_reasoning: list[Item] = []
        """Reasoning that belongs to the turn of the item after it."""
        self._is_pending_earlier = False

    def add_message(self, role: str, content: list[Part]) -> None:
        """Adds a message of another role than the assistant's."""
        self.end_turn()
        self._pending_reasoning = []
        chat_content = _chat_content(content)
        if _is_blank(chat_content):
            if role in _SYSTEM_ROLES:
                return
            chat_content = self._dialect.empty_content or chat_content
        self.messages.append({"role": role, "content": chat_content})

    def add_reasoning(self, item: Item, *, is_earlier: bool) -> None:
        """Adds reasoning that the model is to get back. `is_earlier`: it belongs to a turn before
        the last user message."""
        self._pending_reasoning.append(item)
        self._is_pending_earlier = is_earlier
        if self._turn.pending_calls:  # some vendors send the reasoning after the call it led to
            self._attach_reasoning(self._turn)

    def add_assistant_message(self, content: list[Part]) -> None:
        """Adds a message of the model."""
        turn = self._attach_reasoning(self._open_turn())
        texts = ["".join(part["text"] for part in content if part["type"] == "output_text")]
        # Few servers know the field `refusal`.
        texts += [part["refusal"] for part in content if part["type"] == "refusal"]
        present = [text for text in texts if not _is_blank(text)]
        turn.texts += present
        turn.blocks += [{"type": "text", "text": text} for text in present]

    def add_call(self, entry: ClientCall) -> None:
        """Adds a call of a client tool; its output comes later in the history."""
        turn = self._add(entry.item, entry.output, origin_key(entry.item), None)
        turn.pending_calls.add(entry.item["call_id"])

    def add_server_call(self, entry: AnsweredServerCall) -> None:
        """Adds a call that this server ran, in the turn of its number or of its step.

        Without both, each call has its own turn: a later call may depend on the output of an
        earlier one.
        """
        turn = self._add(entry.call, entry.output, entry.origin_key, entry.turn)
        turn.number = entry.turn

    def _add(self, item: Item, output: Item, kept_under: str, number: int | None) -> _AssistantTurn:
        returned = self._returned_calls
        origin = returned.origins.get(kept_under)
        step = None if origin is None else origin.step
        is_same = (number is not None and self._turn.number == number) or (
            step is not None and self._turn.step == step
        )
        turn = self._attach_reasoning(self._turn if is_same else self._open_turn())
        turn.step = step or turn.step
        name, arguments = _called(item, self._tool_catalog)
        call_id = returned.call_id(item["call_id"], origin, name, self._call_count)
        self._call_count += 1
        turn.calls.append(_Call(call_id, name, arguments, output, origin))
        turn.blocks.append({})
        return turn

    def mark_output_seen(self, call_id: str) -> None:
        """The history contains the output of this call."""
        self._turn.pending_calls.discard(call_id)

    def _open_turn(self) -> _AssistantTurn:
        if self._turn.is_over:
            self.end_turn()
        return self._turn

    def _attach_reasoning(self, turn: _AssistantTurn) -> _AssistantTurn:
        """Moves the pending reasoning into the turn; returns the turn."""
        if self._pending_reasoning:
            turn.reasoning = turn.reasoning or TurnReasoning()
            for item in self._pending_reasoning:
                turn.blocks += turn.reasoning.add(item)
            self._pending_reasoning = []
            turn.has_earlier_reasoning = self._is_pending_earlier
        return turn

    def end_turn(self) -> None:
        """Writes the open turn: the assistant's message, one tool message per call, then a user
        message with images and files."""
        turn, self._turn = self._turn, _AssistantTurn()
        if not (turn.texts or turn.calls):
            return
        message: Message = {"role": "assistant", "content": "\n\n".join(turn.texts) or None}
        if self._dialect.api == "messages":
            message["blocks"] = turn.blocks
        else:
            message.update(self._reasoning_fields(turn, message["content"]))
        if message["content"] is None and self._dialect.call_content != "null":
            del message["content"]
            if self._dialect.call_content == "empty":
                message["content"] = ""
        if turn.calls:
            order = self._returned_calls.first_order([call.origin for call in turn.calls])
            turn.calls = [turn.calls[number] for number in order]
            message["tool_calls"] = [call.to_json() for call in turn.calls]
            message = self._returned_calls.add_fields(message, [call.origin for call in turn.calls])
        self.messages.append(message)
        attachments: list[Part] = []
        for call in turn.calls:
            output = _output_content(call.output, self._tool_catalog)
            if self._dialect.api == "messages" and not isinstance(output, str):
                parts = _chat_content(output) or self._dialect.empty_content
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": parts})
                continue
            text, attached = _tool_message_content(output, call.id)
            if _is_blank(text):
                text = self._dialect.empty_content or text
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
            attachments += attached
        if attachments:
            self.messages.append({"role": "user", "content": attachments})

    def _reasoning_fields(self, turn: _AssistantTurn, content: str | None) -> dict[str, Any]:
        """The fields that return the turn's reasoning. Upstreams that want that of earlier turns
        refuse a message without it: where it is not known, it is one space."""
        back, turns = self._dialect.reasoning_back, self._dialect.reasoning_turns
        is_wanted = turns == "all" or (turns == "calls" and bool(turn.calls))
        fields: dict[str, Any] = {}
        if turn.reasoning is not None and (is_wanted or not turn.has_earlier_reasoning):
            fields = turn.reasoning.fields(back, content)
        if not fields and is_wanted and back in ("reasoning_content", "reasoning"):
            # DeepSeek refuses an empty text too.
            fields = {back: " "}
        return fields


def _called(item: Item, tool_catalog: ToolCatalog) -> tuple[str, str]:
    """The name of the function for the model, and the arguments."""
    kind = item["type"]
    if kind in BUILT_IN_TOOLS:
        arguments = _json(BUILT_IN_TOOLS[kind].to_arguments(item))
        return tool_catalog.name_of(CallTarget(kind)), arguments
    arguments = (
        object_arguments(item["arguments"])
        if kind == "function_call"
        else _json({CUSTOM_TOOL_ARGUMENT: item["input"]})
    )
    return tool_catalog.name_of(CallTarget(kind, item["name"], item.get("namespace"))), arguments


def _output_content(output: Item, tool_catalog: ToolCatalog) -> str | list[Part]:
    """The content of a call's output for the model: a text, or the parts that the client sent."""
    match output.get("type"):
        case "shell_call_output":
            return _json(
                [
                    {name: result[name] for name in ("stdout", "stderr", "outcome")}
                    for result in output["output"]
                ]
            )
        case "apply_patch_call_output":
            text: str = output.get("output") or ""
            return f"{output['status']}: {text}" if text else output["status"]
        case "tool_search_output":
            names = [tool_catalog.name_of(tool.target) for tool in callable_tools(output["tools"])]
            return (
                f"These tools can be called now: {', '.join(names)}."
                if names
                else "No tools were found."
            )
        case "computer_call_output":
            return [{**output["output"], "type": "input_image"}]
        case _:
            content: str | list[Part] = output["output"]
            return content


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _tool_message_content(output: str | list[Part], call_id: str) -> tuple[str, list[Part]]:
    """The tool message's text, and the parts that a tool message cannot contain, each after a
    text that introduces it."""
    if isinstance(output, str):
        return output, []
    texts = []
    attachments: list[Part] = []
    for part in output:
        if part["type"] == "input_text":
            texts.append(part["text"])
            continue
        noun = "image" if part["type"] == "input_image" else "file"
        texts.append(f"[{noun}: see the next user message]")
        attachments += [
            {"type": "text", "text": f"The {noun} that tool call {call_id} returned:"},
            _chat_part(part),
        ]
    return "\n".join(texts), attachments


def _chat_content(content: list[Part]) -> str | list[Part]:
    """The content of a message. Texts alone are one string, because many servers refuse lists of
    parts; beside other parts, blank texts are left out."""
    if all(part["type"] in _TEXT_TYPES for part in content):
        return "\n".join(part["text"] for part in content)
    return [
        _chat_part(part)
        for part in content
        if part["type"] not in _TEXT_TYPES or not _is_blank(part["text"])
    ]


def _is_blank(content: str | list[Part]) -> bool:
    # `strip` would copy a long text.
    return isinstance(content, str) and (not content or content.isspace())


def _chat_part(part: Part) -> Part:
    match part["type"]:
        case "input_image" | "input_file" if "file_id" in part:
            raise UpstreamFailed.of_request(
                f"The file '{part['file_id']}' belongs to the account of another upstream, and "
                "this model's upstream cannot read it.",
                "file_unavailable",
                param="input",
                envelope_code="file_not_found",
            )
        case "input_image":
            image = {"url": part["image_url"]}
            detail = part.get("detail", "auto")
            if detail != "auto":
                # Chat has no `original`.
                image["detail"] = "high" if detail == "original" else detail
            return {"type": "image_url", "image_url": image}
        case "input_file":
            return {
                "type": "file",
                "file": {name: part[name] for name in ("filename", "file_data") if name in part},
            }
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case _:
            return {"type": "text", "text": part["text"]}
