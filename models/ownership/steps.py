"""What the writes of an attempt store: the end of its log, a finished step, the ending."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from models.lifecycle import Status
from models.secrets import Sealed


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log that is not in the event log yet: one block of frames with the numbers
    `first` to `last`. Empty if `first` > `last`."""

    first: int
    last: int
    frames: bytes


CallOrigins = dict[str, dict[str, str]]
"""id of a call's item -> `key` and `origin` of its row, sealed (worker/run/sealing.py)"""

EMPTY_TAIL = Tail(first=0, last=-1, frames=b"")


@dataclass(frozen=True, slots=True)
class Successor:
    """The response that continues a steered one, with the steers as its input."""

    id: UUID
    items: list[dict[str, Any]]
    created_at: int
    """whole seconds since the epoch"""
    frames: list[bytes]
    """the opening events"""
    secrets: Sealed | None
    parameters: dict[str, Any] | None = None
    """None: those of the steered response"""


@dataclass(frozen=True, slots=True)
class Steering:
    """What becomes of the steers of a response that ends."""

    steers: int
    """how many there are"""
    successor: Successor | None = None
    required_input: list[dict[str, Any]] | None = None
    """for which they wait; None, and no successor: they go back to the client"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ends. `completed_at`: whole seconds since the epoch; `items`: the output from
    `position` on."""

    status: Status
    tail: Tail
    items: list[dict[str, Any]]
    position: int
    usage: dict[str, Any] | None
    completed_at: int
    turns: int = 0
    error: dict[str, Any] | None = None
    reason: str | None = None
    failure: dict[str, Any] | None = None
    changed: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(position, item) of items stored at a checkpoint that have changed: calls that were
    running"""
    origins: CallOrigins = field(default_factory=dict)
    unanswered_calls: list[str] = field(default_factory=list)
    service_tier: str | None = None
    upstream_fields: dict[str, Any] | None = None
    """of a native upstream's Response object (models/wire/response.py)"""
    upstream: str | None = None
    """which upstream answered the last turn"""
    failed_upstream: str | None = None
    """of one that has failed: the upstream because of which, else the one that answered last"""
    history_size: int | None = None
    """of what a continuation begins with (models/wire/json_input.py); None: not known"""
    steering: Steering | None = None
    """None: it is not known that the response was steered"""
    cost: int | None = None
    """in billionths of the currency (models/prices.py); None: not known"""


@dataclass(frozen=True, slots=True)
class Step:
    """What a checkpoint stores: a turn of the model, or calls that run before its first turn."""

    items: list[dict[str, Any]]
    position: int
    """of the first item in the output"""
    calls: list[dict[str, Any]]
    """the tool calls that this server runs: position, output_index, turn, finished"""
    turns: int
    """1 for a turn of the model, else 0"""
    usage: dict[str, Any] | None
    """of the whole response so far"""
    next_output_index: int
    upstream: str | None = None
    """which upstream answered it"""
    origins: CallOrigins = field(default_factory=dict)
