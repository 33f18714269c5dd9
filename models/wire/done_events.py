"""The events that close a content part or the arguments of a call, by type."""

from typing import Any

from models.wire.events import (
    ArgumentsDone,
    CodeDone,
    CustomInputDone,
    Event,
    Item,
    McpArgumentsDone,
    ReasoningDone,
    RefusalDone,
    SummaryDone,
    TextDone,
)

CONTENT_DONE = (
    TextDone,
    RefusalDone,
    ReasoningDone,
    SummaryDone,
    ArgumentsDone,
    CustomInputDone,
    McpArgumentsDone,
    CodeDone,
)
"""The events after which a text or the arguments of a call are complete."""

PartPlace = tuple[str, int, int]
"""item_id, output_index, and the part's content_index or summary_index."""


def text_done(part: dict[str, Any], place: PartPlace) -> list[Event]:
    """The event that closes the text of a content part; none if its type has no streamed text."""
    match part["type"]:
        case "output_text":
            return [TextDone(*place, part["text"], part.get("logprobs", []))]
        case "refusal":
            return [RefusalDone(*place, part["refusal"])]
        case "reasoning_text":
            return [ReasoningDone(*place, part["text"])]
        case _:
            return []


def arguments_done(item: Item, index: int) -> list[Event]:
    """The event that closes a call's arguments; none if its type has no streamed arguments."""
    match item.get("type"):
        case "function_call":
            return [ArgumentsDone(item["id"], index, item["name"], item["arguments"])]
        case "custom_tool_call":
            return [CustomInputDone(item["id"], index, item["input"])]
        case "mcp_call":
            return [McpArgumentsDone(item["id"], index, item["arguments"])]
        case "code_interpreter_call":
            return [CodeDone(item["id"], index, item["code"])]
        case _:
            return []
