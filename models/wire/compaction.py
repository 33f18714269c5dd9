"""Compaction items, which replace the history before them (docs/state.md). Pure.

The `encrypted_content` of a compaction is sealed. It has all that a model needs instead of the
items before it: instructions, the newest user messages, a summary of everything else, and the
messages that the model has not answered yet. A client that sends the item back, or continues a
response that has it, may leave out the items before it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from models.wire.events import Item
from models.wire.item_types import ADDS_TOOLS

Unseal = Callable[[str], Any]
"""`encrypted_content` -> the result of `CompactedHistory.to_json`."""

PREAMBLE = (
    "Earlier parts of this conversation were left out to save room. "
    "This is a summary of them, for you to go on from:\n\n"
)
"""The beginning of the message that gives the summary to a model."""

_INSTRUCTION_ROLES = frozenset(("system", "developer"))
_DATA = "data:"


@dataclass(frozen=True, slots=True)
class CompactedHistory:
    """The content of a compaction item."""

    instructions: list[Item]
    """System and developer messages, and items that add tools."""
    kept_messages: list[Item]
    """The newest user messages, in their order."""
    summary: str
    latest: list[Item]
    """The items after the last output of the model."""

    def to_json(self) -> dict[str, Any]:
        """The form that is sealed."""
        return {
            "v": 1,
            "instructions": self.instructions,
            "kept": self.kept_messages,
            "summary": self.summary,
            "latest": self.latest,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "CompactedHistory":
        """From the form that was sealed."""
        return cls(data["instructions"], data["kept"], data["summary"], data["latest"])

    @property
    def user_messages(self) -> list[Item]:
        """The user messages in it, in their order."""
        return [item for item in (*self.kept_messages, *self.latest) if is_from_user(item)]


def newest_compaction(items: Sequence[Item]) -> int:
    """The position of the last compaction item; -1 if there is none."""
    return max(
        (position for position, item in enumerate(items) if item["type"] == "compaction"),
        default=-1,
    )


def expand_compaction(items: list[Item], unseal: Unseal) -> list[Item]:
    """The items, with the content of the newest compaction instead of it and the items before it.

    Instructions among the items before it are preferred to those in the compaction, because the
    client may have changed them. Lists of MCP tools before it stay. Raises what `unseal` raises.
    Returns `items` if there is no compaction among them.
    """
    position = newest_compaction(items)
    if position < 0:
        return items
    compacted = CompactedHistory.from_json(unseal(items[position]["encrypted_content"]))
    before = items[:position]
    latest = {item["id"] for item in compacted.latest}
    instructions = [item for item in before if is_instruction(item) and item["id"] not in latest]
    if not instructions or newest_compaction(before) >= 0:
        # After an older compaction the list is not complete: that compaction has some of them.
        instructions = compacted.instructions
    tool_lists = [item for item in before if item["type"] == "mcp_list_tools"]
    summary = [_summary(compacted.summary, items[position]["id"])] if compacted.summary else []
    return [
        *instructions,
        *tool_lists,
        *compacted.kept_messages,
        *summary,
        *compacted.latest,
        *items[position + 1 :],
    ]


def compact_history(history: Sequence[Item], summary: str, max_characters: int) -> CompactedHistory:
    """The content of a compaction of this history, whose own compactions are expanded.

    Of the user messages before the unanswered ones, the newest are kept whose text is together at
    most `max_characters`.
    """
    first = first_unanswered(history)
    return CompactedHistory(
        instructions=[_as_instruction(item) for item in history[:first] if is_instruction(item)],
        kept_messages=_newest(
            [item for item in history[:first] if is_from_user(item)], max_characters
        ),
        summary=summary,
        latest=[item for item in history[first:] if item["type"] != "mcp_list_tools"],
    )


def first_unanswered(history: Sequence[Item]) -> int:
    """The position after the last output of the model: only new messages and tool lists follow."""
    first = len(history)
    while first > 0 and _is_new_input(history[first - 1]):
        first -= 1
    return first


def _is_new_input(item: Item) -> bool:
    if item["type"] == "message":
        return bool(item["role"] != "assistant") and not is_summary(item)
    return is_tool_listing(item)


def is_from_user(item: Item) -> bool:
    """Whether it is a message of a user."""
    return item["type"] == "message" and item["role"] == "user" and not is_summary(item)


def is_tool_listing(item: Item) -> bool:
    """Whether it only lists tools."""
    return item["type"] in ("additional_tools", "mcp_list_tools")


def is_instruction(item: Item) -> bool:
    """Whether it instructs the model or adds tools, so that a compaction keeps it."""
    if item["type"] == "message":
        return item["role"] in _INSTRUCTION_ROLES
    return item["type"] in ADDS_TOOLS


def is_summary(item: Item) -> bool:
    """Whether it is the message that gives a compaction's summary to a model."""
    content = item.get("content")
    if item["type"] != "message" or not content:
        return False
    return str(content[0].get("text", "")).startswith(PREAMBLE)


def _summary(text: str, item_id: str) -> Item:
    content = [{"type": "input_text", "text": PREAMBLE + text}]
    return {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": content,
    }


def _as_instruction(item: Item) -> Item:
    """The output of a tool search becomes added tools, without the search."""
    if item["type"] != "tool_search_output":
        return item
    return {
        "id": item["id"],
        "type": "additional_tools",
        "status": "completed",
        "role": "developer",
        "tools": [_loaded(tool) for tool in item["tools"]],
    }


def _loaded(tool: Item) -> Item:
    """The tool as one that no search has to find any more."""
    kept = {name: value for name, value in tool.items() if name != "defer_loading"}
    return (
        {**kept, "tools": [_loaded(inner) for inner in tool["tools"]]} if "tools" in tool else kept
    )


def _newest(messages: Sequence[Item], max_characters: int) -> list[Item]:
    """The newest messages within the limit, in their order, without data of images and files."""
    newest: list[Item] = []
    for message in reversed(messages):
        light = {**message, "content": [_without_data(part) for part in message["content"]]}
        max_characters -= sum(
            len(str(value)) for part in light["content"] for value in part.values()
        )
        if max_characters < 0:
            break
        newest.append(light)
    return newest[::-1]


def _without_data(part: dict[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "input_image" if part.get("image_url", "").startswith(_DATA):
            return {"type": "input_text", "text": "[an image]"}
        case "input_file" if "file_data" in part:
            return {
                "type": "input_text",
                "text": f"[a file: {part['filename']}]" if "filename" in part else "[a file]",
            }
        case "input_audio":
            return {"type": "input_text", "text": "[a recording]"}
        case _:
            return part


def texts_of(parts: Iterable[dict[str, Any]]) -> str:
    """The text of the parts of a message or an output, with a placeholder for other parts."""
    texts = []
    for part in parts:
        light = _without_data(part) if part["type"].startswith("input_") else part
        texts.append(
            str(
                light.get("text")
                or light.get("refusal")
                or f"[{light['type'].removeprefix('input_')}]"
            )
        )
    return "\n".join(texts)
