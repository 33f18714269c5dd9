"""How many tokens a history has, and which of its items are dropped when it is too long for the
model (`truncation: auto`).

Tokens are those of JSON for a model: items, or the body of a request. Texts are counted with a
tokenizer if there is one, else estimated.

Items that belong together are dropped together: a call and its output, an approval request and its
answer, reasoning and the item after it. The oldest turns go first; of a turn, the model's items go
before the user's messages that they answer. So a history that begins with a user message still
does. Never dropped: instructions, added tools, summaries of a compaction, and the newest message of
a user.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

import msgspec

from models.wire.compaction import is_from_user, is_instruction, is_summary
from models.wire.events import Item
from models.wire.pairing import is_call, is_output

TokenCounter = Callable[[str], int]
"""A text -> its number of tokens."""

IMAGE_TOKENS = 765
"""Tokens of an image: those of OpenAI's models for 1024 × 1024 pixels. Few other models differ
by more than a factor of two."""
LOW_DETAIL_IMAGE_TOKENS = 85
"""Tokens of an image with `detail: low`."""
AUDIO_BYTES_PER_SECOND = 16_000
"""Approximate bytes of base64 for a second of speech, which has ten tokens."""
FILE_BYTES_PER_TOKEN = 8
"""Bytes of base64 for a token of a file: half of a PDF is not text."""
OVERHEAD_TOKENS = 3
"""Tokens that templates add around a message, a call or an output."""

_UNCOUNTED_FIELDS = frozenset(
    (
        "id",
        "status",
        "call_id",
        "tool_call_id",
        "annotations",
        "logprobs",
        "encrypted_content",
        "turn",
        "phase",
        "index",
    )
)
"""Fields that no model is shown, or that have almost no tokens."""
_IMAGE_TYPES = frozenset(("input_image", "image_url", "image", "computer_screenshot"))
_FILE_TYPES = frozenset(("input_file", "file", "document"))


def estimate_tokens(text: str) -> int:
    """Estimates four bytes of UTF-8 per token: close for English and code; for Chinese three
    quarters of a token per character."""
    return -(-len(text.encode(errors="replace")) // 4)


def count_tokens(value: Any, count_text: TokenCounter = estimate_tokens) -> int:
    """The tokens of a message, an item, or a list of them. Images, audio and files count by type
    and size, whatever `count_text` is."""
    match value:
        case str():
            return count_text(value)
        case dict():
            return _count_object(value, count_text)
        case list() | tuple():
            return sum(count_tokens(element, count_text) for element in value)
        case None:
            return 0
        case _:
            return 1


def count_request_tokens(
    body: Mapping[str, Any], count_text: TokenCounter = estimate_tokens
) -> int:
    """The tokens of a request's body, of whatever API: the conversation, the
    tools, and the output format."""
    conversation = sum(
        count_tokens(body.get(name), count_text)
        for name in ("instructions", "system", "input", "messages")
    )
    schemas = [body[name] for name in ("tools", "response_format") if body.get(name)]
    text = body.get("text")
    if isinstance(text, dict) and "schema" in text.get("format", {}):
        schemas.append(text["format"])
    return (
        conversation
        + sum(count_text(msgspec.json.encode(schema).decode()) for schema in schemas)
        + OVERHEAD_TOKENS
    )


def _count_object(value: dict[str, Any], count_text: TokenCounter) -> int:
    kind = value.get("type")
    if kind in _IMAGE_TYPES:
        image = value.get("image_url")
        detail = image.get("detail") if isinstance(image, dict) else value.get("detail")
        return LOW_DETAIL_IMAGE_TOKENS if detail == "low" else IMAGE_TOKENS
    if kind in _FILE_TYPES:
        file = value.get("file") or value.get("source") or value
        data = file.get("file_data") or file.get("data") or ""
        size = len(data) if isinstance(data, Sized) else len(str(data))
        return size // FILE_BYTES_PER_TOKEN + OVERHEAD_TOKENS
    if kind == "input_audio":
        return (
            len(str(value["input_audio"].get("data", ""))) * 10 // AUDIO_BYTES_PER_SECOND
            + OVERHEAD_TOKENS
        )
    if kind == "image_generation_call":
        # A model gets a text for an image of this server, and the image of its own upstream.
        seen = 0 if "answer" in value or not value.get("result") else IMAGE_TOKENS
        rest = {name: value[name] for name in ("answer", "revised_prompt") if name in value}
        return seen + count_tokens(rest, count_text) + OVERHEAD_TOKENS
    inside = sum(
        count_tokens(field, count_text)
        for name, field in value.items()
        if name not in _UNCOUNTED_FIELDS and name != "type"
    )
    return inside + (
        OVERHEAD_TOKENS if "role" in value or "call_id" in value or kind == "function" else 0
    )


DROPPED_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Share of the droppable tokens that is dropped at the first try, the second, …: few tries, also
for a history many times too long."""


