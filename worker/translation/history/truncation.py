"""What of a history may be left out when it is too long for the model (`truncation: auto`, contract §2). Pure.

What belongs together stays together: a call and its output, an approval request and its answer, a thought and what it led to. The
oldest turns go first, and of a turn first what the model said and last the user's words that it was said to: so a history that begins
with a user still does. Never left out: instructions, tools that were added, what a compaction has kept, and the newest message of a user.
"""

from collections.abc import Iterator, Sequence

from models.wire.compaction import is_from_user, is_instruction, is_summary
from models.wire.events import Item
from models.wire.pairing import is_call, is_output
from worker.translation.history.measure import count_tokens

DROPPED_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
"""How much of what may go is left out at the first try, the second, …: a bounded number, soon enough for a history many times too long."""


def shortened_histories(
    history: list[Item], share: float = 0.0
) -> Iterator[tuple[float, list[Item]]]:
    """The history without its oldest `share`, then without more and more of it, for as long as that leaves anything out: (share, history)."""
    shorter = without_oldest(history, share)
    yield share, shorter
    for more in (more for more in DROPPED_SHARES if more > share):
        left = without_oldest(history, more)
        if len(left) < len(shorter):
            shorter = left
            yield more, shorter


def without_oldest(history: Sequence[Item], share: float) -> list[Item]:
    """The history without the oldest `share` of what may be left out, by weight; without all of that at 1. The order stays."""
    if share <= 0:
        return list(history)
    groups = list(_droppable(history))
    weights = [sum(count_tokens(history[position]) for position in group) for group in groups]
    left = (1 - share) * sum(weights)
    gone: set[int] = set()
    standing = sum(weights)
    for group, weight in zip(groups, weights, strict=True):
        if standing <= left and share < 1:
            break
        gone.update(group)
        standing -= weight
    return [item for position, item in enumerate(history) if position not in gone]


def _droppable(history: Sequence[Item]) -> Iterator[list[int]]:
    """Positions that may go, those that go together in one list, in the order in which they go."""
    newest = max(
        (position for position, item in enumerate(history) if is_from_user(item)), default=-1
    )
    groups: dict[int, list[int]] = {}
    for position, leader in enumerate(_group_leaders(history)):
        groups.setdefault(leader, []).append(position)
    words: list[list[int]] = []
    spoken = False
    for group in groups.values():
        if any(position == newest or _is_protected(history[position]) for position in group):
            continue
        is_users = is_from_user(history[group[0]])
        if is_users and spoken:
            yield from words
            words, spoken = [], False
        if is_users:
            words.append(group)
        else:
            spoken = True
            yield group
    yield from words


def _group_leaders(history: Sequence[Item]) -> list[int]:
    """For each position the one that stands for its group."""
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


def _merge_groups(leaders: list[int], one: int, other: int) -> None:
    """Makes one group of two."""
    leaders[_leader(leaders, one)] = _leader(leaders, other)


def _leader(leaders: list[int], position: int) -> int:
    while leaders[position] != position:
        leaders[position] = leaders[leaders[position]]  # halves the way for whoever asks next
        position = leaders[position]
    return position


def _is_protected(item: Item) -> bool:
    return is_instruction(item) or is_summary(item) or item["type"] == "mcp_list_tools"
