"""The events of stored items: of a precomputed response, and of items that were held back in the
stream until a tool call before them had its result (docs/wire.md). Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from models.wire import events
from models.wire.item_types import ARGUMENT_FIELDS, TEXT_FIELDS
from models.wire.items import NewId

PartPlace = tuple[str, int, int]
"""item_id, output_index, and the part's content_index or summary_index."""

Part = dict[str, Any]


def with_new_ids(items: list[events.Item], new_id: NewId) -> list[events.Item]:
    """The items with new ids of the same prefixes. `call_id` stays, because the model chose it."""
    return [{**item, "id": new_id(item["id"].partition("_")[0])} for item in items]


def replay(items: list[events.Item]) -> Iterator[events.Event]:
    """The events that stream these items, in order. Each text and each call's arguments are one
    delta."""
    for index, item in enumerate(items):
        yield from replay_item(item, index)


def replay_item(item: events.Item, index: int) -> Iterator[events.Event]:
    """The events that stream one item; of a call that still runs, those up to its result."""
    yield events.ItemAdded(index, {**_at_first(item), "status": "in_progress"})
    yield from _ITEM_EVENTS.get(item["type"], _no_events)(item, index)
    status = item.get("status", "completed")
    if status == "in_progress":
        return
    outcome = _OUTCOMES.get((item["type"], status))
    if outcome is not None:
        yield outcome(item["id"], index)
    yield events.ItemDone(index, item)


def _at_first(item: events.Item) -> events.Item:
    """The item as it is added: without the result of a tool, and with the fields empty that events
    fill."""
    result_fields = _RESULT_FIELDS.get(item["type"], ())
    known = {name: value for name, value in item.items() if name not in result_fields}
    return {**known, **_initial_fields(item)}


def _initial_fields(item: events.Item) -> events.Item:
    """The fields that are empty when the item is added. Other items are sent whole at once."""
    match item["type"]:
        case "mcp_list_tools":
            return {"tools": []}
        case "web_search_call":
            return {"action": {"type": "search"}}
        case "file_search_call":
            return {"queries": []}
        case "mcp_call" | "code_interpreter_call":
            return {ARGUMENT_FIELDS[item["type"]]: ""}
        case "message":
            return {"content": []}
        case "reasoning":
            return {name: [] for name in ("summary", "content") if name in item}
        case "function_call" | "custom_tool_call":
            return {ARGUMENT_FIELDS[item["type"]]: ""}
        case "shell_call":
            return {"action": {**item["action"], "commands": []}}
        case "shell_call_output":
            return {"output": []}
        case _:
            return {}


def _no_events(_item: events.Item, _index: int) -> Iterator[events.Event]:
    return iter(())


def _content(item: events.Item, index: int) -> Iterator[events.Event]:
    for position, part in enumerate(item.get("content", ())):
        place = (item["id"], index, position)
        yield events.PartAdded(*place, _without_text(part))
        yield from _part_events(part, place)
        yield events.PartDone(*place, part)


def _reasoning(item: events.Item, index: int) -> Iterator[events.Event]:
    for position, part in enumerate(item.get("summary", ())):
        place = (item["id"], index, position)
        yield events.SummaryPartAdded(*place, _without_text(part))
        if part["text"]:
            yield events.SummaryDelta(*place, part["text"])
        yield events.SummaryDone(*place, part["text"])
        yield events.SummaryPartDone(*place, part)
    yield from _content(item, index)


def _without_text(part: Part) -> Part:
    """The part before its text, if its type has text that is streamed."""
    text_field = TEXT_FIELDS.get(part["type"])
    if text_field is None:
        return part
    lists: Part = {name: [] for name in ("annotations", "logprobs") if name in part}
    return {**part, text_field: "", **lists}


def _part_events(part: Part, place: PartPlace) -> Iterator[events.Event]:
    match part["type"]:
        case "output_text":
            if part["text"]:
                yield events.TextDelta(*place, part["text"], part.get("logprobs", []))
            for number, annotation in enumerate(part.get("annotations", ())):
                yield events.AnnotationAdded(*place, number, annotation)
        case "refusal" if part["refusal"]:
            yield events.RefusalDelta(*place, part["refusal"])
        case "reasoning_text" if part["text"]:
            yield events.ReasoningDelta(*place, part["text"])
    yield from text_done(part, place)


def _function_arguments(item: events.Item, index: int) -> Iterator[events.Event]:
    if item["arguments"]:
        yield events.ArgumentsDelta(item["id"], index, item["arguments"])
    yield from arguments_done(item, index)


def _custom_input(item: events.Item, index: int) -> Iterator[events.Event]:
    if item["input"]:
        yield events.CustomInputDelta(item["id"], index, item["input"])
    yield from arguments_done(item, index)


def _commands(item: events.Item, index: int) -> Iterator[events.Event]:
    return command_events(index, item["action"]["commands"])


