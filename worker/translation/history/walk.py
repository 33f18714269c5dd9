"""The history in the form in which a model of either API is shown it: each call with its output,
calls of server tools as function calls, and arguments always a JSON object.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from models.wire.events import Item
from models.wire.mcp import approval_requests
from models.wire.pairing import is_call, is_output, match_outputs
from worker.translation.functions import ServerFunction, model_tool_name
from worker.translation.items.citations import passages_of, passages_text
from worker.translation.returned_content import origin_key

INVALID_ARGUMENTS = "invalid_arguments"
"""The key under which the model finds arguments that are no JSON object."""

_PLACEHOLDER = re.compile(r'\A\s*(?:\{\s*\}|\[\s*\]|null|"")\s*(?=\{)')

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Checks the grammar and makes no values: a history may have megabytes of arguments."""


def object_arguments(arguments: str) -> str:
    """The arguments, unchanged if they are a JSON object.

    Templates of servers parse them, and anything but an object would make them refuse the whole
    conversation: also the half of an object that a length limit left. Raw line ends in strings, an
    object in a string, a placeholder before the object and halves of surrogate pairs are
    repaired. The text of what cannot be repaired is kept as a string in an object, so that the
    model sees what it wrote.
    """
    if _is_object(arguments):
        return arguments
    text = arguments.strip()
    if text in ("", "null"):
        return "{}"
    repaired = _repair(text)
    if repaired is None:
        repaired = _repair(without_placeholder(text))
    value = {INVALID_ARGUMENTS: arguments} if repaired is None else repaired
    encoded = json.dumps(value, ensure_ascii=False)
    return encoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_placeholder(arguments: str) -> str:
    """The arguments without what some upstreams write before the object: `{}`, `[]`, `null` or an
    empty string."""
    return _PLACEHOLDER.sub("", arguments)


def _is_object(text: str) -> bool:
    try:
        _OBJECT.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _repair(text: str) -> dict[str, Any] | None:
    """The object that the text means; None if it means none."""
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
        if isinstance(value, str):
            value = json.loads(value, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> None:
    """Refuses NaN and infinities, which are no JSON."""
    raise ValueError(constant)


def server_call_output(item: Item) -> Item | None:
    """The output of a call that this server ran, as the model got it; None if it is not known."""
    output = item.get("answer")
    if output is None and (passages := passages_of(item)) is not None:
        output = passages_text(passages)
    if output is None and item["type"] == "code_interpreter_call":
        output = _logs(item.get("outputs"))
    if output is None and item["type"] == "mcp_call" and item.get("status") != "incomplete":
        output = item.get("output")
        if output is None and item.get("error") is not None:
            output = f"Error: {_error_text(item['error'])}"
    return None if output is None else {"output": output}


def _logs(outputs: Any) -> str | None:
    """The texts among the outputs of code; None if they are not known."""
    if not isinstance(outputs, list):
        return None
    return "\n".join(
        str(each["logs"]) for each in outputs if isinstance(each, dict) and "logs" in each
    )


def denied_call_output(item: Item) -> Item:
    """The output of a call that its client did not approve. An approved call is an item itself."""
    reason = item.get("reason")
    return {"output": "The user refused this call." + (f" Reason: {reason}" if reason else "")}


def _error_text(error: Any) -> str:
    """The text of an error of any shape: a string, `{message}`, or `{content: [{text}]}` as MCP
    tools send it."""
    if isinstance(error, dict):
        content = error.get("content")
        texts = (
            [part["text"] for part in content if isinstance(part, dict) and "text" in part]
            if isinstance(content, list)
            else []
        )
        error = "\n".join(map(str, texts)) or error.get("message") or json.dumps(error)
    return str(error)


def as_function_call(item: Item, name: str) -> Item:
    """A call of a server tool as the function call that the model made."""
    arguments = item.get("arguments", "")
    if item["type"] == "web_search_call":
        arguments = json.dumps(
            {"query": (item.get("action") or {}).get("query", "")}, ensure_ascii=False
        )
    if item["type"] == "tool_search_call":
        arguments = json.dumps(arguments, ensure_ascii=False)
    if item["type"] == "code_interpreter_call":
        arguments = json.dumps({"code": item.get("code") or ""}, ensure_ascii=False)
    if item["type"] == "shell_call":
        arguments = json.dumps(item["action"], ensure_ascii=False)
    if item["type"] == "file_search_call":
        arguments = json.dumps({"queries": item.get("queries") or []}, ensure_ascii=False)
    if item["type"] == "image_generation_call":
        given = {"prompt": item.get("revised_prompt") or "", "action": item.get("action")}
        arguments = json.dumps(
            {name: value for name, value in given.items() if value is not None}, ensure_ascii=False
        )
    return {
        "type": "function_call",
        "call_id": item["id"],
        "name": name,
        "arguments": object_arguments(arguments),
    }


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call that the client answered."""

    item: Item
    output: Item


@dataclass(frozen=True, slots=True)
class AnsweredServerCall:
    """A call that this server ran, or that the client refused to approve."""

    call: Item
    """The call as a function call."""
    output: Item
    """Its output, in the field `output`."""
    turn: int | None
    """The number of the model's turn that made it, where it is known."""
    origin_key: str
    """The id under which its origin is kept (worker/translation/returned_content.py)."""


@dataclass(frozen=True, slots=True)
class OtherItem:
    """Any other item, including the outputs of client calls."""

    position: int
    item: Item


HistoryEntry = ClientCall | AnsweredServerCall | OtherItem


def walk_history(
    history: Sequence[Item],
    server_functions: Mapping[str, ServerFunction],
    kept_types: Collection[str] = (),
) -> Iterator[HistoryEntry]:
    """The entries of a history, oldest first.

    Left out are calls without an output and outputs without a call, which upstreams refuse. A call
    of a server tool whose output is not known comes as OtherItem. So does one of these types that
    another server may have run: this server knows the turns of its own calls.
    """
    outputs = match_outputs(history)
    answering = set(outputs.values())
    requests = approval_requests(history)

    def server_call(item: Item, output: Item, turn: int | None) -> AnsweredServerCall:
        name = model_tool_name(item, server_functions)
        return AnsweredServerCall(as_function_call(item, name), output, turn, origin_key(item))

    for position, item in enumerate(history):
        if is_call(item):
            answered = history[outputs[position]] if position in outputs else None
            if (output := _shell_output(item, answered)) is not None:
                yield server_call(item, output, item["turn"])
            elif answered is not None:
                yield ClientCall(item, answered)
        elif is_output(item):
            if position in answering and "turn" not in item:
                yield OtherItem(position, item)
        elif item["type"] in kept_types and "turn" not in item:
            yield OtherItem(position, item)
        elif (output := server_call_output(item)) is not None:
            yield server_call(item, output, item.get("turn"))
        elif _is_denial(item) and item["approval_request_id"] in requests:
            denied = {**requests[item["approval_request_id"]], "type": "mcp_call"}
            yield server_call(denied, denied_call_output(item), None)
        else:
            yield OtherItem(position, item)


def _shell_output(call: Item, output: Item | None) -> Item | None:
    """The output of a call of the shell that this server ran; None for any other call."""
    if "turn" not in call:
        return None
    answered = call if "answer" in call or output is None else output
    return {"output": answered["answer"]} if "answer" in answered else None


def _is_denial(item: Item) -> bool:
    return item["type"] == "mcp_approval_response" and not item["approve"]
