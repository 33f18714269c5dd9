"""`progress` of the Response object: how far an open response is, and what it waits for
(docs/background.md). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from models.wire.events import Item
from models.wire.item_types import ARGUMENT_FIELDS, SERVER_CALLS

_BYTES_PER_TOKEN = 4
"""Of UTF-8, about: as everywhere where no tokenizer is set."""
_OPEN = ("in_progress", "searching", "interpreting", "generating", "calling")
"""Statuses of a call that has not ended."""


@dataclass(frozen=True, slots=True)
class WaitsForSlot:
    """It waits in line for a slot of a worker."""

    position: int | None
    """1: it is the next one of its project in its lane; None: it is not in line, or too far back to
    be counted"""
    position_above: int | None = None
    """It is behind so many; None: its position is known, or it is not in line."""
    expected_start_at: int | None = None
    """seconds since the epoch, by the pace of its line; None: not known"""

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "slot",
            "position": self.position,
            "position_above": self.position_above,
            "expected_start_at": self.expected_start_at,
        }


@dataclass(frozen=True, slots=True)
class WaitsForUpstream:
    """Its upstreams fail or are full: it is tried again later. Times in seconds since the epoch."""

    next_try_at: int
    since: int | None = None
    tries: int | None = None
    """that failed, one after the other"""
    last_error: str | None = None
    """the failure of the last try; None: not known"""

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "upstream",
            "since": self.since,
            "tries": self.tries,
            "next_try_at": self.next_try_at,
            "last_error": self.last_error,
        }


@dataclass(frozen=True, slots=True)
class WaitsForPrevious:
    """It begins when the response that it continues has ended (`wait_for_previous`)."""

    response_id: str

    def to_json(self) -> dict[str, Any]:
        return {"type": "response", "response_id": self.response_id}


Wait = WaitsForSlot | WaitsForUpstream | WaitsForPrevious
"""What a response can wait for, each with a `type` of its own in JSON."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a response has done so far."""

    turns: int
    """that have ended, and that another one followed"""
    calls_done: int
    calls_open: int
    output_tokens: int
    estimated_tokens: int
    """how many of them are an estimate"""
    attempts: int
    is_writing: bool = False
    """a message of its output is open"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a response is, and what it waits for."""

    work: Work
    waits_for: Wait | None = None
    """None: it runs, or will run at once"""

    def to_json(self) -> dict[str, Any]:
        work = self.work
        return {
            "turns": work.turns,
            "tool_calls": {"done": work.calls_done, "open": work.calls_open},
            "output_tokens": work.output_tokens,
            "estimated_output_tokens": work.estimated_tokens,
            "attempts": work.attempts,
            "waits_for": None if self.waits_for is None else self.waits_for.to_json(),
        }


def estimated_tokens(text_bytes: int) -> int:
    """About how many tokens a text of so many bytes of UTF-8 has."""
    return -(-text_bytes // _BYTES_PER_TOKEN)


def text_size(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def written_size(items: Iterable[Item]) -> int:
    """Bytes of what the model has written in these items: texts, reasoning that is not sealed, and
    arguments of calls."""
    return sum(map(_written_size, items))


def _written_size(item: Item) -> int:
    parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    texts.append(item.get(ARGUMENT_FIELDS.get(item["type"], "")))
    return sum(text_size(text) for text in texts if isinstance(text, str))


def count_calls(items: Iterable[Item]) -> tuple[int, int]:
    """How many calls of tools that this server or its upstream runs have ended, and how many have
    not."""
    calls = [item.get("status") in _OPEN for item in items if item["type"] in SERVER_CALLS]
    return calls.count(False), calls.count(True)
