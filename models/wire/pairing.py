"""Calls and their outputs: which belong together, which wait (contract §5.1)."""

from collections.abc import Collection, Iterable, Sequence

from models.errors import InvalidRequest
from models.wire.events import Item

CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "tool_search_call": "tool search call",
    "local_shell_call": "local shell call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
    "computer_call": "computer call",
}
"""Items that wait for the client's answer -> how errors call them."""

OUTPUTS = {
    "function_call_output": "function call output",
    "custom_tool_call_output": "custom tool call output",
    "tool_search_output": "tool search output",
    "local_shell_call_output": "local shell call output",
    "shell_call_output": "shell call output",
    "apply_patch_call_output": "apply patch call output",
    "computer_call_output": "computer call output",
}
"""Items that are such an answer -> how errors call them."""


def is_call(item: Item) -> bool:
    """Whether the item waits for a client's answer. A tool search without a `call_id` ran elsewhere and waits for nothing."""
    return item["type"] in CALLS and "call_id" in item


def is_output(item: Item) -> bool:
    """Whether the item answers a call."""
    return item["type"] in OUTPUTS and "call_id" in item


def match_outputs(items: Sequence[Item]) -> dict[int, int]:
    """The position of each answered call -> that of its output. An output belongs to the last call before it: some upstreams use an id again."""
    found: dict[int, int] = {}
    waiting: dict[str, int] = {}
    for position, item in enumerate(items):
        if is_call(item):
            waiting[item["call_id"]] = position
        elif is_output(item) and item["call_id"] in waiting:
            found[waiting.pop(item["call_id"])] = position
    return found


def unanswered_calls(items: Iterable[Item]) -> list[str]:
    """The ids of the complete calls among `items` that have no output there, in the order of the calls.

    A call that broke off with its response cannot be answered and is not waited for.
    """
    waiting: dict[str, None] = {}
    for item in items:
        if is_call(item) and item.get("status") != "incomplete":
            waiting[item["call_id"]] = None
        elif is_output(item):
            waiting.pop(item["call_id"], None)
    return list(waiting)


def require_outputs(items: list[Item], open_calls: Collection[str] = ()) -> None:
    """Checks a new input, its references resolved, against itself and the calls that the chain has left open.

    Every call must have an output after it, the open ones too, and every output a call before it; a call that broke off with its
    response may go without. Some upstreams number their calls anew in every turn, so an id may occur several times. Raises
    InvalidRequest(param="input").
    """
    for call_id, noun in find_open_calls(items, open_calls).items():
        raise InvalidRequest(f"No tool output found for {noun} {call_id}.", param="input")


def find_open_calls(
    items: list[Item], open_calls: Collection[str] = (), where: str = "input"
) -> dict[str, str]:
    """The ids of the calls that wait for an output after these items -> how errors call them; `open_calls` waited before.

    Raises InvalidRequest(param=where) for an output without a call before it.
    """
    calls = dict.fromkeys(open_calls, CALLS["function_call"])
    answered: set[str] = set()
    for item in items:
        if is_call(item):
            calls[item["call_id"]] = CALLS[item["type"]]
            if item.get("status") == "incomplete":
                answered.add(item["call_id"])
            else:
                answered.discard(item["call_id"])
        elif is_output(item):
            if item["call_id"] not in calls:
                message = f"No tool call found for {OUTPUTS[item['type']]} with call_id {item['call_id']}."
                raise InvalidRequest(message, param=where)
            answered.add(item["call_id"])
    return {call_id: noun for call_id, noun in calls.items() if call_id not in answered}
