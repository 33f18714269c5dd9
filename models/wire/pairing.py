"""Calls of client tools and their outputs: which belong together, and which calls are open."""

from collections.abc import Collection, Iterable, Sequence

from models.errors import InvalidRequest
from models.wire.events import Item
from models.wire.item_types import CALLS, OUTPUTS


class OutputWithoutCall(InvalidRequest):
    """An output to which there is no open call before it."""

    def __init__(self, item: Item, where: str) -> None:
        self.call_id: str = item["call_id"]
        self.noun = OUTPUTS[item["type"]]
        super().__init__(
            f"No tool call found for {self.noun} with call_id {self.call_id}.", param=where
        )


def is_call(item: Item) -> bool:
    """Whether the item is a call that needs an output from the client.

    A tool search without a `call_id` was run elsewhere and needs none.
    """
    return item["type"] in CALLS and "call_id" in item


def is_output(item: Item) -> bool:
    """Whether the item is the output of a call."""
    return item["type"] in OUTPUTS and "call_id" in item


def match_outputs(items: Sequence[Item]) -> dict[int, int]:
    """The position of each call with an output -> the position of that output.

    Some upstreams use a call id again, so an output belongs to the last such call before it.
    """
    outputs: dict[int, int] = {}
    open_calls: dict[str, int] = {}
    for position, item in enumerate(items):
        if is_call(item):
            open_calls[item["call_id"]] = position
        elif is_output(item) and item["call_id"] in open_calls:
            outputs[open_calls.pop(item["call_id"])] = position
    return outputs


def unanswered_calls(items: Iterable[Item]) -> list[str]:
    """The ids of the complete calls without an output, in the order of the calls.

    An `incomplete` call cannot be run, and a shell call in a container is answered by the server
    that has the container: they need no output.
    """
    open_calls: dict[str, None] = {}
    for item in items:
        if _needs_output(item):
            open_calls[item["call_id"]] = None
        elif is_output(item):
            open_calls.pop(item["call_id"], None)
    return list(open_calls)


def require_outputs(items: list[Item], open_calls: Collection[str] = ()) -> None:
    """Checks a new input, with its references resolved: calls and outputs must match.

    Every call, and every one of the `open_calls` of the continuation, needs an output after it,
    except those that need none (`unanswered_calls`). Every output needs a call before it. Some
    upstreams number their calls anew in every turn, so an id may occur several times. Raises
    InvalidRequest (param="input").
    """
    for call_id, noun in find_open_calls(items, open_calls).items():
        raise InvalidRequest(f"No tool output found for {noun} {call_id}.", param="input")


def find_open_calls(
    items: list[Item], open_calls: Collection[str] = (), where: str = "input"
) -> dict[str, str]:
    """The ids of the calls without an output after these items -> how errors name them.

    `open_calls` had no output before these items. Raises OutputWithoutCall (param=where) for an
    output without a call before it.
    """
    calls = dict.fromkeys(open_calls, CALLS["function_call"])
    closed: set[str] = set()
    for item in items:
        if is_call(item):
            calls[item["call_id"]] = CALLS[item["type"]]
        elif is_output(item) and item["call_id"] not in calls:
            raise OutputWithoutCall(item, where)
        if _needs_output(item):
            closed.discard(item["call_id"])
        elif is_call(item) or is_output(item):
            closed.add(item["call_id"])
    return {call_id: noun for call_id, noun in calls.items() if call_id not in closed}


def _needs_output(item: Item) -> bool:
    environment = item.get("environment")
    is_hosted = type(environment) is dict and environment.get("type") == "container_reference"
    return is_call(item) and item.get("status") != "incomplete" and not is_hosted