def shortened_histories(
    history: list[Item], share: float = 0.0
) -> Iterator[tuple[float, list[Item]]]:
    """The history without its oldest `share`, then without more and more of it, each time as
    `(share, history)`.

    Ends when nothing more can be dropped.
    """
    shortest = without_oldest(history, share)
    yield share, shortest
    for larger_share in (larger for larger in DROPPED_SHARES if larger > share):
        shorter = without_oldest(history, larger_share)
        if len(shorter) < len(shortest):
            shortest = shorter
            yield larger_share, shortest


def without_oldest(history: Sequence[Item], share: float) -> list[Item]:
    """The history without the oldest `share` of its droppable items, by tokens; with share 1
    without all of them. The order stays."""
    if share <= 0:
        return list(history)
    groups = list(_droppable(history))
    weights = [sum(count_tokens(history[position]) for position in group) for group in groups]
    remaining = sum(weights)
    wanted = (1 - share) * remaining
    dropped: set[int] = set()
    for group, weight in zip(groups, weights, strict=True):
        if remaining <= wanted and share < 1:
            break
        dropped.update(group)
        remaining -= weight
    return [item for position, item in enumerate(history) if position not in dropped]


def _droppable(history: Sequence[Item]) -> Iterator[list[int]]:
    """The positions that may be dropped, in the order in which they are dropped; each list is
    dropped together."""
    newest = max(
        (position for position, item in enumerate(history) if is_from_user(item)), default=-1
    )
    groups: dict[int, list[int]] = {}
    for position, leader in enumerate(_group_leaders(history)):
        groups.setdefault(leader, []).append(position)
    user_groups: list[list[int]] = []
    has_answer = False
    for group in groups.values():
        if any(position == newest or _is_protected(history[position]) for position in group):
            continue
        is_users = is_from_user(history[group[0]])
        if is_users and has_answer:
            yield from user_groups
            user_groups, has_answer = [], False
        if is_users:
            user_groups.append(group)
        else:
            has_answer = True
            yield group
    yield from user_groups


def _group_leaders(history: Sequence[Item]) -> list[int]:
    """For each position the position that represents its group."""
    leaders = list(range(len(history)))
    calls: dict[str, int] = {}
    requests: dict[str, int] = {}
    for position, item in enumerate(history):
        is_the_models = not is_from_user(item) and not _is_protected(item)
        if position and history[position - 1]["type"] == "reasoning" and is_the_models:
            _merge_groups(leaders, position - 1, position)
        if is_call(item):
            calls[item["call_id"]] = position
        elif is_output(item) and item["call_id"] in calls:
            _merge_groups(leaders, calls[item["call_id"]], position)
        elif item["type"] == "mcp_approval_request":
            requests[item["id"]] = position
        elif item.get("approval_request_id") in requests:
            _merge_groups(leaders, requests[item["approval_request_id"]], position)
    return [_leader(leaders, position) for position in range(len(history))]


def _merge_groups(leaders: list[int], first: int, second: int) -> None:
    """Merges the groups of two positions."""
    leaders[_leader(leaders, first)] = _leader(leaders, second)


def _leader(leaders: list[int], position: int) -> int:
    while leaders[position] != position:
        leaders[position] = leaders[leaders[position]]  # halves the path for the next search
        position = leaders[position]
    return position


def _is_protected(item: Item) -> bool:
    return is_instruction(item) or is_summary(item) or item["type"] == "mcp_list_tools"