def command_events(index: int, commands: Iterable[str]) -> Iterator[events.Event]:
    """The events of a shell call's commands: for each `added`, one delta with all of it, `done`."""
    for number, command in enumerate(commands):
        yield events.CommandAdded(index, number, "")
        if command:
            yield events.CommandDelta(index, number, command)
        yield events.CommandDone(index, number, command)


def shell_output_events(item: events.Item, index: int) -> Iterator[events.Event]:
    """The events of a shell call's output: of each command one delta with all of it, and `done`."""
    for number, output in enumerate(item["output"]):
        delta = {name: output[name] for name in ("stdout", "stderr") if output[name]}
        if delta:
            yield events.ShellOutputDelta(item["id"], index, number, delta)
        yield events.ShellOutputDone(item["id"], index, number, [output])


def _list_tools(item: events.Item, index: int) -> Iterator[events.Event]:
    yield events.ListToolsInProgress(item["id"], index)


def _mcp_call(item: events.Item, index: int) -> Iterator[events.Event]:
    yield events.McpCallInProgress(item["id"], index)
    if item["arguments"]:
        yield events.McpArgumentsDelta(item["id"], index, item["arguments"])
    yield from arguments_done(item, index)


def _web_search(item: events.Item, index: int) -> Iterator[events.Event]:
    yield events.SearchInProgress(item["id"], index)
    yield events.Searching(item["id"], index)


def _file_search(item: events.Item, index: int) -> Iterator[events.Event]:
    yield events.FileSearchInProgress(item["id"], index)
    yield events.FileSearching(item["id"], index)


def _code(item: events.Item, index: int) -> Iterator[events.Event]:
    yield events.CodeInProgress(item["id"], index)
    if item["code"]:
        yield events.CodeDelta(item["id"], index, item["code"])
    yield from arguments_done(item, index)
    yield events.CodeInterpreting(item["id"], index)


def _image(item: events.Item, index: int) -> Iterator[events.Event]:
    yield events.ImageInProgress(item["id"], index)
    yield events.ImageGenerating(item["id"], index)


_RESULT_FIELDS: dict[str, tuple[str, ...]] = {
    "mcp_list_tools": ("error",),
    "mcp_call": ("output", "error"),
    "web_search_call": ("results",),
    "file_search_call": ("results",),
    "code_interpreter_call": ("outputs",),
    "image_generation_call": ("result",),
}
"""type of a server tool's item -> the fields that it has only when the tool has run."""

_OUTCOMES: dict[tuple[str, str], Callable[[str, int], events.Event]] = {
    ("mcp_list_tools", "completed"): events.ListToolsCompleted,
    ("mcp_list_tools", "failed"): events.ListToolsFailed,
    ("mcp_call", "completed"): events.McpCallCompleted,
    ("mcp_call", "failed"): events.McpCallFailed,
    ("web_search_call", "completed"): events.SearchCompleted,
    ("file_search_call", "completed"): events.FileSearchCompleted,
    ("code_interpreter_call", "completed"): events.CodeCompleted,
    ("image_generation_call", "completed"): events.ImageCompleted,
}
"""type and status of a server tool's item -> the event before its `done`."""

_ITEM_EVENTS: dict[str, Callable[[events.Item, int], Iterator[events.Event]]] = {
    "message": _content,
    "reasoning": _reasoning,
    "function_call": _function_arguments,
    "custom_tool_call": _custom_input,
    "shell_call": _commands,
    "shell_call_output": shell_output_events,
    "mcp_list_tools": _list_tools,
    "mcp_call": _mcp_call,
    "web_search_call": _web_search,
    "file_search_call": _file_search,
    "code_interpreter_call": _code,
    "image_generation_call": _image,
}
"""type of an item -> the events between its `added` and its `done`."""


CONTENT_DONE = (
    events.TextDone,
    events.RefusalDone,
    events.ReasoningDone,
    events.SummaryDone,
    events.ArgumentsDone,
    events.CustomInputDone,
    events.McpArgumentsDone,
    events.CodeDone,
)
"""The events after which a text or the arguments of a call are complete."""


def text_done(part: dict[str, Any], place: PartPlace) -> list[events.Event]:
    """The event that closes the text of a content part; none if its type has no streamed text."""
    match part["type"]:
        case "output_text":
            return [events.TextDone(*place, part["text"], part.get("logprobs", []))]
        case "refusal":
            return [events.RefusalDone(*place, part["refusal"])]
        case "reasoning_text":
            return [events.ReasoningDone(*place, part["text"])]
        case _:
            return []


def arguments_done(item: events.Item, index: int) -> list[events.Event]:
    """The event that closes a call's arguments; none if its type has no streamed arguments."""
    match item.get("type"):
        case "function_call":
            return [events.ArgumentsDone(item["id"], index, item["name"], item["arguments"])]
        case "custom_tool_call":
            return [events.CustomInputDone(item["id"], index, item["input"])]
        case "mcp_call":
            return [events.McpArgumentsDone(item["id"], index, item["arguments"])]
        case "code_interpreter_call":
            return [events.CodeDone(item["id"], index, item["code"])]
        case _:
            return []
