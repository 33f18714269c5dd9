"""The history in the form in which a model of either API is shown it: each call with its output,
calls of server tools as function calls."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from models.wire.events import Item
from models.wire.mcp import approval_requests
from models.wire.pairing import is_call, is_output, match_outputs
from worker.translation.call_origin import origin_key
from worker.translation.history.server_calls import (
    as_function_call,
    denied_call_output,
    server_call_output,
)
from worker.translation.items.server_tools import ServerFunction, model_tool_name


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
    """The id under which its origin is kept (worker/translation/call_origin.py)."""


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
            if position in outputs:
                yield ClientCall(item, history[outputs[position]])
        elif is_output(item):
            if position in answering:
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


def _is_denial(item: Item) -> bool:
    return item["type"] == "mcp_approval_response" and not item["approve"]
