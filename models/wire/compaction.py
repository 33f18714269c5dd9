"""Compaction items: what stands in for the history before them (contract §6.1, §9; docs/state.md). Pure.

A compaction holds, sealed in its `encrypted_content`, all that is needed to go on without the items before it: instructions, the newest
messages of users as they were, a summary of everything else, and what the model has not answered yet. Whoever sends the item back,
or goes on from a response that has it, may drop what stood before.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from models.wire.events import Item

Unseal = Callable[[str], Any]
"""`encrypted_content` -> what `Compacted.to_json` made."""

PREAMBLE = "Earlier parts of this conversation were left out to save room. This is a summary of them, for you to go on from:\n\n"
"""What the summary begins with when a model is told it."""

_INSTRUCTION_ROLES = frozenset(("system", "developer"))
_TOOL_ITEMS = frozenset(("additional_tools", "tool_search_output"))
"""Items that add tools to those of the request."""
_DATA = "data:"


@dataclass(frozen=True, slots=True)
class CompactedHistory:
    """What a compaction item holds; all but the summary are items."""

    instructions: list[Item]
    """System and developer messages, and tools that were added."""
    kept_messages: list[Item]
    """The newest messages of users, oldest first."""
    summary: str
    latest: list[Item]
    """What was said after the model's last word, and waits for its next."""

    def to_json(self) -> dict[str, Any]:
        """As it is sealed."""
        return {
            "v": 1,
            "instructions": self.instructions,
            "kept": self.kept_messages,
            "summary": self.summary,
            "latest": self.latest,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "CompactedHistory":
        """The reverse."""
        return cls(data["instructions"], data["kept"], data["summary"], data["latest"])

    @property
    def user_messages(self) -> list[Item]:
        """Those that are kept, oldest first."""
        return [item for item in (*self.kept_messages, *self.latest) if is_from_user(item)]


def newest_compaction(items: Sequence[Item]) -> int:
    """The position of the last compaction item; -1 when there is none."""
    return max(
        (position for position, item in enumerate(items) if item["type"] == "compaction"),
        default=-1,
    )


def expand_compaction(items: list[Item], unseal: Unseal) -> list[Item]:
    """The items with what the newest compaction holds in the place of it and of everything before it.

    Instructions that stand before it are taken as they stand there: the client may have changed them since. Tools that were listed stay
    listed. Raises what `read` raises; `items` are given back when there is no compaction among them.
    """
    position = newest_compaction(items)
    if position < 0:
        return items
    held = CompactedHistory.from_json(unseal(items[position]["encrypted_content"]))
    before = items[:position]
    latest = {item["id"] for item in held.latest}
    at_hand = [item for item in before if is_instruction(item) and item["id"] not in latest]
    # What an older compaction held of them is no longer at hand, so then the list there is not whole.
    instructions = held.instructions if not at_hand or newest_compaction(before) >= 0 else at_hand
    listed = [item for item in before if item["type"] == "mcp_list_tools"]
    summary = [_summary(held.summary, items[position]["id"])] if held.summary else []
    return [
        *instructions,
        *listed,
        *held.kept_messages,
        *summary,
        *held.latest,
        *items[position + 1 :],
    ]


def compact_history(history: Sequence[Item], summary: str, max_characters: int) -> CompactedHistory:
    """What stands for this history, itself opened. `room`: characters of older messages of users that are kept, the newest first."""
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
    """Where that begins which was said to the model since it spoke last: the messages of users and developers at the end."""
    first = len(history)
    while first > 0 and _is_new_input(history[first - 1]):
        first -= 1
    return first


def _is_new_input(item: Item) -> bool:
    if item["type"] == "message":
        return bool(item["role"] != "assistant") and not is_summary(item)
    return is_tool_listing(item)


def is_from_user(item: Item) -> bool:
    """Whether a user said it."""
    return item["type"] == "message" and item["role"] == "user" and not is_summary(item)


def is_tool_listing(item: Item) -> bool:
    """Whether it says what can be called, and nothing else."""
    return item["type"] in ("additional_tools", "mcp_list_tools")


def is_instruction(item: Item) -> bool:
    """Whether it tells the model how to behave or what it may call, so that it stays."""
    if item["type"] == "message":
        return item["role"] in _INSTRUCTION_ROLES
    return item["type"] in _TOOL_ITEMS


def is_summary(item: Item) -> bool:
    """Whether it is the summary of a compaction, as a model is told it."""
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
    """Found tools lose the search that found them."""
    if item["type"] != "tool_search_output":
        return item
    return {
        "id": item["id"],
        "type": "additional_tools",
        "status": "completed",
        "role": "developer",
        "tools": item["tools"],
    }


def _newest(messages: Sequence[Item], max_characters: int) -> list[Item]:
    """The newest of these that have room, oldest first, without the data of their images and files."""
    kept: list[Item] = []
    for message in reversed(messages):
        light = {**message, "content": [_without_data(part) for part in message["content"]]}
        max_characters -= sum(
            len(str(value)) for part in light["content"] for value in part.values()
        )
        if max_characters < 0:
            break
        kept.append(light)
    return kept[::-1]


def _without_data(part: dict[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "input_image" if part["image_url"].startswith(_DATA):
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
    """What the parts of a message or an output say, with a word for what is no text."""
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
